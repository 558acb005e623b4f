"""Ticks come once: with eight workers at the same tick, and when one dies between two instructions. The judge is proven
with planted faults."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core import crash
from onward.core.ids import Ids
from onward.core.schedule import stamp
from onward.engine.worker.ticker import Ticker
from onward.store.port.core import Store
from rig.processes import Child
from tests.kit import Through, Time, eventually, not_memory, sql

WORKERS = 8
INTERVAL_S = 600.0


class Crash(Exception):
    """Stands for the death of the process: it aborts the open transaction."""


async def nothing(ctx: Any) -> None: ...


async def declared(store: Store, count: int = 3) -> None:
    app = Onward(store=store)
    app.task(name="work")(nothing)
    for number in range(count):
        app.schedule(f"s{number}", "work", every=INTERVAL_S, missed="all")
    await app.save_schedules()


def ticker(store: Any, seed: int, time: Time) -> Ticker:
    rng = random.Random(seed)

    async def nothing_to_save() -> None: ...

    return Ticker(store, time._clock, rng, Ids(lambda: time.now, rng), nothing_to_save)


async def ticks(store: Store) -> Counter[tuple[str, str]]:
    """How many tasks there are for each tick of each schedule."""
    rows = await sql(store, "SELECT options FROM onward_tasks")
    counts: Counter[tuple[str, str]] = Counter()
    for (options,) in rows:
        labels = json.loads(bytes(options))["labels"]
        counts[labels["schedule"], labels["tick"]] += 1
    return counts


def wanted(start: float, end: float, count: int = 3) -> set[tuple[str, str]]:
    first = int(start // INTERVAL_S) + 1
    return {(f"s{n}", stamp(k * INTERVAL_S)) for n in range(count) for k in range(first, int(end // INTERVAL_S) + 1)}


def faults(counts: Counter[tuple[str, str]], expected: set[tuple[str, str]]) -> list[str]:
    doubled = [f"{tick} came {times} times" for tick, times in counts.items() if times > 1]
    return sorted(
        doubled + [f"{tick} is lost" for tick in expected - counts.keys()] + [f"{t}?" for t in counts.keys() - expected]
    )


# ── at once ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def race(stores: list[Any], time: Time, rounds: int = 30) -> None:
    """All tickers look at the same moment, and now and then some are away for a few ticks."""
    chores = [ticker(store, seed, time) for seed, store in enumerate(stores)]
    rng = random.Random(4)
    for _ in range(rounds):
        time.move(INTERVAL_S * rng.choice([0.3, 1, 1, 1, 4]))
        await asyncio.gather(*[chore.look() for chore in rng.sample(chores, rng.randint(2, len(chores)))])
    await asyncio.gather(*[chore.look() for chore in chores])


@not_memory
async def test_eight_workers_fire_each_tick_once(store: Store, open_another: Any, time: Time) -> None:
    start = time.now
    await declared(store)
    await race([await open_another() for _ in range(WORKERS)], time)
    assert faults(await ticks(store), wanted(start, time.now)) == []
    assert await store.health.census() == []


@not_memory
async def test_the_judge_finds_ticks_that_come_twice(store: Store, open_another: Any, time: Time) -> None:
    """The planted fault: workers submit the tasks of a tick without keys, before they turn the schedule."""

    def careless(real: Store) -> Any:
        async def turn(name: str, seen: str | None, to: Any, tasks: Any = ()) -> bool:
            await real.submit([task._replace(key=None) for task in tasks])
            return await real.schedules.advance(name, seen, to)

        return Through(real, **{"schedules.advance": turn})

    start = time.now
    await declared(store)
    await race([careless(await open_another()) for _ in range(WORKERS)], time, rounds=4)
    assert any("times" in fault for fault in faults(await ticks(store), wanted(start, time.now)))


# ── a crash between ──────────────────────────────────────────────────────────────────────────────────────────────────


async def crashing(store: Any, time: Time, point: str, at: int) -> int:
    """Ten ticks; the process that passes `point` for the n-th time dies there and another goes on. Returns how many died."""
    passed = died = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed % at == 0:
            raise Crash(name)

    crash.install(hook)
    try:
        chore = ticker(store, 1, time)
        for _ in range(10):
            time.move(INTERVAL_S)
            for _ in range(20):
                try:
                    await chore.look()
                    break
                except Crash:
                    died += 1
                    chore = ticker(store, died + 1, time)
    finally:
        crash.install(None)
    await ticker(store, 99, time).look()
    return died


@pytest.mark.slow
@pytest.mark.parametrize("point", ["tick.before", "tick.after"])
@pytest.mark.parametrize("at", [2, 3, 7])
async def test_a_crash_loses_no_tick_and_doubles_none(store: Store, time: Time, point: str, at: int) -> None:
    start = time.now
    await declared(store)
    assert await crashing(store, time, point, at) >= 3
    assert faults(await ticks(store), wanted(start, time.now)) == []


@pytest.mark.parametrize("order", ["move first", "submit first"])
async def test_the_judge_finds_the_faults_of_two_transactions(store: Store, time: Time, order: str) -> None:
    async def turn(name: str, seen: str | None, to: Any, tasks: Any = ()) -> bool:
        if order == "submit first":
            await store.submit([task._replace(key=None) for task in tasks])
            crash.crashpoint("planted")
        done = await store.schedules.advance(name, seen, to)
        if order == "move first":
            crash.crashpoint("planted")
            await store.submit(tasks)
        return done

    start = time.now
    await declared(store)
    assert await crashing(Through(store, **{"schedules.advance": turn}), time, "planted", 3) > 0
    sentences = faults(await ticks(store), wanted(start, time.now))
    assert any(("is lost" if order == "move first" else "times") in fault for fault in sentences)


CHILD = """
import asyncio, sys
from onward import Onward

app = Onward(sys.argv[1])

@app.task
async def beat(ctx): ...

app.schedule("beat", beat, every="1s", missed="all")

async def main():
    async with app.worker():
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
@not_memory
async def test_kill_9_in_the_middle_of_a_tick(url: str) -> None:
    child = Child.code(CHILD, url, env={"ONWARD_CRASH": "tick.before:2"}, cwd=Path(__file__).parents[2])
    with child:
        assert await asyncio.to_thread(child.wait, 30) == -signal.SIGKILL
    app = Onward(url)
    app.task(name="beat")(nothing)
    app.schedule("beat", "beat", every="1s", missed="all")

    async def moments() -> list[float]:
        tasks, _ = await app.list(limit=1000)
        return sorted(datetime.datetime.fromisoformat(task.labels["tick"]).timestamp() for task in tasks)

    async with app:
        before = await moments()
        assert before, "the first tick was done, and it died in the second"
        async with app.worker():

            async def enough() -> bool:
                return len(await moments()) >= len(before) + 3

            await eventually(enough)
        after = await moments()
        assert after == [before[0] + n for n in range(len(after))], "one after the other, each once"
        assert await app.store.health.census() == []
