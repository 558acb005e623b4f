"""Checks of a PostgreSQL server, and a scan of all tables: a page at a time, from one snapshot."""

from __future__ import annotations

from onward.store.port.health import Look
from onward.store.postgres import roles, snapshots
from onward.store.postgres.database import PostgresDatabase
from onward.store.postgres.execute import S
from onward.store.postgres.nudges import PostgresNudges
from onward.store.postgres.session import health
from onward.store.shared.health import Health

PAGE_ROWS = 200


class PostgresHealth(Health):
    """See `shared.health.Health` for what each verb promises."""

    _db: PostgresDatabase

    def __init__(self, database: PostgresDatabase, nudges: PostgresNudges) -> None:
        super().__init__(database)
        self._nudges = nudges

    async def doctor(self, *, deep: bool = False) -> list[tuple[str, bool | None, str]]:  # noqa: ARG002 -- the server checks its pages
        (row,) = await self._db.fetch("health")
        async with self._db.connection() as connection:
            of_roles = await roles.check(connection)
        return [
            *health(row, await self._nudges.check()),
            snapshots.check(await self._db.fetch("snapshots")),
            of_roles,
        ]

    async def scan(self, look: Look) -> None:
        async with self._db.connection() as connection, connection.transaction(readonly=True):
            for (table,) in await connection.fetch(S["own_tables"].sql):
                cursor = connection.cursor(f'SELECT * FROM "{table}"', prefetch=PAGE_ROWS)  # noqa: S608 -- a name from the catalogue
                async for row in cursor:
                    look(table, dict(row))
