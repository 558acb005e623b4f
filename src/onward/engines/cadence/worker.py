"""A Cadence worker that runs the handlers of an app.

It polls two task lists: the one that all workers share, for workflows and for new shifts; and one of its own, for the next stretches of
the shifts that it has in memory.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from cadence import activity
from cadence.api.v1.service_domain_pb2 import DescribeDomainRequest
from cadence.api.v1.service_worker_pb2 import RecordActivityTaskHeartbeatRequest
from cadence.client import Client
from cadence.error import CadenceRpcError, EntityNotExistsError, WorkflowExecutionAlreadyCompletedError
from cadence.worker import Registry, Worker

from onward.core.ids import Ids
from onward.engine.background import spawn
from onward.engine.handlers import Handler
from onward.engines import wire
from onward.engines.cadence.client import CadenceEngine
from onward.engines.cadence.workflow import OnwardTask
from onward.engines.session import Session, SharedServices

log = logging.getLogger("onward.cadence")

SESSION_TIMEOUT_S = 60.0
"""Seconds after which a shift whose next stretch does not come is dropped from memory."""

SWEEP_INTERVAL_S = 5.0

STOP_TIMEOUT_S = 5.0
"""Seconds that a stop waits for the answers of activities, after the grace for running steps."""

STOP_PAUSE_S = 0.02

MAX_DECISIONS = 8
"""Decisions at once: each has a thread of the client of Cadence."""


class NoHandler(Exception):
    """The worker has no handler for the task. Cadence passes on the name of the class: `wire.NO_HANDLER`."""


class GivenUp(Exception):
    """The server gave this stretch up before the worker began it."""


class CadenceWorker:
    """Start, stop. `id` names the worker, and the task list that is its own."""

    def __init__(
        self,
        engine: CadenceEngine,
        handlers: Mapping[str, Handler],
        shared: SharedServices,
        *,
        slots: int,
        heartbeat_s: float,
        ids: Ids,
    ) -> None:
        self._engine, self._handlers, self._shared = engine, handlers, shared
        self.slots: int = slots
        self.finished: int = 0
        self.id: str = ids()
        self._ids, self._heartbeat_s = ids, heartbeat_s
        self._sessions: dict[str, Session] = {}
        self._workers: list[Worker] = []
        self._chores: list[asyncio.Task[Any]] = []
        self._doubt_until = 0.0
        """Until when a stretch may be one that the server has given up: this worker stood still, or was cut off, shortly before."""

    @property
    def running(self) -> int:
        """How many shifts this worker has in memory."""
        return len(self._sessions)

    async def start(self) -> None:
        """Begin to poll."""
        client, queue = await self._engine.client(), self._engine.address.queue
        activities, workflows = Registry(), Registry()
        activities.activity(name=wire.ADVANCE)(self._advance)
        workflows.workflow(name=self._engine.address.workflow)(OnwardTask)
        options: dict[str, Any] = {
            "identity": f"onward-{self.id}",
            "max_concurrent_activity_execution_size": self.slots,
            "max_concurrent_decision_task_execution_size": MAX_DECISIONS,
        }
        self._workers = [
            Worker(client, queue, activities + workflows, **options),
            Worker(client, self._own_queue, activities, disable_workflow_worker=True, **options),
        ]
        for worker in self._workers:
            await worker.run()
        self._chores = [
            spawn(self._pulse(client), "onward-cadence-pulse"),
            spawn(self._sweep(), "onward-cadence-sweep"),
        ]

    async def stop(self, grace: float = 10.0) -> None:
        """Poll nothing more, and give the shifts up that have not ended within the grace: other workers go on with them."""
        if not self._workers:
            return
        workers, self._workers = self._workers, []
        for worker in workers:
            await worker.close()
        await self._until(self._all_idle, grace)
        for chore in self._chores:
            chore.cancel()
        self._drop_all()
        if not await self._until(lambda: not any(map(_answering, workers)), STOP_TIMEOUT_S):
            log.warning("the stop of the worker waited %g s for the answers of its activities in vain", STOP_TIMEOUT_S)
        self._shared.threads.close()

    def _all_idle(self) -> bool:
        """Whether all shifts wait for a next stretch, which this worker does not fetch any more."""
        return all(session.idle_since(math.inf) for session in self._sessions.values())

    async def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        end = self._shared.clock.monotonic() + seconds
        while not done() and self._shared.clock.monotonic() < end:
            await self._shared.clock.sleep(STOP_PAUSE_S)
        return done()

    @property
    def _own_queue(self) -> str:
        return f"{self._engine.address.queue}-{self.id}"

    async def _advance(self, advance: Any) -> Any:
        """Run a stretch of a shift: until a record must be durable, or the shift has ended."""
        request = advance["request"]
        task_id = request["id"]
        await self._shared.lease.until_held()
        if self._shared.clock.monotonic() < self._doubt_until and not await self._beat(activity.info().task_token):
            raise GivenUp("the server has given this stretch up")
        session = self._sessions.get(task_id)
        if session is None or not session.fits(advance):
            if session is not None:
                session.drop()
            handler = self._handlers.get(request["task"])
            if handler is None:
                raise NoHandler(f"this worker has no handler {request['task']!r}")
            session = Session(self._shared, self._engine, advance, handler, self.id, self._ids())
            self._sessions[task_id] = session
        try:
            advanced = await session.advance(advance, self._heartbeat(session), self._heartbeat_s)
        except BaseException:
            session.drop()
            self._forget(session)
            raise
        if session.over:
            self.finished += 1
            self._forget(session)
        advanced["queue"] = self._own_queue
        return advanced

    def _heartbeat(self, session: Session) -> Callable[[], object]:
        """Sends a heartbeat of the activity that runs. The client's own one does not tell when the server has given the activity up."""
        token = activity.info().task_token

        async def beat() -> None:
            try:
                if not await self._beat(token):
                    session.drop()
            except CadenceRpcError as error:
                log.warning("task %s: Cadence did not take a heartbeat: %s", session.task_id, error)

        return lambda: spawn(beat(), "onward-cadence-heartbeat")

    async def _beat(self, token: bytes) -> bool:
        """Send a heartbeat of an activity; whether the server still waits for its answer."""
        client = await self._engine.client()
        request = RecordActivityTaskHeartbeatRequest(task_token=token, identity=f"onward-{self.id}")
        try:
            answer = await client.worker_stub.RecordActivityTaskHeartbeat(request, timeout=self._shared.lease.duration)
        except (EntityNotExistsError, WorkflowExecutionAlreadyCompletedError):
            return False
        return not answer.cancel_requested

    async def _pulse(self, client: Client) -> None:
        """Renew the lease of this worker while the server answers. After a silence longer than the lease, the server has given all
        stretches up that were under way: their shifts are dropped."""
        clock, lease = self._shared.clock, self._shared.lease
        answered = clock.monotonic()
        request = DescribeDomainRequest(name=self._engine.address.domain)
        while True:
            sent = clock.monotonic()
            try:
                await client.domain_stub.DescribeDomain(request, timeout=lease.duration)
            except CadenceRpcError as error:
                log.warning("Cadence does not answer, trying again: %s", error)
            else:
                if clock.monotonic() - answered > lease.duration:
                    log.warning(
                        "this worker did not reach Cadence for longer than its lease; it drops its %d tasks",
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


def _answering(worker: Worker) -> bool:
    """Whether answers of activities are under way. The client has no public name for it."""
    return bool(worker._activity_worker._poller._background_tasks)
