"""Rows of workers, and the handlers that workers have registered. Leases and presence differ: see `sqlite/workers.py` and `postgres/workers.py`."""

from __future__ import annotations

from collections.abc import Sequence

from onward.store.port.workers import WorkerRow
from onward.store.shared import rows
from onward.store.shared.database import Connection, OverDatabase


class Workers(OverDatabase):
    """See `port.workers.Workers` for what each verb promises."""

    async def join(self, row: WorkerRow, lease: float) -> float:
        async def job(connection: Connection) -> float:
            await connection.run("join", lease=lease, **rows.worker_values(row))
            (now,) = await connection.first("now")
            return float(now)

        return await self._db.sequence(job)

    async def list(self) -> Sequence[WorkerRow]:
        return [rows.worker(row) for row in await self._db.fetch_named("workers")]


class Handlers(OverDatabase):
    """Handlers of all workers, by name."""

    async def register(self, handlers: Sequence[tuple[str, bytes]]) -> None:
        """Store names of handlers, and the description of each."""
        # Sorted: two workers that register the same handlers lock their rows in one order.
        await self._db.write_many("offer", [{"name": name, "schema": schema} for name, schema in sorted(handlers)])

    async def registered(self) -> dict[str, bytes]:
        """The descriptions of all handlers that were ever registered, by name."""
        return {row[0]: row[1] for row in await self._db.fetch("offered")}
