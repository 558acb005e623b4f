"""Temporal as the engine of the service: it starts workflows, sends signals, and reads journals by queries.

The id of a workflow is the id of its task. The id of a task with a key is made of the key, so that Temporal itself keeps it unique.

Readers use a store that is a copy: `store` reads the workflow of a task before it answers about the task.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import hashlib
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, cast

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from onward.core.audit import AuditEvent
from onward.core.clock import Clock
from onward.core.record import Record
from onward.core.task import NEEDS_A_PERSON, Message, NewTask
from onward.core.wire import decode
from onward.engines import wire
from onward.engines.copy import JournalCopy, TaskCopy
from onward.errors import BadSetting, StoreUnavailable, UsageError
from onward.store.port.core import Sent, Stopped, Store, Submitted

TASK_TIMEOUT_S = 5.0
"""Seconds in which a worker must answer a task of a workflow; then another worker gets it."""

CANCEL_TIMEOUT_S = 10.0
"""Seconds within which a workflow must have taken a cancel."""

CANCEL_PAUSE_S = 0.02

QUERY_TIMEOUT_S = 20.0
"""Seconds within which a worker must answer a query. After the death of a worker the server waits up to `TASK_TIMEOUT_S` and the sticky
timeout before it asks another one."""

QUERY_ATTEMPT_S = 5.0
"""Seconds of one attempt of a query: each attempt asks the worker that has the workflow now."""

MAX_EVENTS = 8_000
"""Events of the history of one run. Temporal warns at 10,240."""

MAX_LISTED = 1_000
"""Workflows that are read before a list of tasks."""

ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""The letters of ids: Crockford's base 32."""


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """`temporal://HOST:PORT/NAMESPACE?queue=NAME`."""

    target: str
    namespace: str
    queue: str

    def __str__(self) -> str:
        return f"Temporal {self.target}/{self.namespace}, task queue {self.queue}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """The parts of an address. Raises BadSetting."""
        parts = urllib.parse.urlsplit(url)
        query = urllib.parse.parse_qs(parts.query)
        if parts.scheme != "temporal" or not parts.hostname or query.keys() - {"queue"} or "@" in parts.netloc:
            raise BadSetting("engine", f"{parts.scheme}://…", "temporal://HOST:PORT/NAMESPACE?queue=NAME")
        queue = query.get("queue", ["onward"])[0]
        return cls(f"{parts.hostname}:{parts.port or 7233}", parts.path.strip("/") or "default", queue)


class TemporalEngine:
    """The tasks of one namespace and task queue."""

    def __init__(self, url: str, copy: Store, clock: Clock, lease_s: float) -> None:
        self.address = Address.parse(url)
        self._clock, self._lease_s = clock, lease_s
        self.events: int = MAX_EVENTS
        """Events of a history after which a task goes on in a new run."""
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._copy = JournalCopy(str(self.address), copy, self._read, self._list, clock)
        self.store: Store = cast("Store", self._copy)
        """The copy for readers."""

    async def client(self) -> Client:
        """The client, connected. TLS and API keys come from the SDK's own configuration (TEMPORAL_…). Raises StoreUnavailable."""
        async with self._connecting:
            if self._client is None:
                config: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
                config |= {"target_host": self.address.target, "namespace": self.address.namespace}
                try:
                    self._client = await Client.connect(**config)
                except (RuntimeError, RPCError) as error:
                    raise StoreUnavailable(
                        f"Temporal {self.address.target} cannot be reached ({error}); check that it runs, and ONWARD_ENGINE"
                    ) from error
        return self._client

    async def _handle(self, task_id: str) -> WorkflowHandle[Any, Any]:
        return (await self.client()).get_workflow_handle(task_id)

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, new: Sequence[NewTask], connection: Any = None) -> list[Submitted]:
        """Start a workflow for each task, one after the other: Temporal has no transaction over several."""
        if connection is not None:
            _refuse("submit(connection=)", "submit after the commit, with a key")
        for task in new:
            _check(task)
        return [await self._submit(task) for task in new]

    async def _submit(self, task: NewTask) -> Submitted:
        now = self._clock.now()
        task_id = task.id if task.key is None else key_id(task.key)
        request: wire.Request = {
            "id": task_id,
            "task": task.task,
            "input": task.input.decode(),
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
        start: wire.Start = {
            "request": request,
            "records": [],
            "inbox": [],
            "contents": {},
            "attempt": 1,
            "reason": "delayed" if task.delay > 0 else "queued",
            "due_at": now + task.delay if task.delay > 0 else None,
            "token": "",
            "worker_queue": "",
        }
        created = await self._start(start, WorkflowIDReusePolicy.REJECT_DUPLICATE)
        fingerprint = task.fingerprint
        if not created:
            known = await self._view(task_id, 0, 0)
            fingerprint = fingerprint if known is None else known["request"]["fingerprint"]
        self._copy.watch(task_id)
        return Submitted(task_id, created, fingerprint)

    async def _start(self, start: wire.Start, reuse: WorkflowIDReusePolicy) -> bool:
        """Start a run; False when there is one."""
        client = await self.client()
        try:
            await _rpc(
                client.start_workflow(
                    wire.WORKFLOW,
                    start,
                    id=start["request"]["id"],
                    task_queue=self.address.queue,
                    id_reuse_policy=reuse,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    task_timeout=datetime.timedelta(seconds=TASK_TIMEOUT_S),
                    static_summary=start["request"]["task"],
                )
            )
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def by_key(
        self, keys: Sequence[str], fingerprints: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Submitted]:
        """The tasks that these keys belong to."""
        found = {key: await self._view(key_id(key), 0, 0) for key in keys}
        return {
            key: Submitted(view["request"]["id"], False, view["request"]["fingerprint"] or fingerprints.get(key, ""))
            for key, view in found.items()
            if view is not None
        }

    async def send(
        self,
        task_id: str,
        message: Message,
        event: AuditEvent | None = None,  # noqa: ARG002 -- Temporal has no audit log of Onward's
        asker: str | None = None,  # noqa: ARG002
    ) -> Sent:
        """Send a signal, and read which message counts."""
        sent = [message.id, message.kind, message.name, message.ref, message.data.decode()]
        try:
            await _rpc((await self._handle(task_id)).signal(wire.SEND, sent))
        except _NotFound:
            return Sent(None)
        try:
            messages = await self.messages(task_id, 0)
        except StoreUnavailable:  # Temporal has the signal, and no worker runs that could say which number it got
            return Sent(0)
        for known in messages:
            if known.id == message.id:
                return Sent(known.number)
            if message.ref is not None and known.ref == message.ref:
                return Sent(known.number, first=False, there=known)
        return Sent(None)

    async def cancel(self, task_id: str) -> Stopped:
        """Ask Temporal to cancel the workflow, and wait until its journal says so."""
        before = await self._view(task_id, 0, 0)
        if before is None or before["state"]:
            return Stopped(False)
        try:
            await _rpc((await self._handle(task_id)).cancel())
        except _NotFound:
            return Stopped(False)
        end = self._clock.monotonic() + CANCEL_TIMEOUT_S
        while self._clock.monotonic() < end:
            view = await self._view(task_id, before["head"], before["messages"])
            kinds = [record[2] for record in view["records"]] if view is not None else []
            if view is None or view["state"] or "cancel.requested" in kinds or view["reason"] == "cancelling":
                won = view is not None and (not view["state"] or view["state"] == "cancelled")
                requested = view is not None and not view["state"]
                return Stopped(won, requested=requested, held=bool(before["worker"]))
            await self._clock.sleep(CANCEL_PAUSE_S)
        raise StoreUnavailable(f"no Temporal worker has taken the cancel of task {task_id}; start one, and ask again")

    async def resume(self, task_id: str, asker: str | None = None) -> bool:  # noqa: ARG002 -- as for a message
        """Wake a task that waits for a person, or start a new run of one that has failed, with its journal."""
        view = await self._view(task_id, 0, 0)
        if view is None:
            return False
        if view["state"] == "failed":
            records = await self._json_records(task_id)
            records.append([view["head"] + 1, 0, "task.resumed", "", "{}", self._clock.now()])
            inbox = [
                [message.id, message.kind, message.name, message.ref, message.data.decode()]
                for message in await self.messages(task_id, 0)
            ]
            start: wire.Start = {
                "request": view["request"],
                "records": records,
                "inbox": inbox,
                "contents": await self._all_contents(task_id),
                "attempt": 1,
                "reason": "queued",
                "due_at": None,
                "token": "",
                "worker_queue": "",
            }
            return await self._start(start, WorkflowIDReusePolicy.ALLOW_DUPLICATE)
        if view["state"] or view["reason"] not in NEEDS_A_PERSON:
            return False
        await _rpc((await self._handle(task_id)).signal(wire.RESUME))
        return True

    async def pause(self, task_id: str) -> bool | None:  # noqa: ARG002 -- as in the port
        _refuse("pause", "cancel the task, or let its handler wait for a signal")

    async def unconfirmed_pauses(self, task_ids: Sequence[str]) -> list[str]:  # noqa: ARG002
        return []

    async def prioritize(self, task_id: str, priority: int) -> bool:  # noqa: ARG002
        _refuse("a priority", "submit the task to a task queue of its own if it must not wait")

    async def fork(self, task_id: str, origin: str, at: int, **_: Any) -> None:  # noqa: ARG002
        _refuse("fork", "submit a new task")

    async def resolve_ended(self, task_id: str, message: Message, event: AuditEvent | None = None, **_: Any) -> Sent:  # noqa: ARG002
        _refuse("a verdict about a task that has ended", "submit a task that puts it right")

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def head(self, task_id: str) -> int:
        """The number of the last record of a task; 0 when there is no such task."""
        view = await self._view(task_id, 2**53, 2**31)
        return 0 if view is None else view["head"]

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
        found: dict[str, bytes] = {}
        for name in names:  # one at a time: an answer is one payload
            try:
                answer = await self._query(task_id, wire.CONTENTS, [name])
            except _NotFound:
                return found
            found |= {key: base64.b64decode(data) for key, data in answer.items()}
        return found

    async def _all_contents(self, task_id: str) -> dict[str, str]:
        names = await self._query(task_id, wire.CONTENT_NAMES)
        contents = await self.contents(task_id, names)
        return {name: base64.b64encode(data).decode() for name, data in contents.items()}

    async def _query(self, task_id: str, name: str, *args: Any) -> Any:
        """The answer of a workflow. A worker has to run. Raises _NotFound and StoreUnavailable."""
        handle, end = await self._handle(task_id), self._clock.monotonic() + QUERY_TIMEOUT_S
        while True:
            try:
                return await _rpc(
                    handle.query(name, args=args, rpc_timeout=datetime.timedelta(seconds=QUERY_ATTEMPT_S))
                )
            except _TimedOut as error:
                if self._clock.monotonic() >= end:
                    raise StoreUnavailable(
                        f"no worker of {self.address} answered about task {task_id} within {QUERY_TIMEOUT_S:g} s; "
                        "check that one runs (`onward worker`)"
                    ) from error

    async def _view(self, task_id: str, after: int, after_message: int) -> wire.View | None:
        """The task with a page of its records and messages; None when there is no such task."""
        try:
            return cast("wire.View", await self._query(task_id, wire.VIEW, after, after_message))
        except _NotFound:
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
        )

    async def _list(self) -> list[str]:
        """The ids of the newest tasks, by Temporal's visibility, which may lag behind."""
        client = await self.client()
        query = f"WorkflowType = '{wire.WORKFLOW}' AND TaskQueue = '{self.address.queue}'"
        ids: list[str] = []
        async for execution in client.list_workflows(query, limit=MAX_LISTED):
            if execution.status != WorkflowExecutionStatus.CONTINUED_AS_NEW:
                ids.append(execution.id)
        return ids


