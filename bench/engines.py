"""What Onward costs on Temporal, beside a plain workflow that calls the same steps as activities.

    make bench BENCH=engines
    python -m bench engines --rounds 5

Both have one worker process with default settings, on the same server and in the same run. They are measured in turns, so that
whatever happens on the machine happens to both. A time is from the first submit until the caller has the last result. The aim is
1.2 times the time of the plain workflow at most.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from bench.plain_workflow import STEPS, Plain
from onward import Onward
from rig.processes import Child
from rig.temporal import Temporal

AIM = 1.2
TASKS = 50
LATENCY_RUNS = 3
"""Tasks, one after the other, whose median is the latency of a round."""

TIMEOUT_S = 300.0

PROCESSOR = "processor time of the latter"
"""Of the server, both workers and the caller. On a machine that others use too, this is the ratio to look at."""

SIDES = ("plain", "onward")

RunTasks = Callable[[int], Awaitable[None]]
"""Submits so many tasks at once, and waits for all of their results."""


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench engines", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="the figures are medians of so many rounds")
    parser.add_argument("--tasks", type=int, default=TASKS, help="tasks at once")
    return parser.parse_args(words)


def run(options: argparse.Namespace) -> int:
    """Measure both; 1 when the aim is missed."""
    with Temporal() as server, _workers(server.url) as workers:
        assert server._process is not None
        processes = [os.getpid(), server._process.pid, *workers]
        times = asyncio.run(_measure(server.url, options, processes))
    print(f"{'':28} {'plain':>10} {'onward':>10} {'ratio':>8}      medians of {options.rounds} rounds")
    ratios = {name: _show(name, sides) for name, sides in times.items()}
    return int(any(ratio > AIM for name, ratio in ratios.items() if name != PROCESSOR))


def _show(name: str, sides: dict[str, list[float]]) -> float:
    """Print a line; the median of the ratios of all rounds."""
    plain, onward = (statistics.median(sides[side]) for side in SIDES)
    ratio = statistics.median(o / p for p, o in zip(sides["plain"], sides["onward"], strict=True))
    print(f"{name:28} {plain * 1e3:>7,.0f} ms {onward * 1e3:>7,.0f} ms {ratio:>8.2f}")
    return ratio


async def _measure(url: str, options: argparse.Namespace, processes: list[int]) -> dict[str, dict[str, list[float]]]:
    latency, throughput = f"{STEPS} steps of one task", f"{options.tasks} tasks x {STEPS} steps"
    names = (latency, throughput, PROCESSOR)
    times: dict[str, dict[str, list[float]]] = {name: {side: [] for side in SIDES} for name in names}
    async with _make_app(url) as app:
        runs: dict[str, RunTasks] = {"plain": await _plain_tasks(url), "onward": _onward_tasks(app)}
        for side in SIDES:
            await _timed(runs[side], options.tasks)  # warms both up
        for number in range(options.rounds):
            for side in SIDES if number % 2 else reversed(SIDES):
                alone = [await _timed(runs[side], 1) for _ in range(LATENCY_RUNS)]
                times[latency][side].append(statistics.median(alone))
            for side in SIDES if number % 2 else reversed(SIDES):
                before = sum(map(_processor_s, processes))
                times[throughput][side].append(await _timed(runs[side], options.tasks))
                times[PROCESSOR][side].append(sum(map(_processor_s, processes)) - before)
            seconds = [
                f"{name}: {sides['plain'][-1]:.2f} and {sides['onward'][-1]:.2f} s" for name, sides in times.items()
            ]
            print(f"round {number + 1} of {options.rounds}: {'; '.join(seconds)}", file=sys.stderr, flush=True)
    return times


def _processor_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _timed(run_tasks: RunTasks, count: int) -> float:
    began = time.perf_counter()
    await asyncio.wait_for(run_tasks(count), TIMEOUT_S)
    return time.perf_counter() - began


def _onward_tasks(app: Onward) -> RunTasks:
    async def one() -> None:
        assert await (await app.submit("work")).result(TIMEOUT_S) == sum(range(STEPS))

    async def run_tasks(count: int) -> None:
        await asyncio.gather(*[one() for _ in range(count)])

    return run_tasks


async def _plain_tasks(url: str) -> RunTasks:
    client = await Client.connect(_target(url))
    numbers = itertools.count(1)

    async def one() -> None:
        result = await client.execute_workflow("Plain", id=f"plain-{next(numbers)}", task_queue="plain")
        assert result == sum(range(STEPS))

    async def run_tasks(count: int) -> None:
        await asyncio.gather(*[one() for _ in range(count)])

    return run_tasks


def _target(url: str) -> str:
    return url.removeprefix("temporal://").partition("/")[0]


# ── the worker processes ─────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _workers(url: str) -> Iterator[list[int]]:
    """A worker process for each side; their ids."""
    children = [Child.module("bench.engines", side, url) for side in SIDES]
    try:
        for child in children:
            child.wait_for("ready")
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.close()


def _make_app(url: str) -> Onward:
    app = Onward(engine=f"{url}?queue=onward")

    @app.task
    async def work(ctx: Any) -> int:
        return sum([await ctx.step(step, number) for number in range(STEPS)])

    return app


async def _serve_onward(url: str) -> None:
    async with _make_app(url).worker():
        print("ready", flush=True)
        await asyncio.Event().wait()


async def step(number: int) -> int:
    """The step of both sides."""
    return number


async def _serve_plain(url: str) -> None:
    client = await Client.connect(_target(url))
    activities = [activity.defn(name="step")(step)]
    async with Worker(client, task_queue="plain", workflows=[Plain], activities=activities):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run((_serve_onward if sys.argv[1] == "onward" else _serve_plain)(sys.argv[2]))
