"""A real server on a real socket, in the loop of the test, beside a worker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.server.http.uvicorn import Server


@contextlib.asynccontextmanager
async def serving(app: Onward, **options: Any) -> AsyncIterator[str]:
    """The address of a server for this app, while the block lasts."""
    with options.pop("bound", None) or socket.socket(proto=socket.IPPROTO_TCP) as bound:  # as `onward serve` does
        if bound.getsockname()[1] == 0:
            bound.bind(("127.0.0.1", 0))
        ready = asyncio.Event()
        server = Server(app.asgi(**{"keyless": True, **options}), grace=5, ready=ready.set)
        running = asyncio.create_task(server.serve([bound]))
        try:
            await ready.wait()
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.stop_gracefully()
            await running


@pytest.fixture
async def client(app: Onward) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server for `app`. A test may add handlers after the server has started."""
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        yield client


Ends = Callable[[str], Awaitable[dict[str, Any]]]


@pytest.fixture
def ends(client: httpx2.AsyncClient) -> Ends:
    """Wait for the end of a task, over HTTP."""

    async def wait(task_id: str) -> dict[str, Any]:
        for _ in range(20):
            answer = await client.get(f"/api/tasks/{task_id}/result", params={"timeout_s": 5})
            if answer.status_code == 200:
                body: dict[str, Any] = answer.json()
                return body
        raise AssertionError(f"{task_id} does not end")

    return wait
