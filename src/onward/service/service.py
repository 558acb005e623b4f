"""The one door for outsiders: submit, get, list, wait, cancel, resume, prioritize, tail.

Python, the command line and later HTTP and MCP all come through here; what may be asked of a task in which state is
decided here and nowhere else.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from onward import telemetry
from onward.artifacts.keeper import Artifacts
from onward.core import wire
from onward.core.clock import Clock
from onward.core.ids import Ids
from onward.core.record import DOUBTED, ENDS, PARKED, QUARANTINED, Record, payload
from onward.core.task import NEEDS_A_PERSON, NewTask, Reason, State, Task
from onward.errors import (
    InvalidInput,
    KeyConflict,
    QueueFull,
    ResultTimeout,
    StateConflict,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    TaskParked,
    UnknownTask,
)
from onward.service.agent_state import AgentStates
from onward.service.audit import Audit
from onward.service.budgets import Budgets
from onward.service.bulk import Bulk
from onward.service.cluster import Cluster
from onward.service.explain import Explainer
from onward.service.forks import Forks
from onward.service.handlers import Handlers
from onward.service.health import Doctor
from onward.service.keys import Keys
from onward.service.listing import Listing, plain_id
from onward.service.messages import Messages
from onward.service.pruning import Pruner
from onward.service.schedules import Schedules, row_of
from onward.service.submission import (
    UNKNOWN,
    HandlerSpec,
    ScheduleSpec,
    SubmitRequest,
    check_priority,
    from_registration,
    to_new_task,
)
from onward.service.subscriptions import Subscriptions, Webhooks, no_webhooks
from onward.service.timeline import Timelines
from onward.service.usage import Report, UsageReports
from onward.store.port.core import Stopped, Store, Submitted
from onward.store.port.overview import QueueSnapshot

STANDS_STILL = {Reason.PARKED: PARKED, Reason.QUARANTINED: QUARANTINED, Reason.IN_DOUBT: DOUBTED}
"""Reasons of which the last records of a journal say why, and the kinds of these records."""
LAST = 20
"""Records of a journal that are read for that."""
WORDS = 16_000
"""Bytes of one of them."""

TAIL_EVERY = 0.1
"""Seconds between two looks at a journal that is being followed."""

PAUSE_TIMEOUT_S = 60.0
"""Seconds that a pause waits for the workers that hold the tasks. A worker that is frozen or cut off is waited for until its lease ends."""

NEWS = 5.0
"""Seconds for which it is remembered what workers say of the handlers that this process does not have."""


class Service(Listing):
    """All verbs of the outside."""

    def __init__(
        self,
        store: Store,
        offers: Mapping[str, HandlerSpec],
        *,
        queue_limit: int,
        clock: Clock,
        ids: Ids,
        artifacts: Artifacts | None = None,
        webhooks: Callable[[], Webhooks] = no_webhooks,
    ) -> None:
        self._store, self._offers, self._limit, self._clock, self._ids = store, offers, queue_limit, clock, ids
        self._remote: dict[str, HandlerSpec] = {}
        self._learned_at = -math.inf
        self._depths: dict[str, _Gauge] = {}
        self.messages = Messages(store, ids, self.check_call, self.is_agent)
        self.artifacts = artifacts or Artifacts(store)
        self.forks = Forks(store, ids, self.check_input, self.artifacts)
        self.schedules = Schedules(store, ids)
        self.budgets = Budgets(store, clock)
        self.states = AgentStates(store, ids)
        self.subscriptions = Subscriptions(store, ids, webhooks)
        self.keys = Keys(store)
        self.audit = Audit(store)
        self.place = Cluster(store, clock)
        self.handlers = Handlers(store, offers)
        self.journals = Timelines(store)
        self.whys = Explainer(store, self.handlers)
        self.prunes = Pruner(store, self.artifacts, clock)
        self.many = Bulk(self, self.prunes)
        self.health = Doctor(store, clock, self.place, queue_limit)
        self.usages = UsageReports(store, self.is_agent)

    # ── submit ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(
        self, wishes: Sequence[SubmitRequest], *, connection: Any = None, unchecked: bool = False
    ) -> list[str]:
        """The ids of the tasks, after the commit. All or none."""
        if not wishes:
            return []
        if telemetry.tracer() is None:
            return await self._submit(wishes, connection, unchecked)
        first = wishes[0]
        said = {telemetry.TASK: first.task, telemetry.COUNT: len(wishes)}
        with telemetry.span(f"submit {first.task}", said, kind="PRODUCER", within=_trace(first)) as span:
            ids = await self._submit([wish._replace(trace=span.trace) for wish in wishes], connection, unchecked)
            span.set({telemetry.TASK_ID: ids[0]})
            return ids

    async def _submit(self, wishes: Sequence[SubmitRequest], connection: Any, unchecked: bool) -> list[str]:
        afar = {wish.task for wish in wishes if wish.task not in self._offers}
        for name in afar:
            await self._ask_for(name, unchecked)
        try:
            new = [self._prepared(wish) for wish in wishes]
        except InvalidInput:
            if not afar:
                raise
            await self._learn()  # a worker with other code may have come
            new = [self._prepared(wish) for wish in wishes]
        for place, wish in enumerate(wishes):
            if wish.webhook is not None:
                hook = await self.subscriptions.webhook(wish.webhook, wish.tenant)
                new[place] = new[place]._replace(webhook=hook)
        if len(new) > 1:
            await self._all_there(new)  # before any is written
        if wishes[0].parent is None:  # what was begun may go on: children pass the bound
            await self._find_room(new)
        answers = await self._store.submit(new, connection)
        for task, answer in zip(new, answers, strict=True):
            _no_conflict(task, answer)
            if telemetry.counters.on and answer.created:
                telemetry.counters.add(telemetry.SUBMITTED, task.task)
        self._store.nudge("ready", [answer.id for answer in answers])
        if any(task.webhook is not None for task in new):
            self._store.nudge("outbox")
        return [answer.id for answer in answers]

    async def child(
        self, name: str, value: Any, options: dict[str, Any], key: str, parent: str, until: float | None
    ) -> str:
        """Submit a child task; the same key gives the same child."""
        (task_id,) = await self.submit([SubmitRequest(name, value, key, parent=parent, until=until, **options)])
        return task_id

    async def save_schedules(self, plans: Sequence[ScheduleSpec]) -> None:
        """Check schedules as submits are checked, and have them in the store. Raises UnknownTask."""
        for name in {plan.wish.task for plan in plans} - self._offers.keys():
            await self._ask_for(name, unchecked=False)
        rows = [row_of(plan.name, plan.rhythm, plan.missed, self._prepared(plan.wish)) for plan in plans]
        if rows:
            await self.schedules.save(rows)

    async def _find_room(self, new: Sequence[NewTask]) -> None:
        try:
            await self._make_room(new)
        except QueueFull:
            if not await self._all_there(new):
                raise

    async def _all_there(self, new: Sequence[NewTask]) -> bool:
        """Whether all of these were submitted before, so that nothing would be added. Raises KeyConflict when a key belongs
        to other work."""
        keys = [task.key for task in new if task.key is not None]
        there = await self._store.by_key(keys) if keys else {}
        for task in new:
            if task.key in there:
                _no_conflict(task, there[task.key])
        return all(task.key in there for task in new)

    def _prepared(self, wish: SubmitRequest) -> NewTask:
        return to_new_task(wish, self._offers.get(wish.task) or self._remote.get(wish.task) or UNKNOWN, self._ids())

    def check_input(self, name: str, value: Any) -> None:
        """Raises InvalidInput when the handler does not take it, as far as this process knows."""
        (self._offers.get(name) or UNKNOWN).check_input(value, f"the input of task {name!r}")

    def check_call(self, name: str, tool: str, arguments: dict[str, Any]) -> None:
        """Raises InvalidInput when a tool of an agent does not take these, as far as this process knows."""
        check = (self._offers.get(name) or UNKNOWN).tools.get(tool)
        if check is not None:
            check(arguments)

    async def is_agent(self, name: str) -> bool:
        """Whether tasks of this name are done by an agent, as far as anybody has said."""
        if name not in self._offers:
            await self._ask_for(name, unchecked=True)
        return (self._offers.get(name) or self._remote.get(name) or UNKNOWN).agent

    async def _ask_for(self, name: str, unchecked: bool) -> None:
        """Learn what a worker said of a handler that this process does not have. Raises UnknownTask."""
        if name not in self._remote or self._clock.monotonic() - self._learned_at > NEWS:
            await self._learn()
        if name not in self._remote and not unchecked:
            raise UnknownTask(name, sorted(self._remote.keys() | self._offers.keys()))

    async def _learn(self) -> None:
        """What workers say of their handlers now."""
        self._learned_at = self._clock.monotonic()
        told = await self._store.handlers.registered()
        self._remote = {name: from_registration(name, wire.decode(data)) for name, data in told.items()}

    async def _make_room(self, new: Sequence[NewTask]) -> None:
        """Refuse what a full queue cannot take. Counted exactly near the limit, and now and then far from it: the bound
        protects memory and disk, it is not a ticket counter."""
        counts = {new[0].queue: 1} if len(new) == 1 else collections.Counter([task.queue for task in new])
        for queue, count in counts.items():
            gauge = self._depths.setdefault(queue, _Gauge())
            if gauge.stale(self._clock.monotonic(), count, self._limit):
                asked, began = gauge.total, self._clock.monotonic()
                depth = await self._store.queues.depth(queue)
                gauge.read(self._clock.monotonic(), depth.waiting, asked, self._clock.monotonic() - began)
                if gauge.waiting + gauge.added + count > self._limit:
                    raise QueueFull(queue, self._limit, _come_back(self._limit, depth.rate))
            gauge.total += count

    async def standing(self) -> QueueSnapshot:
        """The figures of this moment. Raises StoreUnavailable."""
        return await self._store.overview.snapshot()

    async def version(self) -> tuple[int, int]:
        """The version of the tables, and that which this program needs. Raises StoreUnavailable."""
        return await self._store.version()

    # ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str, whose: str | None = None) -> Task:
        """The task. Raises TaskNotFound, also where it is not of this tenant ("": of none; None: of any will do)."""
        task = await self._store.get(plain_id(task_id), whose)
        if task is None:
            raise TaskNotFound(task_id)
        return await self._told_why(task) if task.reason in STANDS_STILL else task

    async def _told_why(self, task: Task) -> Task:
        """The task with what its journal says about why it stands still, as its error."""
        records = (await self._store.listing.recent_records([task.task_id], LAST, WORDS)).get(task.task_id, ())
        for record in reversed(records):
            if record.kind in STANDS_STILL.values():
                found = payload(record)
                told = found if isinstance(found, dict) else {}
                step = {"step": told["step"]} if "step" in told else {}
                kind = str(task.reason).title().replace("_", "")
                error = {"type": kind, "message": str(told.get("reason", "")), "attempts": task.attempt, **step}
                return dataclasses.replace(task, error=error)
        return task

    async def look(self, task_id: str) -> Task:
        """The same with all that is known of its usage, which may take a few more questions to the store."""
        return await self.usages.of(await self.get(task_id))

    async def usage(
        self, by: str, *, since: float | None = None, until: float | None = None, whose: str | None = None
    ) -> Report:
        """What models took, by agent, model, key or day, of tasks that were submitted in a time."""
        agents = [one.name for one in await self.handlers.list() if one.kind == "agent"]
        return await self.usages.report(by, agents, self.list, since=since, until=until, whose=whose)

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        """What a task keeps under these names; unknown ones are missing."""
        return await self._store.contents(plain_id(task_id), ids)

    async def journal(self, task_id: str, after: int | None = 0, limit: int = 1000) -> list[Record]:
        """Records after a number; with None, from the last checkpoint on."""
        found = await self._store.journal(plain_id(task_id), after, limit)
        if not found and after == 0:
            raise TaskNotFound(task_id)
        return found

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
                if not head and (await self.get(task_id)).ended:  # asked from past the end
                    return
                await self._clock.sleep(TAIL_EVERY)

    async def wait(self, task_id: str, timeout: float | None = None, *, parked: bool = False) -> Task:
        """The task once it has ended. Raises ResultTimeout; with `parked`, TaskParked as soon as it is parked or quarantined."""
        task = await self.get(task_id)
        if task.ended:
            return task
        ended = asyncio.Event()
        stop_listening = self._store.listen("ended", ended.set)
        try:
            return await self._until_ended(task_id, ended, timeout, parked)
        finally:
            stop_listening()

    async def _until_ended(self, task_id: str, ended: asyncio.Event, timeout: float | None, parked: bool) -> Task:
        start, pause = self._clock.monotonic(), 0.1 if self._store.receives_nudges else 0.002
        while True:
            ended.clear()
            task = await self.get(task_id)
            left = math.inf if timeout is None else start + timeout - self._clock.monotonic()
            if task.ended:
                return task
            if parked and task.reason in NEEDS_A_PERSON:
                raise TaskParked(task_id, task.task, str(task.reason), (task.error or {}).get("message", ""))
            if left <= 0:
                raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), min(pause, left))
            pause = min(pause * 1.2, 0.25)

    async def result(self, task_id: str, timeout: float | None = None, *, partial: bool = False) -> Any:
        """The result; with `partial`, of a task that failed, the best that it had by then. Raises TaskFailed, TaskCancelled or
        ResultTimeout; TaskParked, which is one, as soon as the task is parked or quarantined."""
        task = await self.wait(task_id, timeout, parked=True)
        if partial and task.partial is not None:
            return task.partial
        if task.state is State.FAILED:
            raise TaskFailed(task.task_id, task.task, task.error or {}, task.partial)
        if task.state is State.CANCELLED:
            raise TaskCancelled(task.task_id, task.task)
        return task.result

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, task_id: str) -> Task:
        """End the task and its children, wherever they stand; where a saga is open, it is undone first. A worker that holds it stops within a heartbeat. Cancelling a cancelled task
        changes nothing; one that has ended otherwise raises StateConflict."""
        task = await self.get(task_id)
        stopped = await self._store.cancel(task.task_id)
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
        """Cancel all that these tasks started, and what that started; how many of them a worker held. A canceller that
        does not come to the end is no harm: workers look for children whose parent was cancelled."""
        held, line = 0, collections.deque(parents)
        while line:
            for child in await self._store.children(line.popleft()):
                stopped = await self._store.cancel(child)
                if telemetry.counters.on and (task := await self._store.get(child)) is not None:
                    _count_ended(task.task, stopped)
                held += stopped.held
                line.append(child)
        return held

    async def pause(self, task_id: str) -> Task:
        """Let nobody go on with the task and its children until they are resumed. After the answer no step of them begins; one that
        runs comes to its end and is recorded."""
        await self.get(task_id)
        marked: dict[str, bool] = {}
        while new := await self._mark_paused(task_id, marked):
            marked |= new
            self._store.nudge("pause")
            await self._until_confirmed(task_id, [one for one, held in new.items() if held])
        return dataclasses.replace(await self.get(task_id), in_flight=sum(marked.values()))

    async def _mark_paused(self, task_id: str, marked: Mapping[str, bool]) -> dict[str, bool]:
        """Mark the unfinished tasks of a tree that are not marked yet as paused; whether a worker held them."""
        new: dict[str, bool] = {}
        line = collections.deque([task_id])
        while line:
            one = line.popleft()
            if one not in marked:
                paused = await self._store.pause(one)
                if paused is None and one == task_id:
                    raise StateConflict(task_id, (await self.get(task_id)).state, "paused", "it has ended")
                if paused is not None:
                    new[one] = paused
            line.extend(await self._store.children(one))
        return new

    async def _until_confirmed(self, task_id: str, held: Sequence[str]) -> None:
        """Until the workers that hold these tasks have confirmed that they begin nothing more, or their leases have ended."""
        start, pause, changed = self._clock.monotonic(), 0.005, asyncio.Event()
        deaf = self._store.listen("ready", changed.set)
        try:
            while left := await self._store.unconfirmed_pauses(held):
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
            deaf()

    async def _resume_children(self, task_id: str) -> None:
        for child in await self._store.children(task_id):
            if (await self.get(child)).reason == Reason.PAUSED:
                await self._store.resume(child)
            await self._resume_children(child)

    async def resume(self, task_id: str) -> Task:
        """Reopen a failed task, or one that waits for a person (parked, quarantined), from the step where it stands. A
        completed task is left as it is: executing it again does nothing and gives its result."""
        task = await self.get(task_id)
        if task.state is State.COMPLETED:
            return task
        if not await self._store.resume(task.task_id):
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
        if not await self._store.prioritize(task.task_id, priority):
            raise StateConflict(task_id, (await self.get(task_id)).state, "prioritized", "it has ended")
        return await self.get(task_id)


def _count_ended(name: str, stopped: Stopped) -> None:
    """A cancel that had nothing to undo has ended the task here; otherwise a worker ends it."""
    if stopped.won and not stopped.requested:
        telemetry.counters.add(telemetry.ENDED, name, State.CANCELLED)


def _trace(wish: SubmitRequest) -> dict[str, str] | None:
    return None if wish.trace is None else dict(wish.trace)


def _no_conflict(task: NewTask, there: Submitted) -> None:
    if not there.created and there.fingerprint != task.fingerprint:
        assert task.key is not None
        raise KeyConflict(task.key.rpartition("\n")[2], there.id)


class _Gauge:
    """How full a queue was when we last looked, and what we added since. What came between the question and its answer may be
    in both: then the queue seems fuller than it is, and we look again."""

    def __init__(self) -> None:
        self.at, self.waiting, self.total, self._asked = -math.inf, 0, 0, 0
        self._lasts = 1.0

    @property
    def added(self) -> int:
        return self.total - self._asked

    def read(self, now: float, waiting: int, asked: int, took: float) -> None:
        self.at, self.waiting, self._asked = now, waiting, asked
        self._lasts = min(max(1.0, 50 * took), 10.0)  # counting a hundred thousand takes a while

    def stale(self, now: float, count: int, limit: int) -> bool:
        return now - self.at > self._lasts or self.waiting + self.added + count > limit * 0.9


def _come_back(limit: int, rate: float) -> float:
    """When a twentieth of the queue should be gone, at the pace of the workers."""
    return float(math.ceil(min(300.0, max(1.0, limit / 20 / rate)))) if rate > 0 else 30.0
