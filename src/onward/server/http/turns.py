"""Turns by size: the bytes that are worked on at once have a bound, and other work waits in line."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

from onward.server.http.problem import Problem

RETRY_AFTER_S = 5
"""Seconds after which a client may try again."""


class ByteTurns:
    """Lends up to `size` bytes at once, first come, first served; up to `waiting` bytes stand in line, for up to `timeout_s` seconds. A
    holder must not wait for a second turn."""

    def __init__(self, size: int, waiting: int = 1 << 62, timeout_s: float | None = None) -> None:
        self._free, self._size, self._waiting, self._timeout_s = size, size, waiting, timeout_s
        self._queue: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    def too_many(self) -> Problem:
        """The refusal when the line is full or too slow."""
        sentence = f"the server has too many requests at once; try again in {RETRY_AFTER_S} s"
        return Problem(503, "too_many_requests", sentence, {"Retry-After": str(RETRY_AFTER_S)})

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold this many bytes; all of them for a larger size. Raises Problem when the line is full or too slow."""
        size = min(size, self._size)
        if self._queue or self._free < size:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._wait_turn(size)
            except TimeoutError:
                raise self.too_many() from None
        else:
            self._free -= size
        try:
            yield
        finally:
            self._release(size)

    async def _wait_turn(self, size: int) -> None:
        if self._waiting < size:
            raise self.too_many()
        place = size, asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._waiting -= size
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._queue:
                self._queue.remove(place)
                self._wake_next()
            else:
                self._release(size)  # its turn had come already
            raise
        finally:
            self._waiting += size

    def _release(self, size: int) -> None:
        self._free += size
        self._wake_next()

    def _wake_next(self) -> None:
        while self._queue and self._queue[0][0] <= self._free:
            size, turn = self._queue.popleft()
            self._free -= size
            if not turn.done():  # a cancelled caller releases its bytes itself
                turn.set_result(None)
