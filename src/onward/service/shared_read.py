"""A read of the store whose answer is used again for a while when it is dear.

The reads of the console's first page and of the doctor look at all unfinished tasks. That is cheap, unless there are very many, or
something keeps the database from removing dead rows (`onward doctor` names it). Then each answer is kept for ten times as long as it
took, at most `MAX_AGE_S`, so that such reads take at most a tenth of the database's time however many people look.
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
    """One read. Callers at the same time share it when its answers are kept."""

    def __init__(
        self, clock: Clock, read: Callable[[], Awaitable[T]], large: Callable[[T], bool] | None = None
    ) -> None:
        self._clock, self._read, self._large = clock, read, large
        self._answer: T | None = None
        self._fresh_until = -math.inf
        self._slow = self._forgotten = 0
        self._lock = asyncio.Lock()

    async def __call__(self) -> T:
        """The answer of the store, or the one that is kept."""
        async with self._lock:
            began = self._clock.monotonic()
            if self._answer is not None and began < self._fresh_until:
                return self._answer
            forgotten = self._forgotten
            answer = await self._read()
            took = self._clock.monotonic() - began
            self._slow = self._slow + 1 if took > SLOW_S else 0
            dear = self._slow >= SLOW_IN_A_ROW or (self._large is not None and self._large(answer))
            if dear and forgotten == self._forgotten:  # else the answer may be from before the change
                self._answer, self._fresh_until = answer, began + min(took * 11, MAX_AGE_S)
            return answer

    def forget(self) -> None:
        """Read anew the next time: this process changed the answer."""
        self._fresh_until = -math.inf
        self._forgotten += 1
