"""Clients that read a byte now and then: the data that waits for them is bounded, and they delay neither the task nor other
clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.server.live import feed
from tests.kit import eventually, only_file, only_memory
from tests.server.sse import all_events, served
from tests.server.test_fuzz import serve

SIZE = 20_000


@contextlib.contextmanager
def lazy(port: int, path: str, count: int) -> Iterator[list[socket.socket]]:
    """Clients that have sent a request and read next to nothing."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
            client.setblocking(False)
            sockets.append(client)
        yield sockets


async def sip(sockets: list[socket.socket]) -> None:
    """A byte of each, a few times a second."""
    while True:
        for client in sockets:
            with contextlib.suppress(OSError):
                client.recv(1)
        await asyncio.sleep(0.3)


@pytest.mark.slow
@only_memory
async def test_the_data_that_waits_for_slow_readers_is_bounded(app: Onward) -> None:
    @app.task
    async def large(ctx: Any, n: int) -> int:
        for _ in range(n):
            await ctx.step(_give, "x" * SIZE, name="step")
        return n

    async with served(app) as (client, edge, _), app.worker():
        task = await app.submit(large, 300, delay=1)
        path = f"/api/tasks/{task.id}/events"
        with lazy(client.base_url.port or 0, path, 50) as sockets:
            sipping = asyncio.create_task(sip(sockets))
            await eventually(lambda: _followers(edge, 50), 60)
            neighbour = await all_events(client, path)
            waiting = [follower.buffered for follower in edge.feed.followers]
            sipping.cancel()
        assert (await task.get()).state == "completed"
    assert len(neighbour) == 303
    assert len(waiting) >= 50
    assert max(count for count, _ in waiting) <= feed.MAX_BUFFERED_RECORDS
    assert max(size for _, size in waiting) <= feed.MAX_BUFFERED_BYTES + SIZE + 100
    assert sum(size for _, size in waiting) < 50 * 300 * SIZE / 10, "they would hold all of it otherwise"


async def _give(value: Any) -> Any:
    return value


async def _followers(edge: Any, count: int) -> bool:
    return len(edge.feed.followers) >= count


@pytest.mark.slow
@only_file
async def test_the_memory_of_a_server_is_bounded(url: str, prove: bool) -> None:
    count = 500 if prove else 200
    child, address = await asyncio.to_thread(serve, url)
    with child:
        async with httpx2.AsyncClient(base_url=address, timeout=120) as client:
            warm = (await client.post("/api/tasks", json={"task": "large", "input": {"n": 300, "size": SIZE}})).json()
            await all_events(client, f"/api/tasks/{warm['task_id']}/events")
            before = resident(child.pid)
            body = {"task": "large", "input": {"n": 300, "size": SIZE}, "delay_s": 2}
            task_id = (await client.post("/api/tasks", json=body)).json()["task_id"]
            path = f"/api/tasks/{task_id}/events"
            with lazy(int(address.rpartition(":")[2]), path, count) as sockets:
                sipping = asyncio.create_task(sip(sockets))
                neighbour = await all_events(client, path)
                task = (await client.get(f"/api/tasks/{task_id}")).json()
                after = resident(child.pid)
                sipping.cancel()
        assert task["state"] == "completed"
        assert len([event for event in neighbour if event.data["kind"] == "step.completed"]) == 300
        each = (after - before) / count
        print(
            f"{count} slow readers: {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB with them, {each / 1e3:.0f} kB each"
        )
        assert each < 400_000, "each would hold 6 MB otherwise"


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