def key_id(key: str) -> str:
    """The id of the task with this key: Temporal lets one workflow have it."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big")
    return "".join(ID_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def to_record(record: wire.JsonRecord) -> Record:
    """A record of an answer."""
    seq, shift, kind, key, data, at = record
    return Record(seq, shift, kind, key, data.encode(), at)


def to_message(message: wire.JsonMessage, number: int) -> Message:
    """A message of an answer."""
    id_, kind, name, ref, data = message
    return Message(id_, kind, name, ref, data.encode(), number)


class _NotFound(Exception):
    """There is no such workflow, or it has ended."""


class _TimedOut(StoreUnavailable):
    """The answer did not come in time."""


async def _rpc(call: Any) -> Any:
    """The answer of a call. Raises _NotFound and StoreUnavailable."""
    try:
        return await call
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise _NotFound from error
        late = error.status in {RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
        kind = _TimedOut if late else StoreUnavailable
        raise kind(f"Temporal does not answer: {error.message}") from error


def _check(task: NewTask) -> None:
    """Raises UsageError for a task that needs what is not there on Temporal."""
    if task.webhook is not None:
        _refuse("submit(webhook=)", "ask for the result, or let the last step send it")
    options = decode(task.options)
    if "budget" in options or "purses" in options:
        _refuse("a budget", "submit the task without one")
    if task.priority:
        _refuse("a priority", "submit the task without one, to a task queue of its own if it must not wait")


def _refuse(what: str, instead: str) -> NoReturn:
    raise UsageError(f"{what} is not there on Temporal; {instead}")
