"""Locks in the store: tokens that only grow, one holder at a time, a line in the order of arrival, and holders that die."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from onward.core import record as r
from onward.core.audit import AuditEvent
from onward.core.lock import MAX_LOCKS_OF_TASK, WAITER_TTL_S, Busy, LockRequest, Taken, bucket_of
from onward.core.task import State
from onward.errors import TooManyLocks
from onward.store.port.core import Batch, End, Store, Wait
from onward.store.port.values import Claimed
from tests.kit import Time, claim, entry, join, new, not_memory, sql, submit

EVENT = AuditEvent("release_lock", "deploy", None)


def program(name: str = "deploy", owner: str = "p1", tenant: str = "", ttl_s: float = 10.0) -> LockRequest:
    return LockRequest(tenant, name, owner, owner, ttl_s=ttl_s)


def block(task_id: str, name: str = "deploy", key: str = "lock deploy", tenant: str = "") -> LockRequest:
    return LockRequest(tenant, name, f"{task_id} {key}", task_id, task_id, key)


async def token(store: Store, request: LockRequest) -> int:
    taken = await store.locks.take(request)
    assert isinstance(taken, Taken), taken
    return taken.token


async def held_tasks(store: Store, count: int) -> list[Claimed]:
    await join(store, "w1")
    await submit(store, *[new() for _ in range(count)])
    return await claim(store, "w1", count)


def suspended(held: Claimed, ahead: int = 1) -> Batch:
    """A task that waits for a lock, and has read all its messages."""
    return Batch([entry(held, ahead, r.HANDED_BACK, "", b"{}")], waits=[Wait(held.id, math.inf, "lock", 1, held.inbox)])


async def test_a_token_is_larger_than_all_before_it(store: Store) -> None:
    tokens = []
    for owner in ("p1", "p2", "p1", "p1"):
        tokens.append(await token(store, program(owner=owner)))
        await store.locks.leave(program(owner=owner), tokens[-1])
    assert tokens == sorted(set(tokens))
    assert await sql(store, "SELECT count(*) FROM onward_locks") == [(0,)], "a free lock has no row"


async def test_the_same_owner_takes_it_again_with_a_new_token(store: Store) -> None:
    first = await token(store, program())
    second = await token(store, program())
    assert second > first
    assert not await store.locks.renew(program(), first), "the first token is stale"
    assert not await store.locks.leave(program(), first)
    assert await store.locks.renew(program(), second)


async def test_one_holder_at_a_time_and_the_others_in_their_order(store: Store) -> None:
    first = await token(store, program(owner="p1"))
    assert await store.locks.take(program(owner="p2")) == Busy("p1", pytest.approx(0, abs=1e12))
    assert isinstance(await store.locks.take(program(owner="p3")), Busy)
    await store.locks.leave(program(owner="p1"), first)
    busy = await store.locks.take(program(owner="p3"))
    assert isinstance(busy, Busy)
    assert (busy.holder, busy.holds) == ("p2", False), "it came first"
    assert isinstance(await store.locks.take(program(owner="p1")), Busy), "a new one does not pass the line"
    second = await token(store, program(owner="p2"))
    assert second > first
    await store.locks.leave(program(owner="p2"), second)
    assert await token(store, program(owner="p3")) > second


async def test_locks_of_two_tenants_are_two_locks(store: Store) -> None:
    await token(store, program(tenant="acme", owner="p1"))
    await token(store, program(tenant="globex", owner="p2"))
    await token(store, program(tenant="", owner="p3"))
    seen = await store.locks.list("acme", 10)
    assert [(lock.tenant, lock.holder.holder) for lock in seen if lock.holder] == [("acme", "p1")]
    assert len(await store.locks.list(None, 10)) == 3
    assert [lock.tenant for lock in await store.locks.list("", 10)] == [None]


async def test_a_lease_that_has_ended_frees_the_lock(store: Store, time: Time) -> None:
    first = await token(store, program(owner="p1"))
    time.move(9)
    assert await store.locks.renew(program(owner="p1"), first)
    time.move(9)
    assert isinstance(await store.locks.take(program(owner="p2")), Busy)
    time.move(2)
    assert await token(store, program(owner="p2")) > first
    assert not await store.locks.renew(program(owner="p1"), first)


async def test_a_waiting_program_that_asks_no_more_loses_its_place(store: Store, time: Time) -> None:
    first = await token(store, program(owner="p1", ttl_s=100.0))
    await store.locks.take(program(owner="p2"))
    time.move(WAITER_TTL_S - 1)
    await store.locks.take(program(owner="p3"))
    await store.locks.leave(program(owner="p1"), first)
    assert isinstance(await store.locks.take(program(owner="p3")), Busy)
    time.move(2)
    assert await token(store, program(owner="p3")) > first


async def test_a_program_that_died_in_the_line_holds_up_the_next_for_its_lease_at_most(
    store: Store, time: Time
) -> None:
    first = await token(store, program(owner="p1", ttl_s=1.0))
    await store.locks.take(program(owner="p2", ttl_s=1.0))
    await store.locks.take(program(owner="p3", ttl_s=1.0))
    time.move(0.9)
    await store.locks.take(program(owner="p3", ttl_s=1.0))  # p1 and p2 are dead
    time.move(0.2)
    assert await token(store, program(owner="p3", ttl_s=1.0)) > first


async def test_a_task_frees_its_lock_with_the_record_that_it_left_the_block(store: Store) -> None:
    (held,) = await held_tasks(store, 1)
    await token(store, block(held.id))
    await token(store, block(held.id, "other", "lock other"))
    batch = Batch([entry(held, 1, r.LOCK_LEFT, "lock deploy", b"{}")], unlocks=[(held.id, "lock deploy")])
    assert await store.save("w1", batch) == set()
    assert [lock.name for lock in await store.locks.list(None, 10)] == ["other"]
    late = Batch([entry(held, 1, r.LOCK_LEFT, "lock other", b"{}")], unlocks=[(held.id, "lock other")])
    refused = (*late.entries[0][:2], 99, *late.entries[0][3:])
    assert await store.save("w2", Batch([refused], unlocks=late.unlocks)) == {held.id}
    assert [lock.name for lock in await store.locks.list(None, 10)] == ["other"], "a refused record frees nothing"


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
async def test_the_end_of_a_task_frees_all_its_locks(store: Store, state: State) -> None:
    (held,) = await held_tasks(store, 1)
    await token(store, block(held.id))
    await store.locks.take(block(held.id, "deploy", "lock deploy#2"))
    end = End(held.id, state, 1, held.shift + 1)
    await store.save("w1", Batch([entry(held, 1, f"task.{state}", "", b"{}")], [end], unlocks=[(held.id, "")]))
    assert await store.locks.list(None, 10) == []


async def test_a_cancelled_task_neither_holds_nor_waits(store: Store) -> None:
    first, second = await held_tasks(store, 2)
    await token(store, block(first.id))
    await store.locks.take(block(second.id))
    await store.cancel(second.id)
    (lock,) = await store.locks.list(None, 10)
    assert (lock.waiting, lock.holder and lock.holder.task_id) == (0, first.id)
    await store.cancel(first.id)
    assert await store.locks.list(None, 10) == []


async def test_a_task_that_ended_without_freeing_its_lock_does_not_keep_it(store: Store) -> None:
    """Its shift died between the taking and the record, and the code of the next one had no block."""
    (held,) = await held_tasks(store, 1)
    before = await token(store, block(held.id))
    end = End(held.id, State.COMPLETED, 1, held.shift + 1)
    await store.save("w1", Batch([entry(held, 1, r.COMPLETED, "", b'{"result":1}')], [end]))
    assert await token(store, program()) > before
    await store.locks.leave(program())
    assert await store.locks.call_next() == []


async def test_the_next_task_in_the_line_gets_one_message(store: Store, time: Time) -> None:
    holder, second, third = await held_tasks(store, 3)
    await token(store, block(holder.id))
    for waiter in (second, third):
        assert isinstance(await store.locks.take(block(waiter.id)), Busy)
        await store.save("w1", suspended(waiter))
    assert await store.locks.call_next() == []
    await store.save(
        "w1", Batch([entry(holder, 1, r.LOCK_LEFT, "lock deploy", b"{}")], unlocks=[(holder.id, "lock deploy")])
    )
    assert await store.locks.call_next() == [second.id]
    assert await store.locks.call_next() == [], "it was told"
    (message,) = await store.inbox(second.id)
    assert (message.kind, message.name) == ("lock", "deploy")
    (woken,) = await claim(store, "w1", 5)
    assert woken.id == second.id
    time.move(31)
    assert await store.locks.call_next() == [second.id], "it has not come for it"
    await token(store, block(second.id))
    assert await store.locks.call_next() == []


async def test_a_paused_task_is_passed_over_and_keeps_its_place(store: Store) -> None:
    holder, second, third = await held_tasks(store, 3)
    first = await token(store, block(holder.id))
    for waiter in (second, third):
        await store.locks.take(block(waiter.id))
        await store.save("w1", suspended(waiter))
    await store.pause(second.id)
    await store.locks.leave(block(holder.id), first)
    assert await store.locks.call_next() == [third.id]
    taken = await token(store, block(third.id))
    await store.resume(second.id)
    await store.locks.leave(block(third.id), taken)
    await store.locks.take(block(third.id, key="lock deploy#2"))
    busy = await store.locks.take(block(third.id, key="lock deploy#2"))
    assert isinstance(busy, Busy)
    assert busy.holder == second.id


async def test_a_task_has_a_bounded_number_of_locks(store: Store) -> None:
    (held,) = await held_tasks(store, 1)
    for number in range(MAX_LOCKS_OF_TASK):
        await token(store, block(held.id, f"n{number}", f"lock n{number}"))
    with pytest.raises(TooManyLocks):
        await store.locks.take(block(held.id))
    assert await token(store, block(held.id, "n0", "lock n0")), "one that it has may be taken again"


async def test_an_operator_releases_a_lock(store: Store) -> None:
    first = await token(store, program())
    assert await store.locks.release("", "deploy", EVENT) == ("p1", first, "", "p1")
    assert await store.locks.release("", "deploy", EVENT) is None
    assert not await store.locks.renew(program(), first)
    assert [event.action for event in await store.audit.entries(0, 10)] == ["release_lock"]


async def test_a_listing_comes_in_pages(store: Store) -> None:
    for number in range(5):
        await token(store, program(f"n{number}", owner=f"p{number}"))
    page = await store.locks.list(None, 2)
    assert [lock.name for lock in page] == ["n0", "n1"]
    assert [lock.name for lock in await store.locks.list(None, 10, ("", "n1"))] == ["n2", "n3", "n4"]


async def test_contenders_at_once_are_served_one_by_one(store: Store) -> None:
    """Many tasks of one process, on connections of their own where the database has them."""
    not_memory(store)
    inside: list[str] = []
    seen: list[int] = []

    async def turns(owner: str) -> None:
        done = 0
        while done < 5:
            taken = await store.locks.take(program(owner=owner))
            if isinstance(taken, Busy):
                await asyncio.sleep(0.002)
                continue
            inside.append(owner)
            assert inside == [owner]
            seen.append(taken.token)
            await asyncio.sleep(0)
            inside.remove(owner)
            assert await store.locks.leave(program(owner=owner), taken.token)
            done += 1

    await asyncio.gather(*[turns(f"p{number}") for number in range(8)])
    assert len(seen) == 40
    assert seen == sorted(set(seen))


async def test_locks_of_one_bucket_do_not_meet(store: Store) -> None:
    same = [name for name in (f"n{number}" for number in range(2000)) if bucket_of("", name) == bucket_of("", "n0")]
    tokens: list[Any] = [await token(store, program(name, owner=f"p{name}")) for name in same[:3]]
    assert tokens == sorted(set(tokens))
