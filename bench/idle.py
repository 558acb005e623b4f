"""What idle workers cost one task: the time until it starts, and until its result is there, with one idle worker and with many.

    make bench BENCH=idle
    python -m bench idle --workers 50 --store postgres

Both databases are measured in turns, so that whatever happens on the machine happens to both. The aim is 1.5 times at most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from onward import Context, Onward

AIM = 1.5
ROUNDS = 60
SETTLE_S = 12.0
"""Seconds after which an idle worker has come to its longest pause."""


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench idle", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=20, help="how many idle workers stand beside one")
    parser.add_argument("--store", choices=("postgres", "sqlite"), nargs="+", default=["postgres", "sqlite"])
    return parser.parse_args(words)


def run(options: argparse.Namespace, urls: dict[str, tuple[str, str]]) -> int:
    """Measure each store, with one worker at the first address and many at the second; 1 when the aim is missed."""
    print(f"{'':10} {'start':>22} {'result':>22}      one worker, {options.workers} workers, ratio of medians")
    ratios = [_measure(store, urls[store], options.workers) for store in options.store]
    return int(any(ratio > AIM for ratio in ratios))


def _measure(store: str, urls: tuple[str, str], many: int) -> float:
    asyncio.run(_create(urls))
    with _workers(urls[0], 1), _workers(urls[1], many):
        starts, results = asyncio.run(_rounds(urls))
    columns = [[statistics.median(side) * 1e3 for side in sides] for sides in (starts, results)]
    cells = [f"{one:5.1f} {other:5.1f} ms {other / one:5.2f}" for one, other in columns]
    print(f"{store:10} {cells[0]:>22} {cells[1]:>22}")
    return columns[0][1] / columns[0][0]


async def _create(urls: tuple[str, str]) -> None:
    for url in urls:
        async with Onward(url):
            pass


async def _rounds(urls: tuple[str, str]) -> tuple[list[list[float]], list[list[float]]]:
    starts: list[list[float]] = [[], []]
    results: list[list[float]] = [[], []]
    async with Onward(urls[0]) as one, Onward(urls[1]) as other:
        await asyncio.sleep(SETTLE_S)
        for number in range(ROUNDS):
            sides = [(0, one), (1, other)]
            for side, app in sides if number % 2 else reversed(sides):
                began = time.time()
                started = await (await app.submit("start_time")).result(timeout=60)
                starts[side].append(started - began)
                results[side].append(time.time() - began)
                await asyncio.sleep(0.1)
    return starts, results


@contextlib.contextmanager
def _workers(url: str, count: int) -> Iterator[None]:
    processes = [
        subprocess.Popen([sys.executable, "-m", "bench.idle", url], stdout=subprocess.PIPE) for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _serve(url: str) -> None:
    app = Onward(url)

    @app.task
    async def start_time(ctx: Context) -> float:
        return time.time()

    async def work() -> None:
        async with app.worker():
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(work())


if __name__ == "__main__":
    _serve(sys.argv[1])
