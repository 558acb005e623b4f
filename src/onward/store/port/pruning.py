"""Pruning: ended tasks are forgotten, whole trees at a time. A port of its own, because a store can do without.

What is left of a task is a fence: where somebody took over from a shift (another shift, a cancel, a resume), the record that took
the next number stays, without what it says, and so does the shift's own last record, of which it may have got no answer. Whoever
slept through all of it and wakes up finds the number taken, as it would have before. A task that one shift did from its beginning to
its end leaves nothing; a writer that had no answer to that end asks whether the task is still there before it writes again. Nobody
starts a child of a task that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

UNKNOWN, CHILD, UNFINISHED, RECENT, UNTOLD = "unknown", "child", "unfinished", "recent", "untold"
"""Why a task stays: there is none; it goes with its root; something of its tree has not ended, or only just; or somebody has yet to
be told of it."""


class Pruned(NamedTuple):
    """What came of it: the ids of all that are gone, and of those that were named and stay, with the reason."""

    gone: list[str]
    kept: dict[str, str]


@runtime_checkable
class Pruning(Protocol):
    """A store that can forget tasks."""

    async def prunable(self, age: float, after: str, until: str, limit: int) -> list[str]:
        """Ids between two, in order, of ended tasks without a parent that ended so many seconds ago."""
        ...

    async def prune(self, ids: Sequence[str], age: float) -> Pruned:
        """Forget these tasks and all that they started, with everything that there is of them: journals, messages, contents, budgets,
        deliveries, subscriptions of their own, and their keys. A tree goes as a whole or stays as a whole: every task of it has
        ended so many seconds ago, and whoever wants to hear of it has been told. Safe at any time, for anybody, and twice."""
        ...
