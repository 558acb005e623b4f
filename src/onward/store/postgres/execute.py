"""Statements by name, on a PostgreSQL connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.core.record import Entry
from onward.store import statements
from onward.store.shared import predecessor
from onward.store.shared.predecessor import Witness

S = statements.load("postgres")
_COLUMNS = ("ids", "seqs", "shifts", "kinds", "keys", "datas", "ats")
_WITNESS = ("w_ids", "w_seqs", "w_shifts", "w_ats")


async def run(connection: Any, name: str, /, **values: Any) -> None:
    """Run a statement."""
    await connection.execute(S[name].sql, *S[name](**values))


async def first(connection: Any, name: str, /, **values: Any) -> Any:
    """Its first row, or None."""
    return await connection.fetchrow(S[name].sql, *S[name](**values))


def records(
    entries: Sequence[Entry], witnesses: Sequence[Witness], known: Mapping[str, float | None]
) -> dict[str, Any]:
    """The values of the section `records`; with no witnesses given, each task has its predecessor as one."""
    columns = zip(*sorted(entries), strict=True)
    return dict(zip(_COLUMNS, columns, strict=True)) | there(witnesses or predecessor.of_each(entries, known))


def there(witnesses: Sequence[Witness]) -> dict[str, Any]:
    """The values of the section `there`."""
    return dict(zip(_WITNESS, zip(*witnesses, strict=True), strict=True))
