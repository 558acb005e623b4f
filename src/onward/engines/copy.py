"""A store that is a copy of the journals of another engine, made for reading.

`JournalCopy` stands in front of a store. Before it answers about a task, it reads what is new in the journal of that task from the engine,
and writes it to the store, with the numbers and times of the engine. The statements of all readers then work as they are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from onward.core.clock import Clock
from onward.core.page import Page
from onward.core.record import Record
from onward.core.task import NEVER, Message, Task
from onward.errors import StoreUnavailable, UsageError
from onward.store.port.core import Batch, Store
from onward.store.shared.database import Connection, Database

SILENCE_S = 5.0
"""Seconds for which an engine that did not answer is not asked again, where the copy can answer."""

READY = frozenset({"queued", "cancelling"})
"""Reasons of a task that waits for nothing but a worker."""


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


@dataclasses.dataclass(slots=True)
class _Progress:
    """How much of a journal the copy has, and whether the task has ended."""

    head: int = 0
    messages: int = 0
    ended: bool = False
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    """An older state of the task must not be written after a newer one."""


ReadTask = Callable[[str, int, int], Awaitable[TaskCopy | None]]
"""Reads a task with its records and messages after these numbers; None when there is no such task."""


class JournalCopy:
    """A store for readers. It has the verbs of the store behind it; those that read a task bring the copy up to date first."""

    def __init__(
        self, where: str, store: Store, read: ReadTask, newest: Callable[[], Awaitable[Iterable[str]]], clock: Clock
    ) -> None:
        self.where: str = where
        """The name of the engine for messages, without secrets."""
        self._store, self._read, self._newest, self._clock = store, read, newest, clock
        self._silent_until = 0.0
        """Until when the engine is not asked about tasks of which the copy has something, because it did not answer."""
        self._database: Database = store.listing._db
        self._progress: dict[str, _Progress] = {}
        self.listing = _Listing(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch(self, task_id: str) -> None:
        """Count this task among those that a list reads."""
        self._progress.setdefault(task_id, _Progress())

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

    async def children(self, task_id: str) -> list[str]:
        await self.refresh_all()
        return await self._store.children(task_id)

    async def save(self, worker: str, batch: Batch) -> set[str]:  # noqa: ARG002 -- as in the port
        raise UsageError(
            "artifacts of tasks on another engine need a place outside of it; give artifacts= a folder or a bucket"
        )

    # ── bringing the copy up to date ─────────────────────────────────────────────────────────────────────────────

    async def refresh_all(self) -> None:
        """Bring all tasks up to date that this process knows of, or that the engine lists."""
        for task_id in await self._newest():
            self.watch(task_id)
        for task_id, progress in list(self._progress.items()):
            if not progress.ended:
                await self.refresh(task_id)

    async def refresh(self, task_id: str) -> None:
        """Copy what is new in the journal of a task. Where no worker can answer, the copy stays as it is."""
        progress = self._progress.get(task_id) or _Progress()
        if progress.head and self._clock.monotonic() < self._silent_until:
            return
        async with progress.lock:
            try:
                await self._copy_new(task_id, progress)
            except StoreUnavailable:
                if not progress.head:
                    raise
                self._silent_until = self._clock.monotonic() + SILENCE_S

    async def _copy_new(self, task_id: str, progress: _Progress) -> None:
        while (task := await self._read(task_id, progress.head, progress.messages)) is not None:
            await self._database.transact(functools.partial(_write, task))
            if task.records:
                progress.head = max(progress.head, task.records[-1].seq)
            if task.inbox:
                progress.messages = max(progress.messages, task.inbox[-1].number)
            progress.ended = bool(task.state) and task.state != "failed"  # a failed task may be resumed
            self._progress[task_id] = progress
            if progress.head >= task.head and progress.messages >= task.messages:
                return
            if not task.records and not task.inbox:
                return


class _Listing:
    """The reads of several tasks."""

    def __init__(self, copy: JournalCopy) -> None:
        self._copy, self._listing = copy, copy._store.listing

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._listing, name)
        copy, one = self._copy, name in _OF_ONE_TASK

        async def fresh(*args: Any, **options: Any) -> Any:
            if one:
                await copy.refresh(args[0])
            else:
                await copy.refresh_all()
            return await verb(*args, **options)

        return fresh


_OF_ONE_TASK = frozenset({"is_open", "reply", "replied", "ask_size"})
"""Verbs whose first argument is the id of a task."""


async def _write(task: TaskCopy, connection: Connection) -> None:
    """Write a task, and the records and messages that are new."""
    values = dataclasses.asdict(task)
    due = task.due_at if task.due_at is not None or task.reason in READY or task.worker else NEVER
    await connection.run("copy_task", **{name: values[name] for name in _TASK_COLUMNS}, grp=task.group)
    await connection.run("drop_queue", id=task.id)
    await connection.run("drop_outcome", id=task.id)
    if not task.state:
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
            inbox=task.messages,
        )
    await connection.run_many("copy_record", [_record_values(task.id, record) for record in task.records])
    await connection.run_many("copy_message", [_message_values(task, message) for message in task.inbox])
    if task.state:
        await connection.run("copy_outcome", id=task.id, state=task.state, attempt=task.attempt, seq=task.head)


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
