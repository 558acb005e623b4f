"""Onward under the six workloads, measured as the neighbours are. What each of them is, says the head of `bench`.

A workload gets a store ("sqlite" or "postgres"), the URL of an empty database in it, and whether to be quick (about a tenth of
the work). It returns its figures under the names in `measure`, with `ONWARD` as the system, and checks that the work was
really done before it says how quickly. Workers run as `onward worker` does: on uvloop, with default settings but for slots.

`python -m bench.workloads worker URL SLOTS` is the worker in another process.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import psycopg
import uvloop

from bench.measure import (
    ONWARD,
    W1_BATCH,
    W1_ONE,
    W2_ONE,
    W2_TWO,
    W3,
    W4_PICKUP,
    W4_PICKUP_P99,
    W4_STEPS,
    W5_AGAIN,
    W5_DONE,
    W5_FIRST,
    W5_LAST,
    W5_TAKEN,
    W6_BYTES,
    W6_MANY,
    W6_MEMORY,
    Figure,
    latency,
    percentile,
)
from bench.peers import child
from onward import Context, Onward
from onward.service.submission import SubmitRequest
from rig.ledger import Ledger

Workload = Callable[[str, str, bool], list[Figure]]
MODULE = "bench.workloads"
STEP_S = 0.2


def make_app(url: str) -> Onward:
    """The tasks of all workloads."""
    app = Onward(url, queue_limit=1_000_000)

    async def noop() -> dict[str, Any]:
        return {"ok": True}

    ledger = Ledger(Path(os.environ.get("BENCH_LEDGER", os.devnull)))

    async def slow(task: str, number: int) -> None:
        ledger.write("began", task, number, time.time())
        await asyncio.sleep(STEP_S)
        ledger.write("ended", task, number, time.time())

    @app.task
    async def nothing(ctx: Context) -> None: ...

    @app.task
    async def began(ctx: Context) -> float:
        return time.monotonic()

    @app.task
    async def steps(ctx: Context, count: int) -> float:
        first = time.monotonic()
        for _ in range(count):
            await ctx.step(noop)
        return first

    @app.task
    async def slow_steps(ctx: Context, count: int) -> None:
        for number in range(count):
            await ctx.step(slow, ctx.task_id, number)

    @app.task
    async def asleep(ctx: Context) -> None:
        await ctx.sleep("30d")

    return app


def figure(workload: str, store: str, value: float, unit: str, note: str = "") -> Figure:
    return Figure(workload, ONWARD, store, value, unit, note)


def w1(store: str, url: str, quick: bool) -> list[Figure]:
    """W1_ONE: 5,000 submits one by one. W1_BATCH: 50,000 in batches of 1,000."""
    count, total = (500, 5_000) if quick else (5_000, 50_000)

    async def run() -> list[Figure]:
        async with make_app(url) as app:
            await app.submit("nothing")
            taken = []
            for _ in range(count):
                start = time.perf_counter()
                await app.submit("nothing")
                taken.append(time.perf_counter() - start)
            start = time.perf_counter()
            for _ in range(0, total, 1_000):
                await app.submit_many("nothing", [None] * 1_000)
            batch = time.perf_counter() - start
        assert query(url, "SELECT count(*) FROM onward_tasks") == count + total + 1
        return [
            figure(W1_ONE, store, count / sum(taken), "tasks/s", latency(taken)),
            figure(W1_BATCH, store, total / batch, "tasks/s", "1,000 a call"),
        ]

    return uvloop.run(run())


def w2(store: str, url: str, quick: bool) -> list[Figure]:
    """50,000 waiting tasks, from the first claim to the last durable settle, by the database's clock."""
    total = 5_000 if quick else 50_000
    figures = []
    for workload, processes in ((W2_ONE, 1), (W2_TWO, 2)):
        before = query(url, "SELECT count(*) FROM onward_outcomes") if processes > 1 else 0
        uvloop.run(_with_app(url, lambda app: _fill(app, "nothing", None, total)))
        start = time.time()
        with ExitStack() as stack:
            workers = [stack.enter_context(child.Worker("worker", url, 1000, module=MODULE)) for _ in range(processes)]
            for worker in workers:
                worker.hear()
            for worker in workers:
                worker.tell("go")
            until(lambda done=before + total: query(url, "SELECT count(*) FROM onward_outcomes") == done)
        first = query(url, f"SELECT min(at) FROM onward_journal WHERE kind = 'shift.started' AND at > {start}")
        last = query(url, "SELECT max(finished_at) FROM onward_outcomes")
        figures.append(figure(workload, store, total / (last - first), "tasks/s", "1,000 slots each"))
    return figures


