"""claim: ready tasks by priority and order of submission; never two holders; nothing for a worker without a lease."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from onward.core.task import State
from onward.store.port.core import SUSPECT_AFTER, Batch, Claimed, Store
from tests.kit import (
    Time,
    claim,
    completion,
    crashes,
    dense,
    entry,
    join,
    kinds,
    new,
    only_postgres,
    sql,
    submit,
    together,
    waiting,
)


async def test_a_claimed_task_has_all_a_worker_needs(store: Store, time: Time) -> None:
    await join(store, "w1")
    wanted = new(input=b"[1]", options=b'{"deadline":5}')
    await store.submit([wanted])
    time.move(3)
    (held,) = await claim(store)
    assert (held.id, held.task, held.input, held.options) == (wanted.id, "work", b"[1]", b'{"deadline":5}')
    assert (held.shift, held.attempt, held.crashes) == (2, 1, 0)
    assert (held.created_at, held.claimed_at) == (time.now - 3, time.now)
    task = await store.get(wanted.id)
    assert task is not None
    assert (task.state, task.reason, task.worker, task.deadline_at) == (State.RUNNING, "running", "w1", time.now + 5)
    first, shift = await store.journal(wanted.id)
    assert first.kind == "task.submitted"
    assert (shift.seq, shift.shift, shift.kind) == (2, 2, "shift.started")
    assert json.loads(shift.data) == {"worker": "w1"}


async def test_nothing_ready_is_an_empty_list(store: Store) -> None:
    await join(store, "w1")
    assert await claim(store) == []
    await submit(store)
    assert len(await claim(store)) == 1
    assert await claim(store) == [], "it is held"


async def test_room_is_never_exceeded(store: Store) -> None:
    await join(store, "w1")
    await submit(store, *[new() for _ in range(7)])
    assert len(await claim(store, room=3)) == 3
    assert len(await claim(store, room=1)) == 1
    assert len(await claim(store, room=10)) == 3


async def test_priority_then_order_of_submission(store: Store) -> None:
    await join(store, "w1")
    routine = await submit(store, new(priority=0), new(priority=0))
    (low,) = await submit(store, new(priority=-5))
    (hotfix,) = await submit(store, new(priority=10))
    (late,) = await submit(store, new(priority=0))
    assert [c.id for c in await claim(store)] == [hotfix, *routine, late, low]


async def test_order_of_submission_not_of_ids(store: Store) -> None:
    """Another machine's clock may be ahead: its ids sort later, its tasks still wait their turn."""
    await join(store, "w1")
    ahead, behind = new(id="zzz"), new(id="aaa")
    await submit(store, ahead)
    await submit(store, behind)
    assert [c.id for c in await claim(store)] == ["zzz", "aaa"]


async def test_one_by_one_gives_the_same_order(store: Store) -> None:
    await join(store, "w1")
    tasks = [new(priority=n % 3) for n in range(12)]
    await submit(store, *tasks)
    wanted = [t.id for t in sorted(tasks, key=lambda t: -t.priority)]
    assert [(await claim(store, room=1))[0].id for _ in range(12)] == wanted


async def test_priority_changed_while_waiting(store: Store) -> None:
    await join(store, "w1")
    first, second, third = await submit(store, new(), new(), new())
    assert await store.prioritize(third, 5)
    assert await store.prioritize(first, -5)
    assert [c.id for c in await claim(store)] == [third, second, first]


async def test_queues_are_apart(store: Store) -> None:
    await join(store, "w1")
    (default_task,) = await submit(store, new())
    (other_task,) = await submit(store, new(queue="other", priority=100))
    assert [c.id for c in await claim(store)] == [default_task]
    assert [c.id for c in await claim(store, queue="other")] == [other_task]
    assert await claim(store, queue="nobody's") == []


async def test_a_task_without_a_handler_here_is_left_for_others(store: Store) -> None:
    await join(store, "w1", "w2")
    (foreign,) = await submit(store, new("foreign", priority=9))
    (own,) = await submit(store, new("work"))
    assert [c.id for c in await claim(store)] == [own]
    assert (await store.get(foreign)).state is State.PENDING  # type: ignore[union-attr]
    assert await claim(store, names=[]) == []
    assert [c.id for c in await claim(store, "w2", names=["work", "foreign"])] == [foreign]


async def test_not_for_an_unknown_worker(store: Store) -> None:
    (task_id,) = await submit(store)
    assert await claim(store, "stranger") == []
    assert await kinds(store, task_id) == ["task.submitted"]


async def test_not_for_a_worker_whose_lease_has_ended(store: Store, time: Time) -> None:
    await join(store, "w1", lease=10)
    (task_id,) = await submit(store)
    time.move(10)
    assert await claim(store) == [], "the lease ends at its last moment"
    assert await kinds(store, task_id) == ["task.submitted"]
    await store.workers.heartbeat("w1", 10, 0)
    assert len(await claim(store)) == 1


async def test_not_for_a_worker_that_was_declared_dead(store: Store) -> None:
    await join(store, "w1")
    await store.workers.rescue(["w1"])
    await submit(store)
    assert await claim(store) == []


async def test_a_second_shift_goes_on_at_the_next_number(store: Store) -> None:
    await join(store, "w1", "w2")
    (task_id,) = await submit(store)
    (held,) = await claim(store, "w1")
    await store.save("w1", together(_steps(held, 3), waiting(held, None, "queued", ahead=4)))
    (again,) = await claim(store, "w2")
    assert again.shift == 7
    assert (await store.journal(task_id))[-1].seq == 7
    assert await dense(store, task_id)


