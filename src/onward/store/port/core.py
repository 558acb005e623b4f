"""The Store: everything Onward asks of a database, with the promise of each verb.

Four tables carry a task (see docs/architecture.md):

- `tasks`     what was asked; written once, at submit
- `queue`     what is unfinished: ready (due_at is null, worker is null), held (worker), or asleep (due_at)
- `journal`   what happened; append-only, numbered 1, 2, 3 … per task; the primary key is the fence
- `outcomes`  how it ended; removed again only by resume

Promises that hold for every verb: what it returns is durable before it returns; it can be called again after an unknown outcome
and then tells what the first call did; a database that cannot be reached raises StoreUnavailable and has changed nothing that
was acknowledged. Time is the database's. Locks are taken in the order queue row, journal record, and many rows in the order of
their ids, so two statements never wait for each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from onward.core.audit import AuditEvent
from onward.core.limit import LimitRow
from onward.core.record import Entry, Record
from onward.core.schedule import ScheduleRow, Timetable
from onward.core.task import Message, NewTask, State, Task
from onward.store.migrate import Tell, silent
from onward.store.port.access import Access
from onward.store.port.budgets import Purses
from onward.store.port.census import Census
from onward.store.port.follow import Tails
from onward.store.port.outbox import Outbox
from onward.store.port.overview import Overview
from onward.store.port.quotas import Quotas
from onward.store.shared.predecessor import Witness

# What is made for every task, or every record, is a named tuple: a frozen dataclass takes five times as long to make.

SUSPECT_AFTER = 3
"""Crashed shifts in a row, without a new record, after which a task runs alone. One more, alone, and it is quarantined."""


ALL = 2**31 - 1
"""No limit on the messages that are read at once."""


class Submitted(NamedTuple):
    """What a submit came to: `created` is False when the key was there before; `fingerprint` is that of the task there."""

    id: str
    created: bool
    fingerprint: str


class Claimed(NamedTuple):
    """A task as a worker gets it: all it needs to go on, but for the journal of one that was begun before."""

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
    """How many messages it has got."""
    gate: str | None = None
    """What it is held under, where a limit has a say; empty for the limit of its queue alone."""


class End(NamedTuple):
    """A settle that ends a task: its queue row goes, its outcome is written. With `inbox`, a save raises Unheard, and writes
    nothing, when it has got more messages than that."""

    id: str
    state: State
    attempt: int
    seq: int
    parent: str | None = None
    inbox: int | None = None


class Wait(NamedTuple):
    """A settle that lets a task go: until `due_at`, or (None) at once. With `inbox`, only when it has got so many messages."""

    id: str
    due_at: float | None
    reason: str
    attempt: int
    inbox: int | None = None


class Sent(NamedTuple):
    """What a message came to: its number, that of the one that was first (`first` is False), or None: the task has ended."""

    number: int | None
    first: bool = True
    there: Message | None = None


class Stopped(NamedTuple):
    """What a cancel came to: whether it ended the task, or (`requested`) had it undo first; and whether a worker held it."""

    won: bool
    requested: bool = False
    held: bool = False

    def __bool__(self) -> bool:
        return self.won


class Foreign(Exception):
    """What somebody else's code raised inside our transaction: carried past those who put our own errors into words."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(repr(error))


class Ask(NamedTuple):
    """Something that a task asks of people: a question or an approval."""

    task_id: str
    seq: int
    kind: str
    key: str
    data: bytes
    at: float
    task: str
    now: float


class Content(NamedTuple):
    """Bytes that a task keeps, named by their hash: written once, and gone with the task."""

    task_id: str
    id: str
    data: bytes


