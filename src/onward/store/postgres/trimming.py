"""What checkpoints stand for is dropped, on PostgreSQL: a few statements of one transaction."""

from __future__ import annotations

from typing import Any, Protocol

from onward.core.record import DROPPED, Record
from onward.store.port.trimming import SIZE, marker
from onward.store.postgres.execute import S, first, run
from onward.store.postgres.scanning import PostgresScanning


class _Connects(Protocol):
    def _connection(self) -> Any: ...


class PostgresTrimming(PostgresScanning):
    """See `Trimming`. (And `Scanning`: the two ports that only chores use come as one.)"""

    async def trim(self: _Connects, task_id: str, keep: int, before: float) -> int:
        """See `Trimming.trim`."""
        async with self._connection() as connection, connection.transaction():
            # Two who trim the same task (one of them wrongly declared dead) do it one after the other.
            await run(connection, "lock_rows", ids=[task_id])
            found = await first(connection, "oldest_kept", id=task_id, behind=keep - 1, before=before)
            oldest = None if found is None else Record(*found.values())
            data = None if oldest is None else marker(oldest)
            if oldest is None or data is None:
                return 0
            values = {"id": task_id, "seq": oldest.seq, "before": before, "data": data, "size": SIZE, "mark": DROPPED}
            told = await connection.execute(S["drop_data"].sql, *S["drop_data"](**values))
            return int(told.rpartition(" ")[2])
