"""A Temporal worker that runs the handlers of an app.

It polls two task queues: the one that all workers share, for workflows and for new shifts; and one of its own, for the next stretches of
the shifts that it has in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from onward.core.ids import Ids
from onward.engine.background import spawn
from onward.engine.handlers import Handler
from onward.engines import wire
from onward.engines.mirror import Mirror, MirroredWorker
from onward.engines.session import Session, SharedServices
from onward.engines.temporal.client import TemporalEngine
from onward.engines.temporal.outside import Reconciler
from onward.engines.temporal.workflow import OnwardTask

log = logging.getLogger("onward.temporal")

STICKY_WORKFLOW_S = 2.0
"""Seconds within which this worker must take the next task of a workflow that it has in its cache."""

SESSION_TIMEOUT_S = 60.0
"""Seconds after which a shift whose next stretch does not come is dropped from memory."""

SWEEP_INTERVAL_S = 5.0

MIRROR_ACTIVITIES = 8
"""Copies to the mirror that one worker makes at a time for tasks that rest."""

STOP_TIMEOUT_S = 5.0
"""Seconds that a stop waits for the SDK, after the grace for running steps."""


def workflow_runner() -> SandboxedWorkflowRunner:
    """Runs the workflow in the sandbox of the SDK. Onward's own modules are not imported again in it."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules("onward"))


