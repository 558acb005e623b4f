"""Rows of workers, and the handlers that workers have registered. Leases and presence differ: see `sqlite/workers.py` and `postgres/workers.py`."""

from __future__ import annotations

from collections.abc import Sequence

from onward.core.page import Page, every_item
from onward.store.port.listing import PAGE_BYTES
from onward.store.port.workers import MAX_WORKERS, WorkerRow
from onward.store.shared import rows
from onward.store.shared.database import Connection, OverDatabase

PAGE_HANDLERS = 1_000
"""Handlers of a page."""


class Workers(OverDatabase):
    """See `port.workers.Workers` for what each verb promises."""

    async def join(self, row: WorkerRow, lease: float) -> float:
        async def job(connection: Connection) -> float:
            await connection.run("join", lease=lease, **rows.worker_values(row))
            (now,) = await connection.first("now")
            return float(now)

        return await self._db.sequence(job)

    async def list(self, *, after: str = "", limit: int = MAX_WORKERS) -> Sequence[WorkerRow]:
        return [rows.worker(row) for row in await self._db.fetch_named("workers", after=after, limit=limit)]


class Handlers(OverDatabase):
    """Handlers of all workers, by name."""

    async def register(self, handlers: Sequence[tuple[str, bytes]]) -> None:
        """Store names of handlers, and the description of each."""
        # Sorted: two workers that register the same handlers lock their rows in one order.
        await self._db.write_many("offer", [{"name": name, "schema": schema} for name, schema in sorted(handlers)])

    async def page(self, *, after: str = "", limit: int = PAGE_HANDLERS) -> Page[tuple[str, bytes]]:
        """Handlers that were ever registered, by name, after a name, each with its description. The descriptions have about `PAGE_BYTES`
        together. `next` is the name after which the next page begins."""
        page = [(row[0], row[1]) for row in await self._db.fetch("offered", after=after, limit=limit, most=PAGE_BYTES)]
        full = len(page) == limit or sum(len(schema) for _, schema in page) >= PAGE_BYTES
        return Page(page, page[-1][0] if page and full else None)

    async def registered(self, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """The descriptions of all handlers that were ever registered, or of those with these names."""
        if names is not None:
            return {row[0]: row[1] for row in await self._db.fetch("offered_of", names=list(names))}
        return dict(await every_item(lambda cursor: self.page(after=cursor or "")))
