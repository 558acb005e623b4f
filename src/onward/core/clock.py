"""Time is given, never taken: whoever needs it holds a Clock, so that tests and the simulator can move it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall time for what people read, monotonic time for what may never jump, and a way to wait."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds since 1970, UTC."""
        ...

    @property
    def monotonic(self) -> Callable[[], float]:
        """Seconds since some fixed moment; runs on while the machine is suspended, where the system can tell."""
        ...

    async def sleep(self, delay: float) -> None: ...


# A laptop's lid does not stop a lease: CLOCK_MONOTONIC would.
_STEADY = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        # Bound here and not wrapped in methods: a step reads the clock twice, and a worker does tens of thousands a second.
        self.now: Callable[[], float] = time.time
        self.monotonic: Callable[[], float] = (
            time.monotonic if _STEADY is None else functools.partial(time.clock_gettime, _STEADY)
        )

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)

    def nap(self, delay: float) -> None:
        """The same for code without a loop."""
        time.sleep(delay)
