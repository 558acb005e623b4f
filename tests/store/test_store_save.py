"""save: records under the fence, many tasks in one commit; ends and waits with the last of them."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward.core import record as r
from onward.core.task import State
from onward.store.port.core import Batch, Claimed, Store
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
    together,
    waiting,
)


async def held(store: Store, count: int, worker: str = "w1") -> list[Claimed]:
    await join(store, worker)
    await submit(store, *[new() for _ in range(count)])
    return await claim(store, worker, count)


async def overtaken(store: Store, by: str = "w2", worker: str = "w1") -> Claimed:
    """A task whose worker was declared dead, and that another has claimed."""
    old = await begun(store, worker)
    await store.workers.rescue([worker])
    await join(store, by)
    await claim(store, by, 1)
    return old


# ── the fence ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_records_are_written_as_they_are(store: Store) -> None:
    held = await begun(store)
    data = bytes(range(256))
    batch = Batch([(held.id, 3, 2, r.STEP_DONE, "ä#2", data, 12.5), (held.id, 4, 2, r.PROGRESS, "", b"{}", 13.25)])
    assert await store.save("w1", batch) == set()
    assert [(x.seq, x.shift, x.kind, x.key, x.data, x.at) for x in await store.journal(held.id, after=2)] == [
        (3, 2, r.STEP_DONE, "ä#2", data, 12.5),
        (4, 2, r.PROGRESS, "", b"{}", 13.25),
    ]


async def test_refused_when_the_number_is_taken(store: Store) -> None:
    old = await overtaken(store)
    assert await store.save("w1", Batch([entry(old)])) == {old.id}
    assert await kinds(store, old.id) == [r.SUBMITTED, r.SHIFT, r.SHIFT]


async def test_all_records_of_a_task_stand_or_fall_together(store: Store) -> None:
    """The first record is refused. The number of the second is free, but it must not be written either."""
    old = await overtaken(store)
    assert await store.save("w1", Batch([entry(old, 1), entry(old, 2), entry(old, 3)])) == {old.id}
    assert await kinds(store, old.id) == [r.SUBMITTED, r.SHIFT, r.SHIFT]
    assert await dense(store, old.id)


async def test_a_later_number_that_is_taken_refuses_the_earlier_ones_too(store: Store) -> None:
    held = await begun(store)
    await sql(
        store,
        f"INSERT INTO onward_journal SELECT task_id, 5, 5, 'shift.started', '', data, at FROM onward_journal WHERE task_id = '{held.id}' AND seq = 1",
    )
    assert await store.save("w1", Batch([entry(held, 1), entry(held, 2), entry(held, 3)])) == {held.id}
    assert [x.seq for x in await store.journal(held.id)] == [1, 2, 5]


@pytest.mark.parametrize("ending", ["end", "wait"])
async def test_a_refused_settle_changes_nothing(store: Store, ending: str, time: Time) -> None:
    old = await overtaken(store)
    batch = completion(old) if ending == "end" else waiting(old, time.now + 60, "asleep", attempt=7)
    assert await store.save("w1", batch) == {old.id}
    task = await store.get(old.id)
    assert task is not None
    assert (task.state, task.worker, task.attempt, task.due_at) == (State.RUNNING, "w2", 1, None)
    assert await sql(store, "SELECT count(*) FROM onward_outcomes") == [(0,)]
    assert await store.health.census() == []


@pytest.mark.parametrize("ending", ["step", "end", "wait"])
async def test_neighbours_in_the_commit_are_not_hurt(store: Store, ending: str) -> None:
    old = await overtaken(store)
    tasks = await held(store, 6, "w3")
    bad = {"step": Batch([entry(old), entry(old, 2)]), "end": completion(old), "wait": waiting(old, None, "queued")}
    good = [Batch([entry(o, 1, key="a"), entry(o, 2, key="b")]) for o in tasks[:2]]
    good += [completion(o) for o in tasks[2:4]] + [waiting(o, None, "queued") for o in tasks[4:]]
    assert await store.save("w3", together(*good[:3], bad[ending], *good[3:])) == {old.id}
    for task in tasks[:2]:
        assert [x.key for x in await store.journal(task.id, after=2)] == ["a", "b"]
    assert [(await store.get(o.id)).state for o in tasks[2:]] == [State.COMPLETED] * 2 + [State.PENDING] * 2  # type: ignore[union-attr]
    assert await kinds(store, old.id) == [r.SUBMITTED, r.SHIFT, r.SHIFT]
    assert await store.health.census() == []


async def test_several_refused_in_one_commit(store: Store) -> None:
    tasks = await held(store, 5)
    await store.workers.rescue(["w1"])
    await join(store, "w2")
    taken = {c.id for c in await claim(store, "w2", 3)}
    assert await store.save("w1", together(*[completion(o) for o in tasks])) == taken
    assert {o.id for o in tasks if (await store.get(o.id)).state is State.COMPLETED} == {o.id for o in tasks} - taken  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", ["step", "end", "wait"])
async def test_a_record_of_the_same_shift_counts_as_written(store: Store, ending: str, time: Time) -> None:
    """The commit happened and its answer was lost: the same batch comes again."""
    held = await begun(store)
    batch = {
        "step": Batch([entry(held, 1), entry(held, 2)]),
        "end": together(Batch([entry(held, 1)]), completion(held, 2)),
        "wait": waiting(held, time.now + 5, "asleep"),
    }[ending]
    assert await store.save("w1", batch) == set()
    before = await store.journal(held.id), await store.get(held.id)
    assert await store.save("w1", batch) == set()
    assert (await store.journal(held.id), await store.get(held.id)) == before


async def test_the_same_again_with_neighbours_that_are_new(store: Store) -> None:
    task, two = await held(store, 2)
    await store.save("w1", Batch([entry(task)]))
    assert await store.save("w1", Batch([entry(task), entry(two)])) == set()
    assert [x.seq for x in await store.journal(two.id)] == [1, 2, 3]


async def test_a_settle_sent_again_does_not_undo_later_changes(store: Store) -> None:
    """The wait was written, its answer was lost, and another worker holds the task by now: a repeat must not free it."""
    held = await begun(store)
    batch = waiting(held, None, "queued")
    await store.save("w1", batch)
    await join(store, "w2")
    (other,) = await claim(store, "w2")
    assert await store.save("w1", batch) == set()
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.worker) == (State.RUNNING, "w2")
    assert await store.save("w2", completion(other)) == set()


async def test_a_step_sent_again_after_another_shift_began(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", Batch([entry(held)]))
    await store.workers.rescue(["w1"])
    await join(store, "w2")
    await claim(store, "w2")
    assert await store.save("w1", Batch([entry(held)])) == set(), "it had been written"
    assert await store.save("w1", Batch([entry(held, 2)])) == {held.id}, "and this one had not"


async def test_after_the_end_everything_is_refused(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", completion(held))
    cancelled = await begun(store, "w2")
    await store.cancel(cancelled.id)
    assert await store.save("w2", Batch([entry(cancelled)])) == {cancelled.id}
    assert await store.save("w2", completion(cancelled)) == {cancelled.id}
    assert (await store.get(held.id)).state is State.COMPLETED  # type: ignore[union-attr]
    assert (await store.get(cancelled.id)).state is State.CANCELLED  # type: ignore[union-attr]
    assert await store.health.census() == []


async def test_a_thousand_records_of_many_tasks_in_one_commit(store: Store) -> None:
    tasks = await held(store, 100)
    entries = [entry(task, n + 1, key=f"s{n}") for n in range(20) for task in tasks]
    random.Random(3).shuffle(tasks)
    assert await store.save("w1", Batch(entries)) == set()
    for task in tasks[:5]:
        assert [x.key for x in await store.journal(task.id, after=2)] == [f"s{n}" for n in range(20)]
    assert await store.health.census() == []


# ── ends and waits ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
async def test_an_end(store: Store, time: Time, state: State) -> None:
    held = await begun(store)
    time.move(5)
    assert await store.save("w1", completion(held, state=state)) == set()
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.reason, task.worker, task.finished_at, task.ended) == (state, None, None, time.now, True)
    assert (task.result, task.error) == (
        (42, None) if state is State.COMPLETED else (None, {"type": "E", "message": "m"})
    )
    assert await sql(store, "SELECT count(*) FROM onward_queue") == [(0,)]
    assert await claim(store) == []


async def test_an_end_keeps_the_attempt_it_took(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", waiting(held, None, "retrying", attempt=3))
    (again,) = await claim(store)
    assert again.attempt == 3
    await store.save("w1", completion(again))
    assert (await store.get(held.id)).attempt == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(("reason", "state"), [("retrying", State.PENDING), ("asleep", State.WAITING)])
async def test_a_wait_until_a_time(store: Store, time: Time, reason: str, state: State) -> None:
    await join(store, "w1", lease=1000)
    held = await begun(store)
    assert await store.save("w1", waiting(held, time.now + 30, reason, attempt=2)) == set()
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.reason, task.due_at, task.attempt, task.worker) == (state, reason, time.now + 30, 2, None)
    assert not (await store.wake()).woken
    assert await claim(store) == []
    time.move(30)
    assert (await store.wake()).woken
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.reason, task.due_at) == (State.PENDING, "queued", None)
    (again,) = await claim(store)
    assert (again.id, again.attempt) == (held.id, 2)


async def test_a_wait_without_a_time_is_ready_at_once(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", waiting(held, None, "queued"))
    assert [c.id for c in await claim(store)] == [held.id]


@pytest.mark.parametrize("reason", ["parked", "quarantined"])
async def test_a_wait_for_a_person_is_woken_by_no_clock(store: Store, time: Time, reason: str) -> None:
    await join(store, "w1", lease=1e12)
    held = await begun(store)
    await store.save("w1", waiting(held, math.inf, reason))
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.reason, task.due_at) == (State.WAITING, reason, math.inf)
    time.move(1e9)
    outlook = await store.wake()
    assert (outlook.woken, outlook.next_due_in) == (False, None)
    assert await claim(store) == []
    assert await store.health.census() == [], "a person was asked, so this is fine"


@pytest.mark.parametrize(("reason", "left"), [("queued", 0), ("asleep", 0), ("delayed", 1)])
async def test_a_wait_forgives_crashes(store: Store, reason: str, left: int) -> None:
    """But not one of a task that this worker could not do: another worker may crash at it again."""
    await begun(store, "w1")
    await store.workers.rescue(["w1"])
    await join(store, "w2")
    (held,) = await claim(store, "w2")
    assert await crashes(store, held.id) == 1
    await store.save("w2", waiting(held, None, reason))
    assert await crashes(store, held.id) == left


# ── wake and outlook ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_outlook_of_an_empty_store_is_empty(store: Store) -> None:
    outlook = await store.wake()
    assert (outlook.woken, outlook.queues, outlook.next_due_in, outlook.suspects) == (False, (), None, ())


async def test_the_outlook_names_queues_and_the_next_sleeper(store: Store, time: Time) -> None:
    await submit(store, new(queue="b"), new(queue="a"), new(queue="b"), new(queue="c", delay=20.0), new(delay=9.0))
    outlook = await store.wake()
    assert sorted(outlook.queues) == ["a", "b"]
    assert outlook.next_due_in == 9.0
    time.move(9)
    outlook = await store.wake()
    assert outlook.woken
    assert sorted(outlook.queues) == ["a", "b", "default"]
    assert outlook.next_due_in == 11.0
    assert not (await store.wake()).woken, "woken once"


async def test_a_held_task_is_no_ready_one(store: Store) -> None:
    await begun(store)
    assert (await store.wake()).queues == ()


async def test_the_outlook_names_the_queues_of_suspects(store: Store) -> None:
    (task_id,) = await submit(store, new(queue="q"))
    for n in range(3):
        assert (await store.wake()).suspects == ()
        await join(store, f"w{n}")
        await claim(store, f"w{n}", queue="q")
        await store.workers.rescue([f"w{n}"])
    assert (await store.wake()).suspects == ("q",)
    await join(store, "w")
    await claim(store, "w", queue="q", alone=True)
    assert (await store.wake()).suspects == (), "it runs"
    assert await crashes(store, task_id) == 3


async def test_a_thousand_sleepers_and_one_more(store: Store, time: Time) -> None:
    ids = await submit(store, *[new(delay=1.0 + n / 10_000) for n in range(1_050)])
    time.move(10)
    while (await store.wake()).woken:
        pass
    await join(store, "w1")
    assert sorted(c.id for c in await claim(store, room=2_000)) == sorted(ids)


async def test_no_sleeper_is_woken_early(store: Store, time: Time) -> None:
    now, soon = await submit(store, new(delay=1.0), new(delay=1.01))
    time.move(1)
    outlook = await store.wake()
    assert outlook.next_due_in == pytest.approx(0.01, abs=1e-3)
    await join(store, "w1")
    assert [c.id for c in await claim(store)] == [now]
    assert (await store.get(soon)).reason == "delayed"  # type: ignore[union-attr]


async def test_many_wake_at_once(store: Store, time: Time) -> None:
    await submit(store, *[new(delay=1.0) for _ in range(100)])
    time.move(1)
    await asyncio.gather(*[store.wake() for _ in range(10)])
    await join(store, "w1")
    assert len(await claim(store, room=200)) == 100


async def test_a_sleeper_keeps_its_place_in_the_line(store: Store, time: Time) -> None:
    """A task that slept was submitted before those that came later, and is not sent to the end of the line."""
    await join(store, "w1", lease=100)
    old = await begun(store)
    await store.save("w1", waiting(old, time.now + 1, "asleep"))
    (younger,) = await submit(store)
    time.move(1)
    await store.wake()
    assert [c.id for c in await claim(store)] == [old.id, younger]


# ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _settles(tasks: list[Claimed], ending: str) -> Batch:
    made = {
        "end": completion,
        "wait": lambda task: waiting(task, None, "queued"),
        "step": lambda task: Batch([entry(task)]),
    }
    return together(*[made[ending](task) for task in tasks])


PLANS = {
    "a small table": (),
    "a large table": ("hashjoin", "mergejoin", "seqscan", "bitmapscan"),
    "a bitmap": ("hashjoin", "mergejoin", "seqscan", "indexscan"),
}


@pytest.fixture(params=list(PLANS))
async def planned(store: Store, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Makes new connections plan their statements as for a table of this size, or read rows by a bitmap: in the order of the table."""
    for scan in PLANS[request.param]:
        await sql(store, f"ALTER DATABASE recycled SET enable_{scan} = off")
    yield
    await sql(store, "ALTER DATABASE recycled RESET ALL")


