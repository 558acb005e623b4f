"""Overviews: what every Store can tell of the place as a whole, and what is said to a whole queue.

Numbers of what is unfinished are exact, and cost a look at what is unfinished; those of what has ended are exact up to a bound
and estimates above it, so that nobody reads millions of rows to show a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypedDict, Unpack

from onward.core.record import Record
from onward.core.task import State, Tasks

PAUSED = "paused"
"""The kind of the limit that a paused queue has: nothing of it at once."""

WHOLE = 2**31 - 1
"""More bytes than an input or a record can have."""

HEAD = 240
"""Bytes of a last record that are read for what stands at its beginning."""


class Which(TypedDict, total=False):
    """Which tasks are listed: what is missing, or None, does not matter. Of several values of one name, each will do."""

    state: State | Sequence[State] | None
    task: str | Sequence[str] | None
    queue: str | Sequence[str] | None
    reason: str | Sequence[str] | None
    parent: str | None
    label: bytes | None
    """What the options of the task hold somewhere, as JSON; the caller looks again."""
    text: str | None
    """What stands in its name, its key, its labels or at the beginning of its input, whatever the case of the letters; or what its
    id begins or ends with."""
    since: str | None
    """The lowest id."""
    whose: str | None
    """Of which tenant; "" for what has none."""
    most: int | None
    """How many bytes of an input, and of a last record, are wanted: longer ones are left out."""


class Unfinished(NamedTuple):
    """Unfinished tasks of a queue with one reason: how many, and how many seconds ago the oldest was submitted."""

    queue: str
    reason: str
    tasks: int
    oldest: float


class Ended(NamedTuple):
    """How many tasks have ended. When it is not `exact`, what completed is an estimate and the others are at least so many."""

    completed: int
    failed: int
    cancelled: int
    exact: bool


class Child(NamedTuple):
    """A child: its task's name, whether it has ended, and how the data of its last record begins."""

    id: str
    task: str
    ended: bool
    head: bytes


class Overview(Protocol):
    """What every Store can tell of the place. The promises of all verbs of the Store hold here too."""

    async def unfinished(self) -> list[Unfinished]:
        """All that is unfinished, by queue and reason."""
        ...

    async def held(self) -> tuple[float, dict[str, int]]:
        """The time, and how many tasks each worker holds that holds any."""
        ...

    async def queue_limits(self) -> dict[str, tuple[int | None, bool]]:
        """How many tasks of each queue with a limit may be held at once, and whether it is paused."""
        ...

    async def pause_queue(self, queue: str, *, paused: bool) -> None:
        """Have nobody start anything of a queue, or let it go on. Every claim that begins after the answer keeps it."""
        ...

    async def ended(self, most: int) -> Ended:
        """How many tasks have ended, counted up to `most`."""
        ...

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        """The children of these tasks, ended or not; at most so many."""
        ...

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        """The id of the task that has so many others between it and `before`; None when there are not so many."""
        ...

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        """The ids and data of the steps of these tasks that may have asked a model."""
        ...

    async def size(self) -> int:
        """Bytes that the database takes."""
        ...

    async def ahead(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        """Of these tasks, for each that could be started now, how many of its queue stand before it: counted up to `most` of a higher
        priority, and as many of its own."""
        ...

    async def lately(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        """The last `back` records of each of these tasks that is unfinished, without news; only those that say what a task waits for
        have their data, and only where it is not longer than `most`."""
        ...

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        """The ids and options of the same tasks that `list` gives."""
        ...

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        """Tasks, newest first, below the id `before`. A look for a text reads all that lie between it and `since`."""
        ...
