"""Figures of the whole system.

Counts of unfinished tasks are exact, and cost a read of the unfinished tasks. Counts of ended tasks are exact up to a bound and estimates
above it, so that a number never costs a read of millions of rows.
"""

from __future__ import annotations

from onward.store.port.overview import Ended, QueueSnapshot, Unfinished
from onward.store.shared.database import Connection, OverDatabase


class Overview(OverDatabase):
    """Figures of the whole system."""

    async def unfinished(self, whose: str | None = None) -> list[Unfinished]:
        """All unfinished tasks, by queue and reason; with `whose`, those of a tenant ("": without a tenant)."""
        rows = self._db.fetch("unfinished") if whose is None else self._db.fetch("unfinished_of", tenant=whose)
        return [Unfinished(*row) for row in await rows]

    async def held(self) -> tuple[float, dict[str, int]]:
        """The time, and how many tasks each worker holds; a worker that holds none is missing."""

        async def job(connection: Connection) -> tuple[float, dict[str, int]]:
            (now,) = await connection.first("now")
            return now, dict(await connection.fetch("held_by"))

        return await self._db.read(job)

    async def ended(self, most: int) -> Ended:
        """How many tasks have ended, counted up to `most`."""

        async def job(connection: Connection) -> Ended:
            count, failed, cancelled = await connection.first("ended", most=most)
            exact = count < most
            (estimate,) = await connection.first("ended_estimate")
            total = count if exact else max(estimate, count)
            return Ended(max(0, total - failed - cancelled), failed, cancelled, exact)

        return await self._db.read(job)

    async def size(self) -> int:
        """The size of the database in bytes."""
        ((size,),) = await self._db.fetch("size")
        return int(size)

    async def snapshot(self) -> QueueSnapshot:
        """All figures for a monitoring system: a few statements over what is unfinished. The journal is not read."""

        async def job(connection: Connection) -> QueueSnapshot:
            unfinished = [Unfinished(*row) for row in await connection.fetch("unfinished")]
            asks = dict(await connection.fetch("open_asks_by_kind", from_id=""))
            workers, slots, late = await connection.first("crew")
            outbox = None
            if await connection.first("outbox_there") is not None:
                events, oldest = await connection.first("outbox_depth")
                outbox = events, oldest
            return QueueSnapshot(unfinished, asks, workers, slots, late, outbox)

        return await self._db.read(job)
