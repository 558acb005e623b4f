"""What a second worker process is worth: W3 (tasks of 20 steps) with `onward worker --processes 1` and `--processes 2`.

    make bench BENCH=processes
    python -m bench processes --store postgres

Each has a database and a supervisor of its own, and the same number of slots in all. They take turns, so that whatever happens on the machine
happens to both. The queue is paused while the tasks are submitted, and the caller asks rarely whether they have ended. The time is that from
the first body to the last task that is durably done, by the clock of this machine. The aim on PostgreSQL is 1.6 times.

The database runs on the same machine, so the processes share its cores with the database. For that reason the benchmark prints the CPU time of a
step, of the worker and of everything else on the machine (the database, the kernel, other programs), and the ratio that the cores allow: all
of them busy, with the CPU time of a step as it is with one process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from bench.report import busy
from onward import Context, Onward

AIM = 1.6
STEPS = 20
SLOTS = 200
"""Tasks that run at once, over all processes."""
UNFINISHED = ["pending", "running", "waiting"]

app = Onward(os.environ.get("ONWARD_DB"), queue_limit=1_000_000)


async def noop() -> dict[str, bool]:
    return {"ok": True}


@app.task
async def steps(ctx: Context, count: int) -> float:
    first = time.time()
    for _ in range(count):
        await ctx.step(noop)
    return first


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench processes", description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1_000, help="tasks of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each number of processes")
    parser.add_argument("--processes", type=int, default=2, help="the number beside one")
    parser.add_argument("--store", choices=("postgres", "sqlite"), nargs="+", default=["postgres", "sqlite"])
    return parser.parse_args(words)


def run(options: argparse.Namespace, urls: dict[str, tuple[str, str]]) -> int:
    """Measure each store; 1 when the aim is missed on PostgreSQL."""
    print(
        f"{'':10}{'1 process':>12}{f'{options.processes} processes':>14}{'ratio':>8}      steps/s, medians; others: CPU that they took"
    )
    ratios = {store: _measure(store, urls[store], options) for store in options.store}
    return int(ratios.get("postgres", AIM) < AIM)


def _measure(store: str, urls: tuple[str, str], options: argparse.Namespace) -> float:
    numbers = (1, options.processes)
    sides: list[list[Round]] = [[], []]
    probes = []
    with contextlib.ExitStack() as stack:
        supervisors = []
        for url, number in zip(urls, numbers, strict=True):
            asyncio.run(_create(url))
            supervisors.append(psutil.Process(stack.enter_context(_supervisor(url, number))))
        for _ in range(options.rounds + 1):  # the first is for warming up
            for rounds, url, supervisor in zip(sides, urls, supervisors, strict=True):
                probes.append(busy(0.3))
                rounds.append(asyncio.run(_round(url, options.tasks, supervisor)))
    one, several = (statistics.median(made.steps_per_s for made in rounds[1:]) for rounds in sides)
    slowest_to_fastest = [sorted(made.steps_per_s for made in rounds[1:]) for rounds in sides]
    spread = " and ".join(f"{rates[0]:,.0f} to {rates[-1]:,.0f}" for rates in slowest_to_fastest)
    print(f"{store:10}{one:>12,.0f}{several:>14,.0f}{several / one:>8.2f}      {spread}; others {max(probes):.0%}")
    for number, rounds in zip(numbers, sides, strict=True):
        worker, other = (
            statistics.median(getattr(made, name) for made in rounds[1:]) for name in ("worker_s", "other_s")
        )
        allowed = (os.cpu_count() or 1) / ((worker + other) * one)
        print(
            f"{'':10}CPU of a step with {number}: {worker * 1e6:.0f} µs of the worker and {other * 1e6:.0f} µs of everything else; "
            f"the cores allow {allowed:.2f} times one process"
        )
    return several / one


async def _create(url: str) -> None:
    async with Onward(url):
        pass


@dataclasses.dataclass
class Round:
    """One round."""

    steps_per_s: float
    worker_s: float
    """CPU seconds of a step in the processes of the worker."""
    other_s: float
    """CPU seconds of a step in all other processes, and in the kernel for them."""


async def _round(url: str, tasks: int, supervisor: psutil.Process) -> Round:
    async with Onward(url, queue_limit=1_000_000) as client:
        await client.pause_queue("default")
        handles = await client.submit_many("steps", [STEPS] * tasks)
        await asyncio.sleep(1.0)  # the database is at rest
        machine, workers = _machine_cpu_s(), _cpu_s(supervisor)
        await client.unpause_queue("default")
        await handles[-1].result(600)
        while (left := await client.list(state=UNFINISHED, limit=1))[0]:
            await left[0][0].result(600)
        machine, workers = _machine_cpu_s() - machine, _cpu_s(supervisor) - workers
        firsts = [await handle.result(600) for handle in handles]
        ended = [task.finished_at or 0.0 for task in [await handle.get() for handle in handles]]
    steps = tasks * STEPS
    return Round(steps / (max(ended) - min(firsts)), workers / steps, (machine - workers) / steps)


def _cpu_s(supervisor: psutil.Process) -> float:
    times = [process.cpu_times() for process in [supervisor, *supervisor.children(recursive=True)]]
    return sum(time.user + time.system for time in times)


def _machine_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "steal", 0.0))


@contextlib.contextmanager
def _supervisor(url: str, number: int) -> Iterator[int]:
    words = ["worker", "bench.processes:app", "--processes", str(number), "--slots", str(SLOTS // number)]
    process = subprocess.Popen(
        [sys.executable, "-m", "onward", *words],
        stdout=subprocess.PIPE,
        env={**os.environ, "ONWARD_DB": url},
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = 0
        while ready < number:
            ready += " ready: " in process.stdout.readline()
        yield process.pid
    finally:
        process.terminate()
        process.wait()
