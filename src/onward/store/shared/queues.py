"""Queues: depth, limits, pause."""

from __future__ import annotations

from collections.abc import Sequence

from onward.core.limit import LimitRow
from onward.store.port.queues import PAUSED, Depth
from onward.store.shared.database import OverDatabase


class Queues(OverDatabase):
    """See `port.queues.Queues` for what each verb promises."""

    async def depth(self, queue: str) -> Depth:
        ((waiting, rate),) = await self._db.fetch("depth", queue=queue)
        return Depth(waiting, rate)

    async def set_limits(self, limits: Sequence[LimitRow]) -> None:
        await self._db.transact(lambda c: c.set_limits(limits))

    async def limits(self) -> dict[str, tuple[int | None, bool]]:
        limits: dict[str, tuple[int | None, bool]] = {}
        for kind, name, concurrency, *_ in await self._db.fetch("limits"):
            limit, paused = limits.get(name, (None, False))
            if kind == "queue":
                limits[name] = concurrency, paused
            elif kind == PAUSED:
                limits[name] = limit, True
        return limits

    async def pause(self, queue: str, *, paused: bool) -> None:
        await self._db.write("pause_queue" if paused else "unpause_queue", name=queue)
