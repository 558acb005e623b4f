"""Seals payloads that were written before encryption was on, while workers, servers and readers go on.

Each payload is replaced by itself, sealed, in one statement that names the payload that it saw. A row that was trimmed, pruned or sealed
meanwhile has another one, and is left alone. No other column of a journal changes, and the fence of a worker compares none that does. A
reader gets the same payload before and after. The input of a task is sealed last, so a task with a sealed input has nothing plain left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from onward.core.crash import crashpoint
from onward.core.encryption import body_place, content_place, message_place, record_place
from onward.core.sealed import is_sealed
from onward.errors import UsageError
from onward.store.shared.codec import Codec, Item
from onward.store.shared.database import Connection, OverDatabase
from onward.store.shared.schedules import each_stored

SLICE_ROWS, SLICE_BYTES = 20, 4_000_000
"""Rows of one task, and their bytes, that are read, sealed and written at a time. A row that has more bytes goes alone."""


class SealedSlice(NamedTuple):
    """The result of one call: the ids of the tasks that it looked at, in order, and how many payloads it sealed."""

    task_ids: Sequence[str]
    payloads: int


class _Table(NamedTuple):
    """A table with payloads of tasks: the statements that read the sizes of plain ones, read them, and seal one."""

    sizes: str
    read: str
    write: str
    start: Any
    """A value of the first column that is below all rows."""
    item: Callable[[str, Any], Item]
    """The payload of a row, and its place."""


TABLES = (
    _Table(
        "plain_record_sizes",
        "plain_records",
        "seal_records",
        0,
        lambda t, row: Item(t, record_place(t, *row[:3]), row[-1], row[1]),
    ),
    _Table(
        "plain_message_sizes",
        "plain_messages",
        "seal_messages",
        0,
        lambda t, row: Item(t, message_place(t, *row[1:5]), row[-1]),
    ),
    _Table(
        "plain_content_sizes",
        "plain_contents",
        "seal_contents",
        "",
        lambda t, row: Item(t, content_place(t, row[0]), row[-1]),
    ),
    _Table(
        "plain_body_sizes",
        "plain_bodies",
        "seal_bodies",
        0,
        lambda t, row: Item(t, body_place(t, *row[1:3]), row[-1]),
    ),
)


class Sealing(OverDatabase):
    """Seals plain payloads. Each verb is safe at any time, for any caller, and twice."""

    async def seal(self, after: str, limit: int) -> SealedSlice:
        """Seal the plain payloads of up to `limit` tasks after an id. Raises UsageError when this process has no keys."""
        codec = self._codec()
        ids = [row[0] for row in await self._db.fetch("tasks_after", after=after, limit=limit)]
        return SealedSlice(ids, sum([await self._seal_task(codec, task_id) for task_id in ids]))

    async def seal_schedules(self) -> int:
        """Seal the plain inputs of all schedules; how many that were."""
        codec = self._codec()
        count = 0
        async for schedule in each_stored(self._db):
            if not is_sealed(schedule.input):
                sealed = await codec.sealed_schedule(schedule)
                values = {"name": schedule.name, "seen": schedule.input, "data": sealed.input}
                count += len(await self._db.write("seal_schedule", **values))
        return count

    def _codec(self) -> Codec:
        if self._db.codec is None:
            raise UsageError("this process has no master key: set ONWARD_ENCRYPTION_KEYS to encrypt payloads")
        return self._db.codec

    async def _seal_task(self, codec: Codec, task_id: str) -> int:
        count = 0
        for table in TABLES:
            after = table.start
            while rows := await self._slice(table, task_id, after):
                count += await self._seal_rows(codec, task_id, table, rows)
                after = rows[-1][0]
        for name, data, fingerprint in await self._db.fetch("plain_input", id=task_id):
            sealed, tag = await codec.sealed_input(task_id, name, data, fingerprint)
            values = {"id": task_id, "data": sealed, "tag": tag, "seen": data}
            count += len(await self._db.write("seal_input", **values))
        return count

    async def _slice(self, table: _Table, task_id: str, after: Any) -> Sequence[Any]:
        """The next rows of a table, up to a number of bytes; one at least."""
        sizes = await self._db.fetch(table.sizes, id=task_id, after=after, limit=SLICE_ROWS)
        if not sizes:
            return []
        totals = itertools.accumulate(size for _, size in sizes)
        rows = max(1, sum(total <= SLICE_BYTES for total in totals))
        return await self._db.fetch(table.read, id=task_id, after=after, limit=rows)

    async def _seal_rows(self, codec: Codec, task_id: str, table: _Table, rows: Sequence[Any]) -> int:
        items = [table.item(task_id, row) for row in rows]
        values = [
            {"id": task_id, "place": row[0], "seen": item.data, "data": data}
            for row, item, data in zip(rows, items, await codec.sealed_items(task_id, items), strict=True)
            if data is not item.data
        ]

        async def job(connection: Connection) -> int:
            count = 0
            for row in values:
                count += await connection.run(table.write, **row)
                crashpoint("seal.row")
            return count

        if not values:
            return 0
        count = await self._db.sequence(job)
        crashpoint("seal.slice")
        return count
