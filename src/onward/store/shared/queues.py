"""Queues: depth, limits, pause."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.core.limit import LimitRow
from onward.store.shared.database import OverDatabase

PAUSED = "paused"
"""The kind of the limit of a paused queue: it allows no tasks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Depth:
    """How many tasks of a queue wait to be started, and how many a second the workers finish."""

    waiting: int
    rate: float


class Queues(OverDatabase):
    """Queues, by name."""

    async def depth(self, queue: str) -> Depth:
        """How many tasks wait in a queue."""
        ((waiting, rate),) = await self._db.fetch("depth", queue=queue)
        return Depth(waiting, rate)

    async def set_limits(self, limits: Sequence[LimitRow]) -> None:
        """Set these limits, or lift those that are None; others stay as they are. Tasks that are held already count, and tasks that
        wait for a changed limit are ready again. Every claim that begins after the answer keeps the limits."""
        await self._db.transact(lambda c: c.set_limits(limits))

    async def limits(self) -> dict[str, tuple[int | None, bool]]:
        """How many tasks of each queue with a limit may be held at once (None: any number), and whether the queue is paused."""
        limits: dict[str, tuple[int | None, bool]] = {}
        for kind, name, concurrency, *_ in await self._db.fetch("limits"):
            limit, paused = limits.get(name, (None, False))
            if kind == "queue":
                limits[name] = concurrency, paused
            elif kind == PAUSED:
                limits[name] = limit, True
        return limits

    async def pause(self, queue: str, *, paused: bool) -> None:
        """Let no worker start a task of a queue, or let them go on. Every claim that begins after the answer keeps it."""
        await self._db.write("pause_queue" if paused else "unpause_queue", name=queue)
