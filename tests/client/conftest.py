"""Both clients behind one face, against a real server: what one can do, the other can, and the tests are the same."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Client, Onward, SyncClient
from tests.server.conftest import serving


class InThreads:
    """A SyncClient as code with a loop sees it: each call in a thread, each stream as the list of its items."""

    def __init__(self, at: Any) -> None:
        self.at = at

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.at, name)
        if not callable(member):
            return member

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = await asyncio.to_thread(lambda: _drained(member(*args, **kwargs)))
            return InThreads(result) if hasattr(result, "_client") else result

        return call


def _drained(answer: Any) -> Any:
    return list(answer) if inspect.isgenerator(answer) else answer


async def listed(stream: Any) -> list[Any]:
    """All that a stream of either client finds."""
    return await stream if inspect.isawaitable(stream) else [item async for item in stream]


@pytest.fixture(params=["Client", "SyncClient"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Call it with an address, and whatever else, for a client of one of the two sorts."""
    made: list[Any] = []

    def make(address: str, *args: Any, **options: Any) -> Any:
        if request.param == "Client":
            made.append(Client(address, *args, **options))
            return made[-1]
        made.append(SyncClient(address, *args, **options))
        return InThreads(made[-1])

    yield make
    for client in made:
        closed = client.close()
        if closed is not None:
            await closed


@pytest.fixture
async def client(app: Onward, either: Any) -> AsyncIterator[Any]:
    """One of them, with a server for `app`."""
    async with serving(app) as address:
        yield either(address, patience=5)
