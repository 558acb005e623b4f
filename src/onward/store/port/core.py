"""The core port: the verbs that the engine needs to work on a task, with the promise of each.

Four tables hold a task (see docs/architecture.md):

- `tasks`     the request; written once, at submit
- `queue`     the unfinished tasks: ready (due_at and worker are null), held (worker), or asleep (due_at)
- `journal`   what happened; append-only, numbered 1, 2, 3 … for each task; the primary key is the fence
- `outcomes`  how a task ended; only a resume removes one

Promises of every verb, here and in the other ports:

- What it returns is durable before it returns.
- After an unknown outcome it can be called again, and then it returns what the first call did.
- When the database cannot be reached, it raises StoreUnavailable, and nothing that was acknowledged has changed.
- Time is the time of the database.
- Locks are taken in the order queue row, journal record, and many rows in the order of their ids, so that two statements never wait for
  each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from onward.core.audit import AuditEvent
from onward.core.record import Entry, Record
from onward.core.task import Message, NewTask, State, Task
from onward.store.migrate import Tell, silent
from onward.store.port.audit import Audit
from onward.store.port.budgets import Budgets
from onward.store.port.follow import Tails
from onward.store.port.handlers import Handlers
from onward.store.port.health import Health
from onward.store.port.keys import Keys
from onward.store.port.listing import Listing
from onward.store.port.outbox import Outbox
from onward.store.port.overview import Overview
from onward.store.port.pruning import Pruning
from onward.store.port.queues import Queues
from onward.store.port.quotas import Quotas
from onward.store.port.schedules import Schedules
from onward.store.port.workers import Workers
from onward.store.shared.predecessor import Witness

# Types of which there is one for every task or record are named tuples: a frozen dataclass takes five times as long to make.

SUSPECT_AFTER = 3
"""Crashed shifts in a row, without a new record, after which a task runs alone. After one more, alone, it is quarantined."""

ALL_MESSAGES = 2**31 - 1
"""No limit on the messages that are read at once."""


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
    contents: list[Content] = dataclasses.field(default_factory=list)
    """Contents that records of this batch, or of later ones, refer to."""
    known: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """By task, the time of the record before its first one here, as the writer knows it; without one, any time is accepted."""
    witnesses: list[Witness] = dataclasses.field(default_factory=list)
    """Records that must be in the journal, or nothing is written (see `shared/predecessor.py`); without any, the predecessor of each task."""
    patience: float = 1.0
    """By which factor the commit may take longer than usual."""

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
        for task_id in parts.keys() & self.known.keys():
            parts[task_id].known[task_id] = self.known[task_id]
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
    absent: frozenset[str] = frozenset()
    """Workers whose presence lock is free although they should hold it, when the caller asked for them (see `Workers.absent`)."""


class Store(Protocol):
    """The core port, and the way to the others. See the head of this file for the promises of every verb."""

    where: str
    """The name of the database for messages, without secrets."""

    out_of_process: bool
    """True when the database works in another process or thread: then it can go on while handlers run."""

    one_machine: bool
    """True when all processes that use this database are on one machine (a file)."""

    inline: bool
    """True when calls run inside the caller's loop (simulator, tests): then no threads are used around it either."""

    @property
    def receives_nudges(self) -> bool:
        """Whether nudges of other processes reach every listener of this one. Where they do not, a caller that waits has to poll."""
        ...

    # ── the other ports ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def audit(self) -> Audit: ...

    @property
    def budgets(self) -> Budgets: ...

    @property
    def handlers(self) -> Handlers: ...

    @property
    def health(self) -> Health: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def listing(self) -> Listing: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def overview(self) -> Overview: ...

    @property
    def pruning(self) -> Pruning: ...

    @property
    def queues(self) -> Queues: ...

    @property
    def quotas(self) -> Quotas: ...

    @property
    def schedules(self) -> Schedules: ...

    @property
    def tails(self) -> Tails: ...

    @property
    def workers(self) -> Workers: ...

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, migrate: bool | None = None, tell: Tell = silent) -> None:
        """Connect and check the tables. `migrate` True brings them up to date and reports progress to `tell`; False never changes them;
        None creates them in an empty database and, on SQLite, brings them up to date. Raises SchemaMismatch when this program cannot
        work with the tables. It can work with newer ones of the same major version."""
        ...

    async def close(self) -> None:
        """Close all connections. Safe to call twice, and before open."""
        ...

    async def migrate(self, tell: Tell = silent) -> list[str]:
        """Bring the tables up to date; the names of the migrations that ran. It is safe while workers run, which it does not hold up, and
        when many call it at once. A migration that was interrupted goes on."""
        ...

    async def version(self) -> tuple[int, int]:
        """The number of the newest migration in the database (0: none), and that of this program."""
        ...

    def clone(self) -> Store:
        """A store of the same database for another thread: the heartbeat has its own connection."""
        ...

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, new: Sequence[NewTask], connection: Any = None) -> list[Submitted]:
        """Write tasks, queue rows and first records; all or none. Of tasks with a group, each further one that waits stands further back,
        so that other groups get their turns. Where a key or an id is taken, the answer has the task that it belongs to: so a submit whose
        answer was lost is sent again. With `connection`, it is part of the caller's own transaction."""
        ...

    async def by_key(self, keys: Sequence[str]) -> dict[str, Submitted]:
        """The tasks that these keys belong to; unknown keys are missing."""
        ...

    async def get(self, task_id: str, whose: str | None = None) -> Task | None:
        """A task; None when it does not exist or is of another tenant (see `tenant` for `whose`)."""
        ...

    async def fork(
        self,
        task_id: str,
        origin: str,
        at: int,
        *,
        input: bytes,  # noqa: A002 -- the name of it in the whole API
        inbox: int,
        options: bytes = b"",
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Write a task like another (with these options, if any) with its records 1…`at`, then `task.forked` (with these details), and
        its first `inbox` messages. All or nothing; an id that is taken is a fork whose answer was lost. The caller decides where to cut,
        and how many messages the records refer to."""
        ...

    async def children(self, task_id: str) -> list[str]:
        """The unfinished children of a task."""
        ...

    async def orphans(self) -> list[str]:
        """Unfinished tasks whose parent was cancelled (some of them, when there are many). One call looks at some hundred parents; the
        next call goes on from there."""
        ...

    # ── control ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, task_id: str) -> Stopped:
        """Append the end of a task that has not ended; or, where a saga is open, the request to end it: then the next shift undoes the
        finished steps. Either fences the worker that holds the task."""
        ...

    async def pause(self, task_id: str) -> bool | None:
        """Let no worker start this task until it is resumed. True when a worker holds it (its next heartbeat tells the worker), False when
        none does, None when the task has ended. Children that are submitted from now on are paused as well."""
        ...

    async def unconfirmed_pauses(self, task_ids: Sequence[str]) -> list[str]:
        """Of these paused tasks, those that may still begin a step: a worker holds them, its lease has not ended, and it has not
        confirmed the pause (see `Workers.heartbeat`)."""
        ...

    async def resume(self, task_id: str) -> bool:
        """Reopen a failed task, or make a task ready that is paused or waits for a person; False when it is neither."""
        ...

    async def prioritize(self, task_id: str, priority: int) -> bool:
        """Change the priority of an unfinished task; False when it has ended."""
        ...

    async def send(self, task_id: str, message: Message, event: AuditEvent | None = None) -> Sent:
        """Put a message into the inbox of an unfinished task, and wake the task when it waits for one; a message of the kind `message`
        wakes no task. Of messages with the same id, or that answer the same record, the first counts. The audit event is added with
        a message that counts."""
        ...

    async def resolve_ended(
        self,
        task_id: str,
        message: Message,
        event: AuditEvent | None = None,
        *,
        undo: str | None = None,
        input: bytes = b"",  # noqa: A002 -- the name of it in the whole API
    ) -> Sent:
        """Put a message about an effect in doubt into the inbox of a task that has ended; the number is None when it has not ended. With
        `undo`, the same transaction writes a fork of all its records, with that id and this input, which undoes the effect."""
        ...

    async def inbox(self, task_id: str, after: int = 0, limit: int = ALL_MESSAGES) -> list[Message]:
        """The messages with numbers above `after`, in order, at most `limit` of them."""
        ...

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self, worker: str, queue: str, names: Sequence[str], room: int, *, alone: bool = False
    ) -> list[Claimed]:
        """Take up to `room` ready tasks of the queue whose handler is among `names`, by priority and then in the order of submission, but
        groups by turns. Each gets its record `shift.started`. The claim never takes a task that another worker holds, and takes
        nothing for a worker whose lease has ended. `alone` takes a suspect instead. The list is empty when nothing is ready.

        The limits of queue and groups hold for all workers together. A task whose limit is reached waits (reason `quota`) outside of the
        ready rows. It is ready again when another task of its group is released, in the same commit, or when the rate allows
        one more."""
        ...

    async def save(self, worker: str, batch: Batch) -> set[str]:
        """Append records and settle tasks, in one commit. All records of one task are written or none. Returns the ids of the tasks whose
        records were refused: the journal has moved on, or has lost the record before (see `shared/predecessor.py`). Raises WitnessLost,
        and writes nothing, when the batch names a witness that is not in the journal. A record that is there already, of the same
        shift and time, counts as written."""
        ...

    async def transact(
        self, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None = None
    ) -> bool:
        """Run the body with a connection of this database, inside a transaction that also appends the record that the body returns. True
        when both are committed; False when `save` would refuse the record, and then nothing is (`known` is the time of the record
        before it). It takes at most `seconds`: on SQLite all other writers wait meanwhile."""
        ...

    async def journal(self, task_id: str, after: int | None = 0, limit: int = 1000) -> list[Record]:
        """Records with numbers above `after`, in order; with None, from the last checkpoint on."""
        ...

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        """The contents of this task that have these names; unknown ones are missing."""
        ...

    async def wake(self, names: Sequence[str] | None = None, *, absent: float | None = None) -> Outlook:
        """Make sleeping tasks ready whose time has come, and also tasks that wait for a limit that is free. Return what is to do. `names`
        are the handlers whose ready tasks count (None: all). With `absent`, a lease, the answer also names the absent workers. It
        is one statement when there is nothing to wake."""
        ...

    async def release(self, worker: str, task_ids: Sequence[str], before: float, *, suspect: bool = False) -> None:
        """Make tasks ready that this worker holds and does not know of (a claim whose answer was lost), when it claimed them before that
        time: a release that comes late must not free a later claim. With `suspect` they run alone from now on, as after SUSPECT_AFTER
        crashes."""
        ...

    # ── nudges ───────────────────────────────────────────────────────────────────────────────────────────────────

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        """Tell all listeners, in every process, that something of this topic (`ready`, `ended`) may have happened. It is a hint: it may be
        lost or doubled, and the call returns at once. With `tasks`, the ids of a few tasks that may be ready, the store wakes only
        about as many workers of other processes as there is work, of those that can do it."""
        ...

    def listen(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        """Call `callback` in this loop at nudges of the topic; a nudge that names a queue passes its name. Returns a function that ends
        it."""
        ...
