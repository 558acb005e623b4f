"""Answers of other programs over HTTP, bounded: in bytes, in the size of one event, in the number of values, and never packed.

What is packed may become a thousand times as large; so it is not asked for, and refused where it comes all the same. A reader of JSON
lets nothing else run, so what has too many values is refused before it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2

from onward.core import wire

MOST = 4 << 20
"""Bytes of an answer that comes in one piece, and of one event of a stream."""

HEADERS = {"Accept-Encoding": "identity"}

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Oversized(httpx2.StreamError, ValueError):
    """An answer that is larger than this program reads."""


def hooks(most: int, again: float = 0.0) -> dict[str, list[Callable[..., Awaitable[None]]]]:
    """Hooks of a client of HTTP: `most` bytes for an answer, and `again` seconds between two requests to go on with a stream, whatever
    the server says."""
    last = [-again]

    async def paced(request: httpx2.Request) -> None:
        if request.method == "GET" and again:
            now = asyncio.get_running_loop().time()
            last[0] = max(now, last[0] + again)
            await asyncio.sleep(last[0] - now)

    async def bound(response: httpx2.Response) -> None:
        response.stream = _Counted(response, most)

    return {"request": [paced], "response": [bound]}


class _Counted(httpx2.AsyncByteStream):
    """The bytes of an answer, until there are too many."""

    def __init__(self, response: httpx2.Response, most: int) -> None:
        self._inner: Any = response.stream
        self._most = most
        self._packed = response.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}
        self._streams = response.headers.get("content-type", "").lower().startswith("text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            raise Oversized("its answer is packed, which was not asked for")
        whole = event = marks = 0
        async for piece in self._inner:
            whole += len(piece)
            end = max(map(piece.rfind, _ENDS)) if self._streams else -1
            if end >= 0:
                event = marks = 0
            event += len(piece)
            marks += piece.count(b"[", max(end, 0)) + piece.count(b"{", max(end, 0)) + piece.count(b",", max(end, 0))
            if whole > self._most:
                raise Oversized(f"its answer has more than {self._most:,} bytes")
            if event > MOST:
                raise Oversized(f"an event of its answer has more than {MOST:,} bytes")
            if marks > 2 * wire.PARTS:
                raise Oversized(f"its answer has more than {wire.PARTS:,} values")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
