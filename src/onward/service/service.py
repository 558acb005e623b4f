"""The service: submit, get, list, wait, cancel, resume, prioritize, tail.

Python, the command line, HTTP and MCP all call it. It alone decides which verb is allowed in which state of a task.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from onward import telemetry
from onward.artifacts.keeper import Artifacts
from onward.coordinate.port import Coordinator
from onward.core import wire
from onward.core.clock import Clock
from onward.core.ids import Ids
from onward.core.page import Page
from onward.core.record import DOUBTED, ENDS, PARKED, QUARANTINED, Record, payload
from onward.core.sealed import unreadable
from onward.core.task import NewTask, Reason, State, Task
from onward.core.tenant_quota import TenantQuota
from onward.core.views import UsageReport
from onward.errors import (
    DataErased,
    InvalidInput,
    OnwardError,
    QueueFull,
    QuotaExceeded,
    StateConflict,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    UnknownTask,
    UsageError,
)
from onward.service.agent_state import AgentStates
from onward.service.askers import Askers
from onward.service.asks import Asks
from onward.service.audit import Audit
from onward.service.budgets import Budgets
from onward.service.bulk import Bulk
from onward.service.cluster import Cluster
from onward.service.conflicts import check_conflict
from onward.service.encryption import Encryption
from onward.service.engine import AwaitEnd, Completed, Engine
from onward.service.explain import Explainer
from onward.service.forks import Forks
from onward.service.handlers import Handlers
from onward.service.health import BrokerChecks, Doctor, no_brokers
from onward.service.intakes import DeadLetters, Intakes
from onward.service.keys import Keys
from onward.service.listing import Listing, plain_id
from onward.service.locks import Locks
from onward.service.messages import Messages
from onward.service.pruning import Pruner
from onward.service.queue_room import QueueRoom
from onward.service.schedules import Schedules, row_of
from onward.service.sessions import Sessions
from onward.service.submission import (
    UNKNOWN,
    HandlerSpec,
    ScheduleSpec,
    SubmitRequest,
    check_priority,
    from_registration,
    stored_key,
    to_new_task,
)
from onward.service.subscriptions import Subscriptions, Webhooks, no_webhooks
from onward.service.tenant_quotas import TenantQuotas
from onward.service.timeline import Timelines
from onward.service.usage import UsageReports
from onward.service.votes import Votes
from onward.service.waiting import EndOfTask
from onward.store.port.core import Stopped, Store
from onward.store.port.listing import MAX_BYTES
from onward.store.port.overview import QueueSnapshot

STUCK_RECORDS = {Reason.PARKED: PARKED, Reason.QUARANTINED: QUARANTINED, Reason.IN_DOUBT: DOUBTED}
"""Reasons that a record near the end of the journal explains, and the kind of that record."""
LAST_RECORDS = 20
"""Records of a journal that are searched for it."""
MAX_RECORD_BYTES = 16_000
"""Bytes of one of these records."""

TAIL_INTERVAL_S = 0.1
"""Seconds between two reads of a journal that is being followed."""

PAUSE_TIMEOUT_S = 60.0
"""Seconds that a pause waits for the workers that hold the tasks. A worker that is frozen or cut off is waited for until its lease ends."""

REGISTRATIONS_TTL_S = 5.0
"""Seconds for which the registrations of handlers of other processes are cached."""


REREAD_INTERVAL_S = 1.0
"""Seconds between two reads of them because of messages that a handler refuses."""


class Service(Listing):
    """All verbs for callers outside of tasks."""

    def __init__(
        self,
        store: Store,
        specs: Mapping[str, HandlerSpec],
        *,
        queue_limit: int,
        clock: Clock,
        ids: Ids,
        artifacts: Artifacts | None = None,
        webhooks: Callable[[], Webhooks] = no_webhooks,
        tenant_quota: TenantQuota | None = None,
        intake_keep_s: float = 0.0,
        coordinator: Coordinator | None = None,
        broker_checks: BrokerChecks = no_brokers,
        engine: Engine | None = None,
        await_end: AwaitEnd | None = None,
    ) -> None:
        self._store, self._specs, self._clock, self._ids = store, specs, clock, ids
        engine = self._engine = engine or store
        self._await_end = await_end
        self._remote: dict[str, HandlerSpec] = {}
        self._read_at = -math.inf
        self._queue_room = QueueRoom(store, queue_limit, clock)
        askers = self._askers = Askers(store)
        votes = Votes(store, ids, askers)
        self.asks: Asks = Asks(store, votes)
        self.messages: Messages = Messages(store, engine, ids, self.check_call, self.is_agent, self.asks, votes)
        self.artifacts: Artifacts = artifacts or Artifacts(store)
        self.forks: Forks = Forks(store, engine, ids, self.checked_input, self.artifacts, askers)
        self.schedules: Schedules = Schedules(store, engine, ids)
        self.budgets: Budgets = Budgets(store, clock)
        self.agent_states: AgentStates = AgentStates(store, engine, ids, askers)
        self.subscriptions: Subscriptions = Subscriptions(store, ids, webhooks)
        self.keys: Keys = Keys(store)
        self.sessions: Sessions = Sessions(store)
        self.audit: Audit = Audit(store)
        self.cluster: Cluster = Cluster(store, clock)
        self.handlers: Handlers = Handlers(store, specs)
        self.timelines: Timelines = Timelines(store)
        self.explainer: Explainer = Explainer(store, self.handlers)
        self.intakes: Intakes = Intakes(store, clock)
        self.dead_letters: DeadLetters = DeadLetters(store, clock)
        self.pruner: Pruner = Pruner(store, self.artifacts, clock, intake_keep_s, self.dead_letters)
        self.bulk: Bulk = Bulk(self, self.pruner)
        self.locks: Locks = Locks(store, coordinator)
        self.health: Doctor = Doctor(store, clock, self.cluster, queue_limit, self.locks, self.intakes, broker_checks)
        self.encryption: Encryption = Encryption(store, clock, self.cancel, self.schedules, self.artifacts)
        self.usage_reports: UsageReports = UsageReports(store, self.is_agent)
        self.tenant_quotas: TenantQuotas = TenantQuotas(store, tenant_quota or TenantQuota(), clock, queue_limit)

    # ── submit ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(
        self, requests: Sequence[SubmitRequest], *, connection: Any = None, unchecked: bool = False
    ) -> list[str]:
        """The ids of the tasks, after the commit. All or none."""
        if not requests:
            return []
        if telemetry.tracer() is None:
            return await self._submit(requests, connection, unchecked)
        first = requests[0]
        attributes = {telemetry.TASK: first.task, telemetry.COUNT: len(requests)}
        with telemetry.span(f"submit {first.task}", attributes, kind="PRODUCER", within=_trace(first)) as span:
            traced = [request._replace(trace=span.trace) for request in requests]
            ids = await self._submit(traced, connection, unchecked)
            span.set({telemetry.TASK_ID: ids[0]})
            return ids

    async def _submit(self, requests: Sequence[SubmitRequest], connection: Any, unchecked: bool) -> list[str]:
        remote = {request.task for request in requests if request.task not in self._specs}
        for name in remote:
            await self._check_registered(name, unchecked)
        try:
            new = [self._new_task(request) for request in requests]
        except InvalidInput:
            if not remote:
                raise
            await self._read_registrations()  # a worker with other code may have started
            new = [self._new_task(request) for request in requests]
        for index, request in enumerate(requests):
            if request.webhook is not None:
                webhook = await self.subscriptions.webhook(request.webhook, request.tenant)
                new[index] = new[index]._replace(webhook=webhook)
        for request in requests:
            await self.tenant_quotas.check_priority(request.tenant, request.priority)
        if len(new) > 1:
            await self._all_there(new)  # raises KeyConflict before any task is written
        if requests[0].parent is None:  # children pass the bound, so that their parents can go on
            await self._check_room(new)
        submitted = await self._engine.submit(new, connection)
        for task, row in zip(new, submitted, strict=True):
            await check_conflict(self._store, task, row)
            if telemetry.counters.on and row.created:
                telemetry.counters.add(telemetry.SUBMITTED, task.task)
        await self._askers.add(
            [
                (row.id, asker)
                for request, row in zip(requests, submitted, strict=True)
                if not row.created
                for asker in request.askers
            ],
            connection,
        )
        self._store.nudge("ready", [row.id for row in submitted])
        if any(task.webhook is not None for task in new):
            self._store.nudge("outbox")
        return [row.id for row in submitted]

    async def child(
        self, name: str, value: Any, options: dict[str, Any], key: str, parent: str, until: float | None
    ) -> str:
        """Submit a child task; the same key gives the same child. It continues only tasks of its own tenant (`after`)."""
        after = options.pop("after", None)
        request = SubmitRequest(name, value, key, parent=parent, until=until, **options)
        if after is not None:
            await self.get(after, request.tenant or "")
            request = await self.agent_states.after(after, request)
        (task_id,) = await self.submit([request])
        return task_id

    async def receive(self, requests: Sequence[SubmitRequest]) -> list[str | OnwardError]:
        """Submit the tasks of messages. For each, after the commit: the id of its task, or why it cannot be submitted. A message that was
        received before has its task, whatever the request is now. Raises QueueFull, QuotaExceeded, PriorityTooHigh and StoreUnavailable;
        then none was submitted."""
        keys = [stored_key(request) for request in requests]
        for tenant, priority in {(request.tenant, request.priority) for request in requests}:
            await self.tenant_quotas.check_priority(tenant, priority)
        outcomes: dict[str, str | OnwardError] = {}
        new: dict[str, NewTask] = {}
        created: dict[str, bool] = {}
        for key, request in zip(keys, requests, strict=True):
            if key not in outcomes and key not in new:
                try:
                    new[key] = await self._new_task_of_message(request)
                except (UnknownTask, UsageError) as error:
                    outcomes[key] = error
        if outcomes:
            outcomes |= await self._ids_by_key(list(outcomes))
        try:
            await self._check_new_room(list(new.values()))
        except (QueueFull, QuotaExceeded):
            known = await self._ids_by_key(list(new))
            if not known:
                raise
            outcomes |= known
            new = {key: task for key, task in new.items() if key not in known}
            await self._check_new_room(list(new.values()))
        if new:
            submitted = await self._engine.submit(list(new.values()))
            for (key, task), row in zip(new.items(), submitted, strict=True):
                outcomes[key], created[key] = row.id, row.created
                if telemetry.counters.on and row.created:
                    telemetry.counters.add(telemetry.SUBMITTED, task.task)
            self._store.nudge("ready", [row.id for row in submitted])
        if telemetry.counters.on:
            for key, request in zip(keys, requests, strict=True):
                if isinstance(outcomes[key], str):
                    outcome = "received" if created.pop(key, False) else "repeated"
                    telemetry.counters.add(telemetry.MESSAGES, request.intake or "", outcome)
        return [outcomes[key] for key in keys]

    async def _ids_by_key(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: row.id for key, row in (await self._engine.by_key(keys)).items()}

    async def _check_new_room(self, new: Sequence[NewTask]) -> None:
        if new:
            await self.tenant_quotas.check_room(new)
            await self._queue_room.check(new)

    async def received(self, intake: str, identities: Sequence[str], tenant: str | None) -> set[str]:
        """Which of these messages of an intake have a task."""
        requests = [SubmitRequest("", key=identity, tenant=tenant, intake=intake) for identity in identities]
        known = await self._engine.by_key([stored_key(request) for request in requests])
        return {request.key for request in requests if request.key is not None and stored_key(request) in known}

    async def _new_task_of_message(self, request: SubmitRequest) -> NewTask:
        if request.task in self._specs:
            return self._new_task(request)
        await self._check_registered(request.task, unchecked=False)
        try:
            return self._new_task(request)
        except InvalidInput:
            if self._clock.monotonic() - self._read_at < REREAD_INTERVAL_S:
                raise
            await self._read_registrations()  # a worker with other code may have started
            return self._new_task(request)

    async def save_schedules(self, specs: Sequence[ScheduleSpec]) -> None:
        """Check schedules as submits are checked, and write them. Raises UnknownTask and UsageError, which name the schedule."""
        rows = []
        for spec in specs:
            try:
                if spec.request.task not in self._specs:
                    await self._check_registered(spec.request.task, unchecked=False)
                rows.append(row_of(spec.name, spec.rhythm, spec.missed, self._new_task(spec.request)))
            except (UnknownTask, UsageError) as error:
                error.args = (f"schedule {spec.name!r}: {error}",)
                raise
        if rows:
            await self.schedules.save(rows)

    async def _check_room(self, new: Sequence[NewTask]) -> None:
        """Raises QueueFull and QuotaExceeded, unless all of these tasks were submitted before."""
        try:
            await self.tenant_quotas.check_room(new)
            await self._queue_room.check(new)
        except (QueueFull, QuotaExceeded):
            if not await self._all_there(new):
                raise

    async def _all_there(self, new: Sequence[NewTask]) -> bool:
        """Whether all of these were submitted before, so that none would be added. Raises KeyConflict when a key belongs to a task with
        other content."""
        keys = [task.key for task in new if task.key is not None]
        fingerprints = {task.key: task.fingerprint for task in new if task.key is not None}
        submitted = await self._engine.by_key(keys, fingerprints) if keys else {}
        for task in new:
            if task.key in submitted:
                await check_conflict(self._store, task, submitted[task.key])
        return all(task.key in submitted for task in new)

    def _spec(self, name: str) -> HandlerSpec:
        return self._specs.get(name) or self._remote.get(name) or UNKNOWN

    def _new_task(self, request: SubmitRequest) -> NewTask:
        return to_new_task(request, self._spec(request.task), self._ids())

    def checked_input(self, name: str, value: Any) -> bytes:
        """The bytes of an input. Raises InvalidInput when the handler does not take the value, as far as this process knows."""
        return (self._specs.get(name) or UNKNOWN).checked_input(value, f"the input of task {name!r}")[0]

    def check_call(self, name: str, tool: str, arguments: dict[str, Any]) -> None:
        """Raises InvalidInput when a tool of an agent does not take these arguments, as far as this process knows."""
        check = (self._specs.get(name) or UNKNOWN).tools.get(tool)
        if check is not None:
            check(arguments)

    async def is_agent(self, name: str) -> bool:
        """Whether an agent does the tasks of this name, as far as a registration says it."""
        if name not in self._specs:
            await self._check_registered(name, unchecked=True)
        return self._spec(name).agent

    async def _check_registered(self, name: str, unchecked: bool) -> None:
        """Read the registration of a handler that this process does not have. Raises UnknownTask, unless `unchecked`."""
        if name not in self._remote or self._clock.monotonic() - self._read_at > REGISTRATIONS_TTL_S:
            await self._read_registrations()
        if name not in self._remote and not unchecked:
            raise UnknownTask(name, sorted(self._remote.keys() | self._specs.keys()))

    async def _read_registrations(self) -> None:
        self._read_at = self._clock.monotonic()
        registrations = await self._store.handlers.registered()
        self._remote = {name: from_registration(name, wire.decode(data)) for name, data in registrations.items()}

    async def standing(self) -> QueueSnapshot | None:
        """Figures of the queues; None where the store has none. Raises StoreUnavailable."""
        return await self._store.overview.snapshot()

    async def version(self) -> tuple[int, int]:
        """The version of the tables, and that which this program needs. Raises StoreUnavailable."""
        return await self._store.version()

    # ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str, whose: str | None = None, *, most: int = MAX_BYTES) -> Task:
        """The task. An input or a last record of more than `most` bytes is not read, and `left_out` names it. Raises TaskNotFound,
        also where it is not of the tenant `whose` ("": of no tenant; None: of any)."""
        task = await self._store.get(plain_id(task_id), whose, most)
        if task is None:
            raise TaskNotFound(task_id)
        return await self._with_reason(task) if task.reason in STUCK_RECORDS else task

    async def _with_reason(self, task: Task) -> Task:
        """The task with an error that says why it does not go on, as its journal has it."""
        records = (await self._store.listing.recent_records([task.task_id], LAST_RECORDS, MAX_RECORD_BYTES)).get(
            task.task_id, ()
        )
        for record in reversed(records):
            if record.kind in STUCK_RECORDS.values():
                value = payload(record)
                fields = value if isinstance(value, dict) else {}
                step = {"step": fields["step"]} if "step" in fields else {}
                kind = str(task.reason).title().replace("_", "")
                error = {"type": kind, "message": str(fields.get("reason", "")), "attempts": task.attempt, **step}
                return dataclasses.replace(task, error=error)
        return task

    async def look(self, task_id: str) -> Task:
        """The task with its usage, which may take a few more queries."""
        return await self.usage_reports.of(await self.get(task_id))

    async def usage(
        self, by: str, *, since: float | None = None, until: float | None = None, whose: str | None = None
    ) -> UsageReport:
        """The usage of models, by agent, model, key or day, of tasks that were submitted between `since` and `until`."""
        agents = [handler.name for handler in await self.handlers.list() if handler.kind == "agent"]
        return await self.usage_reports.report(by, agents, self.list, since=since, until=until, whose=whose)

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        """The contents of a task with these ids; unknown ids are left out."""
        return await self._store.contents(plain_id(task_id), ids)

    async def journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES
    ) -> Page[Record]:
        """Records after a number; with None, from the last checkpoint on. The record with which their data has `most` bytes or more is
        the last; `next` is None if no record follows."""
        records = await self._store.journal(plain_id(task_id), after, limit, most)
        if not records and after == 0:
            raise TaskNotFound(task_id)
        return records

    async def tail(self, task_id: str, after: int = 0) -> AsyncIterator[Record]:
        """Every record after a number, as it comes, until the task has ended."""
        await self.get(task_id)
        while True:
            for record in (page := await self._store.journal(task_id, after)):
                yield record
                after = record.seq
            if not page:
                head = await self._store.journal(task_id, max(after - 1, 0), 1)
                if head and head[0].kind in ENDS:
                    return
                if not head and (await self.get(task_id)).ended:  # `after` is past the end
                    return
                await self._clock.sleep(TAIL_INTERVAL_S)

    async def wait(
        self, task_id: str, timeout: float | None = None, *, parked: bool = False, most: int = MAX_BYTES
    ) -> Task:
        """Wait until the task has ended; `most` as for `get`. Raises ResultTimeout; with `parked`, TaskParked as soon as it is parked
        or quarantined."""
        ended = await self._end_of_task(most).wait(task_id, timeout, parked=parked)
        return await self.get(task_id, most=most) if isinstance(ended, Completed) else ended

    def _end_of_task(self, most: int) -> EndOfTask:
        return EndOfTask(self._store, self._clock, functools.partial(self.get, most=most), self._await_end)

    async def _unreadable_result(self, task_id: str) -> OnwardError:
        """Why this process cannot read the last record of a task."""
        head = (await self._store.tails.heads([task_id]))[task_id]
        (last,) = await self._store.journal(task_id, head.seq - 1, 1)
        return unreadable(last.data, f"the result of task {task_id}")

    async def result(self, task_id: str, timeout: float | None = None, *, partial: bool = False) -> Any:
        """Wait for the result; with `partial`, a task that failed gives the best result that it had by then. Raises TaskFailed,
        TaskCancelled or ResultTimeout, and its subclass TaskParked as soon as the task is parked or quarantined."""
        task = await self._end_of_task(MAX_BYTES).wait(task_id, timeout, parked=True)
        if isinstance(task, Completed) and not partial:
            return task.result
        if isinstance(task, Completed):
            task = await self.get(task_id)
        if partial and task.partial is not None:
            return task.partial
        if task.state is State.FAILED:
            raise TaskFailed(task.task_id, task.task, task.error or {}, task.partial)
        if task.state is State.CANCELLED:
            raise TaskCancelled(task.task_id, task.task)
        if task.erased:
            raise DataErased(f"the result of task {task_id}")
        if "result" in task.left_out:  # nothing is left out for its size here
            raise await self._unreadable_result(task_id)
        return task.result

    # ── control ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, task_id: str) -> Task:
        """Cancel the task and its children, in any state; open sagas are undone first. A worker that holds the task stops within a
        heartbeat. Cancelling a cancelled task changes nothing. Raises StateConflict for a task that has ended otherwise."""
        task = await self.get(task_id)
        stopped = await self._engine.cancel(task.task_id)
        if not stopped.won:
            task = await self.get(task_id)
            if task.state is not State.CANCELLED:
                raise StateConflict(task_id, task.state, "cancelled", "it has ended")
        _count_ended(task.task, stopped)
        held = stopped.held + await self.cancel_children([task.task_id])
        for topic in ("ended", "ready"):
            self._store.nudge(topic)
        return dataclasses.replace(await self.get(task_id), in_flight=held)

    async def cancel_children(self, parents: Sequence[str]) -> int:
        """Cancel all tasks below these; how many of them a worker held. A process that dies before the end of it does no harm: workers
        search for children whose parent was cancelled."""
        held, pending = 0, collections.deque(parents)
        while pending:
            for child in await self._store.children(pending.popleft()):
                stopped = await self._engine.cancel(child)
                if telemetry.counters.on and (task := await self._store.get(child)) is not None:
                    _count_ended(task.task, stopped)
                held += stopped.held
                pending.append(child)
        return held

    async def pause(self, task_id: str) -> Task:
        """Pause the task and its children until they are resumed. After this returns, no step of them begins; running steps end and are
        recorded."""
        await self.get(task_id)
        marked: dict[str, bool] = {}
        while new := await self._mark_paused(task_id, marked):
            marked |= new
            self._store.nudge("pause")
            await self._until_confirmed(task_id, [marked_id for marked_id, held in new.items() if held])
        return dataclasses.replace(await self.get(task_id), in_flight=sum(marked.values()))

    async def _mark_paused(self, task_id: str, marked: Mapping[str, bool]) -> dict[str, bool]:
        """Mark the unfinished tasks of a tree that are not marked yet as paused; whether a worker held them."""
        new: dict[str, bool] = {}
        pending = collections.deque([task_id])
        while pending:
            current = pending.popleft()
            if current not in marked:
                held = await self._engine.pause(current)
                if held is None and current == task_id:
                    raise StateConflict(task_id, (await self.get(task_id)).state, "paused", "it has ended")
                if held is not None:
                    new[current] = held
            pending.extend(await self._store.children(current))
        return new

    async def _until_confirmed(self, task_id: str, held: Sequence[str]) -> None:
        """Wait until the workers that hold these tasks have confirmed that they begin no further step, or their leases have ended."""
        start, pause, changed = self._clock.monotonic(), 0.005, asyncio.Event()
        stop_listening = self._store.listen("ready", changed.set)
        try:
            while left := await self._engine.unconfirmed_pauses(held):
                if self._clock.monotonic() - start > PAUSE_TIMEOUT_S:
                    advice = (
                        f"the worker that holds {left[0]} has not confirmed it within {PAUSE_TIMEOUT_S:.0f} s; it is marked as paused "
                        "and stops at its next step, so ask again"
                    )
                    raise StateConflict(task_id, State.RUNNING, "paused yet", advice)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), pause)
                changed.clear()
                held, pause = left, min(pause * 1.5, 0.1)
        finally:
            stop_listening()

    async def _resume_children(self, task_id: str) -> None:
        for child in await self._store.children(task_id):
            if (await self.get(child)).reason == Reason.PAUSED:
                await self._engine.resume(child)
            await self._resume_children(child)

    async def resume(self, task_id: str, asker: str | None = None) -> Task:
        """Go on with a failed, parked, quarantined or paused task, from the step at which it stopped. A completed task stays as it is.
        `asker` is the principal that resumes it."""
        task = await self.get(task_id)
        if task.state is State.COMPLETED:
            return task
        if not await self._engine.resume(task.task_id, asker):
            task = await self.get(task_id)
            advice = "submit it anew" if task.ended else "it goes on by itself"
            raise StateConflict(task_id, task.state, "resumed", advice)
        await self._resume_children(task_id)
        self._store.nudge("ready")
        return await self.get(task_id)

    async def prioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a task; higher goes first."""
        check_priority(priority)
        task = await self.get(task_id)
        if not await self._engine.prioritize(task.task_id, priority):
            raise StateConflict(task_id, (await self.get(task_id)).state, "prioritized", "it has ended")
        return await self.get(task_id)


def _count_ended(name: str, stopped: Stopped) -> None:
    """Count a cancel that ended the task here: it had nothing to undo. Otherwise a worker ends the task."""
    if stopped.won and not stopped.requested:
        telemetry.counters.add(telemetry.ENDED, name, State.CANCELLED)


def _trace(request: SubmitRequest) -> dict[str, str] | None:
    return None if request.trace is None else dict(request.trace)
