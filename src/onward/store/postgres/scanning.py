"""All rows of all tables, on PostgreSQL: a page at a time, from one snapshot."""

from __future__ import annotations

from typing import Any, Protocol

from onward.store.port.scanning import Look
from onward.store.postgres.execute import S

PAGE = 200


class _Connects(Protocol):
    def _connection(self) -> Any: ...


class PostgresScanning:
    """See `Scanning`."""

    async def scan(self: _Connects, look: Look) -> None:
        """See `Scanning.scan`."""
        async with self._connection() as connection, connection.transaction(readonly=True):
            for row in await connection.fetch(S["own_tables"].sql):
                rows = connection.cursor(f'SELECT * FROM "{row["name"]}"', prefetch=PAGE)  # noqa: S608 -- from the catalogue
                async for found in rows:
                    look(row["name"], dict(found))
