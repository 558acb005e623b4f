"""An engine whose tasks are workflows: the verbs of the service over a few calls to a server.

The id of a workflow is the id of its task. The id of a task with a key is made of the key, so that the server itself keeps it unique.

Readers use a store that is a copy: `store` reads the workflow of a task before it answers about the task.
"""

from __future__ import annotations

import abc
import base64
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, cast

from onward.core.audit import AuditEvent
from onward.core.clock import Clock
from onward.core.ids import key_id
from onward.core.record import Record
from onward.core.task import NEEDS_A_PERSON, Message, NewTask, Task
from onward.core.wire import decode
from onward.engines import wire
from onward.engines.budgets import SHARED_BUDGET, EngineBudgets, copied_ledger
from onward.engines.copy import JournalCopy, TaskCopy
from onward.engines.large import PlainValues
from onward.errors import StoreUnavailable, UsageError
from onward.store.port.core import Sent, Stopped, Store, Submitted
from onward.store.port.listing import Which

CANCEL_TIMEOUT_S = 30.0
"""Seconds within which a workflow must have taken a cancel."""

SEND_TIMEOUT_S = 10.0
"""Seconds for which a sender waits until the inbox shows its message."""

POLL_PAUSE_S = 0.02


class NotFound(Exception):
    """There is no such workflow, or it has ended."""


