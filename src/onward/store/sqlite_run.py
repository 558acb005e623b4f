"""Statements by name, on a SQLite connection."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from onward.store import statements

S = statements.load("sqlite")


def run(connection: apsw.Connection, name: str, /, **values: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a statement, by its name."""
    return connection.execute(S[name].sql, S[name](**values))


def first(connection: apsw.Connection, name: str, /, **values: Any) -> tuple[Any, ...] | None:
    """Its first row, or None."""
    return next(run(connection, name, **values), None)


def views(cursor: Any) -> list[dict[str, Any]]:
    """Rows by the names of their columns."""
    found = []
    for row in cursor:  # the description is there while rows are
        found.append(dict(zip([column[0] for column in cursor.get_description()], row, strict=True)))
    return found


SIZES = (1, 8, 32, 128, 512)


def insert(connection: apsw.Connection, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """As few statements as can be. apsw lets other threads run at each one, and every time this thread would stand in line
    behind the event loop before it may go on."""
    for start in range(0, len(rows), SIZES[-1]):
        part = rows[start : start + SIZES[-1]]
        size = next(size for size in SIZES if size >= len(part))
        missing = (None,) * (len(part[0]) * (size - len(part)))
        connection.execute(_many(S[name].sql, size), (*itertools.chain.from_iterable(part), *missing))


@functools.cache
def _many(one: str, size: int) -> str:
    """The INSERT of one row as one of several, of which the last may be missing: a few sizes stay prepared. It says VALUES (…), or
    SELECT … FROM (VALUES (…))."""
    if size == 1:
        return one
    head, values = one[: one.rindex("VALUES")], one[one.rindex("(") : one.rindex("?)") + 2]
    select = "" if "SELECT" in head else "SELECT * FROM ("
    return f"{head}{select}VALUES {', '.join([values] * size)}) WHERE column1 IS NOT NULL"
