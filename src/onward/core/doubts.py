"""Effects in doubt, as Python, the command line and HTTP show them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Doubt:
    """An effect in doubt: its worker died before it recorded whether the effect happened."""

    task_id: str
    seq: int
    step: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class TaskDoubt(Doubt):
    """An effect in doubt, in a list of those of all tasks."""

    task: str
    """The name of its task."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestoredTask:
    """An unfinished task that a restore took back to the moment of the backup. It may still come to an effect in doubt."""

    task_id: str
    task: str
    state: str
    """"running", or the reason of its state."""


@dataclasses.dataclass(frozen=True, slots=True)
class InDoubt:
    """Whatever is in doubt, in the order of the ids of tasks."""

    doubts: tuple[TaskDoubt, ...]
    """Effects in doubt."""
    restored: tuple[RestoredTask, ...]
    """Unfinished tasks that the last restore took back."""
    next: str | None = None
    """The `after` of the next page; None at the end."""
