"""Figures of the whole system."""

from __future__ import annotations

from onward.store.port.overview import Ended, QueueSnapshot, Unfinished
from onward.store.port.tenant import seen_by
from onward.store.shared.database import Connection, OverDatabase


class Overview(OverDatabase):
    """See `port.overview.Overview` for what each verb promises."""

    async def unfinished(self) -> list[Unfinished]:
        return [Unfinished(*row) for row in await self._db.fetch("unfinished")]

    async def held(self) -> tuple[float, dict[str, int]]:
        async def job(connection: Connection) -> tuple[float, dict[str, int]]:
            (now,) = await connection.first("now")
            return now, dict(await connection.fetch("held_by"))

        return await self._db.read(job)

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

    async def snapshot(self) -> QueueSnapshot:
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
