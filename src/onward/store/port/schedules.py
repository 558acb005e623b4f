"""The port of the schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onward.core.schedule import ScheduleRow, Timetable
from onward.core.task import NewTask


class Schedules(Protocol):
    """Schedules, by name. Each has a mark that every change replaces."""

    async def list(self, *, soonest: int | None = None) -> Timetable:
        """All schedules by name, and the time. With `soonest`, so many of those that tick (paused ones do not), in the order of their
        next tick."""
        ...

    async def advance(self, name: str, seen: str | None, to: ScheduleRow | None, tasks: Sequence[NewTask] = ()) -> bool:
        """Replace a schedule that still has the mark `seen` by `to`, and submit these tasks: both in one transaction, or neither.
        `seen` None adds a schedule, `to` None removes it. False, and nothing is written, when the schedule has another mark: of
        several callers with the same mark, one succeeds. A task whose key is taken is left out."""
        ...
