"""A reader of server-sent events as the standard describes it, small enough to trust; and a server whose parts a test can reach."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx2

from onward import Onward
from onward.server.http.state import ServerState
from onward.server.http.uvicorn import Server


class Event(NamedTuple):
    """One event, as it came."""

    id: str
    """The last id that was seen, with this one."""
    name: str
    data: Any
    own: bool
    """Whether it brought an id of its own."""


class Parser:
    """Lines in, events out."""

    def __init__(self, last: str = "") -> None:
        self.last, self.comments = last, 0
        self.retry: int | None = None
        self._name, self._data, self._id = "", list[str](), False

    def line(self, line: str) -> Event | None:
        if not line:
            data, name, own = self._data, self._name, self._id
            self._name, self._data, self._id = "", [], False
            return Event(self.last, name or "message", json.loads("\n".join(data)), own) if data else None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "":
                self.comments += 1
            case "data":
                self._data.append(value)
            case "event":
                self._name = value
            case "id":
                self.last, self._id = value, True
            case "retry":
                self.retry = int(value)
        return None


async def events(client: httpx2.AsyncClient, path: str, last: str = "", **params: Any) -> AsyncIterator[Event]:
    """The events of a stream, until it ends. Raises Refused if the response is no stream."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
    async with client.stream("GET", path, params=params, headers=headers) as answer:
        if answer.status_code != 200:
            await answer.aread()
            raise Refused(answer.status_code, answer.text, answer.headers)
        assert answer.headers["content-type"].startswith("text/event-stream")
        parser = Parser(last)
        async for line in answer.aiter_lines():
            if (event := parser.line(line)) is not None:
                yield event


class Refused(Exception):
    """There is no stream."""

    def __init__(self, status: int, text: str, headers: Any = None) -> None:
        self.status, self.text, self.headers = status, text, headers
        super().__init__(f"{status} {text}")


async def all_events(client: httpx2.AsyncClient, path: str, last: str = "", **params: Any) -> list[Event]:
    return [event async for event in events(client, path, last, **params)]


@contextlib.asynccontextmanager
async def served(app: Onward, **options: Any) -> AsyncIterator[tuple[httpx2.AsyncClient, ServerState, Server]]:
    """A client of a real server, and the server's parts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        ready = asyncio.Event()
        asgi = app.asgi(**{"keyless": True, **options})
        server = Server(asgi, grace=5, ready=ready.set)
        running = asyncio.create_task(server.serve([bound]))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        try:
            await ready.wait()
            limits = httpx2.Limits(max_connections=None)
            async with httpx2.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
                yield client, asgi.state.server, server
        finally:
            server.stop_gracefully()
            await running
