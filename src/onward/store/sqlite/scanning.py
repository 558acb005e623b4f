"""All rows of all tables, on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import apsw

from onward.store.port.scanning import Look
from onward.store.sqlite.execute import run

T = TypeVar("T")


class _Reads(Protocol):
    async def _reading(self, job: Callable[[apsw.Connection], T], /) -> T: ...


class SqliteScanning:
    """See `Scanning`."""

    async def scan(self: _Reads, look: Look) -> None:
        """See `Scanning.scan`."""
        await self._reading(lambda c: _scan(c, look))


def _scan(connection: apsw.Connection, look: Look) -> None:
    for (table,) in list(run(connection, "own_tables")):
        cursor = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 -- a name from the catalogue
        for row in cursor:
            look(table, dict(zip([column[0] for column in cursor.get_description()], row, strict=True)))
