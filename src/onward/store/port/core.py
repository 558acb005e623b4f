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

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from onward.core.audit import AuditEvent
from onward.core.epoch import Epoch
from onward.core.page import Page
from onward.core.record import Entry, Record
from onward.core.task import Message, NewTask, Task
from onward.store.migrate import Tell, silent
from onward.store.nudge import Bell
from onward.store.port.backup import Backups
from onward.store.port.follow import Tails
from onward.store.port.listing import MAX_BYTES
from onward.store.port.values import (
    ALL_MESSAGES,
    SUSPECT_AFTER,
    Batch,
    Claimed,
    Content,
    End,
    Foreign,
    Outlook,
    Sent,
    Stopped,
    Submitted,
    Wait,
)
from onward.store.port.workers import Workers
from onward.store.shared.approvals import Approvals
from onward.store.shared.audit import Audit
from onward.store.shared.budgets import Budgets
from onward.store.shared.codec import Codec
from onward.store.shared.data_keys import DataKeys
from onward.store.shared.documents import Documents
from onward.store.shared.health import Health
from onward.store.shared.intakes import Intakes
from onward.store.shared.keys import Keys
from onward.store.shared.listing import Listing
from onward.store.shared.locks import Locks
from onward.store.shared.minutes import Minutes
from onward.store.shared.outbox import Outbox
from onward.store.shared.overview import Overview
from onward.store.shared.pruning import Pruning
from onward.store.shared.queues import Queues
from onward.store.shared.quotas import Quotas
from onward.store.shared.schedules import Schedules
from onward.store.shared.sealing import Sealing
from onward.store.shared.sessions import Sessions
from onward.store.shared.tenant_quotas import TenantQuotas
from onward.store.shared.workers import Handlers

__all__ = [
    "ALL_MESSAGES",
    "SUSPECT_AFTER",
    "Batch",
    "Claimed",
    "Content",
    "End",
    "Foreign",
    "Outlook",
    "Sent",
    "Stopped",
    "Store",
    "Submitted",
    "Wait",
]


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

    mirror: bool
    """True when the database is the mirror of the tasks of another engine. Set before `open`, which raises UsageError when it is not so."""

    epoch: Epoch
    """The epoch of the database as it was when this process opened it. Every verb that writes raises EpochEnded in a later one."""

    bell: Bell | None
    """Carries nudges between processes where the database cannot: behind a pooler. SQLite needs none."""

    @property
    def codec(self) -> Codec | None:
        """Seals and opens payloads; None when they are stored as they are."""
        ...

    @property
    def receives_nudges(self) -> bool:
        """Whether nudges of other processes reach every listener of this one. Where they do not, a caller that waits has to poll."""
        ...

    # ── the other ports ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def backups(self) -> Backups:
        """Copies of the database; they also work while it is not open."""
        ...

    approvals: Approvals
    audit: Audit
    budgets: Budgets
    data_keys: DataKeys
    documents: Documents
    handlers: Handlers
    intakes: Intakes
    keys: Keys
    listing: Listing
    locks: Locks
    minutes: Minutes
    overview: Overview
    pruning: Pruning
    queues: Queues
    quotas: Quotas
    schedules: Schedules
    sealing: Sealing
    sessions: Sessions
    tenant_quotas: TenantQuotas

    @property
    def health(self) -> Health: ...

    @property
    def outbox(self) -> Outbox: ...

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

    async def migrate(self, tell: Tell = silent, roles: str | None = None) -> list[str]:
        """Bring the tables up to date; the names of the migrations that ran. It is safe while workers run, which it does not hold up, and
        when many call it at once. A migration that was interrupted goes on. `roles` is a prefix: roles whose names begin with it, and
        row-level security, are set up too. Raises UsageError where that is not possible."""
        ...

    async def version(self) -> tuple[int, int]:
        """The number of the newest migration in the database (0: none), and that of this program. Raises EpochEnded."""
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

    async def by_key(
        self, keys: Sequence[str], fingerprints: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Submitted]:
        """The tasks that these keys belong to; unknown keys are missing."""
        ...

    async def get(self, task_id: str, whose: str | None = None, most: int = MAX_BYTES) -> Task | None:
        """A task; None when it does not exist or is of another tenant (see `seen_by` in `shared/database.py` for `whose`). An input or a
        last record of more than `most` bytes is not read; `left_out` of the task names it."""
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

    async def resume(self, task_id: str, asker: str | None = None) -> bool:
        """Reopen a failed task, or make a task ready that is paused or waits for a person; False when it is neither. `asker` is the
        principal that resumes it (`approvals.askers`)."""
        ...

    async def prioritize(self, task_id: str, priority: int) -> bool:
        """Change the priority of an unfinished task; False when it has ended."""
        ...

    async def send(
        self, task_id: str, message: Message, event: AuditEvent | None = None, asker: str | None = None
    ) -> Sent:
        """Put a message into the inbox of an unfinished task, and wake the task when it waits for one; a message of the kind `message`
        wakes no task. Of messages with the same id, or that answer the same record, the first counts. The audit event is added with
        a message that counts, and so is the principal that sends it (`approvals.askers`)."""
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
        self,
        worker: str,
        queue: str,
        names: Sequence[str],
        room: int,
        *,
        alone: bool = False,
        without: Sequence[str] = (),
        version: str = "",
    ) -> list[Claimed]:
        """Take up to `room` ready tasks of the queue whose handler is among `names`, by priority and then in the order of submission, but
        groups by turns. Each gets its record `shift.started`, with the worker and the version of its code. The claim never takes a task that another worker holds, and takes
        nothing for a worker whose lease has ended. `alone` takes a suspect instead. The list is empty when nothing is ready.
        A claim `without` some tenants passes over their tasks; it may then miss tasks that stand far behind those.

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

    async def journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES
    ) -> Page[Record]:
        """Records with numbers above `after`, in order; with None, from the last checkpoint on. The record with which their stored data
        has `most` bytes or more is the last. `next` is its number as text if records may follow, None if none does."""
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
