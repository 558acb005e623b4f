"""The last hour or day of the whole installation on a time axis. Pure."""

from __future__ import annotations

import dataclasses

from onward.core.durations import Time


@dataclasses.dataclass(frozen=True, slots=True)
class HistoryPoint:
    """What happened in one piece of the time axis. The last piece is not over yet."""

    at: Time
    """When it begins."""
    completed: int
    failed: int
    cancelled: int
    """Tasks that a worker ended. (A task that is cancelled while no worker does it is not counted.)"""
    mean_s: float | None
    slowest_s: float | None
    """Seconds from the submit to the end of these tasks; null when none ended."""
    cost_usd: float
    """What these tasks have spent on models, where the price is known."""
    waiting: int | None
    """The most tasks that waited to be started, 10,000 at most; null when no worker was busy."""


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """The last hour or day of the whole installation, in pieces of the same length, the newest last."""

    step_s: int
    points: tuple[HistoryPoint, ...]