def w3(store: str, url: str, quick: bool) -> list[Figure]:
    """200 waiting tasks of 20 steps in one process, first body to the last task durably done."""
    rounds = 1 if quick else 5

    async def run() -> list[Figure]:
        app = make_app(url)
        rates, commits = [], 0
        async with app.worker(slots=200) as worker:
            for _ in range(rounds + 1):  # the first is for warming up
                commits = worker.writer.commits
                finished = worker.finished
                await app.submit_many("steps", [20] * 200)
                while worker.finished < finished + 200:  # noqa: ASYNC110 -- from outside, as a watcher would
                    await asyncio.sleep(0.001)
                end = time.monotonic()
                commits = worker.writer.commits - commits
                tasks, _ = await app.list(state="completed", limit=200)
                rates.append(200 * 20 / (end - min(task.result for task in tasks)))
        assert query(url, "SELECT count(*) FROM onward_journal WHERE kind = 'step.completed'") == (rounds + 1) * 4_000
        best = sorted(rates[1:])[len(rates[1:]) // 2]
        return [figure(W3, store, best, "steps/s", f"{commits} commits for 4,000 steps")]

    return uvloop.run(run())


def w4(store: str, url: str, quick: bool) -> list[Figure]:
    """Before submit to first body in another process, and to the result of a task of ten steps in the caller's hands."""
    count = 20 if quick else 200

    async def run() -> list[Figure]:
        async with make_app(url) as app:
            pickups, whole = [], []
            for _ in range(count):
                await asyncio.sleep(random.uniform(0.1, 0.2))
                start = time.monotonic()
                task = await app.submit("began")
                pickups.append(await task.result(30) - start)
            for _ in range(count):
                await asyncio.sleep(random.uniform(0.1, 0.2))
                start = time.monotonic()
                task = await app.submit("steps", 10)
                await task.result(30)
                whole.append(time.monotonic() - start)
        return [
            figure(W4_PICKUP, store, percentile(pickups, 50) * 1000, "ms"),
            figure(W4_PICKUP_P99, store, percentile(pickups, 99) * 1000, "ms"),
            figure(W4_STEPS, store, percentile(whole, 50) * 1000, "ms", latency(whole)),
        ]

    with child.Worker("worker", url, 100, module=MODULE) as worker:
        worker.hear()
        worker.tell("go")
        worker.hear()
        return uvloop.run(run())


def w5(store: str, url: str, quick: bool) -> list[Figure]:
    """100 tasks of 10 steps × 0.2 s, kill -9 when half is done: a new worker goes on, or one that already runs."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BENCH_LEDGER"] = str(Path(folder) / "ledger")
        ledger = Ledger(Path(os.environ["BENCH_LEDGER"]))
        taken = uvloop.run(_killed(url, takeover=True))
        fresh = uvloop.run(_killed(url, takeover=False))
        again = sum(_again(ledger.read(), run["wall"]) for run in (taken, fresh))
    return [
        figure(W5_DONE, store, fresh["done"], "s", "from the start of a new worker, imports included"),
        figure(
            W5_TAKEN, store, taken["done"], "s", "from the kill, by a worker that already ran; 1 s of work left in each"
        ),
        figure(W5_FIRST, store, taken["first"], "s", "default settings"),
        figure(W5_LAST, store, taken["last"], "s", "default settings"),
        figure(W5_AGAIN, store, again, "steps", "in both"),
    ]


async def _killed(url: str, *, takeover: bool) -> dict[str, float]:
    steps = "SELECT count(*) FROM onward_journal WHERE kind = 'step.completed'"
    with ExitStack() as stack:
        first = stack.enter_context(_started(url))
        async with make_app(url) as app:
            before = query(url, steps) if takeover is False else 0
            ids = [task.id for task in await app.submit_many("slow_steps", [10] * 100)]
            until(lambda: query(url, steps) >= before + 300)
            if takeover:
                stack.enter_context(_started(url))
            until(lambda: query(url, steps) >= before + 500)
            first.kill9()
            wall = time.time()
            if not takeover:
                stack.enter_context(_started(url))
            for task_id in ids:
                await app.handle(task_id).result(60)
            done = time.time() - wall
        starts = query_all(
            url, f"SELECT at FROM onward_journal WHERE kind = 'shift.started' AND at > {wall} ORDER BY at"
        )
    return {"wall": wall, "done": done, "first": starts[0] - wall, "last": starts[-1] - wall}


def _started(url: str) -> child.Worker:
    worker = child.Worker("worker", url, 100, module=MODULE)
    worker.hear()
    worker.tell("go")
    worker.hear()
    return worker


def _again(lines: list[list[Any]], wall: float) -> int:
    """Steps whose body had ended before the kill and began again after it."""
    ended = {(task, number) for what, task, number, at in lines if what == "ended" and at < wall}
    return sum(what == "began" and at > wall and (task, number) in ended for what, task, number, at in lines)


def w6(store: str, url: str, quick: bool) -> list[Figure]:
    """How much more resident memory a worker has with 1,000 and 100,000 tasks asleep; and what a step costs on disk."""
    many = 10_000 if quick else 100_000
    figures = []
    with child.Worker("worker", url, 500, module=MODULE) as worker:
        worker.hear()
        worker.tell("go")
        worker.hear()
        time.sleep(1)
        worker.tell("memory")
        idle = worker.hear()
        there = 0
        for workload, total in ((W6_MEMORY, 1_000), (W6_MANY, many)):
            uvloop.run(_with_app(url, lambda app, n=total - there: _fill(app, "asleep", None, n)))
            there = total
            until(lambda n=total: query(url, "SELECT count(*) FROM onward_queue WHERE reason = 'asleep'") == n, 600)
            time.sleep(1)
            worker.tell("memory")
            figures.append(figure(workload, store, max(0.0, worker.hear() - idle), "MB", f"idle {idle:.0f} MB"))
    figures.append(figure(W6_BYTES, store, uvloop.run(_bytes_ratio(url)), "ratio"))
    return figures


async def _bytes_ratio(url: str) -> float:
    """Bytes in the journal for step 1,000 of a task, against those for step 10."""
    app = make_app(url)
    async with app.worker(slots=1):
        task = await app.submit("steps", 1000)
        await task.result(60)
        sizes = {
            record.key: len(record.data) + len(record.key) for record in await app.service.journal(task.id, 0, 2000)
        }
    return sizes["noop#1000"] / sizes["noop#10"]


async def _fill(app: Onward, task: str, value: Any, total: int) -> None:
    for start in range(0, total, 1_000):
        await app.service.submit([SubmitRequest(task, value)] * min(1_000, total - start), unchecked=True)


async def _with_app(url: str, work: Callable[[Onward], Coroutine[Any, Any, Any]]) -> Any:
    async with make_app(url) as app:
        return await work(app)


def query(url: str, sql: str) -> Any:
    return query_all(url, sql)[0]


def query_all(url: str, sql: str) -> list[Any]:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(5000)
        try:
            return [row[0] for row in connection.execute(sql)]
        finally:
            connection.close()
    with psycopg.connect(url, autocommit=True) as other:
        return [row[0] for row in other.execute(sql.encode())]


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the work was not done in time")
        time.sleep(0.05)


async def _worker(url: str, slots: str) -> None:
    app = make_app(url)
    async with app:
        await asyncio.to_thread(child.wait_to_be_told)
        async with app.worker(slots=int(slots)):
            child.say("up")
            while line := await asyncio.to_thread(sys.stdin.readline):
                if line.strip() == "memory":
                    child.say(resident())


def resident() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1_000_000


WORKLOADS: dict[str, Workload] = {"W1": w1, "W2": w2, "W3": w3, "W4": w4, "W5": w5, "W6": w6}

if __name__ == "__main__":
    child.main({}, {"worker": lambda url, slots: uvloop.run(_worker(url, slots))})