def _steps(held: Claimed, count: int) -> Batch:
    return Batch([entry(held, n + 1, key=f"s{n}") for n in range(count)])


async def test_never_two_holders(store: Store, open_another: Any, kind: str) -> None:
    """Many claimers at once, from several connections: each task goes to exactly one of them."""
    doors = [store] if kind == "sqlite memory" else [store, await open_another(), await open_another()]
    workers = [f"w{n}" for n in range(12)]
    await join(store, *workers)
    ids = await submit(store, *[new() for _ in range(400)])
    got: list[tuple[str, str]] = []

    async def work(number: int) -> None:
        door, worker = doors[number % len(doors)], workers[number]
        idle = 0
        while idle < 3:
            claimed = await claim(door, worker, room=1 + number % 7)
            got.extend((held.id, worker) for held in claimed)
            idle = 0 if claimed else idle + 1

    await asyncio.gather(*[work(n) for n in range(12)])
    assert sorted(task_id for task_id, _ in got) == sorted(ids)
    holders = dict(await sql(store, "SELECT task_id, worker FROM onward_queue"))
    assert holders == dict(got), "the store agrees with the answers of the claims"
    assert await sql(store, "SELECT count(*) FROM onward_journal WHERE kind = 'shift.started'") == [(400,)]


async def test_claims_and_settles_side_by_side_leave_nothing_behind(store: Store, open_another: Any, kind: str) -> None:
    doors = [store] if kind == "sqlite memory" else [store, await open_another()]
    await join(store, "w0", "w1", "w2", "w3")
    ids = await submit(store, *[new() for _ in range(200)])
    done: list[str] = []

    async def work(number: int) -> None:
        door, worker = doors[number % len(doors)], f"w{number}"
        while len(done) < 200:
            for held in await claim(door, worker, room=9):
                assert await door.save(worker, completion(held)) == set()
                done.append(held.id)

    await asyncio.wait_for(asyncio.gather(*[work(n) for n in range(4)]), 60)
    assert sorted(done) == sorted(ids)
    assert await store.health.census() == []


@only_postgres
async def test_a_claim_skips_locked_rows(store: Any, open_another: Any) -> None:
    """A claim skips a locked row: one slow transaction does not stop the workers."""
    await join(store, "w1")
    locked, free = await submit(store, new(priority=1), new())
    other = await open_another()
    async with other._db.connection() as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM onward_queue WHERE task_id = $1 FOR UPDATE", locked)
        assert [c.id for c in await asyncio.wait_for(claim(store), 60)] == [free]
    assert [c.id for c in await claim(store)] == [locked]


async def _suspect(store: Store, task_id: str, crashed: int = SUSPECT_AFTER) -> None:
    for n in range(crashed):
        await join(store, f"crash{n}")
        assert [c.id for c in await claim(store, f"crash{n}", 1)] == [task_id]
        await store.workers.rescue([f"crash{n}"])
    assert await crashes(store, task_id) == crashed


async def test_a_suspect_is_only_claimed_alone(store: Store) -> None:
    (suspect,) = await submit(store)
    await _suspect(store, suspect)
    (innocent,) = await submit(store)
    await join(store, "w1")
    assert [c.id for c in await claim(store)] == [innocent]
    assert await claim(store, "w1", alone=False) == []
    (held,) = await claim(store, room=1, alone=True)
    assert (held.id, held.crashes) == (suspect, SUSPECT_AFTER)


async def test_innocents_are_not_claimed_as_suspects(store: Store) -> None:
    await join(store, "w1")
    (task_id,) = await submit(store)
    await _suspect(store, task_id, SUSPECT_AFTER - 1)
    assert await claim(store, alone=True) == []
    assert [c.id for c in await claim(store)] == [task_id]


async def test_a_claim_meets_an_append_that_is_just_being_committed(store: Store) -> None:
    """A worker that was wrongly declared dead appends while another claims: one of them gets the next number, and the
    other is refused and has changed nothing."""
    won = {"worker": 0, "claimer": 0}
    await join(store, "w2")
    for turn in range(40):
        await join(store, f"old{turn}")
        (task_id,) = await submit(store)
        (held,) = await claim(store, f"old{turn}", 1)
        await store.workers.rescue([f"old{turn}"])
        saving, claiming = store.save(f"old{turn}", _steps(held, 2)), claim(store, "w2", 1)
        refused, claimed = (
            await asyncio.gather(saving, claiming) if turn % 2 else (await asyncio.gather(claiming, saving))[::-1]
        )
        written = [
            key
            for _, key in await sql(
                store, f"SELECT seq, key FROM onward_journal WHERE task_id = '{task_id}' AND kind = 'step.completed'"
            )
        ]
        if refused:
            assert written == [], "n+1 was refused, so n+2 was as well"
            assert [c.shift for c in claimed] == [3]
            won["claimer"] += 1
        else:
            assert written == ["s0", "s1"]
            won["worker"] += 1
            claimed = claimed or await claim(store, "w2", 1)
            assert [c.shift for c in claimed] == [5]
        assert await dense(store, task_id)
        await store.save("w2", completion(claimed[0]))
    assert won["worker"], won
    assert won["claimer"], won
    assert await store.health.census() == []
