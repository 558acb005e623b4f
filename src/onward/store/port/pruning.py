"""The port that deletes data: pruning deletes ended tasks, trimming deletes data of records that a checkpoint stands for.

Pruning deletes whole trees. A fence is left of a task where another actor took over from a shift (another shift, a cancel, a resume): the
record that took the next number stays, without its data, and so does the last record of the shift, whose answer the shift may not have
got. A worker that slept through all of it finds the number taken, as before. A task that one shift did from its beginning to its
end leaves nothing: a writer without an answer to that end asks whether the task exists before it writes again. No child can be
submitted for a task that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

UNKNOWN, CHILD, UNFINISHED, RECENT, UNTOLD = "unknown", "child", "unfinished", "recent", "untold"
"""Why a task stays: it does not exist; it goes with its root; a task of its tree has not ended, or ended only just; or an event of the
tree has still to be delivered."""


class Pruned(NamedTuple):
    """The ids of all tasks that are gone, and of the named ones that stay, each with the reason."""

    gone: list[str]
    kept: dict[str, str]


class Pruning(Protocol):
    """Deletes data of tasks. Each verb is safe at any time, for any caller, and twice."""

    async def prunable(self, age: float, after: str, until: str, limit: int) -> list[str]:
        """Ids between `after` and `until`, in order, of tasks without a parent that ended so many seconds ago."""
        ...

    async def prune(self, ids: Sequence[str], age: float) -> Pruned:
        """Delete these tasks and all that they started, with all that belongs to them: journals, messages, contents, budgets,
        deliveries, their own subscriptions, and their keys. A tree goes or stays as a whole. It goes when all of its tasks have ended so
        many seconds ago and all of its events are delivered."""
        ...

    async def trim(self, task_id: str, keep: int, before: float) -> int:
        """Keep the last `keep` checkpoints of a task, and those saved after the time `before`. Delete the data of older records, as far
        as they are from before that time too. Returns how many records that were.

        The records stay, with their numbers, kinds, keys and times, so the fence and all counters stay right. Questions, answers,
        messages, children, failures, announced effects, shifts and ends keep their data. A task with fewer checkpoints is left as it
        is. A shift reads from the last checkpoint on, and that one is always kept."""
        ...
