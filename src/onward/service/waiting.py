"""Waiting for the end of a task: by nudges and reads of the store, or by an engine that says when a task has ended."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Any

from onward.core.clock import Clock
from onward.core.task import NEEDS_A_PERSON, Task
from onward.errors import ResultTimeout, StoreUnavailable, TaskParked
from onward.service.engine import AwaitEnd, Completed
from onward.service.listing import plain_id
from onward.store.port.core import Store

DEAR_READ_PAUSE_S = 5.0
"""Seconds until the first read of a task whose engine says when the task has ended. Each pause is twice as long as the last one."""

MAX_DEAR_READ_PAUSE_S = 60.0

LAG_PAUSE_S = 0.2
"""Seconds between two reads of a task that has ended on its engine, or that the engine cannot wait for."""


class EndOfTask:
    """Waits for tasks. `get` reads one."""

    def __init__(self, store: Store, clock: Clock, get: Callable[[str], Awaitable[Task]], end: AwaitEnd | None) -> None:
        self._store, self._clock, self._get, self._end = store, clock, get, end

    async def wait(self, task_id: str, timeout: float | None, *, parked: bool) -> Task | Completed:
        """The task, once it has ended, or its result alone where the engine has told it. Raises ResultTimeout; with `parked`, TaskParked
        as soon as it is parked or quarantined."""
        if self._end is not None:
            return await self._wait_for_engine(self._end, task_id, timeout, parked)
        task = await self._get(task_id)
        if task.ended:
            return task
        ended = asyncio.Event()
        stop_listening = self._store.listen("ended", ended.set)
        try:
            return await self._wait_for_store(task_id, ended, timeout, parked)
        finally:
            stop_listening()

    async def _wait_for_store(self, task_id: str, ended: asyncio.Event, timeout: float | None, parked: bool) -> Task:
        end = self._until(timeout)
        pause = 0.1 if self._store.receives_nudges else 0.002
        while True:
            ended.clear()
            task, left = await self._read(task_id, end, timeout, parked)
            if task.ended:
                return task
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), min(pause, left))
            pause = min(pause * 1.2, 0.25)

    async def _wait_for_engine(
        self, await_end: AwaitEnd, task_id: str, timeout: float | None, parked: bool
    ) -> Task | Completed:
        """Reads in between find that the task is parked, or that there is no such task. A worker answers them, and is perhaps busy or away: that
        is no reason to give up, as long as the engine can be asked for the end."""
        end, pause = self._until(timeout), DEAR_READ_PAUSE_S
        waiting = await_end(plain_id(task_id))
        try:
            while True:
                await asyncio.wait({waiting}, timeout=max(min(pause, end - self._clock.monotonic()), 0.0))
                if waiting.done() and (completed := waiting.result()) is not None:
                    return completed
                reading = asyncio.ensure_future(self._read(task_id, end, timeout, parked))
                try:
                    reads: set[asyncio.Future[Any]] = {reading} if waiting.done() else {waiting, reading}
                    await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        continue
                    task, left = reading.result()
                except StoreUnavailable:
                    if waiting.done() or self._clock.monotonic() >= end:
                        raise
                else:
                    if task.ended:
                        return task
                    if waiting.done():
                        await self._clock.sleep(min(LAG_PAUSE_S, left))
                finally:
                    reading.cancel()
                pause = min(pause * 2, MAX_DEAR_READ_PAUSE_S)
        finally:
            waiting.cancel()

    def _until(self, timeout: float | None) -> float:
        return math.inf if timeout is None else self._clock.monotonic() + timeout

    async def _read(self, task_id: str, end: float, timeout: float | None, parked: bool) -> tuple[Task, float]:
        """The task, and the seconds that are left. Raises as `wait`."""
        task = await self._get(task_id)
        left = end - self._clock.monotonic()
        if task.ended:
            return task, left
        if parked and task.reason in NEEDS_A_PERSON:
            raise TaskParked(task_id, task.task, str(task.reason), (task.error or {}).get("message", ""))
        if left <= 0:
            raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "")
        return task, left
