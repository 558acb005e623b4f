"""Threads for plain functions: as many as are needed, kept for the next call, and left behind when they hang.

`concurrent.futures` joins its threads when the interpreter ends, so one hanging tool would keep a worker from ending. These are
daemon threads. A thread whose caller was cancelled counts as left behind until its function returns.
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
        """Threads whose caller was cancelled and whose function still runs."""

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of the function, from a thread. Cancelling the caller leaves the thread behind."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._idle_thread().put((lambda: context.run(function, *args, **kwargs), loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.left_behind += 1
            raise

    def _idle_thread(self) -> queue.SimpleQueue[_Job | None]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(jobs,), name="onward-step", daemon=True).start()
        return jobs

    def _work(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            call, loop, future = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            with self._lock:
                if self._closed:
                    jobs.put(None)
                else:
                    self._idle.append(jobs)
            try:
                loop.call_soon_threadsafe(self._deliver, future, result, error)
            except RuntimeError:  # the loop is closed
                return
            job = call = result = error = None  # type: ignore[assignment]

    def _deliver(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            self.left_behind -= 1
        elif error is None:
            future.set_result(result)
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