@only_postgres
@pytest.mark.parametrize("pair", ["end end", "wait wait", "step step", "wait rescue", "end rescue"])
@pytest.mark.owner
async def test_statements_of_many_rows_never_wait_for_each_other(
    store: Any, planned: None, open_another: Any, pair: str
) -> None:
    """Two statements that lock the same rows in different orders wait for each other, until the database fails one. The port
    promises one order. Here both stop in the middle, at a row that a third has locked, and then go on."""
    tasks = await held(store, 30)
    middle = sorted(task.id for task in tasks)[15]
    for task in sorted(
        tasks, key=lambda task: task.id, reverse=True
    ):  # the table has them in another order than their ids
        await sql(store, f"UPDATE onward_queue SET position = DEFAULT WHERE task_id = '{task.id}'")
    calls = []
    for verb, order in zip(pair.split(), (tasks, tasks[::-1]), strict=True):
        door = await open_another()
        calls.append(door.workers.rescue(["w1"]) if verb == "rescue" else door.save("w1", _settles(order, verb)))
    blocker = await open_another()
    async with blocker._db.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT 1 FROM onward_queue WHERE task_id = $1 FOR UPDATE", middle)
        await connection.execute("INSERT INTO onward_journal VALUES ($1, 3, 0, 'x', '', '', 0)", middle)
        running = asyncio.gather(*calls)
        await eventually(lambda: _waiting_for_locks(connection))
        await transaction.rollback()
    await running
    assert await store.health.census() == []


async def _waiting_for_locks(connection: Any) -> bool:
    waiting_sessions = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return waiting_sessions >= 2
