"""Epochs: the time between two restores of a database. Pure.

A process learns the epoch when it opens the database. After a restore the database has another one, and refuses the writes of that
process: what it knows of tasks, leases and queues may be from the time that the restore took back.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple


class Epoch(NamedTuple):
    """The present epoch of a database."""

    number: int
    """How often the database was restored."""
    id: str
    """A name that no other restore has, also of the same backup."""
    backup_at: float | None = None
    """The moment of the backup; None where the database was never restored."""
    restored_at: float | None = None
    """When it was restored. From the moment of the backup until then, tasks may have had effects that the database does not know."""
    own_tables: bool = True
    """Whether the tables of the application went back with those of Onward."""


FIRST = Epoch(0, "first")
"""The epoch of a database that was never restored."""


class Lost(NamedTuple):
    """The time that a restore took from a task: its effects since then may have happened."""

    since: float
    """The moment of the backup."""
    own_tables: bool = True
    """Whether the tables of the application were restored together with the task: then its transactions since are undone too."""

    def to_json(self) -> dict[str, Any]:
        """As records and options of tasks have it."""
        return {"since": self.since, "own_tables": self.own_tables}


def joined(first: Lost | None, second: Lost | None) -> Lost | None:
    """The time that two restores took from a task. The tables of the application may have gone back with one of them only."""
    if first is None or second is None:
        return first or second
    return Lost(min(first.since, second.since), first.own_tables and second.own_tables)


def lost_from(value: Mapping[str, Any] | None) -> Lost | None:
    """The lost time from a record or an option."""
    return None if value is None else Lost(value["since"], value["own_tables"])


CAUSE: ContextVar[Lost | None] = ContextVar("lost", default=None)
"""The lost time of what runs now: of a task, an event or a message. A task that it submits may have been submitted before."""


def lost_at(epoch: Epoch, at: float) -> Lost | None:
    """The lost time of a cause (the tick of a schedule, the end of a task) that was there at a time. None where it is later than the
    last restore."""
    if epoch.backup_at is None or epoch.restored_at is None or at >= epoch.restored_at:
        return None
    return Lost(epoch.backup_at, epoch.own_tables)
