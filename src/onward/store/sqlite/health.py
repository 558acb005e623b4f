"""Checks of a SQLite file, and a scan of all its tables."""

from __future__ import annotations

import asyncio

import apsw

from onward.store.port.health import Look
from onward.store.shared.health import Health
from onward.store.sqlite.database import SqliteDatabase
from onward.store.sqlite.execute import run
from onward.store.sqlite.file import MEMORY, Plainly, health, sound, sound_file


class SqliteHealth(Health):
    """See `shared.health.Health` for what each verb promises."""

    _db: SqliteDatabase

    async def doctor(self, *, deep: bool = False) -> list[tuple[str, bool | None, str]]:
        path = self._db.path
        checks = await self._db.reading(lambda c: health(c, path))
        if deep and (path == MEMORY or self._db.inline):
            return [*checks, await self._db.reading(sound)]
        if deep:  # it reads every page: over a connection of its own no other read waits for it
            with Plainly(self._db.where):
                return [*checks, await asyncio.to_thread(sound_file, path, self._db.clock)]
        return checks

    async def scan(self, look: Look) -> None:
        await self._db.reading(lambda c: _scan(c, look))


def _scan(connection: apsw.Connection, look: Look) -> None:
    for (table,) in list(run(connection, "own_tables")):
        cursor = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 -- a name from the catalogue
        for row in cursor:
            look(table, dict(zip([column[0] for column in cursor.get_description()], row, strict=True)))
