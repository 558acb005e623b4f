"""Checks: faulty tasks, the state of the database, and a scan of all rows. The census reads all history in slices. A slice is bounded by
the records in it, so that no statement takes long and other statements come in between."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable

from onward.errors import StoreUnavailable
from onward.store.port.health import Faults, Look, Seen, unseen
from onward.store.shared.database import OverDatabase

SLICE_RECORDS = 20_000
"""Records in a slice; the journal of its last task may have more."""

MIN_SLICE_RECORDS = 100
"""Records in the smallest slice, after larger ones took too long for the server."""

LAST_ID = "~"
"""Above all ids."""


class Health(OverDatabase, abc.ABC):
    """Checks of the database and of all that is in it."""

    async def census(self, seen: Seen = unseen) -> Faults:
        """All tasks that nothing will ever move, or whose rows contradict each other, and what is wrong with each. The list is empty
        unless there is a bug. Reads all of history in slices, and calls `seen` after each slice."""

        async def bound(low: str, records: int) -> str | None:
            rows = await self._db.fetch("census_bound", low=low, records=records)
            return rows[0][0] if rows else None

        async def look(low: str, high: str) -> Faults:
            return [(row[0], row[1]) for row in await self._db.fetch("census", low=low, high=high)]

        return await in_slices(bound, look, seen)

    async def recent_census(self, most: int) -> Faults:
        """The same among the oldest unfinished tasks, those that are held, those that sleep for ever, and the newest: `most` of each.
        The cost does not depend on history."""
        return [(row[0], row[1]) for row in await self._db.fetch("census_lately", most=most)]

    @abc.abstractmethod
    async def doctor(self, *, deep: bool = False) -> list[tuple[str, bool | None, str]]:
        """Checks of this database: name, whether it is fine (None: a note), and what to do. `deep` also reads every page, where the database does not
        check its pages by itself."""

    @abc.abstractmethod
    async def scan(self, look: Look) -> None:
        """Call `look` with every row of every table of Onward, one after the other."""


async def in_slices(
    bound: Callable[[str, int], Awaitable[str | None]], look: Callable[[str, str], Awaitable[Faults]], seen: Seen
) -> Faults:
    """Look at all ids, from bound to bound. A slice that takes too long for the server is made smaller."""
    faults: Faults = []
    low, size, records = "", SLICE_RECORDS, 0
    while True:
        high = await bound(low, size) or LAST_ID
        try:
            faults += await look(low, high)
        except StoreUnavailable:
            if size <= MIN_SLICE_RECORDS:
                raise
            size = max(MIN_SLICE_RECORDS, size // 8)
            continue
        records += size
        seen(records)
        if high == LAST_ID:
            return faults
        low = high
