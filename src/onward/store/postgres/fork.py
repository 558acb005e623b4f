"""A fork, on PostgreSQL: a few statements of one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core import wire
from onward.core.record import DROPPED, FORKED
from onward.errors import CannotFork, TaskNotFound
from onward.store.port.trimming import SIZE
from onward.store.postgres.execute import first, run


async def fork(
    connection: Any, task_id: str, origin: str, at: int, data: bytes, inbox: int, told: bytes, said: Mapping[str, Any]
) -> None:
    """See `Store.fork`."""
    if await first(connection, "lock_origin", id=origin) is None:
        raise TaskNotFound(origin)
    if await first(connection, "fork_task", id=task_id, origin=origin, input=data, options=told or None) is None:
        return
    await run(connection, "fork_contents", id=task_id, origin=origin)
    await run(connection, "fork_journal", id=task_id, origin=origin, at=at)
    await run(connection, "fork_outbox", id=task_id, at=at)
    if await first(connection, "fork_gaps", id=task_id, size=SIZE, mark=DROPPED) is not None:
        raise CannotFork(origin, at, "what came before its kept checkpoints was dropped just now", [])
    data = wire.encode({"from": origin, "at": at, **said})
    await run(connection, "outsider_record", id=task_id, seq=at + 1, kind=FORKED, data=data)
    await run(connection, "fork_inbox", id=task_id, origin=origin, inbox=inbox)
    await run(connection, "fork_queue", id=task_id, inbox=inbox)
