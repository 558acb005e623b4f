"""Limits for HTTP responses of other programs: in bytes, in the size of one event, in the number of values, and no compression.

A compressed response may grow a thousandfold, so the client asks for none and refuses one that comes anyway. Parsing JSON blocks the
event loop, so a response with too many values is refused before it is parsed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2

from onward.core import wire

MAX_PIECE_BYTES = 4 << 20
"""Bytes of a response that comes in one piece, and of one event of a stream."""

INLINE_BYTES = 32_768
"""Up to so many bytes are checked in the event loop; a thread checks larger pieces."""

HEADERS = {"Accept-Encoding": "identity"}

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Oversized(httpx2.StreamError, ValueError):
    """A response that is larger than this program reads."""


def hooks(
    max_bytes: int, *, max_containers: int = wire.MAX_VALUES, get_interval_s: float = 0.0
) -> dict[str, list[Callable[..., Awaitable[None]]]]:
    """Event hooks for an HTTP client: at most `max_bytes` in a response, at most `max_containers` lists and objects in one piece, and
    `get_interval_s` seconds between two GET requests, which reconnect to a stream, whatever the server says."""
    last_get = [-get_interval_s]

    async def pace(request: httpx2.Request) -> None:
        if request.method == "GET" and get_interval_s:
            now = asyncio.get_running_loop().time()
            last_get[0] = max(now, last_get[0] + get_interval_s)
            await asyncio.sleep(last_get[0] - now)

    async def limit(response: httpx2.Response) -> None:
        response.stream = _LimitedStream(response, max_bytes, max_containers)

    return {"request": [pace], "response": [limit]}


class _LimitedStream(httpx2.AsyncByteStream):
    """The bytes of a response, whole or event by event. Raises Oversized at the first limit that is passed."""

    def __init__(self, response: httpx2.Response, max_bytes: int, max_containers: int) -> None:
        self._inner: Any = response.stream
        self._max_bytes, self._max_containers = max_bytes, max_containers
        self._compressed = response.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}
        self._is_event_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._compressed:
            raise Oversized("its answer is compressed, which was not asked for")
        total, buffer = 0, bytearray()
        async for chunk in self._inner:
            total += len(chunk)
            buffer += chunk
            if total > self._max_bytes:
                raise Oversized(f"its answer has more than {self._max_bytes:,} bytes")
            if self._is_event_stream and (end := self._last_event_end(buffer, len(chunk))) > 0:
                yield await self._check(bytes(buffer[:end]))
                del buffer[:end]
            if len(buffer) > MAX_PIECE_BYTES:
                raise Oversized(f"its answer has more than {MAX_PIECE_BYTES:,} bytes in one piece")
        if buffer:
            yield await self._check(bytes(buffer))

    @staticmethod
    def _last_event_end(buffer: bytearray, new_bytes: int) -> int:
        """The position after the last whole event; 0 when there is none."""
        begin = max(0, len(buffer) - new_bytes - 3)
        return max(at + len(end) if (at := buffer.rfind(end, begin)) >= 0 else 0 for end in _EVENT_ENDS)

    async def _check(self, data: bytes) -> bytes:
        check = functools.partial(wire.oversized, data, self._max_containers)
        why = check() if len(data) <= INLINE_BYTES else await asyncio.to_thread(check)
        if why is not None:
            raise Oversized(f"its answer is not read: {why}")
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()
