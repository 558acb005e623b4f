"""schedules and turn: of several workers that turn a schedule from the same mark one succeeds, and submits its tasks with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core import crash
from onward.core.schedule import ScheduleRow
from onward.store.port.core import Store
from onward.store.shared import schedules as shared_schedules
from tests.kit import Time, claim, join, new, next_id, not_memory, sql


def row(name: str = "nightly", **over: Any) -> ScheduleRow:
    values: dict[str, Any] = {
        "name": name,
        "task": "work",
        "input": b"null",
        "options": b'{"deadline":5.0}',
        "queue": "default",
        "priority": 3,
        "cron": "0 3 * * *",
        "every": None,
        "timezone": "Europe/Berlin",
        "missed": "skip",
        "next_at": 100.5,
        "last_at": None,
        "paused": False,
        "mark": "m1",
    }
    return ScheduleRow(**values | over)


async def marks(store: Store) -> dict[str, str]:
    return {row.name: row.mark for row in (await store.schedules.list()).rows}


async def keys(store: Store) -> list[str]:
    return [row[0] for row in await sql(store, "SELECT key FROM onward_tasks ORDER BY key")]


async def test_a_schedule_comes_back_as_it_was_written(store: Store, time: Time) -> None:
    kept = [row(), row("often", cron=None, every=900.0, timezone="UTC", next_at=None, last_at=7.0, paused=True)]
    assert await store.schedules.list() == (time.now, [])
    for item in reversed(kept):
        assert await store.schedules.advance(item.name, None, item)
    assert await store.schedules.list() == (time.now, kept)
    assert type((await store.schedules.list()).rows[1].paused) is bool


async def test_the_soonest_come_first_and_the_paused_not_at_all(store: Store) -> None:
    for name, at in (("c", 30.0), ("a", 20.0), ("b", 10.0), ("d", None), ("e", 20.0)):
        await store.schedules.advance(name, None, row(name, next_at=at, paused=at is None))
    assert [schedule.name for schedule in (await store.schedules.soonest(3)).rows] == ["b", "a", "e"]
    assert [schedule.name for schedule in (await store.schedules.soonest(9)).rows] == ["b", "a", "e", "c"]


async def test_a_turn_moves_the_schedule_and_submits_its_tasks(store: Store) -> None:
    await join(store, "w1")
    await store.schedules.advance("nightly", None, row())
    task = new(key="schedule:nightly:1")
    assert await store.schedules.advance("nightly", "m1", row(next_at=200.0, last_at=100.5, mark="m2"), [task])
    assert (await store.schedules.list()).rows == [row(next_at=200.0, last_at=100.5, mark="m2")]
    assert [held.id for held in await claim(store)] == [task.id]
    assert await store.health.census() == []


async def test_a_turn_from_an_old_mark_does_nothing(store: Store) -> None:
    await store.schedules.advance("nightly", None, row())
    await store.schedules.advance("nightly", "m1", row(mark="m2"))
    assert not await store.schedules.advance("nightly", "m1", row(mark="m3", next_at=9.0), [new(key="k")])
    assert not await store.schedules.advance("nightly", None, row(mark="m4"), [new(key="k")])
    assert not await store.schedules.advance("nightly", "m1", None)
    assert not await store.schedules.advance("other", "m1", row("other"), [new(key="k")])
    assert await marks(store) == {"nightly": "m2"}
    assert await keys(store) == []


async def test_a_turn_that_is_sent_again_returns_the_first_answer(store: Store) -> None:
    task = new(key="schedule:nightly:1")
    for _ in range(2):
        assert await store.schedules.advance("nightly", None, row())
    for _ in range(2):
        assert await store.schedules.advance("nightly", "m1", row(mark="m2"), [task._replace(id=next_id())])
    assert await keys(store) == ["schedule:nightly:1"]
    for _ in range(2):
        assert await store.schedules.advance("nightly", "m2", None)
    assert await marks(store) == {}


async def test_a_key_that_is_there_is_left_and_the_others_come(store: Store) -> None:
    first = new(key="schedule:nightly:1")
    await store.submit([first])
    await store.schedules.advance("nightly", None, row())
    assert await store.schedules.advance(
        "nightly", "m1", row(mark="m2"), [new(key=f"schedule:nightly:{n}") for n in (1, 2)]
    )
    assert await keys(store) == ["schedule:nightly:1", "schedule:nightly:2"]
    assert (await store.by_key(["schedule:nightly:1"]))["schedule:nightly:1"].id == first.id
    assert await store.health.census() == []


async def test_a_thousand_tasks_in_one_turn(store: Store) -> None:
    await store.schedules.advance("nightly", None, row())
    assert await store.schedules.advance("nightly", "m1", row(mark="m2"), [new(key=f"k{n:04}") for n in range(1000)])
    assert (await store.queues.depth("default")).waiting == 1000


async def test_a_turn_that_fails_in_the_middle_has_done_nothing(store: Store) -> None:
    await store.schedules.advance("nightly", None, row())

    def fail(point: str) -> None:
        if point == "tick.before":
            raise RuntimeError(point)

    crash.install(fail)
    try:
        with pytest.raises(RuntimeError, match=r"tick\.before"):
            await store.schedules.advance("nightly", "m1", row(mark="m2"), [new(key="k")])
    finally:
        crash.install(None)
    assert await marks(store) == {"nightly": "m1"}
    assert await store.schedules.advance("nightly", "m1", row(mark="m2"), [new(key="k")])
    assert await keys(store) == ["k"]


@not_memory
async def test_of_many_turns_at_once_one_succeeds(store: Store, open_another: Any) -> None:
    stores = [store, *[await open_another() for _ in range(5)]]
    added = await asyncio.gather(
        *[opened.schedules.advance("nightly", None, row(mark=f"m0.{n}")) for n, opened in enumerate(stores)]
    )
    assert sorted(added) == [False] * 5 + [True]
    for turn in range(1, 11):
        seen = (await marks(store))["nightly"]
        done = await asyncio.gather(
            *[
                opened.schedules.advance("nightly", seen, row(mark=f"m{turn}.{n}"), [new(key=f"k{turn:02}.{n}")])
                for n, opened in enumerate(stores)
            ]
        )
        assert sorted(done) == [False] * 5 + [True]
        assert (await marks(store))["nightly"] == f"m{turn}.{done.index(True)}"
    assert len(await keys(store)) == 10


async def test_schedules_come_in_pages_of_a_bounded_number(store: Store) -> None:
    names = [f"s{n}" for n in range(7)]
    for name in names:
        await store.schedules.advance(name, None, row(name))
    pages, after = list[list[str]](), ""
    while after is not None:
        _, rows = await store.schedules.list(after=after, limit=3)
        pages.append([schedule.name for schedule in rows])
        after = rows.next
    assert pages == [names[:3], names[3:6], names[6:]]
    assert [schedule.name for schedule in (await store.schedules.get("s4")).rows] == ["s4"]
    assert (await store.schedules.get("s")).rows == []


async def test_schedules_come_in_pages_of_bounded_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_schedules, "PAGE_BYTES", 10_000)
    for n in range(6):
        await store.schedules.advance(
            f"s{n}", None, row(f"s{n}", input=b'"%s"' % (b"x" * (30_000 if n == 4 else 4_000)))
        )
    pages, after = list[list[str]](), ""
    while after is not None:
        _, rows = await store.schedules.list(after=after)
        pages.append([schedule.name for schedule in rows])
        after = rows.next
    assert pages == [["s0", "s1", "s2"], ["s3", "s4"], ["s5"]], "the one with which a page has its bytes is the last"
    assert [schedule.name async for schedule in shared_schedules.each_stored(store._db)] == [f"s{n}" for n in range(6)]  # type: ignore[attr-defined]
