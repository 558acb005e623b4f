"""The values that the verbs of the core port take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from onward.core.record import Entry
from onward.core.task import Message, State
from onward.store.shared.predecessor import Witness

# Types of which there is one for every task or record are named tuples: a frozen dataclass takes five times as long to make.

SUSPECT_AFTER = 3
"""Crashed shifts in a row, without a new record, after which a task runs alone. After one more, alone, it is quarantined."""

ALL_MESSAGES = 2**31 - 1
"""No limit on the messages that are read at once."""


ChildEnd = tuple[str, str, str, bytes]
"""The end of a child as a message to its parent: parent, id of the message, child, data."""


class Submitted(NamedTuple):
    """The answer to a submit. `created` is False when the key or id was taken; `fingerprint` is that of the task in the store."""

    id: str
    created: bool
    fingerprint: str


class Claimed(NamedTuple):
    """A task as a worker gets it: all that it needs to go on, without the journal of a task that was begun before."""

    id: str
    task: str
    input: bytes
    options: bytes
    shift: int
    attempt: int
    crashes: int
    created_at: float
    claimed_at: float
    parent: str | None
    inbox: int
    """How many messages it has."""
    gate: str | None = None
    """The key of the limit under which it is held; empty when it is the limit of its queue alone; None without a limit."""
    tenant: str | None = None


class End(NamedTuple):
    """A settle that ends a task: its queue row is deleted and its outcome is written. With `inbox`, the save raises Unheard, and writes
    nothing, when the task has more messages than that."""

    id: str
    state: State
    attempt: int
    seq: int
    parent: str | None = None
    inbox: int | None = None


class Wait(NamedTuple):
    """A settle that makes a task wait until `due_at`, or (None) ready at once. With `inbox`, the task is ready at once when it has more
    messages than that."""

    id: str
    due_at: float | None
    reason: str
    attempt: int
    inbox: int | None = None


class Sent(NamedTuple):
    """The answer to a message: its number; or, with `first` False, the number of the message that counts instead; or None: the task has
    ended."""

    number: int | None
    first: bool = True
    there: Message | None = None


class Stopped(NamedTuple):
    """The answer to a cancel: whether it ended the task, or (`requested`) asked it to undo first; and whether a worker held it."""

    won: bool
    requested: bool = False
    held: bool = False

    def __bool__(self) -> bool:
        return self.won


class Foreign(Exception):
    """Carries an error of the caller's code out of a transaction, past the code that translates errors of the database."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(repr(error))


class Content(NamedTuple):
    """Bytes that belong to a task, named by their hash: written once, and deleted with the task."""

    task_id: str
    id: str
    data: bytes


@dataclasses.dataclass(slots=True)
class Batch:
    """One commit of the journal writer, for many tasks."""

    entries: list[Entry] = dataclasses.field(default_factory=list)
    ends: list[End] = dataclasses.field(default_factory=list)
    waits: list[Wait] = dataclasses.field(default_factory=list)
    gates: dict[str, str] = dataclasses.field(default_factory=dict)
    """The tasks that end or wait and were held under a limit, with its key: another task may take their place."""
    unlocks: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """Blocks under a lock that tasks leave, by task and key; with an empty key, all blocks of a task that ends."""
    contents: list[Content] = dataclasses.field(default_factory=list)
    """Contents that records of this batch, or of later ones, refer to."""
    known: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """By task, the time of the record before its first one here, as the writer knows it; without one, any time is accepted."""
    witnesses: list[Witness] = dataclasses.field(default_factory=list)
    """Records that must be in the journal, or nothing is written (see `shared/predecessor.py`); without any, the predecessor of each task."""
    patience: float = 1.0
    """By which factor the commit may take longer than usual."""
    child_ends: list[ChildEnd] | None = None
    """The messages to parents, where the payloads of the batch are sealed; None: they are made of its records."""

    @property
    def bytes(self) -> int:
        """The bytes of its records and contents."""
        return sum([len(entry[5]) for entry in self.entries]) + sum([len(content.data) for content in self.contents])

    def split(self) -> Iterable[Batch]:
        """The same as one batch for each task."""
        parts: dict[str, Batch] = {}
        for entry in self.entries:
            parts.setdefault(entry[0], Batch()).entries.append(entry)
        for end in self.ends:
            parts[end.id].ends.append(end)
        for wait in self.waits:
            parts[wait.id].waits.append(wait)
        for task_id, gate in self.gates.items():
            parts[task_id].gates[task_id] = gate
        for task_id, key in self.unlocks:
            parts[task_id].unlocks.append((task_id, key))
        for task_id in parts.keys() & self.known.keys():
            parts[task_id].known[task_id] = self.known[task_id]
        for part in parts.values() if self.child_ends is not None else ():
            part.child_ends = []
        for child_end in self.child_ends or ():
            parts[child_end[2]].child_ends.append(child_end)  # type: ignore[union-attr]
        for content in self.contents:
            parts.get(content.task_id, next(iter(parts.values()))).contents.append(content)
        return parts.values()


@dataclasses.dataclass(frozen=True, slots=True)
class Outlook:
    """What a worker without work has to know: whether sleeping tasks were woken just now, which queues have ready tasks for its handlers,
    in how many seconds the next sleeping task is due, and which queues have a suspect (see SUSPECT_AFTER) that waits to run alone."""

    woken: bool
    queues: tuple[str, ...]
    next_due_in: float | None
    suspects: tuple[str, ...]
    crew: tuple[int, float] = (0, 0.0)
    """How many workers there are, and when the newest of them started: it changes when a worker joins or leaves."""
    lost: bool = False
    """Whether the lease of a worker has ended, or a task is held by a worker that does not exist."""
    children: bool = False
    """Whether an unfinished task has a parent."""
    next_tick_in: float | None = None
    """Seconds until a schedule is due."""
    locks: bool = False
    """Whether there is a lock that is held, or waited for."""
    absent: frozenset[str] = frozenset()
    """Workers whose presence lock is free although they should hold it, when the caller asked for them (see `Workers.absent`)."""
