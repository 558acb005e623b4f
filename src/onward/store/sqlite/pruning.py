"""Ended tasks are forgotten, on SQLite: a few statements of one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import apsw

from onward.core import wire
from onward.store.port.pruning import FORGET, Pruned, sorted_out
from onward.store.sqlite.execute import run

T = TypeVar("T")


class _Works(Protocol):
    async def _reading(self, job: Callable[[apsw.Connection], T], /) -> T: ...

    async def _writing(self, job: Callable[[apsw.Connection], T], /) -> T: ...


class SqlitePruning:
    """See `Pruning`."""

    async def prunable(self: _Works, age: float, after: str, until: str, limit: int) -> list[str]:
        """See `Pruning.prunable`."""
        values = {"age": age, "after": after, "until": until, "limit": limit}
        return await self._reading(lambda c: [row[0] for row in run(c, "prunable", **values)])

    async def prune(self: _Works, ids: Sequence[str], age: float) -> Pruned:
        """See `Pruning.prune`."""
        return await self._writing(lambda c: _prune(c, ids, age))


def _prune(connection: apsw.Connection, ids: Sequence[str], age: float) -> Pruned:
    named = wire.encode(list(ids)).decode()
    parents = {row[0]: row[1] for row in run(connection, "parents", ids=named)}
    found = sorted_out(ids, parents, list(run(connection, "trees", ids=named, age=age)))
    if found.gone:
        gone = wire.encode(found.gone).decode()
        for name in ("prune_tasks", *FORGET):
            run(connection, name, ids=gone, nothing=b"")
    return found