class TemporalWorker:
    """Start, stop. `id` names the worker, and the task queue that is its own."""

    def __init__(
        self,
        engine: TemporalEngine,
        handlers: Mapping[str, Handler],
        shared: SharedServices,
        *,
        slots: int,
        heartbeat_s: float,
        ids: Ids,
        mirrored: MirroredWorker | None = None,
    ) -> None:
        self._engine, self._handlers, self._shared = engine, handlers, shared
        self.slots: int = slots
        self.finished: int = 0
        self.id: str = ids()
        self._ids, self._heartbeat_s = ids, heartbeat_s
        self._sessions: dict[str, Session] = {}
        self._workers: list[Worker] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._chores: list[asyncio.Task[Any]] = []
        self._mirror: Mirror | None = Mirror(engine.copier, shared.clock) if engine.mirror else None
        self._mirrored = mirrored
        self._doubt_until = 0.0
        """Until when a stretch may be one that the server has given up: this worker stood still, or was cut off, shortly before."""

    @property
    def running(self) -> int:
        """How many shifts this worker has in memory."""
        return len(self._sessions)

    async def start(self) -> None:
        """Begin to poll."""
        if self._mirrored is not None:
            await self._mirrored.start(self.id, self.slots)
        client, queue = await self._engine.client(), self._engine.address.queue
        options: dict[str, Any] = {
            "activities": [self._advance, self._shelve],
            "identity": f"onward-{self.id}",
            "max_concurrent_activities": self.slots,
            "max_heartbeat_throttle_interval": timedelta(seconds=self._heartbeat_s),
            "default_heartbeat_throttle_interval": timedelta(seconds=self._heartbeat_s),
        }
        self._workers = [
            Worker(
                client,
                task_queue=queue,
                workflows=[OnwardTask],
                workflow_runner=workflow_runner(),
                sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_WORKFLOW_S),
                **options,
            ),
            Worker(client, task_queue=self._own_queue, **options),
        ]
        if self._mirror is not None:
            self._workers.append(
                Worker(
                    client,
                    task_queue=wire.mirror_queue(queue),
                    activities=[self._copy],
                    identity=f"onward-{self.id}",
                    max_concurrent_activities=MIRROR_ACTIVITIES,
                )
            )
        self._tasks = [spawn(worker.run(), "onward-temporal-worker") for worker in self._workers]
        self._chores = [
            spawn(self._pulse(client), "onward-temporal-pulse"),
            spawn(self._sweep(), "onward-temporal-sweep"),
            spawn(Reconciler(client, queue, self._engine.take_end, self._shared.clock).run(), "onward-temporal-ends"),
        ]
        if self._mirror is not None:
            self._chores.append(spawn(self._mirror.run(), "onward-mirror"))
        if self._mirrored is not None:
            self._chores.append(spawn(self._mirrored.run(self._heartbeat_s), "onward-mirrored-worker"))

    async def stop(self, grace: float = 10.0) -> None:
        """Poll nothing more, and give the shifts up that have not ended within the grace: other workers go on with them."""
        if not self._tasks:
            return
        tasks, self._tasks = self._tasks, []
        for chore in self._chores:
            chore.cancel()
        end = self._shared.clock.monotonic() + grace
        shutdowns = [spawn(worker.shutdown(), "onward-temporal-stop") for worker in self._workers]
        while self._sessions and self._shared.clock.monotonic() < end:
            await self._shared.clock.sleep(0.02)
        self._drop_all()
        _, late = await asyncio.wait({*shutdowns, *tasks}, timeout=STOP_TIMEOUT_S)
        for task in late:
            log.warning("the stop of the worker waited %g s for %s in vain", STOP_TIMEOUT_S, task.get_name())
            task.cancel()
        self._shared.threads.close()
        if self._mirrored is not None:
            await self._mirrored.stop()

    @property
    def _own_queue(self) -> str:
        return f"{self._engine.address.queue}-{self.id}"

    @activity.defn(name=wire.ADVANCE)
    async def _advance(self, advance: Any) -> Any:
        """Run a stretch of a shift: until a record must be durable, or the shift has ended. `advance` is a `wire.Advance`, and the answer a
        `wire.Advanced`: the SDK would check and copy values of these types field by field."""
        request = advance["request"]
        task_id = request["id"]
        await self._shared.lease.until_held()
        if self._shared.clock.monotonic() < self._doubt_until:
            await self._check_given()
        if self._mirror is not None and request.get("mirror"):
            self._mirror.note(task_id, self.id)
        session = self._sessions.get(task_id)
        if session is None or not session.fits(advance):
            if session is not None:
                session.drop()
                self._forget(session)
            if advance["token"]:
                raise ApplicationError("this worker has no such shift", type=wire.NO_SHIFT, non_retryable=True)
            handler = self._handlers.get(request["task"])
            if handler is None:
                raise ApplicationError(
                    f"this worker has no handler {request['task']!r}", type=wire.NO_HANDLER, non_retryable=True
                )
            unpacked = (await self._engine.large.unpack(request["input"])).decode()
            advance = {**advance, "request": {**request, "input": unpacked}}
            session = Session(self._shared, self._engine, advance, handler, self.id, self._ids())
            self._sessions[task_id] = session
        try:
            advanced = await session.advance(advance, activity.heartbeat, self._heartbeat_s)
        except BaseException:
            session.drop()
            self._forget(session)
            raise
        if session.over:
            self.finished += 1
            self._forget(session)
        advanced["queue"] = self._own_queue
        return advanced

    @activity.defn(name=wire.MIRROR)
    async def _copy(self, task_id: str) -> None:
        """Copy a task that rests, or has ended, to the mirror."""
        await self._engine.copier.refresh(task_id)

    @activity.defn(name=wire.SHELVE)
    async def _shelve(self, task_id: str, records: list[wire.JsonRecord]) -> str:
        """Store old records of a task where artifacts are; the reference to them."""
        return await self._engine.shelve(task_id, records)

    async def _check_given(self) -> None:
        """Raises where the server has given up the stretch that begins here: another worker may have the task. A comparison of the journals
        would not do: the other worker may be in the middle of a step."""
        client = await self._engine.client()
        try:
            await client.get_async_activity_handle(task_token=activity.info().task_token).heartbeat()
        except (RPCError, AsyncActivityCancelledError) as error:
            if isinstance(error, RPCError) and error.status != RPCStatusCode.NOT_FOUND:
                raise
            why = "the server has given this stretch up"
            raise ApplicationError(why, type=wire.GIVEN_UP, non_retryable=True) from None

    async def _pulse(self, client: Client) -> None:
        """Renew the lease of this worker while the server answers. After a silence longer than the lease, the server has given all
        stretches up that were under way: their shifts are dropped."""
        clock, lease = self._shared.clock, self._shared.lease
        answered = clock.monotonic()
        while True:
            sent = clock.monotonic()
            try:
                await client.service_client.check_health(timeout=timedelta(seconds=lease.duration))
            except RPCError as error:
                log.warning("Temporal does not answer, trying again: %s", error)
            else:
                if clock.monotonic() - answered > lease.duration:
                    log.warning(
                        "this worker did not reach Temporal for longer than its lease; it drops its %d tasks",
                        len(self._sessions),
                    )
                    self._drop_all()
                    self._doubt_until = clock.monotonic() + 2 * lease.duration
                answered = sent
                lease.renew(sent)
            await clock.sleep(self._heartbeat_s)

    def _drop_all(self) -> None:
        for session in self._sessions.values():
            session.drop()
        self._sessions.clear()

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.task_id) is session:
            del self._sessions[session.task_id]

    async def _sweep(self) -> None:
        """Drop shifts whose next stretch did not come: another worker has the task, or it was cancelled between two stretches."""
        while True:
            await self._shared.clock.sleep(SWEEP_INTERVAL_S)
            before = self._shared.clock.monotonic() - SESSION_TIMEOUT_S
            for session in [session for session in self._sessions.values() if session.idle_since(before)]:
                session.drop()
                self._forget(session)
