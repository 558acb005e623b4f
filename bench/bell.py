"""How long a task waits for an idle worker behind PgBouncer with a bell, beside LISTEN without a pooler, and beside polling.

    make bench BENCH=bell
    python -m bench bell --rounds 100

Each way has a database and a worker process of its own. They take turns, so that whatever happens on the machine happens to all. PgBouncer
runs in transaction mode. The time is that from the call of `submit` to the first line of the handler. The aim with a bell is 15 ms at the
median.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import uvloop

from bench.measure import percentile
from onward import Context, Onward
from rig.nats import Nats
from rig.pgbouncer import PgBouncer
from rig.postgres import Postgres
from rig.valkey import Valkey

AIM_MS = 15.0
SETTLE_S = 12.0
"""Seconds after which an idle worker has come to its longest pause."""
DIRECT, POLLING = "LISTEN, no pooler", "PgBouncer, polling"
BELLS = ("PgBouncer, Redis bell", "PgBouncer, NATS bell")


class Way(NamedTuple):
    """A way for a worker to learn of a task. `bell` is the URL of a broker, or empty."""

    name: str
    url: str
    bell: str

    def app(self) -> Onward:
        return Onward(self.url, brokers={"bell": self.bell}, bell="bell") if self.bell else Onward(self.url)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench bell", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="tasks for each way")
    return parser.parse_args(words)


def run(options: argparse.Namespace, postgres: Postgres) -> int:
    """Measure all ways in turns; 1 when the aim is missed."""
    with PgBouncer(postgres.url) as bouncer, Valkey() as valkey, Nats() as nats, contextlib.ExitStack() as workers:
        ways = [
            Way(DIRECT, postgres.database("direct"), ""),
            Way(POLLING, bouncer.url_for(postgres.database("polling")), ""),
            Way(BELLS[0], bouncer.url_for(postgres.database("redis")), valkey.url),
            Way(BELLS[1], bouncer.url_for(postgres.database("nats")), nats.url),
        ]
        for way in ways:
            uvloop.run(_create(way))
            workers.enter_context(_worker(way))
        times = uvloop.run(_rounds(ways, options.rounds))
    print(f"{'':24}{'p50':>9}{'p95':>9}      ms from submit to start, {options.rounds} tasks each")
    for name, seconds in times.items():
        print(f"{name:24}{statistics.median(seconds) * 1000:>9.1f}{percentile(seconds, 95) * 1000:>9.1f}")
    return int(any(statistics.median(times[name]) * 1000 > AIM_MS for name in BELLS))


async def _create(way: Way) -> None:
    async with way.app():
        pass


async def _rounds(ways: list[Way], count: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    async with contextlib.AsyncExitStack() as stack:
        apps = [(way.name, await stack.enter_async_context(way.app())) for way in ways]
        for _, app in apps:  # the first submit connects the bell
            await (await app.submit("start_time")).result(60)
        await asyncio.sleep(SETTLE_S)
        for _ in range(count):
            for name, app in random.sample(apps, len(apps)):
                began = time.monotonic()
                task = await app.submit("start_time")
                times[name].append(await task.result(60) - began)
                await asyncio.sleep(random.uniform(0.05, 0.15))
    return times


@contextlib.contextmanager
def _worker(way: Way) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "bench.bell", *way], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


async def _serve(way: Way) -> None:
    app = way.app()

    @app.task
    async def start_time(ctx: Context) -> float:
        return time.monotonic()

    async with app.worker():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Way(*sys.argv[1:])))
