"""Schedules: their ticks, missed ticks, changes by code and by people, and the guide's example."""

from __future__ import annotations

import datetime
import itertools
import logging
import random
import re
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import Onward
from onward.core import wire
from onward.core.ids import Ids
from onward.core.schedule import LATE_S, MAX_TICKS, Rhythm, due, stamp
from onward.core.task import State
from onward.engine.worker.ticker import POLL_INTERVAL_S, SCHEDULES_PER_LOOK, Ticker
from onward.errors import (
    BadSetting,
    InvalidInput,
    QueueFull,
    ScheduleNotFound,
    StoreUnavailable,
    UnknownTask,
    UsageError,
)
from onward.store.sqlite.store import SqliteStore
from tests.kit import HandClock, Lab, Through, eventually, inline_app

BERLIN = "Europe/Berlin"
DAY = 86400.0


def moment(text: str, zone: str = "UTC") -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def cron(line: str, zone: str = "UTC") -> Rhythm:
    return Rhythm(line, None, zone)


def every(seconds: float) -> Rhythm:
    return Rhythm(None, seconds, "UTC")


def some(rhythm: Rhythm, after: float, count: int) -> list[str]:
    return [stamp(tick) for tick in itertools.islice(rhythm.ticks(after), count)]


async def nothing(ctx: Any, value: Any = None) -> None: ...


def app_on(clock: HandClock, **settings: Any) -> Onward:
    app = inline_app(clock, **settings)
    app.task(name="work")(nothing)
    return app


def ticker(app: Any, clock: HandClock, store: Any = None) -> Ticker:
    rng = random.Random(3)
    return Ticker(store or app.store, clock, rng, Ids(clock.now, rng), app.save_schedules)


async def fired(app: Onward, name: str = "s") -> list[str]:
    """The ticks of a schedule for which there is a task, in order."""
    tasks, _ = await app.list(limit=1000)
    return sorted(t.labels["tick"] for t in tasks if t.labels.get("schedule") == name and "tick" in t.labels)


# ── when they tick ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_cron_is_read_in_its_time_zone() -> None:
    assert some(cron("0 3 * * *"), moment("2026-07-01T03:00"), 2) == ["2026-07-02T03:00:00Z", "2026-07-03T03:00:00Z"]
    assert some(cron("0 3 * * *", BERLIN), moment("2026-07-01T03:00"), 1) == ["2026-07-02T01:00:00Z"]
    assert some(cron("*/20 8-9 * * mon"), moment("2026-07-01T00:00"), 2) == ["2026-07-06T08:00:00Z", "2026-07-06T08:20:00Z"]  # fmt: skip


def test_an_hour_that_does_not_exist_ticks_right_after_it() -> None:
    """On 29 March 2026 clocks in Berlin go from 02:00 to 03:00."""
    ticks = some(cron("30 2 * * *", BERLIN), moment("2026-03-28T00:00"), 3)
    assert ticks == ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]


def test_an_hour_that_comes_twice_ticks_once_at_a_fixed_time_and_twice_each_hour() -> None:
    """On 25 October 2026 clocks in Berlin go from 03:00 back to 02:00."""
    daily, hourly = cron("30 2 * * *", BERLIN), cron("30 * * * *", BERLIN)
    ticks = ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    assert some(daily, moment("2026-10-25T00:00"), 2) == ticks
    assert some(daily, moment("2026-10-25T00:30"), 1) == ticks[1:], "it has ticked"
    assert some(daily, moment("2026-10-25T01:15"), 1) == ticks[1:], "also when we ask in the second hour"
    assert some(hourly, moment("2026-10-25T00:00"), 3) == [
        "2026-10-25T00:30:00Z",
        "2026-10-25T01:30:00Z",
        "2026-10-25T02:30:00Z",
    ]


