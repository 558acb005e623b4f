"""Forks: a new task with the first records of another.

The statements copy rows inside the database. Sealed payloads belong to their place, so for a store with a codec the fork reads those rows
again in slices, and seals them for the new task, in the same transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from onward.core import wire
from onward.core.encryption import DataKey, content_place, message_place, record_place
from onward.core.record import DROPPED, FORKED
from onward.errors import CannotFork, TaskNotFound
from onward.store.shared.codec import Codec, Item
from onward.store.shared.database import Connection, Database

T = TypeVar("T")

SLICE_ROWS = 50
"""Rows that a fork seals anew at a time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Forking:
    """A fork that is about to be made: its id, its origin, its input as it was given, and (in a store with a codec) the key of its
    payloads."""

    task_id: str
    origin: str
    input: bytes
    codec: Codec | None = None
    key: DataKey | None = None

    @classmethod
    async def of(cls, codec: Codec | None, task_id: str, origin: str, data: bytes) -> Forking:
        """Read the key that the fork needs, before its transaction."""
        if codec is None:
            return cls(task_id, origin, data)
        return cls(task_id, origin, data, codec, await codec.key_for_fork(task_id, origin))

    async def run(self, database: Database, job: Callable[[Connection], Awaitable[T]]) -> T:
        """Run the transaction that makes the fork."""
        if self.codec is None:
            return await database.transact(job)
        return await self.codec.with_keys(lambda: database.transact(job))


async def fork(
    connection: Connection, forking: Forking, at: int, inbox: int, options: bytes, details: Mapping[str, Any]
) -> None:
    """See `Store.fork`. `options` may be empty: then they are those of the origin. `details` go into the record `task.forked`."""
    task_id, origin = forking.task_id, forking.origin
    row = await connection.first("origin", id=origin)
    if row is None:
        raise TaskNotFound(origin)
    data = forking.input
    if forking.codec is not None and forking.key is not None:
        data = forking.codec.input_of_fork(forking.key, task_id, row[1], data)
    if await connection.first("fork_task", id=task_id, origin=origin, input=data, options=options or None) is None:
        return
    await connection.run("fork_contents", id=task_id, origin=origin)
    await connection.run("fork_journal", id=task_id, origin=origin, at=at)
    await connection.run("fork_outbox", id=task_id, at=at)
    if await connection.first("fork_gaps", id=task_id, size=len(DROPPED), mark=DROPPED) is not None:
        raise CannotFork(origin, at, "what came before its kept checkpoints was dropped just now", [])
    record = wire.encode({"from": origin, "at": at, **details})
    await connection.run("outsider_record", id=task_id, seq=at + 1, kind=FORKED, data=record)
    await connection.run("fork_inbox", id=task_id, origin=origin, inbox=inbox)
    if forking.codec is not None and forking.key is not None:
        await _seal_copies(connection, forking, forking.codec, forking.key)
    await connection.run("fork_queue", id=task_id, inbox=inbox)


async def _seal_copies(connection: Connection, forking: Forking, codec: Codec, key: DataKey) -> None:
    """Seal the copied payloads for the places that they have now."""
    for read, write, places in (
        ("journal_slice", "reseal_record", _record_places),
        ("inbox_slice", "reseal_message", _message_places),
        ("contents_slice", "reseal_content", _content_places),
    ):
        after: Any = "" if read == "contents_slice" else 0
        while rows := await connection.fetch(read, id=forking.task_id, after=after, limit=SLICE_ROWS):
            both = [places(forking, row) for row in rows]
            datas = codec.moved(key, [old for old, _ in both], [(forking.task_id, place) for _, place in both])
            await connection.run_many(
                write,
                [
                    {"id": forking.task_id, "place": row[0], "data": data}
                    for row, (old, _), data in zip(rows, both, datas, strict=True)
                    if data is not old.data
                ],
            )
            after = rows[-1][0]


def _record_places(forking: Forking, row: Any) -> tuple[Item, bytes]:
    seq, kind, key, data = row
    old = record_place(forking.origin, seq, kind, key)
    return Item(forking.origin, old, data, kind), record_place(forking.task_id, seq, kind, key)


def _message_places(forking: Forking, row: Any) -> tuple[Item, bytes]:
    _, message, kind, name, ref, data = row
    old = message_place(forking.origin, message, kind, name, ref)
    return Item(forking.origin, old, data), message_place(forking.task_id, message, kind, name, ref)


def _content_places(forking: Forking, row: Any) -> tuple[Item, bytes]:
    name, data = row
    return Item(forking.origin, content_place(forking.origin, name), data), content_place(forking.task_id, name)
