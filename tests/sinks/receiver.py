"""A receiver of webhooks on a real socket that does what a test tells it; and a place inside that nobody may reach."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def answer(status: int, headers: str = "", body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


@dataclasses.dataclass
class Received:
    headers: dict[str, str]
    body: bytes
    path: str

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


Behaviour = Callable[["Received", asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """`says` is what the next requests are answered with, the last of them for ever; bytes, or something to do."""

    def __init__(self, *says: bytes | Behaviour) -> None:
        self.says: list[bytes | Behaviour] = list(says) or [OK]
        self.got: list[Received] = []
        self.connections = 0
        self.names: list[str | None] = []
        self.port = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    @contextlib.asynccontextmanager
    async def open(
        self, host: str = "127.0.0.1", port: int = 0, context: ssl.SSLContext | None = None
    ) -> AsyncIterator[Receiver]:
        if context is not None:
            context.sni_callback = lambda _socket, name, _context: self.names.append(name)
        server = await asyncio.start_server(self._serve, host, port, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = [line.partition(": ") for line in head[1:] if line]
            headers = {name.lower(): value for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            received = Received(headers, body, head[0].split(" ")[1])
            self.got.append(received)
            say = self.says.pop(0) if len(self.says) > 1 else self.says[0]
            if isinstance(say, bytes):
                writer.write(say)
                await writer.drain()
            else:
                await say(received, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
