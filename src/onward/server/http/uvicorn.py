"""The uvicorn server with Onward's settings. The caller binds the sockets and handles the signals.

uvicorn limits neither the size nor the number of headers, nor the time they may take, nor the number of connections that send nothing:
`BoundedConnection` does. uvicorn closes a connection only when its client has read the rest: `Server` disconnects it after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onward.server.http.sending import file_limit, hang_up
from onward.server.http.tls import HANDSHAKE_TIMEOUT_S, Certificate
from onward.server.live.websocket import MAX_MESSAGE_BYTES

MAX_HEADER_BYTES = 65_536
"""Bytes of the request line and all headers together."""
MAX_HEADERS = 200
HEADER_TIMEOUT_S = 10.0
"""Seconds in which the request line and all headers must arrive."""

MAX_SILENT, MAX_SILENT_PER_ADDRESS = 1_000, 100
"""Connections, of all clients and of one client address, that have not sent all headers of a request. Over this the longest silent one is
disconnected."""
SILENCE_S = 1.0
"""Seconds of silence before a connection may be disconnected for that: a proxy may open many connections at once."""

MAX_CONNECTIONS = 10_000
"""Connections of all clients, and at most half of the limit of open files. Over this a new one is refused."""
WANTED_FILES = 2 * MAX_CONNECTIONS
"""Open files that `onward serve` asks the system for."""

CLOSE_TIMEOUT_S = 15.0
"""Seconds in which a client must read the rest after the server has closed the connection."""
WS_CLOSE_TIMEOUT_S = 5.0
"""The same for a WebSocket, whose client has answered no ping or has ended the connection itself."""
WS_PING_S = 10.0
"""Seconds between two pings of a WebSocket, and in which the client must answer one."""
SWEEP_TICKS = 10
"""Ticks of uvicorn, of 0.1 s, between two looks at closed connections."""

SWITCH_INTERVAL_S = 0.0001
"""Seconds after which Python switches to another thread that is ready: the event loop must not wait behind the thread that parses a large
body for Python's default of 5 ms."""

UNSENT_BYTES = 131_072
"""Unsent bytes of a connection that the kernel holds. Without this limit it takes megabytes for a client that reads nothing."""


class Server(uvicorn.Server):
    """A server that installs no signal handlers, and calls `ready` when it accepts requests. With a certificate it speaks TLS."""

    def __init__(
        self,
        asgi: Any,
        *,
        grace: float,
        ready: Callable[[], None] = lambda: None,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                asgi,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                http=functools.partial(BoundedConnection, SilentConnections(), min(MAX_CONNECTIONS, file_limit() // 2)),  # type: ignore[arg-type]
                ws_max_size=MAX_MESSAGE_BYTES,
                ws_ping_interval=WS_PING_S,
                ws_ping_timeout=WS_PING_S,
                timeout_graceful_shutdown=max(1, round(grace)),
            )
        )
        self._asgi, self._ready, self._certificate = asgi, ready, certificate
        self._closing: dict[Any, float] = {}
        """Connections that wait for their clients to read the rest, and since when."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Disconnect clients that do not read the rest of a closed connection. Load a renewed certificate."""
        if counter % SWEEP_TICKS == 0:
            now = asyncio.get_running_loop().time()
            closing = [each for each in self.server_state.connections if each.transport.is_closing()]
            self._closing = {each: self._closing.get(each, now) for each in closing}
            for connection, since in self._closing.items():
                timeout_s = CLOSE_TIMEOUT_S if isinstance(connection, BoundedConnection) else WS_CLOSE_TIMEOUT_S
                if now - since >= timeout_s:
                    hang_up(connection.transport)
            if self._certificate is not None:
                self._certificate.renew()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `ready`."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        for each in sockets or ():
            bound_unsent_bytes(each)
        if self._certificate is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            self.servers = [await self._listen(each, self._certificate) for each in sockets or ()]
        self._ready()

    async def _listen(self, bound: socket.socket, certificate: Certificate) -> asyncio.Server:
        """Accept TLS connections. (uvicorn itself bounds the time of a handshake by a minute, and cannot be told another.)"""
        return await asyncio.get_running_loop().create_server(
            lambda: self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            ),
            sock=bound,
            ssl=certificate.context,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            backlog=self.config.backlog,
        )

    def stop_gracefully(self) -> None:
        """Accept no new requests, end streams and held responses, and finish the other requests."""
        self._asgi.state.server.closing.set()
        self.should_exit = True


def raise_file_limit() -> None:
    """Let this process have as many open files as it needs and may have: many systems begin with 1,024."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 -- not on Windows

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bound_unsent_bytes(listener: socket.socket) -> None:
    """Bound the bytes that the kernel holds for each connection of a listening socket, where the system can."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and listener.family in (socket.AF_INET, socket.AF_INET6):
        listener.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)  # accepted sockets inherit it


class SilentConnections:
    """The connections of a server that have not sent all headers of a request, the longest silent first."""

    def __init__(self) -> None:
        self._all: dict[BoundedConnection, float] = {}
        self._by_address: dict[str, dict[BoundedConnection, float]] = {}

    def add(self, connection: BoundedConnection, now: float) -> None:
        """A connection is silent from now on. If there are too many, the longest silent ones are disconnected."""
        of_address = self._by_address.get(connection.address, {})
        for silent, most in ((of_address, MAX_SILENT_PER_ADDRESS), (self._all, MAX_SILENT)):
            while len(silent) >= most and now - next(iter(silent.values())) >= SILENCE_S:
                next(iter(silent)).refuse(b"408 Request Timeout")
        self._all[connection] = now
        self._by_address.setdefault(connection.address, {})[connection] = now

    def remove(self, connection: BoundedConnection) -> None:
        """A connection has sent its headers or is gone."""
        if self._all.pop(connection, None) is None:
            return
        of_address = self._by_address[connection.address]
        del of_address[connection]
        if not of_address:
            del self._by_address[connection.address]


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which refuses headers that are too large (431) or too slow (408), and connections beyond the limits (503)."""

    def __init__(self, silent: SilentConnections, most: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._silent, self._max_connections = silent, most
        self.address = ""
        """The address of the client, without its port."""
        self._size = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first headers."""
        crowded = len(self.connections) >= self._max_connections
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if crowded:
            self.refuse(b"503 Service Unavailable")
        else:
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
                self.refuse(b"431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        """Check the headers again: they may have come in one piece, before `data_received` counted them."""
        self._stop_head_timer()
        if len(self.headers) > MAX_HEADERS or len(self.url) > MAX_HEADER_BYTES:
            self.refuse(b"431 Request Header Fields Too Large")
            raise ValueError("the headers are too large")  # stops the parser
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the timer of the body."""
        self._end_body()
        super().on_message_complete()

    def _start_head(self) -> None:
        self._size = 0
        self._silent.add(self, self.loop.time())
        self._head_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.refuse, b"408 Request Timeout")

    def _stop_head_timer(self) -> None:
        self._silent.remove(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_body(self) -> None:
        self._in_body = False
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def refuse(self, status: bytes) -> None:
        """Answer with this status and close the connection."""
        self._stop_head_timer()
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
