"""Heads: how large the first lines of a request may be, and how long they may take. uvicorn leaves both open."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LIMIT = 65_536
"""Bytes of the request line and all headers."""
MOST = 200
"""How many headers."""
PATIENCE = 10.0
"""Seconds in which they have to arrive."""


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's reader, which gives up on a head that is too large (431) or too slow (408)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size = 0
        self._late: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Its first head begins."""
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        self._come()
        self._ended()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a head, or of a body."""
        answered = self.cycle is not None and self.cycle.response_complete
        if (
            answered and self._in_body and self._rest is None
        ):  # refused unread: the rest of it is no head, and has its time
            self._rest = self.loop.call_later(PATIENCE, self.transport.close)
        if answered and self._late is None and not self._in_body:
            self._begin()
        super().data_received(data)
        if self._late is not None:
            self._size += len(data)
            if self._size > LIMIT:
                self._refuse(b"431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        """The head is there; it may have come in one piece, before anybody could count."""
        self._come()
        if len(self.headers) > MOST or len(self.url) > LIMIT:
            self._refuse(b"431 Request Header Fields Too Large")
            raise ValueError("a head that is too large")  # the parser stops here
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is there, as well as the head."""
        self._ended()
        super().on_message_complete()

    def _begin(self) -> None:
        self._size = 0
        self._late = self.loop.call_later(PATIENCE, self._refuse, b"408 Request Timeout")

    def _come(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _ended(self) -> None:
        self._in_body = False
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _refuse(self, status: bytes) -> None:
        self._come()
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
