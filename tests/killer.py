"""Kills a worker inside its own process, at a chosen point, on any store; another goes on.

The dead worker writes nothing more: every crash point that it comes to raises. The killer cancels its asyncio tasks and
declares it dead, as another worker would do. `tests/faults` does the same with real processes and a real kill -9.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from onward import Onward
from onward.core import crash
from onward.engine.background import spawn
from onward.testing import Killed


class Killer:
    """Runs an app's work and kills its first worker at the point with this number; 0 kills none."""

    def __init__(self, app: Onward, number: int) -> None:
        self._app, self._number = app, number
        self._passed = itertools.count(1)
        self._dead = False
        self.killed_at: str | None = None
        self._died = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _point(self, name: str) -> None:
        if self.killed_at is None and next(self._passed) == self._number:
            self.killed_at, self._dead = name, True
            self._loop.call_soon_threadsafe(self._died.set)
        if self._dead:
            raise Killed(name)

    async def until(self, done: Callable[[], Awaitable[Any]]) -> Any:
        """Works until `done` returns; after the kill, a second worker goes on."""
        crash.install(self._point)
        tasks: list[asyncio.Task[Any]] = []

        def keep(coroutine: Any, name: str) -> asyncio.Task[Any]:
            tasks.append(spawn(coroutine, name))
            return tasks[-1]

        worker = self._app._make_worker(spawn=keep)
        await worker.start()
        end = asyncio.ensure_future(done())
        death = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({end, death}, return_when=asyncio.FIRST_COMPLETED, timeout=30)
            if not self._dead:
                await worker.stop(1)
                return await asyncio.wait_for(end, 1)
            await worker._heart.stop()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5)
            for task in tasks:
                task.cancelled() or task.exception()
            crash.install(None)
            self._dead = False
            await self._app.store.workers.rescue([worker.id])
            async with self._app.worker():
                return await asyncio.wait_for(end, 60)
        finally:
            crash.install(None)
            death.cancel()
            end.cancel()
