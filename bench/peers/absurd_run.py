"""Absurd: durable steps as stored procedures of PostgreSQL. https://github.com/earendil-works/absurd

Settings, of those tried on two cores: its asynchronous client on uvloop. W3: eight clients in one process, each with its own
connection and room for 25 tasks (one connection: 790 steps/s; 4, 12 and 20: within 7 % of eight). No ANALYZE here: with the
statistics of empty tables it lost 30 % (one run). W4: a poll of 2 ms where the default is 250 (5: 4 ms more; 1: no gain to speak
of), and a caller who asks for the result each 2 ms where its own waiting begins with 50. Nobody would idle like that.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import absurdctl  # type: ignore[import-not-found]
import psycopg
import uvloop
from absurd_sdk import Absurd, AsyncAbsurd  # type: ignore[import-not-found]

from bench.measure import W3, W4_PICKUP, W4_PICKUP_P99, W4_STEPS, Figure, percentile
from bench.peers import child

NAME = "absurd"
STORE = "postgres"
TASK = "work"
TASKS = 200
STEPS = 20
WARM_UP = 40
CLIENTS = 8
BUSY_POLL = 0.02
IDLE_POLL = 0.002


async def _step() -> dict[str, bool]:
    return {"ok": True}


async def _take_steps(context: Any, count: int) -> None:
    for number in range(count):
        await context.step(f"step-{number}", _step)


def w3(url: str, quick: bool) -> list[Figure]:
    caller = _installed(url)
    tasks = 40 if quick else TASKS
    seconds = uvloop.run(_w3(caller, url, tasks))
    with psycopg.connect(url) as connection:
        saved = connection.execute("SELECT count(*) FROM absurd.c_default").fetchone()
        done = connection.execute("SELECT count(*) FROM absurd.t_default WHERE state = 'completed'").fetchone()
    assert (saved, done) == (((WARM_UP + tasks) * STEPS,), (WARM_UP + tasks,))
    note = f"{CLIENTS} connections, {tasks // CLIENTS} tasks each, uvloop"
    return [Figure(W3, NAME, STORE, tasks * STEPS / seconds, "steps/s", note)]


async def _w3(caller: Any, url: str, tasks: int) -> float:
    clients = [AsyncAbsurd(url) for _ in range(CLIENTS)]
    started: list[float] = []
    waiting = [0]

    async def work(params: object, context: Any) -> None:
        started.append(time.monotonic())
        await _take_steps(context, STEPS)
        waiting[0] -= 1
        if not waiting[0]:
            for client in clients:
                client.stop_worker()

    for client in clients:
        client.register_task(TASK)(work)
        await client.list_queues()  # connects
    for waiting[0] in (WARM_UP, tasks):
        for number in range(waiting[0]):
            caller.spawn(TASK, {"number": number}, queue="default")
        started.clear()
        room = -(-waiting[0] // CLIENTS)
        # A worker returns only after its last task was durably completed.
        await asyncio.gather(*(client.start_worker(concurrency=room, poll_interval=BUSY_POLL) for client in clients))
    return time.monotonic() - started[0]


def w4(url: str, quick: bool) -> list[Figure]:
    caller = _installed(url)
    picked, done = [], []
    with child.Worker("serve", url) as worker:
        worker.hear()
        worker.tell("go")
        for _ in range(20 if quick else 110):
            time.sleep(random.uniform(0.1, 0.2))
            start = time.monotonic()
            task = caller.spawn(TASK, {}, queue="default")["task_id"]
            while caller.fetch_task_result(task).state != "completed":
                time.sleep(IDLE_POLL)
            done.append(time.monotonic() - start)
            picked.append(worker.hear() - start)
    picked, done = picked[10:], done[10:]
    note = f"{len(done)} tasks, worker and caller poll each {IDLE_POLL * 1000:.0f} ms"
    return [
        Figure(W4_PICKUP, NAME, STORE, percentile(picked, 50) * 1000, "ms", note),
        Figure(W4_PICKUP_P99, NAME, STORE, percentile(picked, 99) * 1000, "ms", note),
        Figure(W4_STEPS, NAME, STORE, percentile(done, 50) * 1000, "ms", note),
    ]


def serve(url: str) -> None:
    uvloop.run(_serve(url))


async def _serve(url: str) -> None:
    async def work(params: object, context: Any) -> None:
        child.say(time.monotonic())
        await _take_steps(context, 10)

    client = AsyncAbsurd(url)
    client.register_task(TASK)(work)
    child.wait_to_be_told()
    await client.start_worker(concurrency=10, poll_interval=IDLE_POLL)


def _installed(url: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    caller = Absurd(url)
    caller.create_queue("default")
    return caller


if __name__ == "__main__":
    child.main({"W3": w3, "W4": w4}, {"serve": serve})
