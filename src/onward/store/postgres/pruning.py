"""Ended tasks are forgotten, on PostgreSQL: a few statements of one transaction.

Outcomes are locked first, in the order of their ids, as a resume locks them; then it is looked who may go. A fork holds on to its
origin's row, so it has all of it or finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from onward.store.port.pruning import FORGET, Pruned, sorted_out
from onward.store.postgres.execute import S, run

PATIENCE = 600.0
"""Seconds for one statement: a tree may have millions of records."""


class _Connects(Protocol):
    _from_outside: Any

    async def _fetch(self, name: str, /, **values: Any) -> list[Any]: ...


class PostgresPruning:
    """See `Pruning`."""

    async def prunable(self: _Connects, age: float, after: str, until: str, limit: int) -> list[str]:
        """See `Pruning.prunable`."""
        return [row["id"] for row in await self._fetch("prunable", age=age, after=after, until=until, limit=limit)]

    async def prune(self: _Connects, ids: Sequence[str], age: float) -> Pruned:
        """See `Pruning.prune`."""
        return await self._from_outside(lambda c: _prune(c, list(ids), age))  # type: ignore[no-any-return]


async def _prune(connection: Any, ids: list[str], age: float) -> Pruned:
    parents = dict(await _rows(connection, "parents", ids=ids))
    await run(connection, "lock_outcomes", ids=[row[0] for row in await _rows(connection, "trees", ids=ids, age=age)])
    found = sorted_out(ids, parents, await _rows(connection, "trees", ids=ids, age=age))
    if found.gone:
        for name in ("prune_tasks", *FORGET):
            values = S[name](ids=found.gone, nothing=b"")
            await connection.execute(S[name].sql, *values, timeout=PATIENCE)
    return found


async def _rows(connection: Any, name: str, **values: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await connection.fetch(S[name].sql, *S[name](**values))]
