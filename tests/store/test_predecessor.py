"""An append demands its predecessor: after the database has lost commits, the appends of a worker leave no holes."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from onward.core import record as r
from onward.core.record import Entry
from onward.core.task import State
from onward.store.port.core import Batch, Claimed, End, Store, Wait
from tests.kit import begun, claim, completion, dense, entry, join, kinds, new, sql, submit, together


async def forget(store: Store, held: Claimed, after: int) -> None:
    """Deletes the records of a task after this number, as a restore does."""
    await sql(store, f"DELETE FROM onward_journal WHERE task_id = '{held.id}' AND seq > {after}")


def after(held: Claimed, ahead: int, at: float) -> Entry:
    return (held.id, held.shift + ahead, held.shift, r.STEP_DONE, "s", b'{"result":1}', at)


async def test_a_record_without_its_predecessor_is_refused(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    held = await begun(store)
    await store.save("w1", Batch([entry(held, 1), entry(held, 2)]))
    await forget(store, held, after=3)
    with caplog.at_level(logging.ERROR):
        assert await store.save("w1", Batch([entry(held, 3)])) == {held.id}
    assert [record.seq for record in await store.journal(held.id)] == [1, 2, 3]
    assert f"task {held.id}: record 5 cannot be written, because record 4" in caplog.text
    assert "lost its last commits" in caplog.text


async def test_several_records_of_a_task_stand_or_fall_with_the_one_before_the_first(store: Store) -> None:
    held = await begun(store)
    assert await store.save("w1", Batch([entry(held, n) for n in (1, 2, 3)])) == set()
    assert await store.save("w1", Batch([entry(held, n) for n in (4, 5, 6)])) == set()
    await forget(store, held, after=4)
    assert await store.save("w1", Batch([entry(held, n) for n in (7, 8)])) == {held.id}
    assert await dense(store, held.id)


async def test_neighbours_in_the_same_commit_are_written(store: Store) -> None:
    await join(store, "w1")
    await submit(store, *[new() for _ in range(40)])
    held = await claim(store, "w1", 40)
    assert await store.save("w1", Batch([entry(task, 1) for task in held])) == set()
    lost = held[::3]
    for task in lost:
        await forget(store, task, after=2)
    assert await store.save("w1", Batch([entry(task, 2) for task in held])) == {task.id for task in lost}
    for task in held:
        assert await dense(store, task.id)
        assert len(await store.journal(task.id)) == (2 if task in lost else 4)


@pytest.mark.parametrize("ending", ["end", "wait"])
async def test_a_settle_without_its_predecessor_settles_nothing(store: Store, ending: str) -> None:
    await join(store, "w1")
    await submit(store, new(), new())
    held, other = await claim(store, "w1", 2)
    await store.save("w1", Batch([entry(held, 1), entry(other, 1)]))
    await forget(store, held, after=2)
    if ending == "end":
        batch = together(completion(held, 2), completion(other, 2))
    else:
        waits = [Wait(task.id, None, "queued", 1) for task in (held, other)]
        batch = Batch([entry(task, 2, r.HANDED_BACK, "", b"{}") for task in (held, other)], waits=waits)
    assert await store.save("w1", batch) == {held.id}
    assert await kinds(store, held.id) == [r.SUBMITTED, r.SHIFT]
    assert (await store.get(held.id)).state is State.RUNNING  # type: ignore[union-attr]
    assert (await store.get(other.id)).state is (State.COMPLETED if ending == "end" else State.PENDING)  # type: ignore[union-attr]
    assert await store.health.census() == []


async def test_the_same_number_of_another_shift_is_not_the_predecessor(store: Store, time: Any) -> None:
    """The claim of one worker was lost, and another claim got the same number. The first must not write behind it."""
    first = await begun(store)
    await forget(store, first, after=1)
    await sql(store, f"UPDATE onward_queue SET worker = NULL, reason = 'queued' WHERE task_id = '{first.id}'")
    time.move(0.5)
    await join(store, "w2")
    (second,) = await claim(store, "w2", 1)
    assert second.shift == first.shift
    late, fine = after(first, 1, at=3.0), after(second, 1, at=4.0)
    assert await store.save("w1", Batch([late], known={first.id: first.claimed_at})) == {first.id}
    assert await store.save("w2", Batch([fine], known={second.id: second.claimed_at})) == set()
    assert await store.save("w1", Batch([late], known={first.id: first.claimed_at})) == {first.id}, "it is another's"
    assert await store.save("w1", Batch([after(first, 2, at=5.0)], known={first.id: 3.0})) == {first.id}
    assert [record.at for record in await store.journal(first.id, after=2)] == [4.0]


async def test_a_commit_whose_answer_was_lost_is_found_although_the_next_has_no_room(store: Store) -> None:
    held = await begun(store)
    sent = Batch([after(held, 1, at=time.time()), after(held, 2, at=time.time())], known={held.id: held.claimed_at})
    assert await store.save("w1", sent) == set()
    assert await store.save("w1", sent) == set()
    assert len(await store.journal(held.id)) == 4


@pytest.mark.owner
async def test_a_transaction_without_its_predecessor_writes_nothing(store: Store) -> None:
    held = await begun(store)
    await sql(store, "DROP TABLE IF EXISTS paid")
    await sql(store, "CREATE TABLE paid (n integer)")
    await store.save("w1", Batch([task := after(held, 1, at=7.0)], known={held.id: held.claimed_at}))

    async def pay(connection: Any, entry: Entry) -> Entry:
        await connection.execute("INSERT INTO paid VALUES (1)")
        return entry

    assert await store.transact(lambda c: pay(c, after(held, 2, at=8.0)), 5, task[6])
    await forget(store, held, after=3)
    assert not await store.transact(lambda c: pay(c, after(held, 3, at=9.0)), 5, 8.0)
    assert not await store.transact(lambda c: pay(c, after(held, 2, at=9.0)), 5, 6.0), "the predecessor is another"
    assert await sql(store, "SELECT n FROM paid") == [(1,)]
    assert await dense(store, held.id)


async def test_an_end_behind_a_dropped_journal_is_refused_although_its_task_is_there(store: Store) -> None:
    held = await begun(store)
    await forget(store, held, after=0)
    end = Batch([entry(held, 1, r.COMPLETED, "", b"{}")], [End(held.id, State.COMPLETED, 1, held.shift + 1)])
    assert await store.save("w1", end) == {held.id}
    assert await store.journal(held.id) == []
