"""PgQueuer: a queue on PostgreSQL that claims and acknowledges in batches. https://github.com/janbjorge/pgqueuer

Settings, of those tried on two cores: uvloop, as its own runner has it; all tables logged ("durable", its default).
W1 in batches: 1,000 a call (200 to 10,000 lie within 8 %). W2 with one process: batch 1,000 (its default is 10) and a pool of
five connections, so that acknowledging does not wait for claiming; with two: batch 500 and one connection each. The table is
analysed after it was filled, as autovacuum would have done by and by; it gives a tenth more.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer.qm import QueueManager  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found]

from bench.measure import (
    W1_BATCH,
    W1_ONE,
    W2_ONE,
    W2_TWO,
    W4_PICKUP,
    W4_PICKUP_P99,
    Figure,
    latency,
    percentile,
)
from bench.peers import child

NAME = "pgqueuer"
STORE = "postgres"
TASK = "noop"
PAYLOAD = b'{"result":{"ok":true,"number":1000000000}}'
SUBMIT_BATCH = 1000
DRAIN_BATCH_AND_POOL = {1: (1000, 5), 2: (500, 1)}


def w1(url: str, quick: bool) -> list[Figure]:
    return uvloop.run(_w1(url, quick))


async def _w1(url: str, quick: bool) -> list[Figure]:
    queries = await _installed(url)
    count, total = (500, 5_000) if quick else (5_000, 50_000)
    await queries.enqueue(TASK, PAYLOAD)
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        await queries.enqueue(TASK, PAYLOAD)
        taken.append(time.perf_counter() - start)
    start = time.perf_counter()
    await _fill(queries, total)
    rate = total / (time.perf_counter() - start)
    assert await _rows(queries, "pgqueuer") == 1 + count + total
    return [
        Figure(W1_ONE, NAME, STORE, count / sum(taken), "tasks/s", latency(taken)),
        Figure(W1_BATCH, NAME, STORE, rate, "tasks/s", f"{SUBMIT_BATCH:,} a call"),
    ]


def w2(url: str, quick: bool) -> list[Figure]:
    return [uvloop.run(_w2(url, quick, processes)) for processes in (1, 2)]


async def _w2(url: str, quick: bool, processes: int) -> Figure:
    queries = await _installed(url)
    total = 5_000 if quick else 50_000
    batch, pool = DRAIN_BATCH_AND_POOL[processes]
    await _fill(queries, total)
    await queries.driver.execute("VACUUM ANALYZE pgqueuer")
    with ExitStack() as stack:
        workers = [stack.enter_context(child.Worker("drain", url, batch, pool)) for _ in range(processes)]
        for worker in workers:
            worker.hear()
        for worker in workers:
            worker.tell("go")
        spans = [worker.hear() for worker in workers]
    assert await _rows(queries, "pgqueuer") == 0, "some tasks were left"
    done = await _rows(queries, "pgqueuer_log WHERE status = 'successful'")
    assert done == total, f"{done} of {total} are logged"
    seconds = max(last for _, last in spans) - min(first for first, _ in spans)
    await queries.uninstall()
    note = f"{total:,} tasks, batch {batch}, connections a process: {pool}"
    return Figure(W2_ONE if processes == 1 else W2_TWO, NAME, STORE, total / seconds, "tasks/s", note)


def drain(url: str, batch: str, pool: str) -> None:
    uvloop.run(_drain(url, int(batch), int(pool)))


async def _drain(url: str, batch: int, pool: int) -> None:
    """Works until the queue is empty; says when the first body began and when the last row was durable."""
    queries = await _connected(url, pool)
    started: list[float] = []
    durable = [0.0]

    async def body(job: object) -> None:
        if not started:
            started.append(time.monotonic())

    queries.log_jobs = _noting_the_end(queries.log_jobs, durable)
    manager = _manager(queries, body)
    child.wait_to_be_told()
    await manager.run(batch_size=batch, mode=QueueExecutionMode.drain, dequeue_timeout=timedelta(seconds=0.2))
    child.say([min(started, default=time.monotonic()), durable[0]])


def _noting_the_end(call: Callable[[Any], Awaitable[None]], end: list[float]) -> Callable[[Any], Awaitable[None]]:
    # PgQueuer acknowledges from a buffer, so that the end of the last body is not the end of the work.
    async def noting(argument: Any) -> None:
        await call(argument)
        end[0] = time.monotonic()

    return noting


def w4(url: str, quick: bool) -> list[Figure]:
    return uvloop.run(_w4(url, quick))


async def _w4(url: str, quick: bool) -> list[Figure]:
    queries = await _installed(url)
    taken = []
    with child.Worker("listen", url) as worker:
        worker.hear()
        worker.tell("go")
        for _ in range(40 if quick else 200):
            await asyncio.sleep(random.uniform(0.1, 0.2))
            start = time.monotonic()
            await queries.enqueue(TASK, PAYLOAD)
            taken.append(worker.hear() - start)
    taken = taken[10:]
    note = f"{len(taken)} tasks, default batch"
    return [
        Figure(W4_PICKUP, NAME, STORE, percentile(taken, 50) * 1000, "ms", note),
        Figure(W4_PICKUP_P99, NAME, STORE, percentile(taken, 99) * 1000, "ms", note),
    ]


def listen(url: str) -> None:
    uvloop.run(_listen(url))


async def _listen(url: str) -> None:
    async def body(job: object) -> None:
        child.say(time.monotonic())

    manager = _manager(await _connected(url, 1), body)
    child.wait_to_be_told()
    await manager.run()


def _manager(queries: Any, body: Callable[[object], Awaitable[None]]) -> Any:
    manager = QueueManager(queries)
    manager.entrypoint(TASK, accepts_context=False)(body)
    return manager


async def _connected(url: str, pool: int) -> Any:
    if pool == 1:
        return Queries.from_asyncpg_connection(await asyncpg.connect(url))
    return Queries.from_asyncpg_pool(await asyncpg.create_pool(url, min_size=pool, max_size=pool))


async def _installed(url: str) -> Any:
    queries = await _connected(url, 1)
    await queries.install()
    return queries


async def _fill(queries: Any, total: int) -> None:
    for _ in range(total // SUBMIT_BATCH):
        await queries.enqueue([TASK] * SUBMIT_BATCH, [PAYLOAD] * SUBMIT_BATCH, [0] * SUBMIT_BATCH)


async def _rows(queries: Any, source: str) -> int:
    rows = await queries.driver.fetch(f"SELECT count(*) AS rows FROM {source}")
    return int(rows[0]["rows"])


if __name__ == "__main__":
    child.main({"W1": w1, "W2": w2, "W4": w4}, {"drain": drain, "listen": listen})
