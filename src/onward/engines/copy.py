"""Copies of the journals of another engine, made for reading.

A copy is a store that has the tasks, records and messages of the engine, with its numbers and times. All statements of readers then work as
they are. `refresh` reads what is new in the journal of a task from the engine and writes it to the store. It begins after the last record
that the store has, so a copy has no gaps, whichever process wrote its last part.

`JournalCopy` is a copy in the memory of a process: a read of a task refreshes it first. `engines/mirror.py` is a copy in a database, which the
workers keep up to date.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from onward.core.clock import Clock
from onward.core.page import Page
from onward.core.record import Record
from onward.core.task import NEVER, Message, State, Task, Tasks
from onward.core.usage import usage_at
from onward.engines.budgets import EngineBudgets
from onward.errors import StoreUnavailable, UsageError
from onward.store.port.core import Batch, Store
from onward.store.port.listing import Which
from onward.store.shared.database import Connection, Database
from onward.store.shared.minutes import MINUTE_S, Minute

log = logging.getLogger("onward.engines")

T = TypeVar("T")

Ids = list[tuple[str, bytes]]
"""Ids and options of tasks."""

SILENCE_S = 5.0
"""Seconds for which an engine that did not answer is not asked again, where the copy can answer."""

MAX_COPIED_TASKS = 10_000
"""Tasks that a copy in memory has at most. It drops those that were read least recently."""

MAX_COPIED_BYTES = 256_000_000
"""Bytes of the inputs, records, messages and contents of these tasks."""

REFRESHES_AT_ONCE = 8
"""Tasks that are read from the engine at the same time, for a list."""

MAX_REFRESHED = 1_000
"""Tasks that one list reads from the engine."""

MAX_NEW_TASKS = 1_000
"""Tasks that a process submitted last, which it lists also when the engine does not yet."""

READY = frozenset({"queued", "cancelling"})
"""Reasons of a task that waits for nothing but a worker."""

UNCHANGING = frozenset({"completed", "cancelled"})
"""States of tasks that never change again. A failed task may be resumed."""


@dataclasses.dataclass(frozen=True, slots=True)
class TaskCopy:
    """A task as its engine has it, with the records and messages that the copy lacks: a page of them."""

    id: str
    task: str
    input: bytes
    options: bytes
    queue: str
    priority: int
    key: str | None
    fingerprint: str
    parent: str | None
    group: str | None
    tenant: str | None
    created_at: float
    attempt: int
    state: str
    """Empty while it has not ended."""
    reason: str
    due_at: float | None
    worker: str | None
    records: list[Record]
    inbox: list[Message]
    head: int
    messages: int
    contents: int = 0
    """How many contents it has."""
    ledger: bytes | None = None
    """The ledger of its budget, when it has begun to spend."""


ReadTask = Callable[[str, int, int], Awaitable[TaskCopy | None]]
"""Reads a task with its records and messages after these numbers; None when there is no such task."""

ListTasks = Callable[[Which], Awaitable[Iterable[str]]]
"""The ids of tasks that may match a filter, the newest first."""

ReadContents = Callable[[str, int], Awaitable[Mapping[str, bytes]]]
"""Reads the contents of a task after the first so many."""


async def no_contents(task_id: str, after: int) -> Mapping[str, bytes]:  # noqa: ARG001 -- as in ReadContents
    """For an engine whose tasks have none."""
    return {}


class Copier:
    """Brings tasks in a store up to date."""

    def __init__(self, store: Store, read: ReadTask, read_contents: ReadContents = no_contents) -> None:
        self._store, self._read, self._read_contents = store, read, read_contents
        self._database: Database = store.listing._db
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def refresh(self, task_id: str, holder: str | None = None) -> bool:
        """Copy what is new of a task; whether the engine has the task, or had it. `holder` is the worker that has the task now, where the
        engine cannot tell yet. Raises StoreUnavailable."""
        lock = self._locks.setdefault(task_id, asyncio.Lock())
        async with lock:  # two readers of one task would copy the same
            while True:
                row = (await self._database.fetch("copy_progress", id=task_id))[0]
                head, messages, contents, state, known = row
                if state in UNCHANGING or (head and not known):  # a pruned task does not come back
                    return True
                task = await self._read(task_id, head, messages)
                if task is None:
                    return bool(known)
                more = await self._read_contents(task_id, contents) if task.contents > contents else {}
                await self.write(dataclasses.replace(task, worker=_worker(task.worker, holder)), more)
                head = task.records[-1].seq if task.records else head
                messages = task.inbox[-1].number if task.inbox else messages
                if (head >= task.head and messages >= task.messages) or not (task.records or task.inbox):
                    return True

    async def write(self, task: TaskCopy, contents: Mapping[str, bytes]) -> None:
        """Write a task with its new records, messages and contents, and tell followers."""
        await self._database.transact(functools.partial(_write, task, contents))
        self._store.tails.announce()
        if task.state:
            self._store.nudge("ended")

    async def has(self, task_id: str) -> bool:
        """Whether the copy has something of this task."""
        return bool((await self._database.fetch("copy_progress", id=task_id))[0][4])

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete tasks from the copy."""
        await self._database.transact(functools.partial(_forget, ids))


