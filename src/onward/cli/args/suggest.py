"""Reads suggestions for the completion of a shell from the database: one read-only statement, without the rest of Onward. When the
database cannot answer there are no suggestions, and never an error on the line that the user types."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from onward.config import load as settings
from onward.core.text import is_visible
from onward.store.statements import load

DATABASE_TIMEOUT_S = 2.0

Suggestions = list[tuple[str, str]]
"""Words with their descriptions."""

SHELL_CHARACTERS = frozenset("\"'`$\\;&|<>(){}*?!~ \t")
"""Characters that a shell would interpret."""


def query(db: str | None, statement: str, **values: Any) -> Suggestions:
    """The rows of a statement; empty if the database cannot be read."""
    with contextlib.suppress(Exception):
        url = db or settings({}).db
        scheme, _, rest = url.partition("://")
        if scheme == "sqlite":
            return _safe(_sqlite(rest.removeprefix("/"), statement, values))
        return _safe(_postgres(url, statement, values))
    return []


def _safe(rows: Suggestions) -> Suggestions:
    """The rows without names that a shell would interpret: callers choose names, so they are not trusted."""
    printable = [(value, about if is_visible(about) else "") for value, about in rows]
    return [(value, about) for value, about in printable if is_visible(value) and not set(value) & SHELL_CHARACTERS]


def _sqlite(path: str, statement: str, values: dict[str, Any]) -> Suggestions:
    import apsw  # noqa: PLC0415 -- only for this kind of database

    if not Path(path).is_file():
        return []
    prepared = load("sqlite")[statement]
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(int(DATABASE_TIMEOUT_S * 1000))
        return [(str(value), str(about)) for value, about in connection.execute(prepared.sql, prepared(**values))]
    finally:
        connection.close()


def _postgres(url: str, statement: str, values: dict[str, Any]) -> Suggestions:
    import asyncio  # noqa: PLC0415 -- only for this kind of database

    import asyncpg  # noqa: PLC0415 -- an extra

    prepared = load("postgres")[statement]

    async def fetch() -> Suggestions:
        async with asyncio.timeout(DATABASE_TIMEOUT_S):
            connection = await asyncpg.connect(url)
            try:
                return [
                    (row["value"], row["about"]) for row in await connection.fetch(prepared.sql, *prepared(**values))
                ]
            finally:
                await connection.close()

    return asyncio.run(fetch())
