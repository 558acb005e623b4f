"""Reading many tasks: lists, relatives, open questions, last records."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Unpack

from onward.core.record import Record
from onward.core.task import Tasks
from onward.store.port.listing import HEAD_BYTES, Ask, Child, Kin, Which
from onward.store.port.tenant import seen_by
from onward.store.shared import rows
from onward.store.shared.database import Connection, OverDatabase
from onward.store.shared.search import IDS_STATEMENTS, listings, newest_ids


class Listing(OverDatabase):
    """See `port.listing.Listing` for what each verb promises."""

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
        matching = await self._db.fetch("floor", before=before or "~", count=count, **seen_by(whose))
        return str(matching[0][0]) if matching else None

    async def kin(self, ids: Sequence[str], *, below: bool = False) -> Sequence[Kin]:
        return [Kin(*row) for row in await self._db.fetch("kin_below" if below else "kin", ids=[*ids])]

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        matching = await self._db.fetch("offspring", parents=[*parents], most=most, head=HEAD_BYTES)
        return [Child(id_, task, bool(ended), head or b"") for id_, task, ended, head in matching]

    async def asks(self, task_id: str | None = None, whose: str | None = None) -> Sequence[Ask]:
        name = "asks_of" if task_id else "asks"
        return [Ask(*row) for row in await self._db.fetch(name, id=task_id, **seen_by(whose))]

    async def doubts(self) -> Sequence[str]:
        return [row[0] for row in await self._db.fetch("doubts")]

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        return [(row[0], row[1]) for row in await self._db.fetch("model_calls", ids=[*task_ids])]

    async def queue_positions(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._db.fetch("ahead", ids=[*task_ids], most=most)}

    async def recent_records(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        matching = await self._db.fetch("lately", ids=[*task_ids], back=back, most=most)
        by_task = itertools.groupby(matching, key=lambda row: str(row[0]))
        return {task_id: [Record(*record) for _, *record in group] for task_id, group in by_task}
