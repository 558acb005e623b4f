"""get, list, journal, census, doctor: the verbs of readers, and the query that finds stuck tasks."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from onward.core import record as r
from onward.core.task import State, Task
from onward.errors import StoreUnavailable
from onward.store.port.core import Batch, Store
from onward.store.shared import health as census
from tests.kit import Time, begun, claim, completion, entry, join, new, sql, submit, waiting


async def listed(store: Store, **over: Any) -> list[Task]:
    values: dict[str, Any] = {"state": None, "task": None, "queue": None, "limit": 100, "before": None}
    return await store.listing.list(**values | over)


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
        ids = [t.task_id for t in await listed(store, state=state)]
        assert ids == sorted((i for i, (s, _) in want.items() if s is state), reverse=True), state
    assert [t.task_id for t in await listed(store)] == sorted(want, reverse=True)
    assert {t.task_id: t for t in await listed(store)} == {i: await store.get(i) for i in want}, (
        "list shows what get shows"
    )
    assert await store.health.census() == []


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
        await submit(store)  # tasks submitted in between are newer and do not move the pages
    assert seen == sorted(ids, reverse=True)


async def test_the_journal_in_pages(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", Batch([entry(held, n + 1, key=f"s{n}") for n in range(25)]))
    assert [x.seq for x in await store.journal(held.id)] == list(range(1, 28))
    assert [x.seq for x in await store.journal(held.id, after=5, limit=3)] == [6, 7, 8]
    assert await store.journal(held.id, after=27) == []
    assert await store.journal("nobody") == []
    seen: list[int] = []
    while page := await store.journal(held.id, seen[-1] if seen else 0, 10):
        seen += [x.seq for x in page]
    assert seen == list(range(1, 28))


async def test_updated_at_is_the_time_of_the_last_record(store: Store, time: Time) -> None:
    held = await begun(store)
    await store.save("w1", Batch([(held.id, 3, 2, r.STEP_DONE, "s", b'{"result":1}', time.now + 33)]))
    assert (await store.get(held.id)).updated_at == time.now + 33  # type: ignore[union-attr]


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
    held = await begun(store)
    await store.save("w1", Batch([entry(held, kind=r.COMPLETED)]))
    if fault == "ended without an ending in its journal":
        await sql(store, "INSERT INTO onward_outcomes SELECT task_id, 'completed', 1, 3, 1.0 FROM onward_queue")
        await sql(store, "DELETE FROM onward_queue")
    assert await store.health.census() == []
    await sql(store, FAULTS[fault].format(never="'Infinity'" if kind == "postgres" else "9e999"))
    assert await store.health.census() == [(held.id, fault)]
    assert await store.health.recent_census(10) == [(held.id, fault)]


@pytest.mark.owner
async def test_the_census_of_a_journal_that_does_not_begin_at_one(store: Store) -> None:
    held = await begun(store)
    await sql(store, "UPDATE onward_journal SET seq = seq + 10 WHERE seq = 2")
    await sql(store, "UPDATE onward_journal SET seq = 2 WHERE seq = 1")
    assert (held.id, "has a gap in its journal") in await store.health.census()


async def ended_before(store: Store, count: int) -> list[str]:
    """Adds `count` ended tasks, before all others."""
    ids = [f"0{number:025}" for number in range(count)]
    blob = "'1'" if type(store).__name__ == "PostgresStore" else "CAST('1' AS BLOB)"
    rows = ", ".join(f"('{id_}', 'old', 'default', 0, 1, 'f', {blob}, {blob})" for id_ in ids)
    await sql(
        store,
        f"INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options) VALUES {rows}",
    )
    records = ", ".join(
        f"('{id_}', {seq}, 0, '{kind}', '', {blob}, 1)"
        for id_ in ids
        for seq, kind in ((1, r.SUBMITTED), (2, "approval.requested"), (3, r.COMPLETED))
    )
    await sql(store, f"INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES {records}")
    outcomes = ", ".join(f"('{id_}', 'completed', 1, 3, 1)" for id_ in ids)
    await sql(store, f"INSERT INTO onward_outcomes VALUES {outcomes}")
    return ids


async def test_the_whole_census_goes_in_slices_and_reports_progress(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "SLICE_RECORDS", 7)
    ids = await ended_before(store, 20)
    for broken in (ids[0], ids[9], ids[19]):
        await sql(store, f"DELETE FROM onward_journal WHERE seq = 2 AND task_id = '{broken}'")
    await sql(
        store, "INSERT INTO onward_journal SELECT 'zz', 1, 0, 'progress', '', data, 1 FROM onward_journal LIMIT 1"
    )
    seen: list[int] = []
    faults = await store.health.census(seen.append)
    assert sorted(faults) == [
        *[(task_id, "has a gap in its journal") for task_id in (ids[0], ids[9], ids[19])],
        ("zz", "has records although there is no such task"),
    ]
    assert seen == sorted(set(seen))
    assert len(seen) >= 6


async def test_a_slice_that_takes_too_long_is_made_smaller(store: Store) -> None:
    await ended_before(store, 3)
    sizes: list[int] = []

    async def bound(low: str, records: int) -> str | None:
        sizes.append(records)
        return "x" if low < "x" else None

    async def look(low: str, high: str) -> list[tuple[str, str]]:
        if sizes[-1] > 1_000:
            raise StoreUnavailable("too long")
        return [(low, high)]

    assert await census.in_slices(bound, look, census.unseen) == [("", "x"), ("x", census.LAST_ID)]
    assert sizes == [20_000, 2_500, 312, 312]


async def test_the_quick_census_looks_at_the_oldest_unfinished_and_the_newest(store: Store) -> None:
    ids = await ended_before(store, 9)
    for broken in (ids[0], ids[4], ids[8]):
        await sql(store, f"DELETE FROM onward_journal WHERE seq = 3 AND task_id = '{broken}'")
    fault = "ended without an ending in its journal"
    assert await store.health.recent_census(2) == [(ids[8], fault)], "of history, the newest"
    assert len(await store.health.census()) == 3
    await sql(
        store,
        "INSERT INTO onward_queue (task_id, queue, task, priority, reason) VALUES ('"
        + ids[4]
        + "', 'q', 'old', 0, 'queued')",
    )
    assert (ids[4], "has a queue row although it has ended") in await store.health.recent_census(2)


async def test_the_quick_census_and_the_asks_read_no_history(store: Store, kind: str) -> None:
    """By the plan: no scan of a table of history without a condition on its index."""
    await ended_before(store, 400)
    if kind == "postgres":
        await sql(store, "ANALYZE")
        from onward.store.postgres.execute import S

        for name in ("census_lately", "asked", "asks", "open_asks_by_kind"):
            values: dict[str, Any] = {"most": 5, "of_all": True, "tenant": "", "from_id": "", "hops": 200}
            values |= {"ids": ["a", "b"], "any_kind": True, "kind": "", "after": "", "seq": 0, "limit": 200}
            values |= {"small": 8_000, "head": 1_000}
            async with store._db.connection() as connection:  # type: ignore[attr-defined]
                rows = await connection.fetch(
                    f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {S[name].sql}", *S[name](**values)
                )
            assert _read(json.loads(rows[0][0])[0]["Plan"]) < 100, name
    else:
        from onward.store.sqlite.execute import S as L

        for name in ("census_lately", "asked", "asks", "open_asks_by_kind"):
            plan = await sql(store, "EXPLAIN QUERY PLAN " + re.sub(r"\?\d+", "1", L[name].sql))
            scans = [row[3] for row in plan if re.match(r"SCAN (t|j|o|u|onward_(tasks|journal|outcomes))\b", row[3])]
            ends = {  # the first of an index, under a LIMIT
                "census_lately": ["SCAN onward_tasks USING INDEX sqlite_autoindex_onward_tasks_1"]
            }.get(name, [])
            assert scans == ends, name


def _read(plan: dict[str, Any]) -> float:
    """The rows that a plan reads of the tables of history."""
    own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) if plan.get("Relation Name") in HISTORY else 0
    return own * plan["Actual Loops"] + sum(_read(part) for part in plan.get("Plans", []))


HISTORY = {"onward_tasks", "onward_journal", "onward_outcomes"}


async def test_open_asks_are_found_among_tasks_that_asked_and_ended(store: Store) -> None:
    """The query hops between tasks that asked and unfinished tasks, and must find each that is both, at any place."""
    ids = await ended_before(store, 12)
    for number, task_id in enumerate(ids):
        if number in (0, 3, 4, 7, 11):
            await sql(store, f"DELETE FROM onward_outcomes WHERE task_id = '{task_id}'")
            await sql(
                store,
                f"INSERT INTO onward_queue (task_id, queue, task, priority, reason) VALUES ('{task_id}', 'q', 'old', 0, 'approval')",
            )
    for quiet in ("0" * 25 + "a", "1" * 26):
        await sql(
            store,
            f"INSERT INTO onward_queue (task_id, queue, task, priority, reason) VALUES ('{quiet}', 'q', 'old', 0, 'queued')",
        )
    assert [ask.task_id for ask in await store.listing.asks()] == [ids[number] for number in (0, 3, 4, 7, 11)]
    assert (await store.overview.snapshot()).asks == {"approval.requested": 5}  # type: ignore[attr-defined]


@pytest.mark.parametrize("deep", [False, True])
async def test_the_doctor_finds_a_sound_database_sound(store: Store, kind: str, deep: bool) -> None:
    checks = await store.health.doctor(deep=deep)
    assert ("file" in {name for name, _, _ in checks}) == (deep and kind != "postgres")
    bad = {name for name, fine, _ in checks if fine is False}
    assert bad <= ({"fsync"} if kind == "postgres" else set()), "the server of the tests runs without fsync"
    assert all(name and text for name, _, text in checks)
