"""Temporal as the engine of the service: it starts workflows, sends signals, and reads journals by queries.

The id of a workflow is the id of its task. The id of a task with a key is made of the key, so that Temporal itself keeps it unique.

Readers use a store that is a copy (`engines/copy.py`): in the memory of this process, where `store` reads the workflow of a task before it answers
about the task; or the mirror, a database that the workers keep up to date.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, cast

from temporalio.client import Client, WorkflowExecution, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from onward.artifacts.keeper import Artifacts
from onward.core.audit import AuditEvent
from onward.core.clock import Clock
from onward.core.ids import key_id
from onward.core.record import Record
from onward.core.task import NEEDS_A_PERSON, Message, NewTask, Task
from onward.core.wire import decode
from onward.engine.background import spawn
from onward.engines import wire
from onward.engines.budgets import SHARED_BUDGET, EngineBudgets, copied_ledger
from onward.engines.copy import Copier, JournalCopy, TaskCopy
from onward.engines.large import LargeValues
from onward.engines.mirror import MirrorStore
from onward.engines.temporal import outside
from onward.engines.temporal.address import Address
from onward.engines.temporal.calls import NotFound, is_late, rpc, unavailable
from onward.engines.temporal.visibility import Visibility
from onward.errors import OnwardError, StoreUnavailable, UsageError
from onward.service.engine import Completed
from onward.store.port.core import Sent, Stopped, Store, Submitted
from onward.store.port.listing import Which
from onward.store.shared.database import Connection
from onward.store.shared.tasks import add_asker

log = logging.getLogger("onward.temporal")

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

MAX_START_BYTES = 450_000
"""Bytes of the records that a run of a resumed task gets. Older ones are stored where artifacts are."""

MAX_EVENTS = 8_000
"""Events of the history of one run. Temporal warns at 10,240."""


class TemporalEngine:
    """The tasks of one namespace and task queue."""

    def __init__(self, url: str, copy: Store, clock: Clock, lease_s: float, *, mirror: bool = False) -> None:
        self.address = Address.parse(url)
        self.mirror: bool = mirror
        """Whether the copy is a database that all processes share."""
        self._clock, self._lease_s = clock, lease_s
        self.events: int = MAX_EVENTS
        """Events of a history after which a task goes on in a new run."""
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._ended_outside: dict[str, None] = {}
        """Tasks whose workflows Temporal has ended itself, as far as this process knows them."""
        self.visibility: Visibility = Visibility(self.address.queue)
        self.large: LargeValues = LargeValues()
        """Stores values that are too large for Temporal."""
        self.copier: Copier = Copier(copy, self._read, self._read_contents)
        """Brings tasks of the copy up to date."""
        memory = JournalCopy(
            str(self.address),
            copy,
            self._read,
            self._list,
            clock,
            self._read_contents,
            advice="filter them, or use a mirror (db=)",
        )
        readers = MirrorStore(str(self.address), copy) if mirror else memory
        readers.budgets = EngineBudgets(copy, None if mirror else memory.refresh, self.send)
        self.store: Store = cast("Store", readers)
        """The copy for readers."""
        self._copy, self._watch = copy, memory.watch

    def use_artifacts(self, artifacts: Artifacts) -> None:
        """Store large values where artifacts are, if that is outside of the engine."""
        self.large = LargeValues(artifacts)

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
        if (known := await self._mirrored(task.key)) is not None:
            return known
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
        if self.mirror:
            request["mirror"] = True
        if self.large.any_size:
            request["shelf"] = True
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
            known = (await self.by_key([task.key], {task.key: fingerprint})).get(task.key) if task.key else None
            fingerprint = fingerprint if known is None else known.fingerprint
        elif self.mirror:
            await self._mirror_new(start)
        self._watch(task_id)
        return Submitted(task_id, created, fingerprint)

    async def _mirrored(self, key: str | None) -> Submitted | None:
        """The task with this key that the mirror has. Temporal may have deleted it since, and would take the key for a new one."""
        if key is None or not self.mirror:
            return None
        try:
            return (await self._copy.by_key([key])).get(key)
        except StoreUnavailable as error:
            log.warning("the mirror does not say whether it has a task with this key: %s", error)
            return None

    async def _mirror_new(self, start: wire.Start) -> None:
        """Write a new task to the mirror. Where that fails, a worker does so: the workflow is there."""
        request = start["request"]
        view: wire.View = {
            "request": request,
            "attempt": 1,
            "state": "",
            "reason": start["reason"],
            "due_at": start["due_at"],
            "worker": "",
            "records": [[1, 0, "task.submitted", "", "{}", request["created_at"]]],
            "inbox": [],
            "head": 1,
            "messages": 0,
        }
        try:
            await self.copier.write(await self._to_copy(view, 0, 0), {})
        except OnwardError as error:
            log.warning("task %s is on Temporal, and not in the mirror yet: %s", request["id"], error)

    async def _mirror_changed(self, task_id: str) -> None:
        """Copy a task that a command has changed to the mirror. Where no worker can answer, the next one that runs does so."""
        if self.mirror:
            try:
                await self.copier.refresh(task_id)
            except OnwardError as error:
                log.warning("the mirror has an older state of task %s: %s", task_id, error)

    async def _start(self, start: wire.Start, reuse: WorkflowIDReusePolicy) -> bool:
        """Start a run; False when there is one."""
        client = await self.client()
        await self.visibility.register(client)
        attributes = self.visibility.attributes(start["request"])
        try:
            await client.start_workflow(
                wire.WORKFLOW,
                start,
                id=start["request"]["id"],
                task_queue=self.address.queue,
                id_reuse_policy=reuse,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                task_timeout=datetime.timedelta(seconds=TASK_TIMEOUT_S),
                static_summary=start["request"]["task"],
                search_attributes=attributes,
            )
        except WorkflowAlreadyStartedError:
            return False
        except RPCError as error:
            if attributes is None or error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise unavailable(error) from error
            self.visibility.give_up(error.message)
            return await self._start(start, reuse)
        return True

    async def by_key(
        self, keys: Sequence[str], fingerprints: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Submitted]:
        """The tasks that these keys belong to."""
        found = await self._copy.by_key(keys) if self.mirror else {}
        for key in keys:
            if key not in found and (view := await self._view(key_id(key), 0, 0)) is not None:
                request = view["request"]
                found[key] = Submitted(request["id"], False, request["fingerprint"] or fingerprints.get(key, ""))
        return found

    async def send(
        self,
        task_id: str,
        message: Message,
        event: AuditEvent | None = None,
        asker: str | None = None,
    ) -> Sent:
        """Send a signal, and read which message counts. Its audit event is written after it, since the message is not in the database; so
        the database has to be there before."""
        if event is not None or asker is not None:
            await self._copy.audit.head()
        sent = await self._send(task_id, message)
        if sent.number is not None and sent.there is None:
            await self._audit(task_id, event, asker)
        if sent.number != 0:  # a worker runs that can say more
            await self._mirror_changed(task_id)
        return sent

    async def _audit(self, task_id: str, event: AuditEvent | None, asker: str | None) -> None:
        async def job(connection: Connection) -> None:
            if asker is not None:
                await add_asker(connection, task_id, asker)
            if event is not None:
                await self._copy.audit.append_within(connection, event)

        if event is not None or asker is not None:
            await self._copy.listing._db.transact(job)

    async def _send(self, task_id: str, message: Message) -> Sent:
        data = await self.large.pack(task_id, message.data, "a message")
        sent = [message.id, message.kind, message.name, message.ref, data]
        try:
            await rpc((await self._handle(task_id)).signal(wire.SEND, sent))
        except NotFound:
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
        stopped = await self._cancel(task_id)
        await self._mirror_changed(task_id)
        return stopped

    async def _cancel(self, task_id: str) -> Stopped:
        before = await self._view(task_id, 0, 0)
        if before is None or before["state"]:
            return Stopped(False)
        try:
            await rpc((await self._handle(task_id)).cancel())
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
            await self._clock.sleep(CANCEL_PAUSE_S)
        raise StoreUnavailable(f"no Temporal worker has taken the cancel of task {task_id}; start one, and ask again")

    async def resume(self, task_id: str, asker: str | None = None) -> bool:
        """Wake a task that waits for a person, or start a new run of one that has failed, with its journal."""
        resumed = await self._resume(task_id)
        if resumed:
            await self._audit(task_id, None, asker)
        await self._mirror_changed(task_id)
        return resumed

    async def _resume(self, task_id: str) -> bool:
        view, end = await self._view_to_end(task_id, 0, 0)
        if view is None:
            return False
        if view["state"] == "failed":
            shelved: list[wire.Shelved] = view.get("shelved", [])
            records = await self._json_records(task_id, shelved[-1][1] if shelved else 0)
            records += [] if end is None else [end]
            records.append([view["head"] + 1, 0, "task.resumed", "", "{}", self._clock.now()])
            inbox = [message for message, _ in await self._json_messages(task_id, 0)]
            while sum(len(record[4]) for record in records) > MAX_START_BYTES and self.large.any_size:
                half = records[: len(records) // 2]
                reference = await self.shelve(task_id, half)
                shelved.append([half[0][0], half[-1][0], reference, *wire.summary(half)])
                records = records[len(half) :]
            start: wire.Start = {
                "shelved": shelved,
                "ledger": view.get("ledger", ""),
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
            return await self._restart(start)
        if view["state"] or view["reason"] not in NEEDS_A_PERSON:
            return False
        await rpc((await self._handle(task_id)).signal(wire.RESUME))
        return True

    async def _restart(self, start: wire.Start) -> bool:
        """Start a new run of a task that has failed. The run before it may have to wait for the mirror before it ends."""
        end = self._clock.monotonic() + CANCEL_TIMEOUT_S
        while not await self._start(start, WorkflowIDReusePolicy.ALLOW_DUPLICATE):
            view = await self._view(start["request"]["id"], 0, 0)
            if view is None or view["state"] != "failed" or self._clock.monotonic() > end:
                return False
            await self._clock.sleep(CANCEL_PAUSE_S)
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

    async def get(self, task_id: str, whose: str | None = None) -> Task | None:
        """A task as it is now, for a shift."""
        if self.mirror:
            await self.copier.refresh(task_id)
        return await self.store.get(task_id, whose)

    def end(self, task_id: str) -> asyncio.Task[Completed | None]:
        """Wait until the workflow of a task has ended; its result, or None where the journal has to be read. No worker needs to run."""
        return spawn(self._end(task_id), f"onward-temporal-end-{task_id}")

    async def _end(self, task_id: str) -> Completed | None:
        try:
            result = await (await self._handle(task_id)).result()
        except (WorkflowFailureError, RPCError, StoreUnavailable):
            return None
        large = isinstance(result, dict) and wire.REFERENCE in result
        return None if large else Completed(result)

    async def records(self, task_id: str) -> list[Record]:
        """The whole journal of a task."""
        return [await self._to_record(record) for record in await self._json_records(task_id)]

    async def _json_records(self, task_id: str, after: int = 0) -> list[wire.JsonRecord]:
        records: list[wire.JsonRecord] = []
        while (view := await self._view(task_id, records[-1][0] if records else after, 2**31)) is not None and view[
            "records"
        ]:
            records += view["records"]
            if records[-1][0] >= view["head"]:
                break
        return records

    async def messages(self, task_id: str, after: int) -> list[Message]:
        """The messages of a task after a number."""
        return [await self._to_message(*item) for item in await self._json_messages(task_id, after)]

    async def _json_messages(self, task_id: str, after: int) -> list[tuple[wire.JsonMessage, int]]:
        messages: list[tuple[wire.JsonMessage, int]] = []
        while (view := await self._view(task_id, 2**53, after)) is not None and view["inbox"]:
            messages += [(message, after + n) for n, message in enumerate(view["inbox"], 1)]
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
            except NotFound:
                return found
            for key, data in answer.items():
                found[key] = base64.b64decode(await self.large.unpack(data))
        return found

    async def _all_contents(self, task_id: str) -> dict[str, str]:
        contents: dict[str, str] = {}
        for name in await self._query(task_id, wire.CONTENT_NAMES):
            contents |= await self._query(task_id, wire.CONTENTS, [name])
        return contents

    async def _query(self, task_id: str, name: str, *args: Any) -> Any:
        """The answer of a workflow. A worker has to run. Raises NotFound and StoreUnavailable."""
        handle, end = await self._handle(task_id), self._clock.monotonic() + QUERY_TIMEOUT_S
        while True:
            try:
                return await rpc(handle.query(name, args=args, rpc_timeout=datetime.timedelta(seconds=QUERY_ATTEMPT_S)))
            except StoreUnavailable as error:
                if not is_late(error.__cause__):
                    raise
                if self._clock.monotonic() >= end:
                    raise StoreUnavailable(
                        f"no worker of {self.address} answered about task {task_id} within {QUERY_TIMEOUT_S:g} s; "
                        "check that one runs (`onward worker`)"
                    ) from error

    async def _view(self, task_id: str, after: int, after_message: int) -> wire.View | None:
        """The task with a page of its records and messages; None when there is no such task."""
        try:
            view: wire.View = await self._query(task_id, wire.VIEW, after, after_message)
        except NotFound:
            return None
        if shelved := view.get("shelved"):  # the records come in order: first those that are stored outside
            records = json.loads(await self.large.unpack(shelved[0][2]))
            view["records"] = [record for record in records if record[0] > after]
        return view

    async def shelve(self, task_id: str, records: list[wire.JsonRecord]) -> str:
        """Store records of a task where artifacts are; the reference to them."""
        return await self.large.store(task_id, json.dumps(records).encode())

    async def _read(self, task_id: str, after: int, after_message: int) -> TaskCopy | None:
        if self.mirror and task_id not in self._ended_outside:  # a worker tells which they are
            view = await self._view(task_id, after, after_message)
        else:
            view, _ = await self._view_to_end(task_id, after, after_message)
        return None if view is None else await self._to_copy(view, after, after_message)

    async def _view_to_end(
        self, task_id: str, after: int, after_message: int
    ) -> tuple[wire.View | None, wire.JsonRecord | None]:
        """The task as `_view` reads it. One whose workflow Temporal has ended itself has failed, with this record."""
        handle = await self._handle(task_id)
        try:
            execution = await rpc(handle.describe())
            view = await self._view(
                task_id, after, after_message
            )  # after that: a workflow that has ended does not change
            record = None if view is None else outside.end_record(view, execution, self._clock.now())
            if record is None or (await rpc(handle.describe())).run_id != execution.run_id:  # it was resumed
                return view, None
        except NotFound:
            return None, None
        assert view is not None
        outside.add_end(view, record)
        return view, record

    async def take_end(self, execution: WorkflowExecution) -> None:
        """Copy a task whose workflow Temporal has ended itself to the mirror, and tell its parent."""
        task_id = execution.id
        self._ended_outside[task_id] = None
        while len(self._ended_outside) > outside.MAX_ENDED:
            del self._ended_outside[next(iter(self._ended_outside))]
        if self.mirror:
            await self.copier.refresh(task_id)
        view, record = await self._view_to_end(task_id, 2**53, 2**31)
        if view is None or record is None or view["request"]["parent"] is None:
            return
        message = outside.end_message(task_id, record)
        with contextlib.suppress(NotFound):  # the parent has ended
            await rpc((await self._handle(view["request"]["parent"])).signal(wire.SEND, message))

    async def _to_copy(self, view: wire.View, after: int, after_message: int) -> TaskCopy:
        """A task of an answer, whose records and messages begin after these numbers. A copy that has records has the input."""
        request = view["request"]
        return TaskCopy(
            id=request["id"],
            task=request["task"],
            input=b"" if after else await self.large.unpack(request["input"]),
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
            records=[await self._to_record(record) for record in view["records"]],
            inbox=[await self._to_message(message, after_message + n) for n, message in enumerate(view["inbox"], 1)],
            head=view["head"],
            messages=view["messages"],
            contents=view.get("contents", 0),
            ledger=copied_ledger(view),
        )

    async def _to_record(self, record: wire.JsonRecord) -> Record:
        seq, shift, kind, key, data, at = record
        return Record(seq, shift, kind, key, await self.large.unpack(data), at)

    async def _to_message(self, message: wire.JsonMessage, number: int) -> Message:
        id_, kind, name, ref, data = message
        return Message(id_, kind, name, ref, await self.large.unpack(data, child_end=kind == "child"), number)

    async def _read_contents(self, task_id: str, after: int) -> dict[str, bytes]:
        names = await self._query(task_id, wire.CONTENT_NAMES)
        return await self.contents(task_id, names[after:])

    async def _list(self, which: Which) -> list[str]:
        """The ids of tasks that may match, the newest first, by Temporal's visibility, which may lag behind."""
        client = await self.client()
        try:
            return await self.visibility.ids(client, which)
        except RPCError as error:
            raise unavailable(error) from error


def _check(task: NewTask) -> None:
    """Raises UsageError for a task that needs what is not there on Temporal."""
    if task.webhook is not None:
        _refuse("submit(webhook=)", "ask for the result, or let the last step send it")
    if decode(task.options).get("purses"):
        _refuse(*SHARED_BUDGET)
    if task.priority:
        _refuse("a priority", "submit the task without one, to a task queue of its own if it must not wait")


def _refuse(what: str, instead: str) -> NoReturn:
    raise UsageError(f"{what} is not there on Temporal; {instead}")
