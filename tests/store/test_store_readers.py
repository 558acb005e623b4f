"""get, list, journal, census, doctor: what readers see, and the query that finds what nothing will ever move."""

from __future__ import annotations

import math
from typing import Any

import pytest

from onward.core import record as r
from onward.core.task import State, Task
from onward.store.port import Batch, Store
from tests.kit import Time, begun, claim, completion, entry, join, new, sql, submit, waiting


async def listed(store: Store, **over: Any) -> list[Task]:
    values: dict[str, Any] = {"state": None, "task": None, "queue": None, "limit": 100, "before": None}
    return await store.list(**values | over)


async def test_get_of_nothing(store: Store) -> None:
    assert await store.get("nobody") is None
    assert await store.get("' OR 1=1 --") is None


async def test_one_task_of_every_state(store: Store, time: Time) -> None:
    await join(store, "w1", lease=1000)
    want: dict[str, tuple[State, str | None]] = {}
    done, failed, asleep, retrying, parked, quarantined, running = [await begun(store) for _ in range(7)]
    await store.save("w1", completion(done))
    await store.save("w1", completion(failed, state=State.FAILED))
    await store.save("w1", waiting(asleep, time.now + 5, "asleep"))
    await store.save("w1", waiting(retrying, time.now + 5, "retrying"))
    await store.save("w1", waiting(parked, math.inf, "parked"))
    await store.save("w1", waiting(quarantined, math.inf, "quarantined"))
    queued, delayed, cancelled = await submit(store, new(), new(delay=5.0), new())
    await store.cancel(cancelled)
    want = {
        done.id: (State.COMPLETED, None),
        failed.id: (State.FAILED, None),
        asleep.id: (State.WAITING, "asleep"),
        retrying.id: (State.PENDING, "retrying"),
        parked.id: (State.WAITING, "parked"),
        quarantined.id: (State.WAITING, "quarantined"),
        running.id: (State.RUNNING, "running"),
        queued: (State.PENDING, "queued"),
        delayed: (State.PENDING, "delayed"),
        cancelled: (State.CANCELLED, None),
    }
    for task_id, (state, reason) in want.items():
        task = await store.get(task_id)
        assert task is not None
        assert (task.state, task.reason) == (state, reason)
    for state in State:
        found = [t.task_id for t in await listed(store, state=state)]
        assert found == sorted((i for i, (s, _) in want.items() if s is state), reverse=True), state
    assert [t.task_id for t in await listed(store)] == sorted(want, reverse=True)
    assert {t.task_id: t for t in await listed(store)} == {i: await store.get(i) for i in want}, (
        "list shows what get shows"
    )
    assert await store.census() == []


async def test_list_by_task_and_queue(store: Store) -> None:
    await join(store, "w1")
    a, b, c = await submit(store, new("work", queue="x"), new("other", queue="x"), new("work", queue="y"))
    done, _ = await submit(store, new("work", queue="z"), new("work", queue="z"))
    (held,) = await claim(store, queue="z", room=1)
    assert held.id == done
    await store.save("w1", completion(held))

    async def ids(**over: Any) -> set[str]:
        return {t.task_id for t in await listed(store, **over)}

    assert await ids(task="other") == {b}
    assert await ids(queue="x") == {a, b}
    assert await ids(queue="x", task="work") == {a}
    assert await ids(state=State.PENDING, queue="y") == {c}
    assert await ids(state=State.PENDING, task="other") == {b}
    assert await ids(state=State.COMPLETED, queue="z", task="work") == {done}
    assert await ids(state=State.COMPLETED, queue="x") == set()
    assert await ids(task="nobody's") == set()


@pytest.mark.parametrize("state", [None, State.PENDING, State.COMPLETED, State.FAILED])
async def test_pages_without_a_gap_or_a_double(store: Store, state: State | None) -> None:
    await join(store, "w1")
    ids = await submit(store, *[new() for _ in range(25)])
    if state in {State.COMPLETED, State.FAILED}:
        for held in await claim(store, room=25):
            await store.save("w1", completion(held, state=state))
    seen: list[str] = []
    while page := await listed(store, state=state, limit=7, before=seen[-1] if seen else None):
        assert len(page) <= 7
        seen += [t.task_id for t in page]
        await submit(store)  # what comes in between is newer and does not move the pages
    assert seen == sorted(ids, reverse=True)


async def test_the_journal_in_pages(store: Store) -> None:
    one = await begun(store)
    await store.save("w1", Batch([entry(one, n + 1, key=f"s{n}") for n in range(25)]))
    assert [x.seq for x in await store.journal(one.id)] == list(range(1, 28))
    assert [x.seq for x in await store.journal(one.id, after=5, limit=3)] == [6, 7, 8]
    assert await store.journal(one.id, after=27) == []
    assert await store.journal("nobody") == []
    seen: list[int] = []
    while page := await store.journal(one.id, seen[-1] if seen else 0, 10):
        seen += [x.seq for x in page]
    assert seen == list(range(1, 28))


async def test_updated_at_is_the_time_of_the_last_record(store: Store, time: Time) -> None:
    one = await begun(store)
    await store.save("w1", Batch([(one.id, 3, 2, r.STEP_DONE, "s", b'{"result":1}', time.now + 33)]))
    assert (await store.get(one.id)).updated_at == time.now + 33  # type: ignore[union-attr]


# ── census ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FAULTS = {
    "has neither a queue row nor an outcome": "DELETE FROM onward_queue",
    "has a queue row although it has ended": "INSERT INTO onward_outcomes SELECT task_id, 'completed', 1, 3, 1.0 FROM onward_queue",
    "is held by a worker that does not exist": "DELETE FROM onward_workers",
    "sleeps for ever although no person was asked": "UPDATE onward_queue SET worker = NULL, due_at = {never}, reason = 'asleep'",
    "ended without an ending in its journal": "UPDATE onward_journal SET kind = 'progress' WHERE seq = 3",
    "has a gap in its journal": "DELETE FROM onward_journal WHERE seq = 2",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_census_finds_each_fault(store: Store, kind: str, fault: str) -> None:
    one = await begun(store)
    await store.save("w1", Batch([entry(one, kind=r.COMPLETED)]))
    if fault == "ended without an ending in its journal":
        await sql(store, "INSERT INTO onward_outcomes SELECT task_id, 'completed', 1, 3, 1.0 FROM onward_queue")
        await sql(store, "DELETE FROM onward_queue")
    assert await store.census() == []
    await sql(store, FAULTS[fault].format(never="'Infinity'" if kind == "postgres" else "9e999"))
    assert await store.census() == [(one.id, fault)]


async def test_the_census_of_a_journal_that_does_not_begin_at_one(store: Store) -> None:
    one = await begun(store)
    await sql(store, "UPDATE onward_journal SET seq = seq + 10 WHERE seq = 2")
    await sql(store, "UPDATE onward_journal SET seq = 2 WHERE seq = 1")
    assert (one.id, "has a gap in its journal") in await store.census()


async def test_the_doctor_finds_a_sound_database_sound(store: Store, kind: str) -> None:
    found = await store.doctor()
    bad = {name for name, fine, _ in found if not fine}
    assert bad <= ({"fsync"} if kind == "postgres" else set()), "the server of the tests runs without fsync"
    assert all(name and text for name, _, text in found)
