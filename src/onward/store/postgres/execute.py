"""Statements by name, on a PostgreSQL connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from onward.core.control import Unheard
from onward.core.record import Entry
from onward.store import statements
from onward.store.port.core import End
from onward.store.port.values import ChildEnd
from onward.store.shared import predecessor
from onward.store.shared.predecessor import Witness

S = statements.load("postgres")
REFUSED = (asyncpg.UniqueViolationError, asyncpg.NotNullViolationError)
"""The errors of a record whose number is taken, and of one whose predecessor is not there."""

_COLUMNS = ("ids", "seqs", "shifts", "kinds", "keys", "datas", "ats")
_WITNESS = ("w_ids", "w_seqs", "w_shifts", "w_ats")
_ONE = ("id", "seq", "shift", "kind", "key", "data", "at", "w_id", "w_seq", "w_shift", "w_at")


async def run(connection: Any, name: str, /, **values: Any) -> None:
    """Run a statement."""
    await connection.execute(S[name].sql, *S[name](**values))


async def first(connection: Any, name: str, /, **values: Any) -> Any:
    """The first row of a statement, or None."""
    return await connection.fetchrow(S[name].sql, *S[name](**values))


async def fetch(connection: Any, name: str, /, **values: Any) -> list[Any]:
    """All rows of a statement."""
    return await connection.fetch(S[name].sql, *S[name](**values))  # type: ignore[no-any-return]


async def tell_parents(connection: Any, ends: Sequence[ChildEnd]) -> None:
    """Send the ends of children to their parents, in one statement."""
    parents, ids, children, datas = zip(*ends, strict=True)
    await run(connection, "tell_parents", parents=parents, ids=ids, children=children, datas=datas)


async def check_heard(connection: Any, ends: Sequence[End]) -> None:
    """Raise Unheard when a task that is about to end, and whose queue row is locked, has a message that it has not read."""
    for end in ends:
        if (row := await first(connection, "inbox_of", id=end.id)) and row[0] > (end.inbox or 0):
            raise Unheard(end.id)


def records(
    entries: Sequence[Entry], witnesses: Sequence[Witness], known: Mapping[str, float | None]
) -> dict[str, Any]:
    """The values of the section `records`. Without witnesses, the predecessor of each task is one."""
    columns = zip(*sorted(entries), strict=True)
    return dict(zip(_COLUMNS, columns, strict=True)) | there(witnesses or predecessor.of_each(entries, known))


def record(entries: Sequence[Entry], witnesses: Sequence[Witness], known: Mapping[str, float | None]) -> dict[str, Any]:
    """The values of the section `record`, for one record with at most one witness."""
    (entry,), (witness,) = entries, witnesses or predecessor.of_each(entries, known)
    return dict(zip(_ONE, (*entry, *witness), strict=True))


def there(witnesses: Sequence[Witness]) -> dict[str, Any]:
    """The values of the section `there`."""
    return dict(zip(_WITNESS, zip(*witnesses, strict=True), strict=True))
