"""Clocks over the simulated loop. Monotonic time is the loop's; wall clocks differ from machine to machine and jump."""

from __future__ import annotations

import asyncio

from tests.sim.loop import SimLoop

EPOCH = 1_800_000_000.0


class SimClock:
    """One machine's clock. `skew` is how wrong its wall clock is just now."""

    def __init__(self, loop: SimLoop, *, skew: float = 0.0, base: float = 0.0) -> None:
        self._loop, self.skew, self._base = loop, skew, base

    def now(self) -> float:
        return EPOCH + self._loop.time() + self.skew

    def monotonic(self) -> float:
        return self._base + self._loop.time()

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)

    def jump(self, seconds: float) -> None:
        """Sets the wall clock forward or back."""
        self.skew += seconds
