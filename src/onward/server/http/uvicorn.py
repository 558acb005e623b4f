"""The uvicorn server with Onward's settings. The caller binds the sockets and handles the signals."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from onward.server.http.header_limits import LimitedHeadersProtocol

MAX_MESSAGE_BYTES = 65_536
"""Bytes of one WebSocket message."""


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