@dataclasses.dataclass(slots=True)
class Batch:
    """What one commit of the journal writer holds, for many tasks."""

    entries: list[Entry] = dataclasses.field(default_factory=list)
    ends: list[End] = dataclasses.field(default_factory=list)
    waits: list[Wait] = dataclasses.field(default_factory=list)
    gates: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of the tasks that end or wait, those that were held under a limit: another may take their place."""
    contents: list[Content] = dataclasses.field(default_factory=list)
    """What records of this batch, or of later ones, refer to."""
    known: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """By task, the time of the record before its first one here, as the writer knows it; without one, any time will do."""
    witnesses: list[Witness] = dataclasses.field(default_factory=list)
    """Records that must be there, or nothing is written (see `predecessor`); without any, the predecessor of each task."""
    patience: float = 1.0
    """How many times the usual time it may take."""

    @property
    def bytes(self) -> int:
        """What its records and contents weigh."""
        return sum([len(entry[5]) for entry in self.entries]) + sum([len(content.data) for content in self.contents])

    def split(self) -> Iterable[Batch]:
        """The same, a batch for each task."""
        parts: dict[str, Batch] = {}
        for entry in self.entries:
            parts.setdefault(entry[0], Batch()).entries.append(entry)
        for end in self.ends:
            parts[end.id].ends.append(end)
        for wait in self.waits:
            parts[wait.id].waits.append(wait)
        for task_id, gate in self.gates.items():
            parts[task_id].gates[task_id] = gate
        for task_id in parts.keys() & self.known.keys():
            parts[task_id].known[task_id] = self.known[task_id]
        for content in self.contents:
            parts.get(content.task_id, next(iter(parts.values()))).contents.append(content)
        return parts.values()


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as the store knows it. `machine` names the boot and process namespace in which `pid` means something."""

    id: str
    machine: str
    host: str
    pid: int
    slots: int
    names: tuple[str, ...]
    queues: tuple[str, ...]
    address: str
    version: str
    lease_until: float = 0.0
    started_at: float = 0.0
    rate: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat: alive is False when the worker was declared dead; `held` is what the store says it holds, and
    `paused` what of it is to stop."""

    alive: bool
    now: float
    held: frozenset[str]
    paused: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Outlook:
    """What a worker without work wants to know: whether sleepers were woken just now, which queues have ready tasks of its handlers,
    when the next sleeper is due, and in which queues a suspect (see SUSPECT_AFTER) waits for a worker of its own."""

    woken: bool
    queues: tuple[str, ...]
    next_due_in: float | None
    suspects: tuple[str, ...]
    crew: tuple[int, float] = (0, 0.0)
    """How many workers there are, and when the newest of them started: another pair when one has come or gone."""
    lost: bool = False
    """Whether the lease of a worker has ended, or a task is held by a worker that does not exist."""
    children: bool = False
    """Whether an unfinished task has a parent."""
    next_tick_in: float | None = None
    """Seconds until a schedule is due."""
    absent: frozenset[str] = frozenset()
    """Workers whose presence lock is free although they should hold it, when the caller asked for them (see `Store.absent`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Depth:
    """How many tasks of a queue wait to be started, and how many a second the workers finish."""

    waiting: int
    rate: float


class Store(Access, Census, Outbox, Overview, Purses, Quotas, Tails, Protocol):
    """The port. See the head of this file for what every verb promises."""

    where: str
    """The database's name for messages, without secrets."""

    apart: bool
    """True when the database does its work in another process: then it can go on while handlers run."""

    one_machine: bool
    """True when all processes that use this database are on one machine (a file)."""

    @property
    def hears(self) -> bool:
        """Whether nudges of other processes reach every listener of this one; where not, who waits has to poll."""
        ...

    inline: bool
    """True when calls run inside the caller's loop (simulator, tests): then no threads are used around it either."""

    async def open(self, *, migrate: bool | None = None, tell: Tell = silent) -> None:
        """Connect and check the tables. `migrate` True brings them up to date and tells how far it is, False never touches them; None
        creates them in an empty database and, on SQLite, brings them up to date. Raises SchemaMismatch when they do not fit: newer ones
        of the same major version do."""
        ...

    async def close(self) -> None:
        """Let go of everything. Safe to call twice, and before open."""
        ...

    async def migrate(self, tell: Tell = silent) -> list[str]:
        """Bring the tables up to date; the names of the migrations that ran. Safe with workers running, which it does not hold up, and
        when called by many at once. One that was interrupted goes on."""
        ...

    async def version(self) -> tuple[int, int]:
        """The number of the newest migration in the database (0: none) and that of this program."""
        ...

    def twin(self) -> Store:
        """Another door to the same database for another thread: the heartbeat's own connection."""
        ...

    # ── ways in ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, new: Sequence[NewTask], connection: Any = None) -> list[Submitted]:
        """Write tasks, queue rows and first records; all or none. Of tasks with a group, each that waits stands further
        behind, so that other groups get their turns. A key that is there already gives the task it belongs
        to instead, and so does an id (a submit whose answer was lost is simply sent again). With `connection`, inside
        the caller's own transaction."""
        ...

    async def keyed(self, keys: Sequence[str]) -> dict[str, Submitted]:
        """The tasks that these keys belong to already."""
        ...

    async def depth(self, queue: str) -> Depth:
        """How full a queue is."""
        ...

    async def cancel(self, task_id: str) -> Stopped:
        """Append the end of a task unless it has ended, or, where a saga is open, the request to end it: the next shift
        undoes what is owed. Either fences the worker that holds it."""
        ...

    async def pause(self, task_id: str) -> bool | None:
        """Have nobody start this task until it is resumed; True when a worker holds it (its next heartbeat tells it), None
        when it has ended. Children that are submitted from now on are paused as well."""
        ...

    async def unconfirmed_pauses(self, task_ids: Sequence[str]) -> list[str]:
        """Of these paused tasks, those that may still begin a step: a worker holds them, its lease has not ended, and it has not
        confirmed the pause (see `beat`)."""
        ...

    async def children(self, task_id: str) -> list[str]:
        """The unfinished children of a task."""
        ...

    async def orphans(self) -> list[str]:
        """Unfinished tasks whose parent was cancelled (some of them, when there are many). One call looks at some hundred parents;
        the next call goes on from there."""
        ...

    async def send(self, task_id: str, message: Message, deed: AuditEvent | None = None) -> Sent:
        """Put a message into the inbox of an unfinished task, and wake the task when it waits for one; a `message` wakes nobody.
        Of messages with the same id, or that answer the same record, the first counts. The deed is written down with a
        message that counts."""
        ...

    async def resolve_ended(
        self,
        task_id: str,
        message: Message,
        deed: AuditEvent | None = None,
        *,
        undo: str | None = None,
        input: bytes = b"",  # noqa: A002
    ) -> Sent:
        """The same for a task that has ended, and a word on one of its effects in doubt; the number is None when it has not ended. With
        `undo`, a fork of all its records of that id and with this input, which undoes the effect, is written in the same transaction."""
        ...

    async def inbox(self, task_id: str, after: int = 0, limit: int = ALL) -> list[Message]:
        """The messages with numbers above `after`, in order, at most `limit` of them."""
        ...

    async def asks(self, task_id: str | None = None, whose: str | None = None) -> list[Ask]:
        """What unfinished tasks, or one of them, ask of people and nobody has answered, the oldest first; and the time now."""
        ...

    async def doubts(self) -> list[str]:
        """Tasks with an effect in doubt."""
        ...

    async def resume(self, task_id: str) -> bool:
        """Reopen a failed task, or make one that waits for a person ready; False when it is neither."""
        ...

    async def fork(
        self,
        task_id: str,
        origin: str,
        at: int,
        *,
        input: bytes,  # noqa: A002 -- the word for it at every door
        inbox: int,
        told: bytes = b"",
        said: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Write a task like another (with the options `told`, if any) with its records 1…`at`, then `task.forked` (with what is `said` there), and its first `inbox` messages,
        which those hold. All or nothing; an id that is there is a fork whose answer was lost. Where to cut is the caller's business."""
        ...

    async def prioritize(self, task_id: str, priority: int) -> bool:
        """Change the priority of an unfinished task; False when it has ended."""
        ...

    async def offer(self, handlers: Sequence[tuple[str, bytes]]) -> None:
        """Remember that handlers of these names exist somewhere, and what is said of them."""
        ...

    async def limit(self, limits: Sequence[LimitRow]) -> None:
        """Set these limits, or lift those that are None; others stay as they are. What is held already counts, and what
        waited for a limit that is changed asks again. Every claim that begins after the answer keeps them."""
        ...

    async def offered(self) -> dict[str, bytes]:
        """All handlers ever offered, by name."""
        ...

    async def transact(
        self, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None = None
    ) -> bool:
        """Run the body with a connection of this database, inside a transaction that also takes the record it returns. True
        when both are committed; False when `save` would refuse the record, and then nothing is (`known` is the time of the
        record before it). Not longer than `seconds`: on SQLite everybody else waits meanwhile."""
        ...

    # ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────

    async def schedules(self, *, soonest: int | None = None) -> Timetable:
        """All schedules by name, or so many of those that tick (the paused do not), the soonest first; and the time."""
        ...

    async def turn(self, name: str, seen: str | None, to: ScheduleRow | None, tasks: Sequence[NewTask] = ()) -> bool:
        """Change a schedule that still has the mark `seen` into `to`, and submit these tasks: both in one transaction, or
        neither. `seen` None adds it, `to` None removes it. False, and nothing done, when it has another mark by now: of
        several who turn it from the same mark, one does. A key of a task that is there already is left as it is."""
        ...

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self, worker: str, queue: str, names: Sequence[str], room: int, *, alone: bool = False
    ) -> list[Claimed]:
        """Take up to `room` ready tasks of the queue whose handler is among `names`, by priority and then in order of
        submission, but groups by turns; each gets its `shift.started` record. Never a task that another worker holds,
        never for a worker whose lease has ended. `alone` takes a suspect instead. Nothing ready: an empty list.

        No more tasks are held than the limits of queue and groups allow, whoever claims at the same time. A task whose
        limit is reached waits (reason `quota`) and is in nobody's way; it is ready again when another of its group lets
        go, in the commit that lets go, or when the rate allows one more."""
        ...

    async def save(self, worker: str, batch: Batch) -> set[str]:
        """Append records and settle tasks, in one commit. All records of one task stand or fall together; the ids of
        those that were refused come back: the journal had moved on, or has lost the record before (see `predecessor`). Raises WitnessLost,
        and writes nothing, when the batch names a witness that is not there.
        A record that is there already, of the same shift and time, counts as written."""
        ...

    async def journal(self, task_id: str, after: int | None = 0, limit: int = 1000) -> list[Record]:
        """Records with numbers above `after`, in order; with None, from the last checkpoint on."""
        ...

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        """What this task keeps under these names; unknown ones are missing."""
        ...

    async def wake(self, names: Sequence[str] | None = None, *, absent: float | None = None) -> Outlook:
        """Make sleepers whose time has come ready, and look around; also for tasks that wait for a limit which is free,
        as after a limit was set while others were held. `names` are the handlers whose ready tasks count (None: all). With
        `absent`, a lease, the answer names the absent workers too. One statement when there is nothing to do."""
        ...

    async def release(self, worker: str, task_ids: Sequence[str], before: float, *, suspect: bool = False) -> None:
        """Make tasks ready that this worker holds and does not know of (a claim whose answer was lost): those that it
        claimed before that time. A release that comes late must not free what was properly claimed meanwhile. With `suspect` they
        run alone from now on, as after SUSPECT_AFTER crashes."""
        ...

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, row: WorkerRow, lease: float) -> float:
        """Add a worker; the database's time."""
        ...

    async def beat(self, worker: str, lease: float, rate: float, resting: Sequence[str] = ()) -> Beat:
        """Prolong the lease of a worker that was not declared dead. `resting` are paused tasks that it holds and begins no further
        step of: it confirms their pause."""
        ...

    async def leave(self, worker: str) -> None:
        """Take a worker out; what it still holds becomes ready. Nothing counts as a crash."""
        ...

    async def rescue(self, dead: Sequence[str], lease: float | None = None, now: float | None = None) -> int:
        """Declare these workers dead and, with `lease`, those whose lease has ended; free their tasks and count a crash
        for each that had no new record in its shift. How many tasks were freed. A lease that ended while the database
        was down, or less than `lease` seconds after it came back, is left alone. `now` is the time of the database as
        the caller knows it: a lease must have ended by both clocks, so that one that jumps, or a call that was long
        under way, buries nobody who lives."""
        ...

    async def workers(self) -> list[WorkerRow]:
        """All workers that were not declared dead."""
        ...

    async def absent(self, lease: float) -> set[str]:
        """Workers whose presence lock is free although they should hold it. A hint: the lock may be on its way back."""
        ...

    # ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str, whose: str | None = None) -> Task | None:
        """The task, or None; where it is another's as well (see `Access` for whose)."""
        ...

    async def doctor(self, *, deep: bool = False) -> list[tuple[str, bool, str]]:
        """What is worth checking about this database: name, fine or not, what to do. `deep` reads all of it, where the database does not
        look after its own pages."""
        ...

    # ── nudges ───────────────────────────────────────────────────────────────────────────────────────────────────

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        """Hint to all listeners, in every process, that something of this topic (`ready`, `ended`) may have happened.
        May be lost or doubled; returns at once. With `tasks`, the ids of a few tasks that may be ready, the store wakes only
        about as many workers of other processes as there is work, of those that can do it."""
        ...

    def listen(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        """Have `callback` called in this loop at nudges of the topic; the answer ends that. A nudge that names a queue passes its name
        to the callback."""
        ...

    async def attend(self, worker: str) -> str:
        """Be reachable for nudges from other processes and hold the presence lock of this worker, as far as the
        database can; the address other processes need, or an empty text."""
        ...
