"""Reading many tasks: lists, relatives, open questions, last records."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Unpack

from onward.core.record import Record
from onward.core.task import Tasks
from onward.store.port.listing import HEAD_BYTES, Ask, Child, Kin, Which
from onward.store.shared import rows
from onward.store.shared.database import Connection, OverDatabase, seen_by
from onward.store.shared.search import IDS_STATEMENTS, listings, newest_ids


class Listing(OverDatabase):
    """Reads many tasks. (See `seen_by` for `whose`.)"""

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        """The ids and options of the tasks that `list` returns."""
        statements = listings(limit, before, which)

        async def job(connection: Connection) -> list[tuple[str, bytes]]:
            parts = [await connection.fetch(IDS_STATEMENTS[name], **values) for name, values in statements]
            return newest_ids(parts, limit)

        return await self._db.read(job)

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        """Tasks below the id `before`, the newest first. A search for a text reads all tasks between `before` and `since`."""
        statements = listings(limit, before, which)

        async def job(connection: Connection) -> Tasks:
            parts = [await connection.fetch_named(name, **values) for name, values in statements]
            tasks = [rows.task(row) for row in itertools.chain.from_iterable(parts)]
            return sorted(tasks, key=lambda task: task.task_id, reverse=True)[:limit]

        return await self._db.read(job)

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        """The id of the task that has `count` others between it and `before`; None when there are fewer."""
        matching = await self._db.fetch("floor", before=before or "~", count=count, **seen_by(whose))
        return str(matching[0][0]) if matching else None

    async def kin(self, ids: Sequence[str], *, below: bool = False) -> Sequence[Kin]:
        """These tasks, or (`below`) all their children, in any state."""
        return [Kin(*row) for row in await self._db.fetch("kin_below" if below else "kin", ids=[*ids])]

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        """The children of these tasks, ended or not; at most `most`."""
        matching = await self._db.fetch("offspring", parents=[*parents], most=most, head=HEAD_BYTES)
        return [Child(id_, task, bool(ended), head or b"") for id_, task, ended, head in matching]

    async def asks(self, task_id: str | None = None, whose: str | None = None) -> Sequence[Ask]:
        """Open questions and approvals of unfinished tasks, or of one of them, the oldest first; each with the time now."""
        name = "asks_of" if task_id else "asks"
        return [Ask(*row) for row in await self._db.fetch(name, id=task_id, **seen_by(whose))]

    async def doubts(self) -> Sequence[str]:
        """Tasks that wait because of an effect in doubt."""
        return [row[0] for row in await self._db.fetch("doubts")]

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        """The ids of the tasks and the data of those of their steps that may have called a model."""
        return [(row[0], row[1]) for row in await self._db.fetch("model_calls", ids=[*task_ids])]

    async def queue_positions(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        """For each of these tasks that could be started now, how many tasks of its queue come before it: counted up to `most` of a
        higher priority, and as many of its own."""
        return {row[0]: row[1] for row in await self._db.fetch("ahead", ids=[*task_ids], most=most)}

    async def recent_records(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        """The last `back` records of each of these tasks that is unfinished, without progress records. Only records that say what a
        task waits for have their data, and only when it is not longer than `most` bytes."""
        matching = await self._db.fetch("lately", ids=[*task_ids], back=back, most=most)
        by_task = itertools.groupby(matching, key=lambda row: str(row[0]))
        return {task_id: [Record(*record) for _, *record in group] for task_id, group in by_task}
