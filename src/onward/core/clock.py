"""Time is given, never taken: whoever needs it holds a Clock, so that tests and the simulator can move it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what people read, monotonic time for what may never jump, and a way to wait."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; runs on while the machine is suspended, where the system can tell."""
        ...

    async def sleep(self, delay: float) -> None: ...


# A laptop's lid does not stop a lease: CLOCK_MONOTONIC would.
_STEADY = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)
