"""Bounds the bytes that wait for clients which read slowly or not at all, at one place for every door of the server.

    app ─► BoundedSend: chunks, with a time limit for each ─► the server's connection, which holds about one chunk

A client that does not take a chunk in time is disconnected; for the app it is a client that has left. A large body waits in the
`SPOOL`: in memory while there is room for it, otherwise in a temporary file, so that a thousand slow readers cost disk and no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import logging
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onward.server.http.problem import Problem

log = logging.getLogger("onward.http")

CHUNK_BYTES = 65_536
"""Bytes of a body that are handed to the connection at once."""

SEND_TIMEOUT_S = 20.0
"""Seconds in which a client must take a chunk, or a message of a WebSocket."""

MAX_HELD_BYTES = 64 << 20
"""Bytes of large bodies in memory, of all clients together, before the next ones go to temporary files; and, beside them, of large
bodies that do not come from the spool."""

MAX_FILE_BYTES = 4 << 30
"""Bytes of large bodies in temporary files. Over this a large response is refused."""

MAX_FILES = 1_000
"""Temporary files at once, and at most a quarter of the limit of open files."""

LARGE_BYTES = 4 * CHUNK_BYTES
"""A body of more bytes is a large one."""

RETRY_AFTER_S = 5
"""Seconds after which a client may try again when there are too many large responses."""


class ClientTooSlow(OSError):
    """The client does not take the bytes that are sent, and the server has no way to disconnect it. (ASGI servers raise an OSError
    for a client that has left.)"""


class BoundedSend:
    """ASGI middleware: sends bodies in chunks, and disconnects a client that does not take a message in time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0
        """Bytes of large bodies that are being sent from the app's own memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _Client(scope["type"], receive, send)

        async def bounded(message: Message) -> None:
            body = message.get("body", b"") if message["type"] == "http.response.body" else b""
            if len(body) <= CHUNK_BYTES:
                await client.send(message)
                return
            with self._hold(len(body)) as fits:
                if fits:
                    await client.send_in_chunks(message, body)
                else:
                    await client.disconnect()

        with contextlib.suppress(ClientTooSlow):
            await self._app(scope, receive, bounded)

    @contextlib.contextmanager
    def _hold(self, size: int) -> Iterator[bool]:
        """Count a large body while it is sent; yields whether there is room for it."""
        size = size if size > LARGE_BYTES else 0
        self._held += size
        try:
            yield size == 0 or self._held <= max(MAX_HELD_BYTES, size)
        finally:
            self._held -= size


class _Client:
    """The other end of one request."""

    def __init__(self, kind: str, receive: Receive, send: Send) -> None:
        self._kind, self._receive, self._send = kind, receive, send
        self._gone = False

    async def send(self, message: Message) -> None:
        """Send one message. Once the client was disconnected it does nothing, as ASGI servers do."""
        if self._gone:
            return
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._send(message)
        except TimeoutError:
            await self.disconnect()

    async def send_in_chunks(self, message: Message, body: bytes) -> None:
        more, last = message.get("more_body", False), len(body) - 1
        for start in range(0, len(body), CHUNK_BYTES):
            end = start + CHUNK_BYTES
            await self.send({**message, "body": body[start:end], "more_body": more or end <= last})

    async def disconnect(self) -> None:
        """Disconnect the client, and wait until the server knows. Raises ClientTooSlow where that is not possible."""
        self._gone = True
        if not abort(self._receive):
            raise ClientTooSlow("the client does not take the response")
        if self._kind == "http":  # the next message of a WebSocket belongs to the app
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await client_gone(self._receive)


async def client_gone(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def abort(receive: Any) -> bool:
    """Disconnect at once, and discard data that the client has not taken. ASGI has no message for this, so it uses the
    transport of the server, if there is one."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if not hasattr(transport, "abort"):
        return False
    hang_up(transport)
    return True


def hang_up(transport: Any) -> None:
    """Disconnect at once. The kernel, too, discards the data that the client has not taken: it would keep it for minutes."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed already, or no socket
        connection = socket.socket(fileno=transport.get_extra_info("socket").fileno())
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            connection.detach()  # the transport closes it
    transport.abort()


def file_limit() -> int:
    """The most files, with connections, that this process may have open."""
    try:
        import resource  # noqa: PLC0415 -- not on Windows
    except ImportError:
        return 8_192
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if files == resource.RLIM_INFINITY else files


class Spool:
    """Large bodies that wait for their readers, in memory or in temporary files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = self._filed = self._files = 0
        self._max_files = min(MAX_FILES, file_limit() // 4)

    def store(self, data: bytes) -> Spooled:
        """Store a body until `close` of the result. It may block for as long as a write to the disk takes. Raises Problem."""
        size = len(data)
        if size <= LARGE_BYTES:
            return Spooled(io.BytesIO(data), size)
        in_memory = self._take(size)
        release = functools.partial(self._release, size, in_memory)
        try:
            return Spooled(io.BytesIO(data) if in_memory else _write_file(data), size, release)
        except BaseException:
            release()
            raise

    def _take(self, size: int) -> bool:
        """Take room for a body; returns whether that is in memory."""
        with self._lock:
            if self._held + size <= MAX_HELD_BYTES:
                self._held += size
                return True
            if self._filed + size <= MAX_FILE_BYTES and self._files < self._max_files:
                self._filed += size
                self._files += 1
                return False
        raise _too_many("the server has too many large responses at once")

    def _release(self, size: int, in_memory: bool) -> None:
        with self._lock:
            if in_memory:
                self._held -= size
            else:
                self._filed -= size
                self._files -= 1


class Spooled:
    """One body in the spool. Use it as a context manager."""

    def __init__(self, file: BinaryIO, size: int, release: Callable[[], None] = lambda: None) -> None:
        self._file, self.size, self._release = file, size, release

    def read(self, size: int) -> bytes:
        """The next bytes; empty at the end."""
        return self._file.read(size)

    def __enter__(self) -> Spooled:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()
        self._release()


SPOOL = Spool()
"""The spool of this process: memory and disk are shared by all its servers."""


def _write_file(data: bytes) -> BinaryIO:
    """The bytes in a temporary file without a name."""
    try:
        file = tempfile.TemporaryFile(buffering=0, prefix="onward-")  # noqa: SIM115 -- `Spooled` closes it
        try:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            file.seek(0)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        log.warning("cannot write a large response to a temporary file: %s; set TMPDIR to a folder with room", error)
        raise _too_many("the server has too many large responses at once, and no room for temporary files") from None
    return file


def _too_many(reason: str) -> Problem:
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return Problem(503, "too_many_responses", f"{reason}; try again in {RETRY_AFTER_S} s", headers)


async def body_response(data: bytes, status: int, headers: Mapping[str, str], media_type: str) -> Response:
    """A response with this body; a large body goes to the spool. Raises Problem."""
    if len(data) <= LARGE_BYTES:
        return Response(data, status, headers, media_type)
    return SpooledResponse(await asyncio.to_thread(SPOOL.store, data), status, headers, media_type)


class SpooledResponse(Response):
    """A response whose body is in the spool."""

    def __init__(self, body: Spooled, status: int, headers: Mapping[str, str], media_type: str) -> None:
        super().__init__(None, status, {**headers, "Content-Length": str(body.size)}, media_type)
        self._spooled = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 -- as ASGI has it
        """Send the whole response."""
        with self._spooled as body:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            left = body.size
            while left > 0:
                chunk = body.read(CHUNK_BYTES)
                left -= len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": left > 0})
