"""Answers of other programs over HTTP, bounded: in bytes, in the size of one event, in the number of values, and never packed.

What is packed may become a thousand times as large; so it is not asked for, and refused where it comes all the same. A reader of JSON
lets nothing else run, so what has too many values is refused before it is read.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2

from onward.core import wire

MOST = 4 << 20
"""Bytes of an answer that comes in one piece, and of one event of a stream."""

SMALL = 32_768
"""Bytes that are looked at in the event loop."""

HEADERS = {"Accept-Encoding": "identity"}

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Oversized(httpx2.StreamError, ValueError):
    """An answer that is larger than this program reads."""


def hooks(
    most: int, *, opened: int = wire.MAX_VALUES, again: float = 0.0
) -> dict[str, list[Callable[..., Awaitable[None]]]]:
    """Hooks of a client of HTTP: `most` bytes for an answer, so many lists and objects `opened` at once, and `again` seconds between two
    requests to go on with a stream, whatever the server says."""
    last = [-again]

    async def paced(request: httpx2.Request) -> None:
        if request.method == "GET" and again:
            now = asyncio.get_running_loop().time()
            last[0] = max(now, last[0] + again)
            await asyncio.sleep(last[0] - now)

    async def bound(response: httpx2.Response) -> None:
        response.stream = _Counted(response, most, opened)

    return {"request": [paced], "response": [bound]}


class _Counted(httpx2.AsyncByteStream):
    """The bytes of an answer, as a whole or event by event, until there is too much."""

    def __init__(self, response: httpx2.Response, most: int, opened: int) -> None:
        self._inner: Any = response.stream
        self._most, self._opened = most, opened
        self._packed = response.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}
        self._streams = response.headers.get("content-type", "").lower().startswith("text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            raise Oversized("its answer is packed, which was not asked for")
        whole, held = 0, bytearray()
        async for piece in self._inner:
            whole += len(piece)
            held += piece
            if whole > self._most:
                raise Oversized(f"its answer has more than {self._most:,} bytes")
            if self._streams and (end := self._end(held, len(piece))) > 0:
                yield await self._checked(bytes(held[:end]))
                del held[:end]
            if len(held) > MOST:
                raise Oversized(f"its answer has more than {MOST:,} bytes in one piece")
        if held:
            yield await self._checked(bytes(held))

    @staticmethod
    def _end(held: bytearray, new: int) -> int:
        """Where the last whole event ends."""
        begin = max(0, len(held) - new - 3)
        return max(found + len(sign) if (found := held.rfind(sign, begin)) >= 0 else 0 for sign in _ENDS)

    async def _checked(self, data: bytes) -> bytes:
        judge = functools.partial(wire.oversized, data, self._opened)
        why = judge() if len(data) <= SMALL else await asyncio.to_thread(judge)
        if why is not None:
            raise Oversized(f"its answer is not read: {why}")
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()
