"""The census: tasks of which something is wrong, of all history in slices, and of a small part of it at once.

A slice is bounded by the records in it, so that no statement takes long and others come in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from onward.errors import StoreUnavailable

RECORDS = 20_000
"""Records in a slice; the journal of the last task may have more."""

FEWEST = 100
"""Records in the smallest slice, when the larger ones were too much for the server."""

LAST = "~"
"""Above all ids."""

Faults = list[tuple[str, str]]
"""Ids of tasks, and what is wrong with each."""

Seen = Callable[[int], None]
"""Is told how many records were looked at."""


def unseen(records: int) -> None:
    """Tells nobody."""


class Census(Protocol):
    """What every Store can tell of faults. The promises of all verbs of the Store hold here too."""

    async def census(self, seen: Seen = unseen) -> Faults:
        """All tasks that nothing will ever move, or whose rows contradict each other, with what is wrong. Always empty, or there is a
        bug. Reads all of history, in slices, and tells after each how far it is."""
        ...

    async def census_lately(self, most: int) -> Faults:
        """The same among the oldest unfinished tasks, those that are held, those that sleep for ever, and the newest: so many of each. What
        it costs does not depend on history."""
        ...


async def in_slices(
    bound: Callable[[str, int], Awaitable[str | None]], look: Callable[[str, str], Awaitable[Faults]], seen: Seen
) -> Faults:
    """Look at all ids, from bound to bound. A slice that takes too long for the server is made smaller."""
    found: Faults = []
    low, size, records = "", RECORDS, 0
    while True:
        high = await bound(low, size) or LAST
        try:
            found += await look(low, high)
        except StoreUnavailable:
            if size <= FEWEST:
                raise
            size = max(FEWEST, size // 8)
            continue
        records += size
        seen(records)
        if high == LAST:
            return found
        low = high
