"""The server: uvicorn, set up for us. It binds nothing and hears no signals; whoever runs it does."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from onward.server.http.header_limits import BoundedHeads

MESSAGE_LIMIT = 65_536
"""Bytes of one message over a WebSocket."""


class Server(uvicorn.Server):
    """Signals are the caller's; and whoever starts us wants to know when we answer."""

    def __init__(self, served: Any, *, grace: float, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                served,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                http=BoundedHeads,
                ws_max_size=MESSAGE_LIMIT,
                timeout_graceful_shutdown=max(1, round(grace)),
            )
        )
        self._served, self._ready = served, ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As usual, and then it is said."""
        await super().startup(sockets)
        self._ready()

    def leave(self) -> None:
        """Take no new requests, end what would go on for ever, and let the rest come to its end."""
        self._served.state.edge.closing.set()
        self.should_exit = True
