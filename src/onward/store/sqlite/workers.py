"""Leases on SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence

import apsw

from onward.store.port.workers import Beat
from onward.store.shared.workers import Workers
from onward.store.sqlite.database import SqliteDatabase
from onward.store.sqlite.execute import run
from onward.store.sqlite.nudges import SqliteNudges


class SqliteWorkers(Workers):
    """See `port.workers.Workers` for what each verb promises."""

    _db: SqliteDatabase

    def __init__(self, database: SqliteDatabase, nudges: SqliteNudges) -> None:
        super().__init__(database)
        self.attend = nudges.attend

    async def heartbeat(self, worker: str, lease: float, rate: float, resting: Sequence[str] = ()) -> Beat:
        def job(connection: apsw.Connection) -> Beat:
            if resting:
                run(connection, "confirm_pause", worker=worker, ids=json.dumps([*resting]))
            run(connection, "beat", worker=worker, lease=lease, rate=rate)
            alive = connection.changes() > 0
            held = dict(run(connection, "held", worker=worker))
            paused = frozenset(task_id for task_id, is_paused in held.items() if is_paused)
            return Beat(alive, self._db.clock.now(), frozenset(held), paused)

        return await self._db.writing(job, urgent=True)

    async def leave(self, worker: str) -> None:
        def job(connection: apsw.Connection) -> None:
            run(connection, "let_go", worker=worker)
            run(connection, "leave", worker=worker)

        await self._db.writing(job)

    async def rescue(self, dead: Sequence[str], lease: float | None = None, now: float | None = None) -> int:
        time = self._db.clock.now() if now is None else min(now, self._db.clock.now())

        def job(connection: apsw.Connection) -> int:
            run(connection, "bury", dead=json.dumps([*dead]), sweep=lease is not None, asked=time)
            run(connection, "rescue")
            return connection.changes()

        return await self._db.writing(job)

    async def absent(self, lease: float) -> set[str]:  # noqa: ARG002 -- the kernel tells of a dead process (engine/worker/presence.py)
        return set()
