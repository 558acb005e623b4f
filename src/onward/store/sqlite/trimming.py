"""What checkpoints stand for is dropped, on SQLite: two statements of one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import apsw

from onward.core.record import DROPPED, Record
from onward.store.port.trimming import SIZE, marker
from onward.store.sqlite.execute import first, run
from onward.store.sqlite.scanning import SqliteScanning

T = TypeVar("T")


class _Writes(Protocol):
    async def _writing(self, job: Callable[[apsw.Connection], T], /) -> T: ...


class SqliteTrimming(SqliteScanning):
    """See `Trimming`. (And `Scanning`: the two ports that only chores use come as one.)"""

    async def trim(self: _Writes, task_id: str, keep: int, before: float) -> int:
        """See `Trimming.trim`."""
        return await self._writing(lambda c: _trim(c, task_id, keep, before))


def _trim(connection: apsw.Connection, task_id: str, keep: int, before: float) -> int:
    found = first(connection, "oldest_kept", id=task_id, behind=keep - 1, before=before)
    oldest = None if found is None else Record(*found)
    data = None if oldest is None else marker(oldest)
    if oldest is None or data is None:
        return 0
    run(connection, "drop_data", id=task_id, seq=oldest.seq, before=before, data=data, size=SIZE, mark=DROPPED)
    return int(connection.changes())
