"""The mirror: a copy of the tasks of another engine in an Onward database, which the workers of that engine keep up to date.

Console, follow, list, usage and events read the database and need no worker. The engine stays the truth: a worker replays a task from it, and
never from the mirror. A record is written to the mirror after the engine has it.

The worker that runs a task notes each of its stretches, and `Mirror.run` copies the noted tasks soon after. The workflow has a task copied
whenever it begins to wait, and before it ends (`onward.mirror`), and tries again until that succeeds. So a mirror that is away delays no step; it
delays the end of the workflow, and the readers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from onward.core.clock import Clock
from onward.engine.handlers import Handler
from onward.engine.worker.presence import machine_id
from onward.engine.worker.relay import Relay
from onward.engines.budgets import EngineBudgets
from onward.engines.copy import NO_SHELF, Copier
from onward.errors import OnwardError, UsageError
from onward.store.port.core import Batch, Store
from onward.store.port.workers import WorkerRow

log = logging.getLogger("onward.mirror")

COPY_INTERVAL_S = 0.1
"""Seconds between two copies of tasks that go on."""

AWAY_PAUSE_S = 2.0
"""Seconds until the next try, when the mirror or the engine did not answer."""

COPIES_AT_ONCE = 4
"""Tasks that are copied at the same time."""


MAX_NOTED = 10_000
"""Tasks that wait for their copy, while the mirror is away. Others are copied when they rest."""

DEAD_AFTER_S = 60.0
"""Seconds after the end of its lease until the row of a worker is removed from the mirror."""

LEAVE_TIMEOUT_S = 5.0


class MirrorStore:
    """The database as readers use it. It has the verbs of the store behind it."""

    budgets: EngineBudgets

    def __init__(self, where: str, store: Store) -> None:
        store.mirror = True
        self.where: str = f"{where}, mirror {store.where}"
        """The name of engine and database for messages, without secrets."""
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save(self, worker: str, batch: Batch) -> set[str]:  # noqa: ARG002 -- as in the port
        raise UsageError(NO_SHELF)


class Mirror:
    """Copies the tasks that a worker runs. A task that is noted again before its turn is copied once."""

    def __init__(self, copier: Copier, clock: Clock) -> None:
        self.copier, self._clock = copier, clock
        self._noted: dict[str, str] = {}
        """The tasks to copy, and the worker that had each."""
        self._changed = asyncio.Event()
        self._away = False

    def note(self, task_id: str, worker: str) -> None:
        """Copy this task soon: this worker has it, and may have written records that the mirror lacks."""
        if len(self._noted) < MAX_NOTED or task_id in self._noted:
            self._noted[task_id] = worker
            self._changed.set()

    async def run(self) -> None:
        """Copy noted tasks, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            noted, self._noted = self._noted, {}
            turn = asyncio.Semaphore(COPIES_AT_ONCE)
            failed = await asyncio.gather(*[self._copy(*item, turn) for item in noted.items()])
            for task_id, worker in failed:
                if task_id:
                    self._noted.setdefault(task_id, worker)
                    self._changed.set()
            await self._clock.sleep(AWAY_PAUSE_S if self._away else COPY_INTERVAL_S)

    async def _copy(self, task_id: str, worker: str, turn: asyncio.Semaphore) -> tuple[str, str]:
        """Copy a task; the task, where that failed."""
        async with turn:
            try:
                await self.copier.refresh(task_id, worker)
            except OnwardError as error:
                if not self._away:
                    log.warning("the mirror is not up to date, trying again: %s", error)
                self._away = True
                return task_id, worker
            except Exception:
                log.exception("task %s could not be copied to the mirror", task_id)
            if self._away:
                log.warning("the mirror is written again")
            self._away = False
            return "", ""


class MirroredWorker:
    """The row of a worker in the mirror, for readers; and the relay, which delivers the events of the mirrored tasks."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        relay: Relay,
        clock: Clock,
        *,
        lease_s: float,
        version: str,
        prune: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._store, self._handlers, self._relay, self._clock = store, handlers, relay, clock
        self._lease_s, self._version, self._prune = lease_s, version, prune
        self._row: WorkerRow | None = None

    async def start(self, worker: str, slots: int) -> None:
        """Register the worker with its handlers."""
        await self._store.handlers.register(
            [(handler.name, json.dumps(handler.registration()).encode()) for handler in self._handlers.values()]
        )
        self._row = WorkerRow(
            id=worker,
            machine=machine_id(),
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=slots,
            names=tuple(sorted(self._handlers)),
            queues=(),
            address="",
            version=self._version,
        )
        await self._store.workers.join(self._row, self._lease_s)
        await self._relay.start()

    async def run(self, interval_s: float) -> None:
        """Prolong the lease of the row, remove the rows of workers that are gone, and delete old tasks from the mirror, for ever."""
        await asyncio.gather(self._beat(interval_s), self._prune())

    async def _beat(self, interval_s: float) -> None:
        assert self._row is not None
        while True:
            await self._clock.sleep(interval_s)
            try:
                beat = await self._store.workers.heartbeat(self._row.id, self._lease_s, 0.0)
                if not beat.alive:
                    await self._store.workers.join(self._row, self._lease_s)
                for row in await self._store.workers.list():
                    if row.lease_until < beat.now - DEAD_AFTER_S:
                        await self._store.workers.leave(row.id)
            except OnwardError as error:
                log.info("the mirror does not answer: %s", error)

    async def stop(self) -> None:
        """Remove the row."""
        await self._relay.stop()
        try:
            if self._row is not None:
                await asyncio.wait_for(self._store.workers.leave(self._row.id), LEAVE_TIMEOUT_S)
        except (OnwardError, TimeoutError) as error:
            log.warning("could not leave the mirror, the lease will end by itself: %s", error)
