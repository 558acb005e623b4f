"""An app with an agent and a handler, its server on a real socket, and official clients of both eras."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
from mcp import Client

from onward import Onward
from tests.server.conftest import serving
from tests.server.mcp.shop import shop

ERAS = ("auto", "legacy")


@pytest.fixture
async def served(app: Onward) -> AsyncIterator[str]:
    """The address of `/mcp`, with a worker beside it."""
    shop(app)
    app.settings = dataclasses.replace(app.settings, mcp_expose="add careful fail")
    async with serving(app) as address, app.worker():
        yield f"{address}/mcp"


@pytest.fixture(params=ERAS)
async def client(served: str, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """An official client of each protocol era, over HTTP. A task of its own holds the client: the SDK wants to close it in the
    task that opened it, and pytest runs the two halves of a fixture in two tasks."""
    ready, over = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold() -> None:
        async with Client(served, mode=request.param) as connected:
            ready.set_result(connected)
            await over.wait()

    holding = asyncio.create_task(hold())
    await asyncio.wait([holding, ready], return_when=asyncio.FIRST_COMPLETED)
    yield ready.result() if ready.done() else holding.result()
    over.set()
    await holding