class JournalCopy:
    """A store in memory for readers. It has the verbs of the store behind it; those that read a task bring the copy up to date first."""

    budgets: EngineBudgets

    def __init__(
        self,
        where: str,
        store: Store,
        read: ReadTask,
        matching: ListTasks,
        clock: Clock,
        read_contents: ReadContents = no_contents,
        *,
        advice: str = "filter them",
    ) -> None:
        self.where: str = where
        """The name of the engine for messages, without secrets."""
        self.advice: str = advice
        """What to do where a list is too long, for messages."""
        self._store, self.matching, self._clock = store, matching, clock
        self._copier = Copier(store, self._measure(read), read_contents)
        self._silent_until = 0.0
        """Until when the engine is not asked about tasks of which the copy has something, because it did not answer."""
        self._sizes: collections.OrderedDict[str, int] = collections.OrderedDict()
        """The tasks of the copy with their bytes, those last that were read last."""
        self._bytes = 0
        self._new: collections.deque[str] = collections.deque(maxlen=MAX_NEW_TASKS)
        """Tasks that this process submitted last."""
        self.max_tasks: int = MAX_COPIED_TASKS
        self.max_bytes: int = MAX_COPIED_BYTES
        self.listing = _Listing(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch(self, task_id: str) -> None:
        """Count this new task among those that a list reads: the engine may not list it yet."""
        self._new.append(task_id)

    # ── reads of one task ────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str, *args: Any, **options: Any) -> Task | None:
        await self.refresh(task_id)
        return await self._store.get(task_id, *args, **options)

    async def journal(self, task_id: str, *args: Any, **options: Any) -> Page[Record]:
        await self.refresh(task_id)
        return await self._store.journal(task_id, *args, **options)

    async def inbox(self, task_id: str, *args: Any, **options: Any) -> list[Message]:
        await self.refresh(task_id)
        return await self._store.inbox(task_id, *args, **options)

    async def contents(self, task_id: str, *args: Any, **options: Any) -> dict[str, bytes]:
        await self.refresh(task_id)
        return await self._store.contents(task_id, *args, **options)

    async def children(self, task_id: str) -> list[str]:
        await self.refresh_some(await self.ids({"parent": task_id}))
        return await self._store.children(task_id)

    async def save(self, worker: str, batch: Batch) -> set[str]:  # noqa: ARG002 -- as in the port
        raise UsageError(NO_SHELF)

    # ── bringing the copy up to date ─────────────────────────────────────────────────────────────────────────────

    async def ids(self, which: Which) -> list[str]:
        """The ids of tasks that may match, the newest first, also of those that the engine does not list yet."""
        return sorted({*await self.matching(which), *self._new}, reverse=True)

    async def refresh_some(self, ids: Sequence[str]) -> None:
        """Bring these tasks up to date, MAX_REFRESHED of them at most."""
        if len(ids) > MAX_REFRESHED:
            log.warning("%d of %d tasks are read; %s", MAX_REFRESHED, len(ids), self.advice)
        turn = asyncio.Semaphore(REFRESHES_AT_ONCE)

        async def refresh(task_id: str) -> None:
            async with turn:
                await self.refresh(task_id)

        await asyncio.gather(*[refresh(task_id) for task_id in reversed(ids[:MAX_REFRESHED])])

    async def refresh(self, task_id: str) -> None:
        """Copy what is new in the journal of a task. Where no worker can answer, the copy stays as it is."""
        copied = self._sizes.get(task_id, 0) > 0
        if copied and self._clock.monotonic() < self._silent_until:
            return
        try:
            if await self._copier.refresh(task_id):
                self._count(task_id, 0)
            else:
                self._bytes -= self._sizes.pop(task_id, 0)
        except StoreUnavailable:
            if not copied:
                raise
            self._silent_until = self._clock.monotonic() + SILENCE_S
        await self._shrink(task_id)

    def _measure(self, read: ReadTask) -> ReadTask:
        async def measured(task_id: str, after: int, after_message: int) -> TaskCopy | None:
            task = await read(task_id, after, after_message)
            if task is not None:
                size = sum(len(record.data) for record in task.records) + sum(
                    len(message.data) for message in task.inbox
                )
                self._count(task_id, size + (0 if after else len(task.input)))
            return task

        return measured

    def _count(self, task_id: str, size: int) -> None:
        self._sizes[task_id] = self._sizes.pop(task_id, 0) + size
        self._bytes += size

    async def _shrink(self, reading: str) -> None:
        """Drop the tasks that were read least recently, where the copy has grown too large. The one that is being read stays."""
        dropped: list[str] = []
        while len(self._sizes) > 1 and (len(self._sizes) > self.max_tasks or self._bytes > self.max_bytes):
            task_id = next(iter(self._sizes))
            if task_id == reading:
                break
            self._bytes -= self._sizes.pop(task_id)
            dropped.append(task_id)
        if dropped:
            await self._copier.forget(dropped)


NO_SHELF = "artifacts of tasks on another engine need a place outside of it; give artifacts= a folder or a bucket"


class _Listing:
    """The reads of several tasks. Each refreshes the tasks that it may return."""

    def __init__(self, copy: JournalCopy) -> None:
        self._copy, self._listing = copy, copy._store.listing

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        async def page() -> Tasks:
            return await self._listing.list(limit=limit, before=before, **which)

        return await _full_page(self._copy, page, lambda task: task.task_id, limit, before, which)

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        async def page() -> Ids:
            return [*await self._listing.ids(limit=limit, before=before, **which)]

        return await _full_page(self._copy, page, lambda row: row[0], limit, before, which)

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        which: Which = {} if whose is None else {"whose": whose}
        ids = [task_id for task_id in await self._copy.ids(which) if task_id < (before or "~")]
        return ids[count] if len(ids) > count else None

    def __getattr__(self, name: str) -> Any:
        verb, copy = getattr(self._listing, name), self._copy

        async def fresh(*args: Any, **options: Any) -> Any:
            if name in _OF_ONE_TASK:
                await copy.refresh(args[0])
            elif name in _OF_CHILDREN or options.get("below"):
                for parent in args[0]:
                    await copy.refresh_some(await copy.ids({"parent": parent}))
            elif args and args[0] is not None:  # ids of tasks
                await copy.refresh_some(args[0])
            else:
                await copy.refresh_some(await copy.ids({"state": _UNFINISHED}))
            return await verb(*args, **options)

        return fresh


async def _full_page(
    copy: JournalCopy,
    read: Callable[[], Awaitable[list[T]]],
    id_of: Callable[[T], str],
    limit: int,
    before: str | None,
    which: Which,
) -> list[T]:
    """Refresh tasks from the newest on, until the page is full: then no older task can be on it."""
    since = which.get("since") or ""
    ids = [task_id for task_id in await copy.ids(which) if since <= task_id < (before or "~")]
    step = max(min(limit, MAX_REFRESHED), 1)
    for start in range(0, min(len(ids), MAX_REFRESHED), step):
        part = ids[start : start + step]
        await copy.refresh_some(part)
        page = await read()
        if len(page) >= limit and id_of(page[-1]) >= part[-1]:
            return page
    if len(ids) > MAX_REFRESHED:
        log.warning("a list ends after %d tasks that were read for it; %s", MAX_REFRESHED, copy.advice)
    return await read()


_OF_ONE_TASK = frozenset({"is_open", "reply", "replied", "ask_size"})
"""Verbs whose first argument is the id of a task."""

_OF_CHILDREN = frozenset({"unfinished_below", "offspring"})
"""Verbs whose first argument is ids of parents."""

_UNFINISHED = (State.PENDING, State.RUNNING, State.WAITING)


def _worker(worker: str | None, holder: str | None) -> str | None:
    """The worker of a task that runs: as the engine tells it, or the one that has taken it just now."""
    return worker if worker is None or holder is None else holder


async def _write(task: TaskCopy, contents: Mapping[str, bytes], connection: Connection) -> None:
    """Write a task, and what is new of it. Its state is written when no other process has written a newer one."""
    values = dataclasses.asdict(task)
    due = task.due_at if task.due_at is not None or task.reason in READY or task.worker else NEVER
    await connection.run("copy_task", **{name: values[name] for name in _TASK_COLUMNS}, grp=task.group)
    await connection.lock("lock_copy", id=task.id)
    await connection.run_many("copy_content", [{"id": task.id, "name": n, "data": d} for n, d in contents.items()])
    await connection.run_many("copy_record", [_record_values(task.id, record) for record in task.records])
    await connection.run_many("copy_message", [_message_values(task, message) for message in task.inbox])
    head, messages, _, outcome, _ = await connection.first("copy_progress", id=task.id)
    if head > task.head or messages > task.messages:
        return
    if task.ledger is not None:
        await connection.run("save_purse", id=task.id, data=task.ledger)
    if not task.state:
        await connection.run("drop_outcome", id=task.id)  # it had failed, and was resumed
        await connection.run(
            "copy_queue",
            id=task.id,
            queue=task.queue,
            task=task.task,
            priority=task.priority,
            attempt=task.attempt,
            reason="running" if task.worker else task.reason,
            due_at=None if task.worker else due,
            worker=task.worker,
            parent=task.parent,
            grp=task.group,
            tenant=task.tenant,
            inbox=task.messages,
        )
    elif (head, messages) == (task.head, task.messages):  # nothing follows: a task with an outcome is not copied again
        await connection.run("drop_queue", id=task.id)
        await connection.run("drop_outcome", id=task.id)
        await connection.run("copy_outcome", id=task.id, state=task.state, attempt=task.attempt, seq=task.head)
        if outcome is None and task.records:
            minute = _minute_of_end(task)
            await connection.run("add_minute", **minute.to_add())
            if (before := minute.drops_before()) is not None:
                await connection.run("drop_minutes", before=before)


def _minute_of_end(task: TaskCopy) -> Minute:
    """What the end of this task adds to the charts: its last record has the time and the usage."""
    last = task.records[-1]
    took = max(0.0, last.at - task.created_at)
    return Minute(int(last.at // MINUTE_S)).with_end(State(task.state), took, usage_at(last.data))


async def _forget(ids: Sequence[str], connection: Connection) -> None:
    for table in ("tasks", "outcomes", "inbox", "contents", "journal"):
        await connection.run(f"prune_{table}", ids=list(ids))
    for task_id in ids:
        await connection.run("drop_queue", id=task_id)


_TASK_COLUMNS: Sequence[str] = (
    *("id", "task", "queue", "priority", "created_at", "key", "fingerprint", "input", "options", "parent", "tenant"),
)


def _record_values(task_id: str, record: Record) -> dict[str, Any]:
    return {
        "id": task_id,
        "seq": record.seq,
        "shift": record.shift,
        "kind": record.kind,
        "key": record.key,
        "data": record.data,
        "at": record.at,
    }


def _message_values(task: TaskCopy, message: Message) -> dict[str, Any]:
    return {
        "id": task.id,
        "number": message.number,
        "message": message.id,
        "kind": message.kind,
        "name": message.name,
        "ref": message.ref,
        "data": message.data,
    }
