"""A scan of all tables, on SQLite."""

from __future__ import annotations

import apsw

from onward.store.port.scanning import Look
from onward.store.sqlite.database import SqliteDatabase
from onward.store.sqlite.execute import run


class SqliteScanning:
    """See `port.scanning.Scanning` for what each verb promises."""

    _db: SqliteDatabase

    async def scan(self, look: Look) -> None:
        await self._db.reading(lambda c: _scan(c, look))


def _scan(connection: apsw.Connection, look: Look) -> None:
    for (table,) in list(run(connection, "own_tables")):
        cursor = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 -- a name from the catalogue
        for row in cursor:
            look(table, dict(zip([column[0] for column in cursor.get_description()], row, strict=True)))
