"""The outbox on SQLite: its triggers, and how a relay takes rows. There is one writer, so a take reads and writes in one transaction."""

from __future__ import annotations

import json

import apsw

from onward.store.port.outbox import Key, Taken
from onward.store.shared.outbox import SEARCHED_ROWS, Outbox, taken
from onward.store.sqlite.database import SqliteDatabase
from onward.store.sqlite.execute import S, first, run


class SqliteOutbox(Outbox):
    """See `shared.outbox.Outbox` for what each verb promises."""

    _db: SqliteDatabase

    async def watch(self, *, busy: bool) -> None:
        wanted = {"onward_outbox_tasks": f"{S['watch_tasks'].sql}\n{S['to_outbox'].sql}"}
        if busy:
            wanted["onward_outbox_busy"] = f"{S['watch_busy'].sql}\n{S['to_outbox'].sql}"

        def job(connection: apsw.Connection) -> None:
            triggers = dict(run(connection, "watched"))
            for name, sql in wanted.items():
                if triggers.get(name) != sql:  # there is none, or it is one of an older version
                    connection.execute(f"DROP TRIGGER IF EXISTS {name}")
                    connection.execute(sql)

        if dict(await self._db.fetch("watched")).items() >= wanted.items():
            return
        await self._db.writing(job)

    async def _take(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        def job(connection: apsw.Connection) -> list[Taken]:
            keys = [Key(*row) for row in run(connection, "due_rows", lane=lane, room=room, wide=SEARCHED_ROWS)]
            for key in keys:
                run(connection, "hold", holder=holder, lease=lease, **key._asdict())
            if len(keys) < room:
                run(connection, "line_up", lane=lane, wide=SEARCHED_ROWS)
            rows = [first(connection, "take_one", **key._asdict()) for key in keys]
            return [taken(row) for row in rows if row is not None]

        return await self._db.writing(job)

    async def _take_runs(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        def job(connection: apsw.Connection) -> list[Taken]:
            held = run(connection, "hold_runs", lane=lane, room=room, holder=holder, lease=lease)
            numbers = [row[0] for row in held]
            if len(numbers) < room:
                run(connection, "line_up", lane=lane, wide=SEARCHED_ROWS)
            return [taken(row) for row in run(connection, "take_held", numbers=json.dumps(numbers))] if numbers else []

        return await self._db.writing(job)
