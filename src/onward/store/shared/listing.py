"""Reading tasks: one by its id, lists, relatives, open questions, the last records of many."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Unpack

from onward.core.record import Record
from onward.core.task import Task, Tasks
from onward.store.port.access import Kin, seen_by
from onward.store.port.overview import HEAD, WHOLE, Child, Which
from onward.store.shared import rows
from onward.store.shared.database import Connection, Database
from onward.store.shared.search import IDS_STATEMENTS, listings, newest_ids


class Listing:
    """See `port.core.Store`, `port.overview.Overview` and `port.access.Access` for what each verb promises."""

    _db: Database

    async def get(self, task_id: str, whose: str | None = None) -> Task | None:
        found = await self._db.fetch_named("get", id=task_id, most=WHOLE, **seen_by(whose))
        return rows.task(found[0]) if found else None

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        statements = listings(limit, before, which)

        async def job(connection: Connection) -> list[tuple[str, bytes]]:
            parts = [await connection.fetch(IDS_STATEMENTS[name], **values) for name, values in statements]
            return newest_ids(parts, limit)

        return await self._db.read(job)

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        statements = listings(limit, before, which)

        async def job(connection: Connection) -> Tasks:
            parts = [await connection.fetch_named(name, **values) for name, values in statements]
            tasks = [rows.task(row) for row in itertools.chain.from_iterable(parts)]
            return sorted(tasks, key=lambda task: task.task_id, reverse=True)[:limit]

        return await self._db.read(job)

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        found = await self._db.fetch("floor", before=before or "~", count=count, **seen_by(whose))
        return str(found[0][0]) if found else None

    async def kin(self, ids: Sequence[str], *, below: bool = False) -> Sequence[Kin]:
        return [Kin(*row) for row in await self._db.fetch("kin_below" if below else "kin", ids=[*ids])]

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        found = await self._db.fetch("offspring", parents=[*parents], most=most, head=HEAD)
        return [Child(id_, task, bool(ended), head or b"") for id_, task, ended, head in found]

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        return [(row[0], row[1]) for row in await self._db.fetch("model_calls", ids=[*task_ids])]

    async def ahead(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._db.fetch("ahead", ids=[*task_ids], most=most)}

    async def lately(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        found = await self._db.fetch("lately", ids=[*task_ids], back=back, most=most)
        by_task = itertools.groupby(found, key=lambda row: str(row[0]))
        return {task_id: [Record(*record) for _, *record in group] for task_id, group in by_task}