def test_intervals_are_whole_multiples_since_1970() -> None:
    assert some(every(900), moment("2026-07-01T10:07"), 2) == ["2026-07-01T10:15:00Z", "2026-07-01T10:30:00Z"]
    assert some(every(900), moment("2026-07-01T10:15"), 1) == ["2026-07-01T10:30:00Z"]
    assert some(every(1.5), 0.0, 2) == ["1970-01-01T00:00:01.500000Z", "1970-01-01T00:00:03Z"]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, UsageError, "a cron line or an interval"),
        ({"cron": "0 3 * * *", "every": 5}, UsageError, "a cron line or an interval"),
        ({"cron": "0 3 * *"}, BadSetting, "five fields"),
        ({"cron": "0 6 1 * * *"}, BadSetting, "it has 6 fields"),
        ({"cron": "0 3 30 2 *"}, BadSetting, "day-of-month"),
        ({"cron": "0 3 * * *", "timezone": "Mars/Phobos"}, BadSetting, "Europe/Berlin"),
        ({"cron": "0 3 * * *", "missed": "maybe"}, BadSetting, "one of skip, once, all"),
        ({"every": 0.5}, BadSetting, "1 s or more"),
        ({"every": "often"}, BadSetting, "a duration such as"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_where_it_is_declared(options: Any, error: Any, says: str) -> None:
    app = app_on(HandClock())
    with pytest.raises(error, match=says):
        app.schedule("s", "work", **options)


def test_a_name_is_given_once_and_the_handler_must_be_of_this_app() -> None:
    app = app_on(HandClock())
    app.schedule("s", nothing, every="1h")
    with pytest.raises(UsageError, match="two schedules are named 's'"):
        app.schedule("s", "work", every="1h")
    with pytest.raises(UsageError, match="not a handler of this app"):
        app.schedule("t", print, every="1h")
    with pytest.raises(UsageError, match="1 to 200 printable"):
        app.schedule("a\nb", "work", every="1h")


# ── which ticks are due ──────────────────────────────────────────────────────────────────────────────────────────────

RHYTHMS = [
    cron("*/7 * * * *", BERLIN),
    cron("30 2 * * *", BERLIN),
    cron("0 */5 1-3 * *"),
    every(60),
    every(4321.5),
]
looks = st.lists(st.one_of(st.floats(0.1, 200), st.floats(0.1, 5 * DAY)), min_size=1, max_size=12)


@pytest.mark.slow
@given(rhythm=st.sampled_from(RHYTHMS), missed=st.sampled_from(["skip", "once", "all"]), pauses=looks)
def test_no_tick_comes_twice_and_missed_all_fires_all(rhythm: Rhythm, missed: str, pauses: list[float]) -> None:
    start = now = moment("2026-10-23T00:00")
    at, got = rhythm.after(start), []
    for pause in pauses:
        now += pause
        while at is not None and at <= now:
            result = due(rhythm, missed, at, now, alive_since=now - pause)
            assert result.ticks or missed == "all", "a worker was alive: the last one is fired"
            got += result.ticks
            at = result.next_at
    wanted = list(itertools.takewhile(lambda tick: tick <= now, rhythm.ticks(start)))
    assert at == rhythm.after(now)
    assert got == sorted(set(got))
    assert set(got) <= set(wanted)
    assert missed != "all" or got == wanted


def test_missed_ticks_are_skipped_fired_once_or_all_fired() -> None:
    rhythm, hour = every(3600), 3600.0
    first, now, after = hour, 5.5 * hour, 6 * hour
    assert due(rhythm, "skip", first, now, alive_since=now) == ([], after), "no worker was alive"
    assert due(rhythm, "skip", first, now, alive_since=0.5 * hour) == ([5 * hour], after), (
        "a worker was alive: the last one is fired"
    )
    assert due(rhythm, "once", first, now, alive_since=now) == ([5 * hour], after)
    assert due(rhythm, "all", first, now, alive_since=now) == ([n * hour for n in range(1, 6)], after)


def test_a_worker_that_just_started_may_be_a_minute_late() -> None:
    nightly = cron("0 3 * * *")
    tick = moment("2026-07-01T03:00")
    assert due(nightly, "skip", tick, tick + LATE_S - 1, tick + LATE_S - 1).ticks == [tick]
    assert due(nightly, "skip", tick, tick + LATE_S + 1, tick + LATE_S + 1) == ([], tick + DAY)


def test_a_year_of_minutes_is_done_in_parts_and_found_at_once() -> None:
    minutely = cron("* * * * *", BERLIN)
    first = moment("2026-01-01T00:00")
    part = due(minutely, "all", first, first + 366 * DAY, first)
    assert (len(part.ticks), part.next_at) == (MAX_TICKS, first + 60 * MAX_TICKS)
    assert due(minutely, "once", first, first + 366 * DAY, first).ticks == [first + 366 * DAY]


# ── the ticker ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_a_month_of_hours_is_a_moment(clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", {"n": 1}, cron="0 * * * *", timezone=BERLIN, priority=5, deadline="1h", labels={"a": "b"})
    clock.time = moment("2026-10-01T00:30")
    async with app:
        await app.save_schedules()
        chore = ticker(app, clock)
        await chore.look()
        for _ in range(31 * 24):
            (schedule,) = await app.schedules()
            clock.jump((schedule.next_at or 0) - clock.time)
            await chore.look()
        ticks = await fired(app)
        assert ticks == some(cron("0 * * * *"), moment("2026-10-01T00:30"), 31 * 24), (
            "each hour, also when clocks change"
        )
        (task, *_), _ = await app.list(limit=1)
        assert (task.task, task.input, task.priority, task.queue) == ("work", {"n": 1}, 5, "default")
        assert task.labels == {"a": "b", "schedule": "s", "tick": ticks[-1]}
        assert task.key == f"schedule:s:{ticks[-1]}"
        assert (await app.store.health.census()) == []


async def test_the_clocks_of_berlin_change_under_a_living_schedule(clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", cron="30 2 * * *", timezone=BERLIN)
    clock.time = moment("2026-03-27T12:00")
    async with app:
        await app.save_schedules()
        chore = ticker(app, clock)
        for start in ("2026-03-27T12:00", "2026-10-23T12:00"):
            clock.time = moment(start)
            await chore.look()
            while clock.time < moment(start) + 4 * DAY:
                clock.jump(300)
                await chore.look()
        hours = [tick[5:16] for tick in await fired(app) if not tick.startswith("2026-10-23T0")]
    assert hours == [
        "03-28T01:30", "03-29T01:00", "03-30T00:30", "03-31T00:30",
        "10-24T00:30", "10-25T00:30", "10-26T01:30", "10-27T01:30",
    ]  # fmt: skip


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_after_days_without_a_worker(missed: str, count: int, clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", cron="0 3 * * *", missed=missed)
    clock.time = moment("2026-07-01T12:00")
    async with app:
        await app.save_schedules()
        clock.time = moment("2026-07-06T12:00")
        await ticker(app, clock).look()
        ticks = [f"2026-07-0{day}T03:00:00Z" for day in range(2, 7)]
        assert await fired(app) == ticks[5 - count :]
        (schedule,) = await app.schedules()
        assert schedule.next_at == moment("2026-07-07T03:00")
        assert schedule.last_at == (moment("2026-07-06T03:00") if count else None)


async def test_a_worker_that_was_alive_is_late_but_has_missed_nothing(clock: HandClock) -> None:
    """The database was away, or the laptop was closed: the last tick is fired afterwards."""
    app = app_on(clock)
    app.schedule("s", "work", cron="0 3 * * *", missed="skip")
    clock.time = moment("2026-07-01T12:00")
    async with app:
        await app.save_schedules()
        chore = ticker(app, clock)
        await chore.look()
        clock.time = moment("2026-07-04T12:00")
        await chore.look()
        assert await fired(app) == ["2026-07-04T03:00:00Z"]


async def test_a_year_of_missed_minutes_comes_in_rounds(clock: HandClock) -> None:
    app = app_on(clock, queue_limit=10)
    app.schedule("s", "work", every="1m", missed="all")
    async with app:
        await app.save_schedules()
        chore = ticker(app, clock)
        clock.jump(60.0 * 2500)
        assert await chore.look() == 0.0, "there is more"
        assert await chore.look() == 0.0
        assert await chore.look() > 0
        assert (await app.store.queues.depth("default")).waiting == 2500, "a schedule passes the bound of its queue"
        with pytest.raises(QueueFull):
            await app.submit("work")


async def test_more_schedules_than_one_look_takes(clock: HandClock) -> None:
    app = app_on(clock)
    for number in range(SCHEDULES_PER_LOOK * 2 + 1):
        app.schedule(f"s{number:02}", "work", every="1h")
    async with app:
        await app.save_schedules()
        chore = ticker(app, clock)
        await chore.look()
        clock.jump(2 * 3600)
        assert [await chore.look(), await chore.look()] == [0.0, 0.0]
        assert await chore.look() > 0
        assert len((await app.list(limit=1000))[0]) == SCHEDULES_PER_LOOK * 2 + 1, "none was taken for missed"


async def test_a_worker_that_lost_some_ticks_to_another_has_not_missed_the_rest(clock: HandClock) -> None:
    """The store was away for an hour, and another worker turns all schedules of the first look."""
    app = app_on(clock)
    for number in range(SCHEDULES_PER_LOOK + 1):
        app.schedule(f"s{number:02}", "work", every="1h")
    beaten = True

    async def turn(name: str, *args: Any) -> bool:
        return not beaten and await app.store.schedules.advance(name, *args)

    async with app:
        await app.save_schedules()
        chore, other = ticker(app, clock, Through(app.store, **{"schedules.advance": turn})), ticker(app, clock)
        await chore.look()
        await other.look()
        clock.time = (clock.time // 3600 + 1) * 3600 + 600
        assert await chore.look() == 0.0
        beaten = False
        assert await other.look() == 0.0
        assert await chore.look() > 0
        assert len((await app.list(limit=1000))[0]) == SCHEDULES_PER_LOOK + 1


async def test_the_next_look_is_in_time_for_the_next_tick(clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", every="10s")
    clock.time = 1_000_000_003.0
    async with app:
        await app.save_schedules()
        chore = ticker(app, clock)
        assert await chore.look() == POLL_INTERVAL_S
        clock.time = 1_000_000_009.25
        assert await chore.look() == 0.75
        clock.jump(0.75)
        assert await chore.look() == POLL_INTERVAL_S
        assert await fired(app) == [stamp(1_000_000_010)]


async def test_the_time_of_the_database_counts(clock: HandClock) -> None:
    ours = HandClock(clock.time - 3 * DAY)
    store = SqliteStore(":memory:", clock=clock, inline=True)
    app = app_on(ours, store=store)
    app.schedule("s", "work", every="1h", missed="all")
    async with app:
        await app.save_schedules()
        (schedule,) = await app.schedules()
        assert schedule.next_at is not None
        assert 0 < schedule.next_at - clock.time <= 3600
        ours.jump(30 * DAY)
        await ticker(app, ours).look()
        assert await fired(app) == []
        clock.jump(3600)
        await ticker(app, ours).look()
        assert await fired(app) == [stamp(schedule.next_at)]


async def test_an_unknown_time_zone_holds_up_no_other_schedule(clock: HandClock, caplog: Any) -> None:
    app = app_on(clock)
    app.schedule("good", "work", every="1h")
    async with app:
        await app.save_schedules()
        (good,) = (await app.store.schedules.list()).rows
        for number in range(SCHEDULES_PER_LOOK + 1):
            name = f"bad{number}"
            bad = good._replace(name=name, cron="0 * * * *", every=None, timezone="Mars/Phobos", next_at=1.0)
            await app.store.schedules.advance(name, None, bad)
        chore = ticker(app, clock)
        await chore.look()
        clock.jump(3600)
        with caplog.at_level(logging.WARNING, "onward.worker"):
            assert await chore.look() > 0
        assert len(await fired(app, "good")) == 1
        await chore.look()
        assert len([r for r in caplog.records if "bad0 is left to other workers" in r.getMessage()]) <= 1
        assert len(await fired(app, "good")) == 1


async def test_an_answer_that_was_lost_doubles_nothing(clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", every="1h", missed="all")

    async def turn(*args: Any) -> bool:
        await app.store.schedules.advance(*args)
        raise StoreUnavailable("the line is dead")

    async with app:
        await app.save_schedules()
        clock.jump(3600)
        with pytest.raises(StoreUnavailable):
            await ticker(app, clock, Through(app.store, **{"schedules.advance": turn})).look()
        await ticker(app, clock).look()
        assert len(await fired(app)) == 1


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_saves_the_schedules_of_its_app_and_does_their_tasks(app: Onward) -> None:
    @app.task
    async def add(ctx: Any, a: int, b: int) -> int:
        return a + b

    app.schedule("sum", add, {"a": 1, "b": 2}, every="1s")
    async with app.worker():

        async def done() -> Any:
            return (await app.list(state=State.COMPLETED))[0]

        *_, task = await eventually(done)
    assert task.result == 3
    assert task.key == f"schedule:sum:{task.labels['tick']}"
    tick = datetime.datetime.fromisoformat(task.labels["tick"]).timestamp()
    assert task.created_at >= tick, "never before its time"
    assert await app.store.health.census() == []


async def test_a_worker_outlives_a_store_that_is_away(lab: Lab, caplog: Any) -> None:
    lab.app.task(name="work")(nothing)
    lab.app.schedule("s", "work", every="5s", missed="all")
    away = True

    async def soonest(limit: int) -> Any:
        if away:
            raise StoreUnavailable("the line is dead")
        return await real.schedules.soonest(limit)

    real = lab.store
    lab.app.store = Through(real, **{"schedules.soonest": soonest})
    await lab.start()
    await lab.clock.until(lab.clock.sleep(11))
    assert await fired(lab.app) == []
    away = False
    await lab.clock.until(lab.clock.sleep(5))
    assert len(await fired(lab.app)) in {2, 3}, "late, and each of them"
    assert "cannot read schedules" in caplog.text


async def test_a_worker_does_not_start_with_a_schedule_that_cannot_work(lab: Lab) -> None:
    lab.app.task(name="work")(nothing)
    lab.app.schedule("s", "wrok", every="1h")
    with pytest.raises(UnknownTask, match="schedule 's': no task is named 'wrok'"):
        await lab.app._make_worker().start()
    lab.app._schedule_specs.clear()

    @lab.app.task
    async def strict(ctx: Any, number: int) -> None: ...

    lab.app.schedule("fine", strict, {"number": 1}, every="1h")
    lab.app.schedule("s", strict, {"number": "many"}, every="1h")
    with pytest.raises(InvalidInput, match="schedule 's': task 'strict': the input for 'number' does not fit"):
        await lab.app.save_schedules()
    assert await lab.app.schedules() == []


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_change_in_code_is_changed_in_the_store(clock: HandClock) -> None:
    async def saved(store: Any, **options: Any) -> Any:
        app = app_on(clock, store=store)
        app.schedule("s", "work", **options)
        await app.save_schedules()
        (schedule,) = await app.schedules()
        return schedule

    clock.time = moment("2026-07-01T12:00")
    first = app_on(clock)
    async with first:
        store = first.store
        plain = await saved(store, cron="0 3 * * *")
        assert plain.next_at == moment("2026-07-02T03:00")
        before = await store.schedules.list()
        assert await saved(store, cron="0 3 * * *") == plain
        assert await store.schedules.list() == before, "nothing to write"

        clock.time = moment("2026-07-02T12:00")
        changed = await saved(store, cron="0 3 * * *", input=[1], missed="once", queue="slow", deadline=9)
        assert (changed.input, changed.missed, changed.queue, changed.deadline) == ([1], "once", "slow", 9.0)
        assert changed.next_at == plain.next_at, "it ticks as before, and a missed tick is still to be fired"

        assert (await saved(store, cron="0 4 * * *")).next_at == moment("2026-07-03T04:00")
        assert (await saved(store, cron="0 4 * * *", timezone=BERLIN)).next_at == moment("2026-07-03T02:00")
        assert (await saved(store, every="1h")).next_at == moment("2026-07-02T13:00")
        await first.pause_schedule("s")
        paused = await saved(store, cron="0 5 * * *")
        assert (paused.paused, paused.next_at, paused.cron) == (True, None, "0 5 * * *"), "a pause outlives a deploy"


async def test_a_pause_is_a_pause_and_not_a_miss(clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", every="1h", missed="all")
    async with app:
        await app.save_schedules()
        chore = ticker(app, clock)
        assert (await app.pause_schedule("s")).paused
        assert (await app.pause_schedule("s")).next_at is None
        clock.jump(10 * 3600)
        await chore.look()
        assert await fired(app) == []
        schedule = await app.unpause_schedule("s")
        assert schedule.next_at is not None
        assert 0 < schedule.next_at - clock.time <= 3600
        assert await app.unpause_schedule("s") == schedule
        clock.jump(3600)
        await chore.look()
        assert await fired(app) == [stamp(schedule.next_at)]


async def test_trigger_submits_beside_the_ticks(clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", [7], every="1h", labels={"a": "b"})
    async with app:
        await app.save_schedules()
        await app.pause_schedule("s")
        first, second = await app.trigger("s"), await app.trigger("s")
        assert first.id != second.id
        task = await first.get()
        assert (task.input, task.labels, task.key) == ([7], {"a": "b", "schedule": "s"}, None)


async def test_removed_is_removed_and_its_tasks_stay(clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", every="1h")
    async with app:
        await app.save_schedules()
        handle = await app.trigger("s")
        await app.remove_schedule("s")
        assert await app.schedules() == []
        assert (await handle.get()).state is State.PENDING
        for verb in (app.pause_schedule, app.unpause_schedule, app.remove_schedule, app.trigger):
            with pytest.raises(
                ScheduleNotFound, match=r"no schedule 's' \(there are: none so far\); `onward schedules`"
            ):
                await verb("s")


async def test_a_change_looks_again_when_a_tick_was_quicker(clock: HandClock) -> None:
    app = app_on(clock)
    app.schedule("s", "work", every="1h", missed="all")
    async with app:
        await app.save_schedules()
        real, other = app.store, ticker(app, clock)
        looked = 0

        async def schedule(name: str) -> Any:
            nonlocal looked
            table = await real.schedules.get(name)
            if (looked := looked + 1) == 1:
                clock.jump(3600)
                await other.look()
            return table

        app.service.schedules._store = Through(real, **{"schedules.get": schedule})  # type: ignore[assignment]
        paused = await app.pause_schedule("s")
        assert (looked, paused.paused) == (2, True)
        assert paused.last_at is not None, "the tick is not forgotten"
        assert len(await fired(app)) == 1


# ── the guide ────────────────────────────────────────────────────────────────────────────────────────────────────────

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "schedules.md").read_text(encoding="utf-8")


async def test_the_example_of_the_guide_is_true() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL))
    names: dict[str, Any] = {}
    exec(compile(code, "docs/guides/schedules.md", "exec"), names)
    await names["test_the_digest_goes_out_each_monday"]()
    assert set(names["app"]._schedule_specs) == {"digest", "probe"}


async def test_a_handler_reads_its_labels_and_its_tick(app: Onward) -> None:
    @app.task
    async def report(ctx: Any) -> Any:
        await ctx.step(lambda: 1, name=f"{len(ctx.labels)} labels")
        return [ctx.labels, ctx.tick]

    @app.task
    def plain(ctx: Any) -> Any:
        return [ctx.labels, ctx.tick]

    app.schedule("s", report, every="1h", labels={"team": "red"})
    await app.save_schedules()
    (row,) = (await app.store.schedules.soonest(1))[1]
    tick = moment("2026-07-01T10:15")
    labels = {"team": "red", "schedule": "s", "tick": stamp(tick)}
    assert wire.decode(row.task_at(tick, "t").options)["labels"] == labels
    async with app.worker():
        triggered = await app.trigger("s")
        assert await triggered.result(timeout=60) == [{"team": "red", "schedule": "s"}, None]
        for handler in (report, plain):
            assert await (await app.submit(handler, labels=labels)).result(timeout=60) == [labels, tick]
        task = await app.submit(report, labels={"schedule": "s", "tick": "noon"})
        assert await task.result(timeout=60) == [{"schedule": "s", "tick": "noon"}, None]
    assert (await app.replay(task.id)).agrees, "a dry run has the labels"
