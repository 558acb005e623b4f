"""The port of the checks: faulty tasks, the state of the database, and a scan of all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Faults = list[tuple[str, str]]
"""Ids of tasks, and what is wrong with each."""

Seen = Callable[[int], None]
"""Called with the number of records that were looked at so far."""

Look = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of a table and one of its rows, by the names of its columns. The store may call it in another thread."""


def unseen(records: int) -> None:
    """Report no progress."""


class Health(Protocol):
    """Checks of the database and of all that is in it."""

    async def census(self, seen: Seen = unseen) -> Faults:
        """All tasks that nothing will ever move, or whose rows contradict each other, and what is wrong with each. The list is empty
        unless there is a bug. Reads all of history in slices, and calls `seen` after each slice."""
        ...

    async def recent_census(self, most: int) -> Faults:
        """The same among the oldest unfinished tasks, those that are held, those that sleep for ever, and the newest: `most` of each.
        The cost does not depend on history."""
        ...

    async def doctor(self, *, deep: bool = False) -> list[tuple[str, bool, str]]:
        """Checks of this database: name, whether it is fine, and what to do. `deep` also reads every page, where the database does not
        check its pages by itself."""
        ...

    async def scan(self, look: Look) -> None:
        """Call `look` with every row of every table of Onward, one after the other."""
        ...
