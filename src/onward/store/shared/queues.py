"""Reads around the queue: keys that are taken, the depth of a queue, handlers, workers, contents of a task."""

from __future__ import annotations

from collections.abc import Sequence

from onward.store.port.core import Depth, Submitted, WorkerRow
from onward.store.shared import rows
from onward.store.shared.database import Connection, Database


class Queues:
    """See `port.core.Store` for what each verb promises."""

    _db: Database

    async def keyed(self, keys: Sequence[str]) -> dict[str, Submitted]:
        found = await self._db.fetch("by_key", keys=list(keys))
        return {key: Submitted(task_id, False, fingerprint) for task_id, key, fingerprint in found}

    async def depth(self, queue: str) -> Depth:
        ((waiting, rate),) = await self._db.fetch("depth", queue=queue)
        return Depth(waiting, rate)

    async def offer(self, handlers: Sequence[tuple[str, bytes]]) -> None:
        await self._db.write_many("offer", [{"name": name, "schema": schema} for name, schema in sorted(handlers)])

    async def offered(self) -> dict[str, bytes]:
        return {row[0]: row[1] for row in await self._db.fetch("offered")}

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        return {row[0]: row[1] for row in await self._db.fetch("contents", id=task_id, ids=list(ids))}

    async def join(self, row: WorkerRow, lease: float) -> float:
        async def job(connection: Connection) -> float:
            await connection.run("join", lease=lease, **rows.worker_values(row))
            (now,) = await connection.first("now")
            return float(now)

        return await self._db.sequence(job)

    async def workers(self) -> list[WorkerRow]:
        return [rows.worker(row) for row in await self._db.fetch_named("workers")]
