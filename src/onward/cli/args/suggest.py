"""One question to the database for somebody who presses Tab: read only, in no time, and without the rest of Onward. Where there is no
answer there is no suggestion, and never an error in the middle of a line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from onward.config import load as settings
from onward.store.statements import load

PATIENCE = 2.0
"""Seconds for a database that is slow, or away."""

Found = list[tuple[str, str]]
"""Words, and what they are."""


UNTYPABLE = frozenset("\"'`$\\;&|<>(){}*?!~ \t")
"""What a shell would not leave as it is."""


def ask(db: str | None, statement: str, **values: Any) -> Found:
    """The rows of a statement; none where that cannot be had."""
    with contextlib.suppress(Exception):
        url = db or settings({}).db
        scheme, _, rest = url.partition("://")
        if scheme == "sqlite":
            return _safe(_sqlite(rest.removeprefix("/"), statement, values))
        return _safe(_postgres(url, statement, values))
    return []


def _safe(found: Found) -> Found:
    """Names come from anybody. One that a shell would obey is none to suggest."""
    words = [(value, about if about.isprintable() else "") for value, about in found]
    return [(value, about) for value, about in words if value.isprintable() and not set(value) & UNTYPABLE]


def _sqlite(path: str, statement: str, values: dict[str, Any]) -> Found:
    import apsw  # noqa: PLC0415 -- see above

    if not Path(path).is_file():
        return []
    wanted = load("sqlite")[statement]
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(int(PATIENCE * 1000))
        return [(str(value), str(about)) for value, about in connection.execute(wanted.sql, wanted(**values))]
    finally:
        connection.close()


def _postgres(url: str, statement: str, values: dict[str, Any]) -> Found:
    import asyncio  # noqa: PLC0415 -- see above

    import asyncpg  # noqa: PLC0415 -- an extra

    wanted = load("postgres")[statement]

    async def fetch() -> Found:
        async with asyncio.timeout(PATIENCE):
            connection = await asyncpg.connect(url)
            try:
                return [(row["value"], row["about"]) for row in await connection.fetch(wanted.sql, *wanted(**values))]
            finally:
                await connection.close()

    return asyncio.run(fetch())
