"""The watchdog: it sees from another thread that the event loop is stuck, in which task, and at which line.

The thread of the heartbeat calls it. It counts the time that this thread saw pass while the loop did not turn, so a process that was
suspended as a whole does not count as stuck.
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
from onward.store.port.paging import journal_pages
from onward.telemetry import CURRENT_TASK

ONWARD_PATH = str(Path(__file__).parents[2])
STDLIB_PATH = sysconfig.get_paths()["stdlib"]
MAX_GAP_INTERVALS = 2.0
"""A gap between two looks counts as at most so many intervals: in a longer one the watchdog itself did not run."""


class Stuck(NamedTuple):
    """Where the loop is stuck: the id of the task, None where it is unknown, and the line."""

    task_id: str | None
    where: str


class Watchdog:
    """Created in the thread of the loop. The loop calls `turned`; another thread calls the rest."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock, self._interval_s = clock, interval_s
        self._turns = self._turns_seen = 0
        self._looked_at: float | None = None
        self.stuck_for: float = 0.0
        """Seconds for which the loop has not turned, as far as the watchdog was running."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def watch(self) -> None:
        """Watch the loop that calls this."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def turned(self) -> None:
        """Note that the loop has turned."""
        self._turns += 1

    def look(self) -> float:
        """Returns for how many seconds the loop has been stuck."""
        now, turns = self._clock.monotonic(), self._turns
        if self._looked_at is None or turns != self._turns_seen:
            self.stuck_for = 0.0
        else:
            self.stuck_for += min(now - self._looked_at, MAX_GAP_INTERVALS * self._interval_s)
        self._looked_at, self._turns_seen = now, turns
        return self.stuck_for

    def locate(self) -> Stuck:
        """Where the loop is stuck now, from the stack of its thread."""
        frame = sys._current_frames().get(self._thread)
        stack: list[FrameType] = []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        return Stuck(self._find_task(stack), _format_line(stack))

    def _find_task(self, stack: list[FrameType]) -> str | None:
        for frame in stack:
            for value in list(frame.f_locals.values()):
                if isinstance(value, Context | Shift):
                    return value.task_id
                if isinstance(value, Steps | Branches):
                    return value._journal.hold.id
        running = asyncio.current_task(self._loop) if self._loop is not None else None
        if running is not None and sys.version_info >= (3, 12):
            claimed = running.get_context().get(CURRENT_TASK)
            return None if claimed is None else str(claimed.id)
        return None


def _format_line(stack: list[FrameType]) -> str:
    """The innermost line of the user's own code; where there is none, the innermost of all."""
    if not stack:
        return "a line that is not known"
    own = [frame for frame in stack if not frame.f_code.co_filename.startswith((ONWARD_PATH, STDLIB_PATH, "<frozen"))]
    frame = (own or stack)[0]
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


async def release_stuck_tasks(store: Store, worker: str, shift: Shift, why: str, now: float) -> None:
    """Release the tasks of a worker whose loop is stuck, from the thread of its heartbeat. The first time, the task that blocks the loop
    becomes a suspect, which runs alone from now on; a suspect is quarantined. The other tasks become ready, and nothing counts
    against them."""
    if shift.suspected:
        await _quarantine(store, worker, shift, f"{why}, alone", now)
    else:
        await store.release(worker, [shift.task_id], math.inf, suspect=True)
    await store.workers.leave(worker)


async def _quarantine(store: Store, worker: str, shift: Shift, why: str, now: float) -> None:
    """Write the last record of the shift in its place; nothing where another worker has continued with the task."""
    hold, last, taken_over = shift.hold, shift.hold.shift, False
    async for page in journal_pages(store.journal, hold.id, last):
        taken_over = taken_over or page[-1].shift not in {0, hold.shift}
        last = page[-1].seq
    if taken_over:
        return
    data = wire.encode({"reason": why})
    entry = (hold.id, last + 1, hold.shift, r.QUARANTINED, "", data, now)
    wait = Wait(hold.id, NEVER, Reason.QUARANTINED, shift.attempt)
    await store.save(worker, Batch([entry], waits=[wait], gates={} if hold.gate is None else {hold.id: hold.gate}))
