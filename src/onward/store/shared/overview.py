"""Figures of the whole system.

Counts of unfinished tasks are exact, and cost a read of the unfinished tasks. Counts of ended tasks are exact up to a bound and estimates
above it, so that a number never costs a read of millions of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.core.page import Page
from onward.core.task import Reason
from onward.store.port.overview import Ended, LatestShifts, QueueSnapshot, Unfinished
from onward.store.shared.database import Connection, OverDatabase
from onward.telemetry import MAX_LABEL_VALUES, OTHER

PAGE_SHIFTS = 10_000
"""Tasks whose latest shifts one statement reads."""

PAGE_QUEUES = 1_000
"""Queues of a page. A queue has a row for each of its reasons."""


class Overview(OverDatabase):
    """Figures of the whole system."""

    async def unfinished(
        self, whose: str | None = None, *, after: str = "", limit: int = PAGE_QUEUES
    ) -> Page[Unfinished]:
        """The unfinished tasks of so many queues, by queue and reason, after the name of a queue; with `whose`, those of a tenant ("":
        without a tenant). `next` is the name of the last queue, when there are more."""
        values: dict[str, Any] = {"after": after, "limit": limit * len(Reason) + 1}
        if whose is None:
            rows = await self._db.fetch("unfinished", **values)
        else:
            rows = await self._db.fetch("unfinished_of", tenant=whose, **values)
        return _page(rows, limit)

    async def unfinished_in(self, queue: str) -> list[Unfinished]:
        """The unfinished tasks of one queue, by reason."""
        return [Unfinished(*row) for row in await self._db.fetch("unfinished_in", queue=queue)]

    async def largest(self, queues: int) -> list[Unfinished]:
        """The unfinished tasks of so many queues, by queue and reason: of those with the most tasks. Those of all others are added up as
        the queue `OTHER`."""
        return [Unfinished(*row) for row in await self._db.fetch("unfinished_largest", queues=queues, other=OTHER)]

    async def reasons(self, whose: str | None = None) -> dict[str, int]:
        """How many unfinished tasks there are, by reason; `whose` as above."""
        if whose is None:
            return dict(await self._db.fetch("unfinished_reasons"))
        return dict(await self._db.fetch("unfinished_reasons_of", tenant=whose))

    async def held(self) -> tuple[float, dict[str, int]]:
        """The time, and how many tasks each worker holds; a worker that holds none is missing."""

        async def job(connection: Connection) -> tuple[float, dict[str, int]]:
            (now,) = await connection.first("now")
            return now, dict(await connection.fetch("held_by"))

        return await self._db.read(job)

    async def latest_shifts(self, *, after: str = "", limit: int = PAGE_SHIFTS) -> Page[LatestShifts]:
        """How many unfinished tasks there are, by reason and latest shift: those of a page of tasks, by their ids. `next` is the id after
        which the next page begins."""
        groups = await self._db.fetch("latest_shifts", after=after, limit=limit)
        full = sum(group[2] for group in groups) >= limit
        return Page([LatestShifts(*group[:3]) for group in groups], max(group[3] for group in groups) if full else None)

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
            largest = await connection.fetch("unfinished_largest", queues=MAX_LABEL_VALUES, other=OTHER)
            unfinished = [Unfinished(*row) for row in largest]
            asks = dict(await connection.fetch("open_asks_by_kind", from_id=""))
            workers, slots, late = await connection.first("crew")
            outbox = None
            if await connection.first("outbox_there") is not None:
                events, oldest = await connection.first("outbox_depth")
                outbox = events, oldest
            return QueueSnapshot(unfinished, asks, workers, slots, late, outbox)

        return await self._db.read(job)


def _page(rows: Sequence[Sequence[Any]], limit: int) -> Page[Unfinished]:
    """The rows of the first `limit` queues. Rows that end in the middle of a queue are those of more queues than that."""
    unfinished = [Unfinished(*row) for row in rows]
    names = list(dict.fromkeys(row.queue for row in unfinished))
    if len(names) <= limit:
        return Page(unfinished)
    last = names[limit - 1]
    return Page([row for row in unfinished if row.queue <= last], last)
