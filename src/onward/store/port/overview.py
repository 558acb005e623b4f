"""The port of the figures of the whole system.

Counts of unfinished tasks are exact, and cost a read of the unfinished tasks. Counts of ended tasks are exact up to a bound and estimates
above it, so that a number never costs a read of millions of rows.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol


class Unfinished(NamedTuple):
    """Unfinished tasks of one queue and reason: how many, and how many seconds ago the oldest was submitted."""

    queue: str
    reason: str
    tasks: int
    oldest: float


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


class Overview(Protocol):
    """Figures of the whole system."""

    async def unfinished(self) -> list[Unfinished]:
        """All unfinished tasks, by queue and reason."""
        ...

    async def held(self) -> tuple[float, dict[str, int]]:
        """The time, and how many tasks each worker holds; a worker that holds none is missing."""
        ...

    async def ended(self, most: int) -> Ended:
        """How many tasks have ended, counted up to `most`."""
        ...

    async def size(self) -> int:
        """The size of the database in bytes."""
        ...

    async def snapshot(self) -> QueueSnapshot:
        """All figures for a monitoring system: a few statements over what is unfinished. The journal is not read."""
        ...
