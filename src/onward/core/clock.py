"""Clocks: code that needs the time gets a Clock, so that tests and the simulator can move the time."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for durations, and a way to wait."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds since 1970, UTC."""
        ...

    @property
    def monotonic(self) -> Callable[[], float]:
        """Seconds since a fixed moment. They go on while the machine is suspended, where the system supports it."""
        ...

    async def sleep(self, delay: float) -> None: ...


# A lease goes on while a laptop is closed; CLOCK_MONOTONIC stops.
_STEADY = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        # Functions, not methods: a step reads the clock twice, and a worker does tens of thousands of steps a second.
        self.now: Callable[[], float] = time.time
        self.monotonic: Callable[[], float] = (
            time.monotonic if _STEADY is None else functools.partial(time.clock_gettime, _STEADY)
        )

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)

    def nap(self, delay: float) -> None:
        """Sleep in code without an event loop."""
        time.sleep(delay)
