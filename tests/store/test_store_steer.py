"""cancel, resume, prioritize: verbs of callers outside, which append to a journal that a worker may be appending to."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from onward.core import record as r
from onward.core.task import State
from onward.store.port.core import Batch, Store
from tests.kit import (
    Time,
    begun,
    claim,
    completion,
    crashes,
    dense,
    entry,
    eventually,
    join,
    kinds,
    new,
    only_postgres,
    sql,
    submit,
    waiting,
)


async def state(store: Store, task_id: str) -> State:
    task = await store.get(task_id)
    assert task is not None
    return task.state


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_cancel_ends_a_waiting_task(store: Store, time: Time) -> None:
    (task_id,) = await submit(store)
    assert await store.cancel(task_id)
    task = await store.get(task_id)
    assert task is not None
    assert (task.state, task.reason, task.finished_at, task.result, task.error) == (
        State.CANCELLED,
        None,
        time.now,
        None,
        None,
    )
    assert await kinds(store, task_id) == [r.SUBMITTED, r.CANCEL, r.CANCELLED]
    await join(store, "w1")
    assert await claim(store) == []
    assert await store.health.census() == []


async def test_cancel_fences_the_worker_that_holds_the_task(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", Batch([entry(held, 1)]))
    assert await store.cancel(held.id)
    assert await store.save("w1", Batch([entry(held, 2)])) == {held.id}
    assert (await store.workers.heartbeat("w1", 10, 0)).held == frozenset(), "the heartbeat no longer lists the task"
    assert await kinds(store, held.id) == [r.SUBMITTED, r.SHIFT, r.STEP_DONE, r.CANCEL, r.CANCELLED]


async def test_cancel_wakes_and_ends_a_sleeper(store: Store, time: Time) -> None:
    held = await begun(store)
    await store.save("w1", waiting(held, time.now + 100, "asleep"))
    assert await store.cancel(held.id)
    time.move(100)
    assert not (await store.wake()).woken
    assert await state(store, held.id) is State.CANCELLED


@pytest.mark.parametrize("ended", [State.COMPLETED, State.FAILED, State.CANCELLED])
async def test_cancel_changes_nothing_that_has_ended(store: Store, ended: State) -> None:
    held = await begun(store)
    if ended is State.CANCELLED:
        await store.cancel(held.id)
    else:
        await store.save("w1", completion(held, state=ended))
    before = await store.journal(held.id), await store.get(held.id)
    assert not await store.cancel(held.id)
    assert (await store.journal(held.id), await store.get(held.id)) == before


async def test_cancel_of_nothing(store: Store) -> None:
    assert not await store.cancel("nobody")


async def test_many_cancels_at_once_and_one_wins(store: Store) -> None:
    (task_id,) = await submit(store)
    assert sum(map(bool, await asyncio.gather(*[store.cancel(task_id) for _ in range(20)]))) == 1
    assert await kinds(store, task_id) == [r.SUBMITTED, r.CANCEL, r.CANCELLED]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["step", "end", "wait"])
async def test_cancel_against_save(store: Store, open_another: Any, kind: str, ending: str) -> None:
    """Either the save was first, and cancel finds its records (an end: then cancel has lost), or cancel was first and the
    save is refused. Never both, never neither."""
    other = store if kind == "sqlite memory" else await open_another()
    won = {"save": 0, "cancel": 0}
    for turn in range(40):
        held = await begun(store)
        batch = {
            "step": Batch([entry(held), entry(held, 2)]),
            "end": completion(held),
            "wait": waiting(held, None, "queued"),
        }
        calls = [store.save("w1", batch[ending]), other.cancel(held.id)]
        if turn % 2:
            refused, cancelled = await asyncio.gather(*calls)
        else:  # the cancel, which takes longer, has a head start, and a larger one each time
            late = asyncio.ensure_future(calls[1])
            await asyncio.sleep(turn * 0.0003)
            refused, cancelled = await calls[0], await late
        written = await kinds(store, held.id)
        assert await dense(store, held.id)
        if refused:
            assert cancelled
            assert written == [r.SUBMITTED, r.SHIFT, r.CANCEL, r.CANCELLED]
            won["cancel"] += 1
        elif ending == "end":
            assert not cancelled, "an ended task cannot be cancelled"
            assert written[-1] == r.COMPLETED
            assert await state(store, held.id) is State.COMPLETED
            won["save"] += 1
        else:
            assert cancelled
            assert written[-2:] == [r.CANCEL, r.CANCELLED]
            assert r.STEP_DONE in written or r.HANDED_BACK in written
            won["save"] += 1
        assert (await state(store, held.id)).ended
    assert won["save"], won
    assert won["cancel"], won
    assert await store.health.census() == []


async def test_cancel_against_claim(store: Store, open_another: Any, kind: str) -> None:
    other = store if kind == "sqlite memory" else await open_another()
    await join(store, "w1")
    for _ in range(30):
        (task_id,) = await submit(store)
        claimed, cancelled = await asyncio.gather(claim(store), other.cancel(task_id))
        assert cancelled
        assert await kinds(store, task_id) == [r.SUBMITTED, *[r.SHIFT] * len(claimed), r.CANCEL, r.CANCELLED]
        for held in claimed:
            assert await store.save("w1", completion(held)) == {task_id}
        assert await state(store, task_id) is State.CANCELLED
    assert await store.health.census() == []


async def test_cancel_against_a_worker_that_writes_without_a_pause(store: Store, open_another: Any, kind: str) -> None:
    """The cancel finds its number taken again and again, and retries until it gets one."""
    other = store if kind == "sqlite memory" else await open_another()
    held = await begun(store)
    written = 0

    async def write() -> None:
        nonlocal written
        while not await store.save("w1", Batch([entry(held, written + 1)])):
            written += 1

    writing = asyncio.ensure_future(write())
    await eventually(lambda: asyncio.sleep(0, written >= 20))
    assert await asyncio.wait_for(other.cancel(held.id), 60)
    await asyncio.wait_for(writing, 60)
    assert (await kinds(store, held.id))[-2:] == [r.CANCEL, r.CANCELLED]
    assert len(await store.journal(held.id, limit=10_000)) == written + 4


@only_postgres
async def test_a_settle_takes_its_locks_in_the_order_of_cancel(store: Any, open_another: Any) -> None:
    """Queue row, journal, outcome. A settle that waits for the queue row must not hold the outcome already: the holder
    of the queue row wants it next."""
    held = await begun(store)
    other = await open_another()
    async with other._db.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT 1 FROM onward_queue WHERE task_id = $1 FOR UPDATE", held.id)
        settling = asyncio.ensure_future(store.save("w1", completion(held)))
        await asyncio.sleep(0.1)
        insert = "INSERT INTO onward_outcomes VALUES ($1, 'cancelled', 1, 3, 0)"
        await connection.execute(insert, held.id, timeout=5)
        await transaction.rollback()
    assert await settling == set()
    assert await state(store, held.id) is State.COMPLETED


# ── resume ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_resume_reopens_a_failed_task(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", waiting(held, None, "retrying", attempt=4))
    (held,) = await claim(store)
    await store.save("w1", completion(held, state=State.FAILED))
    assert await store.resume(held.id)
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.reason, task.attempt, task.error, task.finished_at) == (
        State.PENDING,
        "queued",
        1,
        None,
        None,
    ), "with all its attempts again"
    assert (await kinds(store, held.id))[-2:] == [r.FAILED, r.RESUMED]
    assert await store.health.census() == []
    (again,) = await claim(store)
    assert again.shift == held.shift + 3
    await store.save("w1", completion(again))
    assert await state(store, held.id) is State.COMPLETED
    assert await store.health.census() == []


async def test_a_resumed_task_may_fail_and_be_resumed_again(store: Store) -> None:
    held = await begun(store)
    for _ in range(3):
        await store.save("w1", completion(held, state=State.FAILED))
        assert await state(store, held.id) is State.FAILED
        assert await store.resume(held.id)
        (held,) = await claim(store)
    assert await dense(store, held.id)
    assert await store.health.census() == []


@pytest.mark.parametrize("reason", ["parked", "quarantined"])
async def test_resume_wakes_a_task_that_waits_for_a_person(store: Store, reason: str) -> None:
    held = await begun(store)
    await store.save("w1", waiting(held, math.inf, reason, attempt=2))
    await sql(store, "UPDATE onward_queue SET crashes = 4")
    assert await store.resume(held.id)
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.reason, task.due_at, task.attempt) == (State.PENDING, "queued", None, 2)
    assert await crashes(store, held.id) == 0, "forgiven"
    assert (await kinds(store, held.id))[-1] == r.RESUMED
    assert [c.id for c in await claim(store)] == [held.id]


async def test_resume_leaves_all_others_alone(store: Store, time: Time) -> None:
    await join(store, "w1")
    held, asleep, done, cancelled = [await begun(store) for _ in range(4)]
    (queued,) = await submit(store)
    (delayed,) = await submit(store, new(delay=10.0))
    await store.save("w1", waiting(asleep, time.now + 10, "asleep"))
    await store.save("w1", completion(done))
    await store.cancel(cancelled.id)
    for task_id in [held.id, asleep.id, done.id, cancelled.id, queued, delayed, "nobody"]:
        before = await store.get(task_id), await store.journal(task_id)
        assert not await store.resume(task_id)
        assert (await store.get(task_id), await store.journal(task_id)) == before


@pytest.mark.parametrize("from_", ["failed", "parked"])
async def test_many_resumes_at_once_and_one_wins(store: Store, open_another: Any, kind: str, from_: str) -> None:
    other = store if kind == "sqlite memory" else await open_another()
    held = await begun(store)
    await store.save(
        "w1", completion(held, state=State.FAILED) if from_ == "failed" else waiting(held, math.inf, "parked")
    )
    assert sum(await asyncio.gather(*[door.resume(held.id) for door in (store, other) for _ in range(10)])) == 1
    assert (await kinds(store, held.id)).count(r.RESUMED) == 1
    assert await store.health.census() == []


async def test_resume_against_cancel(store: Store, open_another: Any, kind: str) -> None:
    other = store if kind == "sqlite memory" else await open_another()
    for turn in range(20):
        held = await begun(store)
        await store.save("w1", completion(held, state=State.FAILED) if turn % 2 else waiting(held, math.inf, "parked"))
        resumed, cancelled = await asyncio.gather(store.resume(held.id), other.cancel(held.id))
        now = await state(store, held.id)
        written = await kinds(store, held.id)
        assert (now is State.CANCELLED) == cancelled.won == (written[-1] == r.CANCELLED)
        assert resumed == (r.RESUMED in written)
        assert resumed or cancelled
        assert await dense(store, held.id)
        await store.cancel(held.id)
    assert await store.health.census() == []


# ── prioritize ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_prioritize(store: Store, time: Time) -> None:
    held = await begun(store)
    (queued,) = await submit(store)
    assert await store.prioritize(queued, 3)
    assert await store.prioritize(held.id, -3)
    assert (await store.get(queued)).priority == 3  # type: ignore[union-attr]
    assert (await store.get(held.id)).priority == -3  # type: ignore[union-attr]
    assert await state(store, held.id) is State.RUNNING, "it goes on as it was"
    assert not await store.prioritize("nobody", 1)
    await store.save("w1", completion(held))
    assert not await store.prioritize(held.id, 9)
    assert await state(store, held.id) is State.COMPLETED


# ── pause ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pause_waits_for_a_worker_that_lives_and_has_not_confirmed_it(store: Store, time: Time) -> None:
    held = await begun(store)
    assert await store.pause(held.id) is True
    assert await store.unconfirmed_pauses([held.id]) == [held.id]
    assert (await store.workers.heartbeat("w1", 10, 0)).paused == {held.id}
    assert await store.unconfirmed_pauses([held.id]) == [held.id], (
        "a heartbeat that shows the pause does not confirm it"
    )
    await store.workers.heartbeat("w2", 10, 0, [held.id])
    assert await store.unconfirmed_pauses([held.id]) == [held.id], "nor does another worker confirm it"
    await store.workers.heartbeat("w1", 10, 0, [held.id])
    assert await store.unconfirmed_pauses([held.id]) == []
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.worker) == (State.RUNNING, "w1")
    assert await store.save("w1", Batch([entry(held, 1)])) == set(), "the running step is still recorded"


async def test_a_pause_does_not_wait_for_a_worker_whose_lease_has_ended(store: Store, time: Time) -> None:
    held = await begun(store)
    await store.pause(held.id)
    time.move(11)
    assert await store.unconfirmed_pauses([held.id]) == []


async def test_a_resume_of_a_held_task_refuses_no_record_of_its_worker(store: Store) -> None:
    held = await begun(store)
    await store.pause(held.id)
    await store.workers.heartbeat("w1", 10, 0, [held.id])
    assert await store.resume(held.id)
    assert await store.save("w1", Batch([entry(held, 1)])) == set()
    assert (await store.workers.heartbeat("w1", 10, 0)).paused == frozenset()


@pytest.mark.parametrize("how", ["leave", "release", "rescue"])
async def test_a_paused_task_rests_however_its_worker_lets_go_of_it(store: Store, time: Time, how: str) -> None:
    held = await begun(store)
    await store.pause(held.id)
    if how == "leave":
        await store.workers.leave("w1")
    elif how == "release":
        await store.release("w1", [held.id], time.now)
    else:
        await store.workers.rescue(["w1"])
    await join(store, "w2")
    assert await claim(store, "w2") == []
    task = await store.get(held.id)
    assert task is not None
    assert task.reason == "paused"
    assert await store.health.census() == []
    assert await store.resume(held.id)
    assert [again.id for again in await claim(store, "w2")] == [held.id]


async def test_a_child_of_a_paused_task_is_born_paused(store: Store) -> None:
    held = await begun(store)
    await store.pause(held.id)
    children = [new(parent=held.id, key=key, group=group) for key, group in (("a", None), (None, None), ("b", "acme"))]
    for child in children:
        await store.submit([child])
    assert await claim(store) == []
    for child in children:
        task = await store.get(child.id)
        assert task is not None
        assert task.reason == "paused"
        assert await store.resume(child.id)
    assert {again.id for again in await claim(store)} == {child.id for child in children}


@pytest.mark.parametrize("reason", ["parked", "quarantined"])
async def test_a_second_cancel_undoes_a_task_that_was_stuck_in_the_undo(store: Store, reason: str) -> None:
    """The code of its steps was gone, and is back."""
    held = await begun(store)
    await store.save("w1", Batch([entry(held, 1, kind=r.SAGA, key="saga")]))
    assert (await store.cancel(held.id)).requested
    assert (await store.cancel(held.id)).requested
    assert (await kinds(store, held.id)).count(r.CANCEL) == 1, "it is on its way"
    (again,) = await claim(store, "w1")
    await store.save("w1", waiting(again, math.inf, reason))
    assert (await store.cancel(held.id)).requested
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.reason) == (State.PENDING, "cancelling")
    assert [claimed.id for claimed in await claim(store, "w1")] == [held.id]


async def test_a_cancel_lifts_the_pause_of_a_task_with_an_open_saga(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", Batch([entry(held, 1, kind=r.SAGA, key="saga")]))
    await store.pause(held.id)
    assert (await store.cancel(held.id)).requested
    assert [again.id for again in await claim(store)] == [held.id], "the next shift runs the owed undo steps"
    assert (await store.workers.heartbeat("w1", 10, 0)).paused == frozenset()
