"""Forks: a new task with the first records of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core import wire
from onward.core.record import DROPPED, FORKED
from onward.errors import CannotFork, TaskNotFound
from onward.store.shared.database import Connection


async def fork(
    connection: Connection,
    task_id: str,
    origin: str,
    at: int,
    data: bytes,
    inbox: int,
    options: bytes,
    details: Mapping[str, Any],
) -> None:
    """See `Store.fork`. `options` may be empty: then they are those of the origin. `details` go into the record `task.forked`."""
    if await connection.first("origin", id=origin) is None:
        raise TaskNotFound(origin)
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
    await connection.run("fork_queue", id=task_id, inbox=inbox)
