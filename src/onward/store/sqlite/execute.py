"""Statements by name, on a SQLite connection."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apsw

from onward.core.control import Unheard
from onward.core.record import Entry
from onward.store import statements
from onward.store.port.values import End
from onward.store.shared import predecessor
from onward.store.shared.predecessor import Witness, WitnessLost

S = statements.load("sqlite")


def run(connection: apsw.Connection, name: str, /, **values: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a statement."""
    return connection.execute(S[name].sql, S[name](**values))


def first(connection: apsw.Connection, name: str, /, **values: Any) -> tuple[Any, ...] | None:
    """The first row of a statement, or None."""
    return next(run(connection, name, **values), None)


def views(cursor: Any) -> list[dict[str, Any]]:
    """Rows by the names of their columns."""
    rows = []
    for row in cursor:  # the cursor has a description only while it has rows
        rows.append(dict(zip([column[0] for column in cursor.get_description()], row, strict=True)))
    return rows


SIZES = (1, 8, 32, 128, 512)
"""Numbers of rows for which an INSERT stays prepared."""

_WITNESS_SIZES = (1, 2, 4, 16, 128, 2_048)


def insert(connection: apsw.Connection, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows in as few statements as possible. apsw lets other threads run at each statement, and every time this thread would wait
    for the event loop before it may go on."""
    for start in range(0, len(rows), SIZES[-1]):
        part = rows[start : start + SIZES[-1]]
        size = next(size for size in SIZES if size >= len(part))
        missing = (None,) * (len(part[0]) * (size - len(part)))
        connection.execute(_many(S[name].sql, size), (*itertools.chain.from_iterable(part), *missing))


def check_heard(connection: apsw.Connection, ends: Sequence[End]) -> None:
    """Raise Unheard when a task that is about to end has a message that it has not read."""
    for end in ends:
        if end.inbox is not None and (row := first(connection, "inbox_of", id=end.id)) and row[0] > end.inbox:
            raise Unheard(end.id)


class Missing(apsw.ConstraintError):
    """A predecessor is not in the journal, and nothing was written."""


def save(
    connection: apsw.Connection,
    entries: Sequence[Entry],
    witnesses: Sequence[Witness],
    known: Mapping[str, float | None],
) -> None:
    """Append records. Raises WitnessLost where a witness is not in the journal. Without witnesses, the predecessor of each task is one, and
    the error is Missing."""
    if len(entries) == 1 and len(witnesses) <= 1:
        (witness,) = witnesses or predecessor.of_each(entries, known)
        try:
            connection.execute(S["save"].sql, (*entries[0], *witness))
        except apsw.ConstraintError as error:
            if error.extendedresult == apsw.SQLITE_CONSTRAINT_NOTNULL:  # type: ignore[attr-defined]
                raise _lost(witnesses) from None
            raise
        return
    begun: set[str] = set()
    for start in range(0, len(entries), SIZES[-1]):
        part = entries[start : start + SIZES[-1]]
        there = witnesses or predecessor.of_each([entry for entry in part if entry[0] not in begun], known)
        begun.update(() if witnesses else [entry[0] for entry in part])
        size, few = (next(s for s in sizes if s >= len(of)) for sizes, of in ((SIZES, part), (_WITNESS_SIZES, there)))
        values: list[Any] = [*itertools.chain.from_iterable(part), *(None,) * (7 * (size - len(part)))]
        values += [*itertools.chain.from_iterable(there), *(None,) * (4 * (few - len(there)))]
        connection.execute(_save(size, few), values)
        if connection.changes() != len(part):
            raise _lost(witnesses)


def _lost(witnesses: Sequence[Witness]) -> Exception:
    return WitnessLost() if witnesses else Missing()


@functools.cache
def _save(size: int, witnesses: int) -> str:
    sql = S["save_many"].sql
    for row, count in (("(?, ?, ?, ?, ?, ?, ?)", size), ("(?, ?, ?, ?)", witnesses)):
        sql = sql.replace(f"VALUES {row}", f"VALUES {', '.join([row] * count)}")
    return sql


@functools.cache
def _many(sql: str, size: int) -> str:
    """The INSERT of one row as one of `size` rows, of which the last may be NULL: they are left out. The statement has VALUES (…), or
    SELECT … FROM (VALUES (…))."""
    if size == 1:
        return sql
    head, values = sql[: sql.rindex("VALUES")], sql[sql.rindex("(") : sql.rindex("?)") + 2]
    select = "" if "SELECT" in head else "SELECT * FROM ("
    return f"{head}{select}VALUES {', '.join([values] * size)}) WHERE column1 IS NOT NULL"
