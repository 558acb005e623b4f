"""The uvicorn server with Onward's settings. The caller binds the sockets and handles the signals.

uvicorn limits neither the size nor the number of headers, nor the time they may take: `LimitedHeadersProtocol` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onward.server.live.websocket import MAX_MESSAGE_BYTES

MAX_HEADER_BYTES = 65_536
"""Bytes of the request line and all headers together."""
MAX_HEADERS = 200
HEADER_TIMEOUT_S = 10.0
"""Seconds in which the request line and all headers must arrive."""


class Server(uvicorn.Server):
    """A server that installs no signal handlers, and calls `ready` when it accepts requests."""

    def __init__(self, asgi: Any, *, grace: float, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                asgi,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                http=LimitedHeadersProtocol,
                ws_max_size=MAX_MESSAGE_BYTES,
                timeout_graceful_shutdown=max(1, round(grace)),
            )
        )
        self._asgi, self._ready = asgi, ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `ready`."""
        await super().startup(sockets)
        self._ready()

    def stop_gracefully(self) -> None:
        """Accept no new requests, end streams and held responses, and finish the other requests."""
        self._asgi.state.server.closing.set()
        self.should_exit = True


class LimitedHeadersProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which refuses headers that are too large (431) or too slow (408)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first headers."""
        super().connection_made(transport)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_head_timer()
        self._end_body()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of the headers; bound the time for the rest of a body whose request was already answered."""
        response_sent = self.cycle is not None and self.cycle.response_complete
        if response_sent and self._in_body and self._body_timer is None:
            # the server refused the request before it read the body: these bytes are the rest of the body
            self._body_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)
        if response_sent and self._head_timer is None and not self._in_body:
            self._start_head()
        super().data_received(data)
        if self._head_timer is not None:
            self._size += len(data)
            if self._size > MAX_HEADER_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        """Check the headers again: they may have come in one piece, before `data_received` counted them."""
        self._stop_head_timer()
        if len(self.headers) > MAX_HEADERS or len(self.url) > MAX_HEADER_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")
            raise ValueError("the headers are too large")  # stops the parser
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the timer of the body."""
        self._end_body()
        super().on_message_complete()

    def _start_head(self) -> None:
        self._size = 0
        self._head_timer = self.loop.call_later(HEADER_TIMEOUT_S, self._refuse, b"408 Request Timeout")

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_body(self) -> None:
        self._in_body = False
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _refuse(self, status: bytes) -> None:
        self._stop_head_timer()
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
