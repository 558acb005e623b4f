"""A scan of all tables, on PostgreSQL: a page at a time, from one snapshot."""

from __future__ import annotations

from onward.store.port.scanning import Look
from onward.store.postgres.database import PostgresDatabase
from onward.store.postgres.execute import S

PAGE_ROWS = 200


class PostgresScanning:
    """See `port.scanning.Scanning` for what each verb promises."""

    _db: PostgresDatabase

    async def scan(self, look: Look) -> None:
        async with self._db.connection() as connection, connection.transaction(readonly=True):
            for (table,) in await connection.fetch(S["own_tables"].sql):
                cursor = connection.cursor(f'SELECT * FROM "{table}"', prefetch=PAGE_ROWS)  # noqa: S608 -- a name from the catalogue
                async for row in cursor:
                    look(table, dict(row))
