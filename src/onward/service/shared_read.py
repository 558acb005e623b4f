"""A read of the store whose answer is used again for a while when it is dear.

The reads of the console's first page and of the doctor look at all unfinished tasks. That is cheap, unless there are very many, or
something keeps the database from removing dead rows (`onward doctor` names it). Then each answer is kept for ten times as long as it
took, at most `MAX_AGE_S`, and callers share the read that is in flight, so that such reads take at most a tenth of the database's
time however many people look.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from onward.core.clock import Clock

T = TypeVar("T")

SLOW_S = 0.25
"""Seconds above which a read is slow."""

SLOW_IN_A_ROW = 2
"""Slow reads in a row after which an answer is kept: a single one may be due to a busy machine."""

MAX_AGE_S = 5.0


class SharedRead(Generic[T]):
    """One read. While its answers are dear, callers at the same time share it; else each caller reads for itself, side by side."""

    def __init__(
        self, clock: Clock, read: Callable[[], Awaitable[T]], large: Callable[[T], bool] | None = None
    ) -> None:
        self._clock, self._read, self._large = clock, read, large
        self._dear = True
        """Whether answers are kept. The first read decides it; the callers meanwhile wait for that."""
        self._answer: T | None = None
        self._fresh_until = self._slow_until = -math.inf
        self._slow = self._forgotten = 0
        self._in_flight: asyncio.Future[T] | None = None

    async def __call__(self) -> T:
        """The answer of the store: read now, kept, or of the read that is in flight."""
        while self._dear:
            if self._answer is not None and self._clock.monotonic() < self._fresh_until:
                return self._answer
            if self._in_flight is None:
                return await self._read_for_all()
            in_flight = self._in_flight
            await asyncio.wait([in_flight])
            if self._dear and not in_flight.cancelled():
                return in_flight.result()
        return await self._read_now()

    async def _read_for_all(self) -> T:
        in_flight: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._in_flight = in_flight
        try:
            in_flight.set_result(await self._read_now())
        except Exception as error:
            in_flight.set_exception(error)
        finally:
            in_flight.cancel()  # does nothing unless this caller was cancelled: then another caller reads
            if self._in_flight is in_flight:
                self._in_flight = None
        return in_flight.result()

    async def _read_now(self) -> T:
        began, forgotten = self._clock.monotonic(), self._forgotten
        answer = await self._read()
        ended = self._clock.monotonic()
        if ended - began <= SLOW_S:
            self._slow = 0
        elif began >= self._slow_until:  # slow reads at the same time count as one
            self._slow, self._slow_until = self._slow + 1, ended
        self._dear = self._slow >= SLOW_IN_A_ROW or (self._large is not None and self._large(answer))
        if self._dear and forgotten == self._forgotten:  # else the answer may be from before the change
            self._answer, self._fresh_until = answer, began + min((ended - began) * 11, MAX_AGE_S)
        return answer

    def forget(self) -> None:
        """Read anew the next time: this process changed the answer."""
        self._fresh_until = -math.inf
        self._in_flight = None
        self._forgotten += 1
