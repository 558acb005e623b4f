"""The port that reads many tasks: lists, relatives, open questions, last records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypedDict, Unpack

from onward.core.record import Record
from onward.core.task import State, Tasks

MAX_BYTES = 2**31 - 1
"""More bytes than an input or a record can have."""

HEAD_BYTES = 240
"""Bytes of the last record of a child that `offspring` reads."""


class Which(TypedDict, total=False):
    """Which tasks are listed. A filter that is missing, or None, does not filter. A task passes a filter with several values when one of
    them matches."""

    state: State | Sequence[State] | None
    task: str | Sequence[str] | None
    queue: str | Sequence[str] | None
    reason: str | Sequence[str] | None
    parent: str | None
    label: bytes | None
    """Bytes that the options of the task contain, as JSON. The caller checks the labels again."""
    text: str | None
    """A string in its name, its key, its labels or the beginning of its input, in any case of the letters; or the beginning or the end of
    its id."""
    since: str | None
    """The lowest id."""
    whose: str | None
    """The tenant; "" for tasks without one."""
    most: int | None
    """Longer inputs and last records, in bytes, are left out."""


class Kin(NamedTuple):
    """A task as part of a tree."""

    id: str
    parent: str | None
    task: str
    options: bytes


class Child(NamedTuple):
    """A child: the name of its task, whether it has ended, and the beginning of the data of its last record."""

    id: str
    task: str
    ended: bool
    head: bytes


class Ask(NamedTuple):
    """A question or an approval that a task asks of people."""

    task_id: str
    seq: int
    kind: str
    key: str
    data: bytes
    at: float
    task: str
    now: float


class Listing(Protocol):
    """Reads many tasks. (See `tenant` for `whose`.)"""

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        """The ids and options of the tasks that `list` returns."""
        ...

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        """The id of the task that has `count` others between it and `before`; None when there are fewer."""
        ...

    async def kin(self, ids: Sequence[str], *, below: bool = False) -> Sequence[Kin]:
        """These tasks, or (`below`) all their children, in any state."""
        ...

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        """The children of these tasks, ended or not; at most `most`."""
        ...

    async def asks(self, task_id: str | None = None, whose: str | None = None) -> Sequence[Ask]:
        """Open questions and approvals of unfinished tasks, or of one of them, the oldest first; each with the time now."""
        ...

    async def doubts(self) -> Sequence[str]:
        """Tasks that wait because of an effect in doubt."""
        ...

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        """The ids of the tasks and the data of those of their steps that may have called a model."""
        ...

    async def queue_positions(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        """For each of these tasks that could be started now, how many tasks of its queue come before it: counted up to `most` of a
        higher priority, and as many of its own."""
        ...

    async def recent_records(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        """The last `back` records of each of these tasks that is unfinished, without progress records. Only records that say what a
        task waits for have their data, and only when it is not longer than `most` bytes."""
        ...

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        """Tasks below the id `before`, the newest first. A search for a text reads all tasks between `before` and `since`."""
        ...
