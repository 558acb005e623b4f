"""The watchdog: it sees from another thread that the event loop is stuck, in which task, and at which line.

The thread of the heartbeat asks it. It counts the time that this thread saw pass while the loop did not turn, so that a process that was
suspended as a whole is not taken for one that is stuck.
"""

from __future__ import annotations

import asyncio
import math
import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from onward.core import record as r
from onward.core import wire
from onward.core.clock import Clock
from onward.core.task import NEVER, Reason
from onward.engine.context.context import Context
from onward.engine.shift.branches import Branches
from onward.engine.shift.shift import Shift
from onward.engine.shift.steps import Steps
from onward.store.port.core import Batch, Store, Wait
from onward.telemetry import DOING

OURS = str(Path(__file__).parents[2])
LIBRARY = sysconfig.get_paths()["stdlib"]
PAGE = 1000
LOST = 2.0
"""A gap of more than so many pauses between two looks is time in which the watchdog itself did not run."""


class Stuck(NamedTuple):
    """What the loop is stuck in: the id of the task, None where it cannot be told, and the line."""

    task_id: str | None
    where: str


class Watchdog:
    """Made in the thread of the loop; `turned` is called there, and all else in another thread."""

    def __init__(self, clock: Clock, every: float) -> None:
        self._clock, self._every = clock, every
        self._turns = self._seen = 0
        self._looked: float | None = None
        self.stuck_for = 0.0
        """Seconds for which the loop has not turned, as far as they were watched."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def watch(self) -> None:
        """Watch the loop that calls this."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def turned(self) -> None:
        """The loop is alive."""
        self._turns += 1

    def look(self) -> float:
        """For how many seconds the loop has been stuck."""
        now, turns = self._clock.monotonic(), self._turns
        if self._looked is None or turns != self._seen:
            self.stuck_for = 0.0
        else:
            self.stuck_for += min(now - self._looked, LOST * self._every)
        self._looked, self._seen = now, turns
        return self.stuck_for

    def found(self) -> Stuck:
        """Where the loop is stuck just now."""
        frame = sys._current_frames().get(self._thread)
        stack: list[FrameType] = []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        return Stuck(self._task_of(stack), _line(stack))

    def _task_of(self, stack: list[FrameType]) -> str | None:
        for frame in stack:
            for value in list(frame.f_locals.values()):
                if isinstance(value, Context | Shift):
                    return value.task_id
                if isinstance(value, Steps | Branches):
                    return value._pen.hold.id
        running = asyncio.current_task(self._loop) if self._loop is not None else None
        if running is not None and sys.version_info >= (3, 12):
            claimed = running.get_context().get(DOING)
            return None if claimed is None else str(claimed.id)
        return None


def _line(stack: list[FrameType]) -> str:
    """The innermost line of the user's own code; where there is none, the innermost of all."""
    if not stack:
        return "a line that is not known"
    own = [frame for frame in stack if not frame.f_code.co_filename.startswith((OURS, LIBRARY, "<frozen"))]
    frame = (own or stack)[0]
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


async def let_go(store: Store, worker: str, shift: Shift, why: str, now: float) -> None:
    """Take the tasks of a worker whose loop is stuck from it, in the thread of its heartbeat. The first time the task that it is stuck in
    becomes a suspect, which runs alone from now on; a suspect is quarantined. Its neighbours become ready, and nothing counts against them."""
    if shift.suspected:
        await _quarantine(store, worker, shift, f"{why}, alone", now)
    else:
        await store.release(worker, [shift.task_id], math.inf, suspect=True)
    await store.workers.leave(worker)


async def _quarantine(store: Store, worker: str, shift: Shift, why: str, now: float) -> None:
    """Write the last record of the shift in its place; nothing where another worker has gone on with the task."""
    hold, last = shift.hold, shift.hold.shift
    while page := await store.journal(hold.id, last, PAGE):
        if page[-1].shift not in {0, hold.shift}:
            return
        last = page[-1].seq
    data = wire.encode({"reason": why})
    entry = (hold.id, last + 1, hold.shift, r.QUARANTINED, "", data, now)
    wait = Wait(hold.id, NEVER, Reason.QUARANTINED, shift.attempt)
    await store.save(worker, Batch([entry], waits=[wait], gates={} if hold.gate is None else {hold.id: hold.gate}))
