"""The figures of the whole system (see `shared/overview.py`)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


class Unfinished(NamedTuple):
    """Unfinished tasks of one queue and reason: how many, and how many seconds ago the oldest was submitted."""

    queue: str
    reason: str
    tasks: int
    oldest: float


class LatestShifts(NamedTuple):
    """Unfinished tasks of one reason whose latest shift was one of the same worker. `data` is that of the `shift.started` record; it is None
    for tasks that were never started."""

    data: bytes | None
    reason: str
    tasks: int


class Ended(NamedTuple):
    """How many tasks have ended. When it is not `exact`, `completed` is an estimate and the others are lower bounds."""

    completed: int
    failed: int
    cancelled: int
    exact: bool


@dataclasses.dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The figures of one moment: unfinished tasks; open questions and approvals, by kind; workers, their slots, and how many workers let
    their lease end; events that wait for delivery."""

    unfinished: list[Unfinished]
    asks: dict[str, int]
    workers: int
    slots: int
    late: int
    outbox: tuple[int, float] | None
    """How many events have to be delivered, and how many seconds ago the oldest happened; None where there is no outbox."""
