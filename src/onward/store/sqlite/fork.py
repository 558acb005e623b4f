"""A fork, on SQLite: a few statements of one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apsw

from onward.core import wire
from onward.core.record import DROPPED, FORKED
from onward.errors import CannotFork, TaskNotFound
from onward.store.port.trimming import SIZE
from onward.store.sqlite.execute import first, run


def fork(
    connection: apsw.Connection,
    task_id: str,
    origin: str,
    at: int,
    data: bytes,
    inbox: int,
    told: bytes,
    said: Mapping[str, Any],
) -> None:
    """See `Store.fork`."""
    if first(connection, "parent", id=origin) is None:
        raise TaskNotFound(origin)
    if first(connection, "fork_task", id=task_id, origin=origin, input=data, options=told or None) is None:
        return
    run(connection, "fork_contents", id=task_id, origin=origin)
    run(connection, "fork_journal", id=task_id, origin=origin, at=at)
    run(connection, "fork_outbox", id=task_id, at=at)
    if first(connection, "fork_gaps", id=task_id, size=SIZE, mark=DROPPED) is not None:
        raise CannotFork(origin, at, "what came before its kept checkpoints was dropped just now", [])
    data = wire.encode({"from": origin, "at": at, **said})
    run(connection, "outsider_record", id=task_id, seq=at + 1, kind=FORKED, data=data)
    run(connection, "fork_inbox", id=task_id, origin=origin, inbox=inbox)
    run(connection, "fork_queue", id=task_id, inbox=inbox)
