"""The outbox on PostgreSQL: its triggers, how a relay takes rows, and tasks that are submitted with a webhook."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from onward.core.task import NewTask
from onward.errors import StoreUnavailable
from onward.store.port.outbox import Taken
from onward.store.postgres.database import PostgresDatabase
from onward.store.postgres.execute import S, run
from onward.store.shared import rows
from onward.store.shared.outbox import SEARCHED_ROWS, Outbox, taken

MAX_TRIES = 5
"""How often `watch` tries to lock the journal."""


class PostgresOutbox(Outbox):
    """See `shared.outbox.Outbox` for what each verb promises."""

    _db: PostgresDatabase

    async def watch(self, *, busy: bool) -> None:
        for _ in range(MAX_TRIES):
            try:
                await self._db.write("watch", busy=busy)
            except (
                asyncpg.LockNotAvailableError
            ):  # a long transaction holds the table, and writers must not queue behind us
                await asyncio.sleep(0)
            else:
                return
        raise StoreUnavailable(
            f"{self._db.where}: the first subscription has to change a table, and a long transaction holds it; try again soon"
        )

    async def insert_with_webhooks(self, new: Sequence[NewTask]) -> set[str]:
        """Insert tasks and the subscriptions of their webhooks in one transaction; the ids of tasks that were not there before."""
        insert = S["submit_grouped" if any(task.group for task in new) else "submit"]
        async with self._db.connection() as connection, connection.transaction():
            created = {row[0] for row in await connection.fetch(insert.sql, *insert(**rows.submit_values(new)))}
            now = await connection.fetchval(S["now"].sql)
            for task in new:
                if task.id in created and task.webhook is not None:
                    await run(connection, "subscribe_task", id=task.id, now=now, **task.webhook._asdict())
        return created

    async def _take(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        values = {"lane": lane, "room": room, "holder": holder, "lease": lease, "wide": SEARCHED_ROWS}
        taken_rows = [tuple(row) for row in await self._db.write("take_deliveries", **values)]
        if not taken_rows or taken_rows[0][-1]:
            await self._db.write("line_up", lane=lane, wide=SEARCHED_ROWS)
        return [taken(row[:-1]) for row in taken_rows]

    async def _take_runs(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        values = {"lane": lane, "room": room, "holder": holder, "lease": lease}
        taken_rows = [tuple(row) for row in await self._db.write("take_runs", **values)]
        if not taken_rows or taken_rows[0][-1]:
            await self._db.write("line_up", lane=lane, wide=SEARCHED_ROWS)
        return [taken(row[:-1]) for row in taken_rows]

    async def sweep(self, lanes: Sequence[str], strange: Sequence[str], **ages: Any) -> bool:
        await self._db.write("forget_strays", lanes=list(lanes), wide=SEARCHED_ROWS)
        return await super().sweep(lanes, strange, **ages)
