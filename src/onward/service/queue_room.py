"""The bound on how many tasks may wait in a queue. A part of the service."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

from onward.core.clock import Clock
from onward.core.task import NewTask
from onward.errors import QueueFull
from onward.store.port.core import Store

MAX_GAUGES = 10_000
"""Queues whose tasks are counted at once: a caller may name any queue."""


class QueueRoom:
    """Refuses tasks for queues that are full."""

    def __init__(self, store: Store, limit: int, clock: Clock) -> None:
        self._store, self._limit, self._clock = store, limit, clock
        self._gauges: dict[str, _QueueGauge] = {}

    async def check(self, new: Sequence[NewTask]) -> None:
        """Raises QueueFull. Queues are counted exactly near the limit, and now and then far from it: the bound protects memory and disk,
        and need not be exact."""
        counts = {new[0].queue: 1} if len(new) == 1 else collections.Counter([task.queue for task in new])
        for queue, count in counts.items():
            gauge = self._gauge(queue)
            if gauge.stale(self._clock.monotonic(), count, self._limit):
                total, began = gauge.total, self._clock.monotonic()
                depth = await self._store.queues.depth(queue)
                gauge.update(self._clock.monotonic(), depth.waiting, total, self._clock.monotonic() - began)
                if gauge.waiting + gauge.added + count > self._limit:
                    raise QueueFull(queue, self._limit, _retry_after(self._limit, depth.rate))
            gauge.total += count

    def _gauge(self, queue: str) -> _QueueGauge:
        gauge = self._gauges.pop(queue, None) or _QueueGauge()
        self._gauges[queue] = gauge  # the last one now
        if len(self._gauges) > MAX_GAUGES:
            del self._gauges[next(iter(self._gauges))]
        return gauge


class _QueueGauge:
    """The length of a queue when it was last counted, and the tasks that this process added since. A task that was added during the
    count may be in both: then the queue seems fuller than it is, and is counted again."""

    def __init__(self) -> None:
        self.at, self.waiting, self.total, self._total_then = -math.inf, 0, 0, 0
        self._valid_for = 1.0

    @property
    def added(self) -> int:
        return self.total - self._total_then

    def update(self, now: float, waiting: int, total: int, took: float) -> None:
        self.at, self.waiting, self._total_then = now, waiting, total
        self._valid_for = min(max(1.0, 50 * took), 10.0)  # counting a hundred thousand tasks takes a while

    def stale(self, now: float, count: int, limit: int) -> bool:
        return now - self.at > self._valid_for or self.waiting + self.added + count > limit * 0.9


def _retry_after(limit: int, rate: float) -> float:
    """Seconds in which the workers finish a twentieth of the queue."""
    return float(math.ceil(min(300.0, max(1.0, limit / 20 / rate)))) if rate > 0 else 30.0
