"""A test of what handlers and agents may rely on, whichever engine runs them, uses these few verbs and the public API alone."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from onward import Onward
from onward.app.engines import RunningWorker
from onward.app.verbs import Handle
from onward.core.task import NEVER, State, Task
from onward.engine.background import spawn
from onward.engine.worker.worker import Worker
from onward.store.port.paging import whole_journal
from tests.kit import HandClock, calm, eventually

T = TypeVar("T")

WITHIN_S = 60.0
"""Seconds within which a task must get to where a test expects it. On a clock that is moved by hand, hours may pass instead."""


class Engine(abc.ABC):
    """An app on one engine, and its worker."""

    app: Onward

    @abc.abstractmethod
    async def start(self) -> None:
        """Start a worker."""

    @abc.abstractmethod
    async def crash(self) -> None:
        """End the worker as a kill would: between two instructions, and it releases nothing."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Stop the worker, if there is one."""

    @property
    @abc.abstractmethod
    def works(self) -> bool:
        """Whether a worker runs."""

    async def until(self, check: Callable[[], Awaitable[T]]) -> T:
        """The first true value of `check`."""
        answer: T = await eventually(check, WITHIN_S)
        return answer

    # ── for tests ────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, handler: Any, value: Any = None, **options: Any) -> Handle[Any]:
        """Submit a task; a worker runs from then on."""
        if not self.works:
            await self.start()
        return await self.app.submit(handler, value, **options)

    async def ended(self, handle: Handle[Any], within_s: float | None = None) -> Task:
        """The task, once it has ended."""

        async def ended() -> Task | None:
            task = await handle.get()
            return task if task.ended else None

        task = await (self.until(ended) if within_s is None else eventually(ended, within_s))
        assert task is not None
        return task

    async def run(self, handler: Any, value: Any = None, **options: Any) -> Task:
        """Submit a task, and return it once it has ended."""
        return await self.ended(await self.submit(handler, value, **options))

    async def waiting(self, handle: Handle[Any], reason: str) -> Task:
        """The task, once it waits for this reason."""

        async def waits() -> Task | None:
            task = await handle.get()
            assert not task.ended, f"the task has ended: {task.state} {task.error}"
            return task if task.reason == reason else None

        task = await self.until(waits)
        assert task is not None
        return task

    async def idle(self, *handles: Handle[Any]) -> list[Task]:
        """Wait until each of these tasks has ended, or waits for something that time alone does not bring; those that have not ended."""

        async def idle() -> list[Task] | None:
            tasks = [await handle.get() for handle in handles]
            quiet = [task.ended or (task.state is State.WAITING and task.due_at in {None, NEVER}) for task in tasks]
            return tasks if all(quiet) else None

        tasks = await self.until(idle)
        return [task for task in tasks or [] if not task.ended]

    async def kinds(self, handle: Handle[Any]) -> list[str]:
        """The kinds of the records of a task."""
        return [record.kind for record in await self.app.service.journal(handle.id)]


class OwnEngine(Engine):
    """Onward's own engine, on a database."""

    def __init__(self, app: Onward, clock: HandClock | None = None) -> None:
        self.app, self._clock = app, clock
        self._worker: tuple[Worker, list[asyncio.Task[Any]]] | None = None

    @property
    def works(self) -> bool:
        return self._worker is not None

    async def start(self) -> None:
        tasks: list[asyncio.Task[Any]] = []

        def spawn_and_keep(coroutine: Any, name: str) -> asyncio.Task[Any]:
            tasks.append(spawn(coroutine, name))
            return tasks[-1]

        worker = self.app._make_worker(spawn=spawn_and_keep)
        self._worker = worker, tasks
        await worker.start()

    async def crash(self) -> None:
        assert self._worker is not None
        (worker, tasks), self._worker = self._worker, None
        for task in [*tasks, worker._heart._task]:
            if task is not None:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await calm()
        await worker._heart.stop()  # its thread would go on
        worker.threads.close()
        await self.app.store.workers.rescue([worker.id])

    async def stop(self) -> None:
        if self._worker is not None:
            (worker, _), self._worker = self._worker, None
            stopped = worker.stop(1.0)
            await (stopped if self._clock is None else self._clock.until(stopped))

    async def until(self, check: Callable[[], Awaitable[T]]) -> T:
        if self._clock is None:
            return await super().until(check)
        clock = self._clock

        async def look() -> T:
            while not (answer := await check()):
                await clock.sleep(0.05)
            return answer

        return await clock.until(look(), 1e7)


class Foreign(Engine):
    """Temporal or Cadence, on real time."""

    def __init__(self, app: Onward) -> None:
        self.app = app
        self._worker: RunningWorker | None = None

    @property
    def works(self) -> bool:
        return self._worker is not None

    async def start(self) -> None:
        self._worker = self.app._make_foreign_worker()
        assert self._worker is not None
        await self._worker.start()

    async def crash(self) -> None:
        assert self._worker is not None
        worker, self._worker = self._worker, None
        await worker.stop(0.0)  # its shifts are dropped in the middle of their steps

    async def stop(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.stop(0.2)


async def differences(app: Onward, task_id: str) -> list[str]:
    """In what the mirror of an app on Temporal differs from the workflow of a task; empty where they are equal."""
    engine = app._temporal
    assert engine is not None
    assert engine.mirror
    there = await engine._read(task_id, 0, 0)
    assert there is not None
    names = await engine._query(task_id, "content_names")
    task = await app.store.get(task_id)
    state = None if task is None else (str(task.state) if task.ended else task.reason)
    pairs = {
        "state": (there.state or ("running" if there.worker else there.reason), state),
        "records": (await engine.records(task_id), await whole_journal(app.store.journal, task_id)),
        "messages": (await engine.messages(task_id, 0), await app.store.inbox(task_id)),
        "contents": (await engine.contents(task_id, names), await app.store.contents(task_id, names)),
    }
    return [f"{name}: {one!r} is {other!r} in the mirror" for name, (one, other) in pairs.items() if one != other]
