"""W8, live progress: from a worker's commit to 100 clients that follow, over a server in a process of its own.

Ten tasks take a step every 60 ms, each result is the moment at which the step was over, and ten clients follow each of them. So
what is measured is all of the way: the commit, the word of it, the look at the journal, and the sending to all.

`python -m bench.stream worker URL` and `… server URL` are the other processes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from contextlib import ExitStack
from typing import Any

import uvloop

from bench.measure import W8_LATENCY, W8_LATENCY_P99, Figure, latency, percentile
from bench.peers import child
from bench.workloads import figure
from onward import Onward
from onward.server.http.uvicorn import Server

TASKS = 10
CLIENTS = 100
STEPS = 60
PAUSE = 0.06


def make_app(url: str) -> Onward:
    app = Onward(url)

    @app.task
    async def tick(ctx: Any, steps: int) -> int:
        for _ in range(steps):
            await ctx.step(_moment, name="moment")
        return steps

    return app


async def _moment() -> float:
    await asyncio.sleep(PAUSE)
    return time.time()


def w8(store: str, url: str, quick: bool) -> list[Figure]:
    """Seconds from the end of a step to each of the clients."""
    taken = uvloop.run(_follow(url, 20 if quick else STEPS))
    note = f"{CLIENTS} clients, {len(taken):,} updates, worker and server apart, {latency(taken)}"
    return [
        figure(W8_LATENCY, store, percentile(taken, 50) * 1000, "ms", note),
        figure(W8_LATENCY_P99, store, percentile(taken, 99) * 1000, "ms", "the same"),
    ]


async def _follow(url: str, steps: int) -> list[float]:
    async with make_app(url) as app:
        with ExitStack() as stack:
            server = stack.enter_context(child.Worker("server", url, module="bench.stream"))
            port = server.hear()
            ids = [(await app.submit("tick", steps)).id for _ in range(TASKS)]
            clients = [asyncio.create_task(_client(port, ids[n % TASKS])) for n in range(CLIENTS)]
            await asyncio.sleep(1)  # all are there before the first step
            worker = stack.enter_context(child.Worker("worker", url, module="bench.stream"))
            worker.hear()
            found = await asyncio.gather(*clients)
    assert all(len(one) == steps for one in found), [len(one) for one in found]
    return [moment for one in found for moment in one]


async def _client(port: int, task_id: str) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/progress?task_id={task_id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    taken = []
    while (line := await reader.readline()).strip() != b"0":
        if line.startswith(b"data: "):
            update = json.loads(line[6:])
            if update["status"] == "tool_result":
                taken.append(time.time() - float(update["message"]))
    writer.close()
    return taken


async def _server(url: str) -> None:
    app = make_app(url)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with app:
            server = Server(app.asgi(keyless=True), grace=1, ready=lambda: child.say(bound.getsockname()[1]))
            running = asyncio.create_task(server.serve([bound]))
            await asyncio.to_thread(sys.stdin.read)
            server.stop_gracefully()
            await running


async def _worker(url: str) -> None:
    app = make_app(url)
    async with app, app.worker(slots=TASKS):
        child.say("up")
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    child.main(
        {},
        {"server": lambda url: uvloop.run(_server(url)), "worker": lambda url: uvloop.run(_worker(url))},
    )
