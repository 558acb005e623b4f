"""The census: tasks whose rows contradict each other, or that nothing will ever move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Faults = list[tuple[str, str]]
"""Ids of tasks, and what is wrong with each."""

Seen = Callable[[int], None]
"""Called with the number of records that were looked at so far."""


def unseen(records: int) -> None:
    """Report no progress."""


class Census(Protocol):
    """The search for faulty tasks. The promises of all verbs of the Store hold here too."""

    async def census(self, seen: Seen = unseen) -> Faults:
        """All tasks that nothing will ever move, or whose rows contradict each other, and what is wrong with each. The list is empty
        unless there is a bug. Reads all of history in slices, and calls `seen` after each slice."""
        ...

    async def census_lately(self, most: int) -> Faults:
        """The same among the oldest unfinished tasks, those that are held, those that sleep for ever, and the newest: `most` of each.
        The cost does not depend on history."""
        ...
