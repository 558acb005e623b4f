"""An event loop with virtual time and a random order of callbacks.

Nothing ever waits: when no callback is ready, time jumps to the next timer. Which of the ready callbacks goes next is
drawn from a seeded generator, so one seed is one history. Every callback belongs to a simulated process, which its
context names. The loop keeps back the callbacks of a process that stands still (stopped, or dead, which is the same for
ever).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any

MAX_CALLBACKS_PER_INSTANT = 200_000
"""After so many callbacks in one instant the loop raises TimeStandsStill."""


class TimeStandsStill(Exception):
    """The callbacks of one instant never end, or there is no callback and no timer left."""


class Process:
    """A simulated operating system process: its callbacks, and whether they run."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop, self.name = loop, name
        self.standing = False
        self.dead = False
        self.resumed_at = -1.0
        self.kept: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.Context()
        self.context.run(_process.set, self)

    def __repr__(self) -> str:
        return self.name

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Starts an asyncio task of this process; workers get this function as `spawn`."""
        return self.loop.create_task(coroutine, name=name or self.name, context=self.context.copy())

    def call(self, callback: Callable[..., None], *args: Any) -> None:
        """Calls the callback inside this process."""
        self.loop.call_soon(callback, *args, context=self.context)

    def stop(self) -> None:
        """SIGSTOP: none of its callbacks runs; those of its timers are kept."""
        self.standing = True

    def go_on(self) -> None:
        """SIGCONT."""
        if self.dead:
            return
        self.standing = False
        self.resumed_at = self.loop.time()
        self.loop.give_back(self)

    def kill(self) -> None:
        """SIGKILL: the process stands still for ever. Not even its `finally` blocks run."""
        self.standing = self.dead = True


_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


def current() -> Process | None:
    """The process whose code runs now; None for the simulator's own."""
    return _process.get(None)


class SimLoop(asyncio.BaseEventLoop):
    """Virtual time and a seeded order."""

    def __init__(self, rng: random.Random, disorder: float = 1.0) -> None:
        super().__init__()
        self._rng, self._disorder = rng, disorder
        self._time = 0.0
        self._instant = 0
        self.turns = 0
        self.unhandled: list[str] = []
        self.known: tuple[type[BaseException], ...] = ()
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._time

    def leap(self, seconds: float) -> None:
        """All clocks go on and nothing runs: the machines were suspended."""
        self._time += seconds

    def begin_anew(self) -> None:
        """Resets the count of callbacks in this instant."""
        self._instant = 0

    def give_back(self, process: Process) -> None:
        """Makes the callbacks ready that were kept back from a process."""
        self._ready.extend(process.kept)
        process.kept.clear()

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        owner = current() if context is None else context.get(_process)
        if owner is not None:
            owner.tasks.append(task)
            if len(owner.tasks) > 400:
                owner.tasks = [task for task in owner.tasks if not task.done()]
        return task

    def _run_once(self) -> None:
        if not self._ready:
            self._next_instant()
        for _ in range(len(self._ready)):
            handle = self._pick()
            if handle._cancelled:
                continue
            owner = handle._context.get(_process)
            if owner is not None and owner.standing:
                owner.kept.append(handle)
                continue
            self.turns += 1
            self._instant += 1
            handle._run()
            if self._stopping:
                return
        if self._instant > MAX_CALLBACKS_PER_INSTANT:
            raise TimeStandsStill(f"more than {MAX_CALLBACKS_PER_INSTANT} callbacks at {self._time:.3f}")

    def _pick(self) -> asyncio.Handle:
        ready = self._ready
        if len(ready) > 1 and (self._disorder >= 1 or self._rng.random() < self._disorder):
            place = self._rng.randrange(len(ready))
            ready.rotate(-place)
            handle = ready.popleft()
            ready.rotate(place)
            return handle
        return ready.popleft()

    def _next_instant(self) -> None:
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        if not timers:
            raise TimeStandsStill(f"at {self._time:.3f} nothing is left that could ever happen")
        self._time = max(self._time, timers[0]._when)
        self._instant = 0
        while timers and timers[0]._when <= self._time:
            handle = heapq.heappop(timers)
            handle._scheduled = False
            self._ready.append(handle)

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, self.known):
            self.unhandled.append(f"{context['message']}: {error!r}")

    def _write_to_self(self) -> None:
        raise AssertionError("a thread called the simulated loop: its order no longer depends on the seed alone")

    def _process_events(self, event_list: list[Any]) -> None: ...
