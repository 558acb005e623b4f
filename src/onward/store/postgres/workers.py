"""Leases and presence on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from onward.store.port.workers import Beat
from onward.store.postgres.database import PostgresDatabase, count
from onward.store.postgres.execute import S, run
from onward.store.postgres.nudges import PostgresNudges
from onward.store.shared.workers import Workers


class PostgresWorkers(Workers):
    """See `port.workers.Workers` for what each verb promises."""

    _db: PostgresDatabase

    def __init__(self, database: PostgresDatabase, nudges: PostgresNudges) -> None:
        super().__init__(database)
        self._nudges, self.attend = nudges, nudges.attend

    async def heartbeat(self, worker: str, lease: float, rate: float, resting: Sequence[str] = ()) -> Beat:
        if resting:
            await self._db.write("confirm_pause", worker=worker, ids=[*resting])
        (row,) = await self._db.write("beat", worker=worker, lease=lease, rate=rate)
        return Beat(row["alive"] > 0, row["now"], frozenset(row["held"]), frozenset(row["paused"]))

    async def leave(self, worker: str) -> None:
        async with self._db.connection() as connection, connection.transaction():
            await run(connection, "leave", worker=worker)  # the row of the worker first, as in a rescue
            await run(connection, "lock_held", worker=worker)
            await run(connection, "let_go", worker=worker)
        await self._nudges.depart(worker)

    async def rescue(self, dead: Sequence[str], lease: float | None = None, now: float | None = None) -> int:
        async with self._db.connection() as connection, connection.transaction():
            await run(connection, "bury", dead=[*dead], lease=lease, now=now)
            return count(await connection.execute(S["rescue"].sql))

    async def absent(self, lease: float) -> set[str]:
        return {row[0] for row in await self._db.fetch("absent", lease=lease)}