class WorkflowEngine(abc.ABC):
    """The tasks of one engine. A subclass gives the calls to its server; they raise NotFound and StoreUnavailable."""

    title: str
    """The name of the engine in messages."""

    def __init__(self, where: str, copy: Store, clock: Clock, lease_s: float, events: int) -> None:
        self._clock, self._lease_s = clock, lease_s
        self.events: int = events
        """Events of a history after which a task goes on in a new run."""
        self.large: PlainValues = PlainValues(self.title)
        """Refuses values that are too large for the engine."""
        self._copy = JournalCopy(where, copy, self._read, self._list, clock, self._read_contents)
        self._copy.budgets = EngineBudgets(copy, self._copy.refresh, self.send)
        self.store: Store = cast("Store", self._copy)
        """The copy for readers."""

    # ── the calls to the server ──────────────────────────────────────────────────────────────────────────────────

    @abc.abstractmethod
    async def _start(self, start: wire.Start, *, again: bool) -> bool:
        """Start a run; False when there is one. `again`: also where an older run has ended."""

    @abc.abstractmethod
    async def _signal(self, task_id: str, name: str, argument: Any) -> None:
        """Send a signal to a workflow."""

    @abc.abstractmethod
    async def _request_cancel(self, task_id: str) -> None:
        """Ask the server to cancel a workflow."""

    @abc.abstractmethod
    async def _query(self, task_id: str, name: str, *args: Any) -> Any:
        """The answer of a workflow. A worker has to run."""

    @abc.abstractmethod
    async def _list(self, which: Which) -> list[str]:
        """The ids of tasks that may match, the newest first. Readers filter them again."""

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, new: Sequence[NewTask], connection: Any = None) -> list[Submitted]:
        """Start a workflow for each task, one after the other: there is no transaction over several."""
        if connection is not None:
            self._refuse("submit(connection=)", "submit after the commit, with a key")
        for task in new:
            self._check(task)
        return [await self._submit(task) for task in new]

    async def _submit(self, task: NewTask) -> Submitted:
        now = self._clock.now()
        task_id = task.id if task.key is None else key_id(task.key)
        request: wire.Request = {
            "id": task_id,
            "task": task.task,
            "input": await self.large.pack(task_id, task.input, "the input"),
            "options": task.options.decode(),
            "queue": task.queue,
            "priority": task.priority,
            "key": task.key,
            "fingerprint": task.fingerprint,
            "parent": task.parent,
            "group": task.group,
            "tenant": task.tenant,
            "created_at": now,
            "delay": task.delay,
            "lease_s": self._lease_s,
            "events": self.events,
        }
        due = now + task.delay if task.delay > 0 else None
        start = _new_run(request, "queued" if due is None else "delayed", due)
        created = await self._start(start, again=False)
        fingerprint = task.fingerprint
        if not created:
            known = await self._view(task_id, 0, 0)
            fingerprint = fingerprint if known is None else known["request"]["fingerprint"]
        self._copy.watch(task_id)
        return Submitted(task_id, created, fingerprint)

    async def by_key(
        self, keys: Sequence[str], fingerprints: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Submitted]:
        """The tasks that these keys belong to."""
        views = {key: await self._view(key_id(key), 0, 0) for key in keys}
        return {
            key: Submitted(view["request"]["id"], False, view["request"]["fingerprint"] or fingerprints.get(key, ""))
            for key, view in views.items()
            if view is not None
        }

    async def send(
        self,
        task_id: str,
        message: Message,
        event: AuditEvent | None = None,  # noqa: ARG002 -- the engine has no audit log of Onward's
        asker: str | None = None,  # noqa: ARG002
    ) -> Sent:
        """Send a signal, and read which message counts."""
        data = await self.large.pack(task_id, message.data, "a message")
        sent = [message.id, message.kind, message.name, message.ref, data]
        try:
            await self._signal(task_id, wire.SEND, sent)
        except NotFound:
            return Sent(None)
        end = self._clock.monotonic() + SEND_TIMEOUT_S
        while self._clock.monotonic() < end:
            try:
                view, messages = await self._view(task_id, 2**53, 2**31), await self.messages(task_id, 0)
            except StoreUnavailable:
                break
            for known in messages:
                if known.id == message.id:
                    return Sent(known.number)
                if message.ref is not None and known.ref == message.ref:
                    return Sent(known.number, first=False, there=known)
            if view is None or view["state"]:
                return Sent(None)
            await self._clock.sleep(POLL_PAUSE_S)
        return Sent(0)  # the server has the signal, and no worker runs that could say which number it got

    async def cancel(self, task_id: str) -> Stopped:
        """Ask the server to cancel the workflow, and wait until its journal says so."""
        before = await self._view(task_id, 0, 0)
        if before is None or before["state"]:
            return Stopped(False)
        try:
            await self._request_cancel(task_id)
        except NotFound:
            return Stopped(False)
        end = self._clock.monotonic() + CANCEL_TIMEOUT_S
        while self._clock.monotonic() < end:
            view = await self._view(task_id, before["head"], before["messages"])
            kinds = [record[2] for record in view["records"]] if view is not None else []
            if view is None or view["state"] or "cancel.requested" in kinds or view["reason"] == "cancelling":
                won = view is not None and (not view["state"] or view["state"] == "cancelled")
                requested = view is not None and not view["state"]
                return Stopped(won, requested=requested, held=bool(before["worker"]))
            await self._clock.sleep(POLL_PAUSE_S)
        raise StoreUnavailable(
            f"no worker of {self.title} has taken the cancel of task {task_id}; start one, and ask again"
        )

    async def resume(self, task_id: str, asker: str | None = None) -> bool:  # noqa: ARG002 -- as for a message
        """Wake a task that waits for a person, or start a new run of one that has failed, with its journal."""
        view = await self._view(task_id, 0, 0)
        if view is None:
            return False
        now = self._clock.now()
        if view["state"] == "failed":
            start = _new_run(view["request"], "queued", None)
            start["records"] = [
                *await self._json_records(task_id),
                [view["head"] + 1, 0, "task.resumed", "", "{}", now],
            ]
            start["inbox"] = [
                [message.id, message.kind, message.name, message.ref, message.data.decode()]
                for message in await self.messages(task_id, 0)
            ]
            start["contents"] = await self._all_contents(task_id)
            start["ledger"] = view.get("ledger", "")
            return await self._start(start, again=True)
        if view["state"] or view["reason"] not in NEEDS_A_PERSON:
            return False
        await self._signal(task_id, wire.RESUME, now)
        return True

    async def pause(self, task_id: str) -> bool | None:  # noqa: ARG002 -- as in the port
        self._refuse("pause", "cancel the task, or let its handler wait for a signal")

    async def unconfirmed_pauses(self, task_ids: Sequence[str]) -> list[str]:  # noqa: ARG002
        return []

    async def prioritize(self, task_id: str, priority: int) -> bool:  # noqa: ARG002
        self._refuse("a priority", "submit the task to a task queue of its own if it must not wait")

    async def fork(self, task_id: str, origin: str, at: int, **_: Any) -> None:  # noqa: ARG002
        self._refuse("fork", "submit a new task")

    async def resolve_ended(self, task_id: str, message: Message, event: AuditEvent | None = None, **_: Any) -> Sent:  # noqa: ARG002
        self._refuse("a verdict about a task that has ended", "submit a task that puts it right")

    def _check(self, task: NewTask) -> None:
        """Raises UsageError for a task that needs what the engine lacks."""
        if task.webhook is not None:
            self._refuse("submit(webhook=)", "ask for the result, or let the last step send it")
        if decode(task.options).get("purses"):
            self._refuse(*SHARED_BUDGET)
        if task.priority:
            self._refuse("a priority", "submit the task without one, to a task queue of its own if it must not wait")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise UsageError(f"{what} is not there on {self.title}; {instead}")

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str, whose: str | None = None) -> Task | None:
        """A task as it is now, for a shift."""
        return await self.store.get(task_id, whose)

    async def records(self, task_id: str) -> list[Record]:
        """The whole journal of a task."""
        return [to_record(record) for record in await self._json_records(task_id)]

    async def _json_records(self, task_id: str) -> list[wire.JsonRecord]:
        records: list[wire.JsonRecord] = []
        while (view := await self._view(task_id, records[-1][0] if records else 0, 0)) is not None and view["records"]:
            records += view["records"]
            if records[-1][0] >= view["head"]:
                break
        return records

    async def messages(self, task_id: str, after: int) -> list[Message]:
        """The messages of a task after a number."""
        messages: list[Message] = []
        while (view := await self._view(task_id, 2**53, after)) is not None and view["inbox"]:
            messages += [to_message(message, after + n) for n, message in enumerate(view["inbox"], 1)]
            after += len(view["inbox"])
            if after >= view["messages"]:
                break
        return messages

    async def contents(self, task_id: str, names: Iterable[str]) -> dict[str, bytes]:
        """Those of these contents that the task has."""
        contents: dict[str, bytes] = {}
        for name in names:  # one at a time: an answer is one payload
            try:
                answer = await self._query(task_id, wire.CONTENTS, [name])
            except NotFound:
                return contents
            contents |= {key: base64.b64decode(data) for key, data in answer.items()}
        return contents

    async def _all_contents(self, task_id: str) -> dict[str, str]:
        names = await self._query(task_id, wire.CONTENT_NAMES)
        contents = await self.contents(task_id, names)
        return {name: base64.b64encode(data).decode() for name, data in contents.items()}

    async def _view(self, task_id: str, after: int, after_message: int) -> wire.View | None:
        """The task with a page of its records and messages; None when there is no such task."""
        try:
            return cast("wire.View | None", await self._query(task_id, wire.VIEW, after, after_message))
        except NotFound:
            return None

    async def _read(self, task_id: str, after: int, after_message: int) -> TaskCopy | None:
        view = await self._view(task_id, after, after_message)
        if view is None:
            return None
        request = view["request"]
        return TaskCopy(
            id=request["id"],
            task=request["task"],
            input=request["input"].encode(),
            options=request["options"].encode(),
            queue=request["queue"],
            priority=request["priority"],
            key=request["key"],
            fingerprint=request["fingerprint"],
            parent=request["parent"],
            group=request["group"],
            tenant=request["tenant"],
            created_at=request["created_at"],
            attempt=view["attempt"],
            state=view["state"],
            reason=view["reason"],
            due_at=view["due_at"],
            worker=view["worker"] or None,
            records=[to_record(record) for record in view["records"]],
            inbox=[to_message(message, after_message + n) for n, message in enumerate(view["inbox"], 1)],
            head=view["head"],
            messages=view["messages"],
            contents=view.get("contents", 0),
            ledger=copied_ledger(view),
        )

    async def _read_contents(self, task_id: str, after: int) -> dict[str, bytes]:
        names = await self._query(task_id, wire.CONTENT_NAMES)
        return await self.contents(task_id, names[after:])


def _new_run(request: wire.Request, reason: str, due_at: float | None) -> wire.Start:
    return {
        "request": request,
        "records": [],
        "inbox": [],
        "contents": {},
        "attempt": 1,
        "reason": reason,
        "due_at": due_at,
        "token": "",
        "worker_queue": "",
    }


def to_record(record: wire.JsonRecord) -> Record:
    """A record of an answer."""
    seq, shift, kind, key, data, at = record
    return Record(seq, shift, kind, key, data.encode(), at)


def to_message(message: wire.JsonMessage, number: int) -> Message:
    """A message of an answer."""
    id_, kind, name, ref, data = message
    return Message(id_, kind, name, ref, data.encode(), number)
