"""What a second worker process is worth: W3 (tasks of 20 steps) with `onward worker --processes 1` and `--processes 2`.

    make bench BENCH=processes
    python -m bench processes --store postgres

Each has a database and a supervisor of its own, and the same number of slots in all. They take turns, so that whatever happens on the machine
happens to both. The time is that from the first body to the last task that is durably done, by the clock of this machine. The database runs
on the same machine, so two processes share its cores with the database. The aim on PostgreSQL is 1.6 times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.report import busy
from onward import Context, Onward

AIM = 1.6
STEPS = 20
SLOTS = 200
"""Tasks that run at once, over all processes."""

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
    rates: list[list[float]] = [[], []]
    probes = []
    with contextlib.ExitStack() as stack:
        for url, number in zip(urls, numbers, strict=True):
            asyncio.run(_create(url))
            stack.enter_context(_supervisor(url, number))
        for _ in range(options.rounds + 1):  # the first is for warming up
            for side, url in enumerate(urls):
                probes.append(busy(0.3))
                rates[side].append(asyncio.run(_round(url, options.tasks)))
    one, several = (statistics.median(side[1:]) for side in rates)
    spread = [f"{min(side[1:]):,.0f} to {max(side[1:]):,.0f}" for side in rates]
    print(
        f"{store:10}{one:>12,.0f}{several:>14,.0f}{several / one:>8.2f}      {' and '.join(spread)}; others {max(probes):.0%}"
    )
    return several / one


async def _create(url: str) -> None:
    async with Onward(url):
        pass


async def _round(url: str, tasks: int) -> float:
    """Steps a second of one round."""
    async with Onward(url, queue_limit=1_000_000) as client:
        handles = await client.submit_many("steps", [STEPS] * tasks)
        firsts = [await handle.result(600) for handle in handles]
        ended = [task.finished_at or 0.0 for task in [await handle.get() for handle in handles]]
    return tasks * STEPS / (max(ended) - min(firsts))


@contextlib.contextmanager
def _supervisor(url: str, number: int) -> Iterator[None]:
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
        yield
    finally:
        process.terminate()
        process.wait()
