"""Figures of the whole system, and the pause of a queue."""

from __future__ import annotations

from onward.store.port.access import seen_by
from onward.store.port.gauges import QueueSnapshot
from onward.store.port.overview import PAUSED, Ended, Unfinished
from onward.store.shared.database import Connection, Database


class Overview:
    """See `port.overview.Overview` and `port.gauges.Gauges` for what each verb promises."""

    _db: Database

    async def unfinished(self) -> list[Unfinished]:
        return [Unfinished(*row) for row in await self._db.fetch("unfinished")]

    async def held(self) -> tuple[float, dict[str, int]]:
        async def job(connection: Connection) -> tuple[float, dict[str, int]]:
            (now,) = await connection.first("now")
            return now, dict(await connection.fetch("held_by"))

        return await self._db.read(job)

    async def queue_limits(self) -> dict[str, tuple[int | None, bool]]:
        limits: dict[str, tuple[int | None, bool]] = {}
        for kind, name, concurrency, *_ in await self._db.fetch("limits"):
            limit, paused = limits.get(name, (None, False))
            if kind == "queue":
                limits[name] = concurrency, paused
            elif kind == PAUSED:
                limits[name] = limit, True
        return limits

    async def pause_queue(self, queue: str, *, paused: bool) -> None:
        await self._db.write("pause_queue" if paused else "unpause_queue", name=queue)

    async def ended(self, most: int) -> Ended:
        async def job(connection: Connection) -> Ended:
            count, failed, cancelled = await connection.first("ended", most=most)
            exact = count < most
            (estimate,) = await connection.first("ended_estimate")
            total = count if exact else max(estimate, count)
            return Ended(max(0, total - failed - cancelled), failed, cancelled, exact)

        return await self._db.read(job)

    async def size(self) -> int:
        ((size,),) = await self._db.fetch("size")
        return int(size)

    async def standing(self) -> QueueSnapshot:
        async def job(connection: Connection) -> QueueSnapshot:
            unfinished = [Unfinished(*row) for row in await connection.fetch("unfinished")]
            asks = dict(await connection.fetch("open_asks_by_kind", **seen_by(None)))
            workers, slots, late = await connection.first("crew")
            outbox = None
            if await connection.first("outbox_there") is not None:
                events, oldest = await connection.first("outbox_depth")
                outbox = events, oldest
            return QueueSnapshot(unfinished, asks, workers, slots, late, outbox)

        return await self._db.read(job)
