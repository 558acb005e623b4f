"""Trimming: the one verb that takes something out of a journal. A port of its own, because a store can do without."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from onward.core import wire
from onward.core.record import DROPPED, Record

SIZE = len(DROPPED)


@runtime_checkable
class Trimming(Protocol):
    """A store that can drop what checkpoints stand for."""

    async def trim(self, task_id: str, keep: int, before: float) -> int:
        """Keep the last `keep` checkpoints of a task and those saved after the time `before`. Of older records, as far as
        they are from before that time too, drop what they say; how many that were.

        The records stay, with their numbers, kinds, keys and times, so the fence and all who count are where they were. What
        people were asked and said, messages, children, failures, announced effects, shifts and ends stay whole. A task with
        fewer checkpoints is left as it is. Safe at any time, for anybody, and twice: a shift reads from the last checkpoint
        on, and that one is always kept.
        """
        ...


def marker(oldest: Record) -> bytes | None:
    """What takes the place of the data that this checkpoint stands for; None when it was dropped itself, by somebody who
    keeps less, and stands for nothing."""
    return None if oldest.dropped else wire.encode({"dropped": oldest.value["number"]})
