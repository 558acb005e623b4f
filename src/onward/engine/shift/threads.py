"""Threads for plain functions: as many as are needed, kept for the next, and left behind when they hang.

`concurrent.futures` joins its threads when the interpreter ends, so one hanging tool would keep a worker from ending.
These are daemons; a thread whose answer nobody waits for any more is counted as left behind until it comes back.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """A pool that grows on demand."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[_Job | None]] = []
        self._lock = threading.Lock()
        self._closed = False
        self.left_behind: int = 0

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The function's answer, from a thread. Cancelling leaves the thread behind."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._free().put((lambda: context.run(function, *args, **kwargs), loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.left_behind += 1
            raise

    def _free(self) -> queue.SimpleQueue[_Job | None]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(jobs,), name="onward-step", daemon=True).start()
        return jobs

    def _work(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            call, loop, future = job
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = call()
            except BaseException as raised:
                error = raised
            with self._lock:
                if self._closed:
                    jobs.put(None)
                else:
                    self._idle.append(jobs)
            try:
                loop.call_soon_threadsafe(self._deliver, future, answer, error)
            except RuntimeError:  # the loop is closed
                return
            job = call = answer = error = None  # type: ignore[assignment]

    def _deliver(self, future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
        if future.cancelled():
            self.left_behind -= 1
        elif error is None:
            future.set_result(answer)
        elif isinstance(error, StopIteration | GeneratorExit):  # a coroutine cannot be given these
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            future.set_exception(error)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for jobs in self._idle:
                jobs.put(None)
            self._idle.clear()
