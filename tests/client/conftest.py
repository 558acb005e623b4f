"""Both clients behind one interface, against a real server: they have the same abilities and share the tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Client, Onward, SyncClient
from tests.server.conftest import serving


class InThreads:
    """Wraps a SyncClient for async code: it runs each call in a thread, and returns each stream as a list."""

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
    """All items of a stream of either client."""
    return await stream if inspect.isawaitable(stream) else [item async for item in stream]


@pytest.fixture(params=["Client", "SyncClient"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A function that makes a client of one of the two kinds from an address and options."""
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
