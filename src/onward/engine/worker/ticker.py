"""The ticker: the part of a worker that submits the tasks of due schedules.

No worker is in charge: every worker looks, and the first to move a schedule from one tick to the next submits the task in the
same transaction. So a tick fires once, however many workers look or die. The database's time counts.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

from onward.core.clock import Clock
from onward.core.epoch import lost_at
from onward.core.ids import Ids
from onward.core.schedule import ScheduleRow, due
from onward.core.sealed import CODECS, unreadable
from onward.engine.background import Spawn, spawn
from onward.errors import OnwardError, StoreUnavailable
from onward.store.port.core import Store

log = logging.getLogger("onward.worker")

POLL_INTERVAL_S = 1.0
"""Seconds between two looks while nothing is due: other processes may add or change schedules."""

LED_POLL_INTERVAL_S = 30.0
"""The same while a worker reports, after each of its own looks, when a schedule is due next (`led`)."""

TICK_SPREAD_S = 0.05
"""Seconds over which the workers spread their looks at a tick. The first one fires it, and most others see that it is done."""

SCHEDULES_PER_LOOK = 20
"""Schedules that one look reads, the soonest first."""


class Ticker:
    """The ticker of one worker; `save` writes the schedules that the app's code declares."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rng: random.Random,
        ids: Ids,
        save: Callable[[], Coroutine[Any, Any, None]],
        spawn: Spawn = spawn,
    ) -> None:
        self._store, self._clock, self._rng, self._ids, self._spawn = store, clock, rng, ids, spawn
        self.save = save
        self._alive_since: float | None = None
        self._unreadable: set[str] = set()
        """Schedules that this worker cannot read: their time zone is unknown on this machine."""
        self.led = False
        """Whether the worker calls `saw` after each of its looks."""
        self._nap: asyncio.Future[None] | None = None
        self._wakes_at = -math.inf

    async def run(self) -> None:
        """Fire due schedules, for ever."""
        while True:
            pause = POLL_INTERVAL_S
            try:
                pause = await self.look()
            except StoreUnavailable as error:
                log.warning("cannot read schedules, trying again: %s", error)
            except Exception:
                log.exception("firing schedules failed")
            await self._sleep(pause + self._rng.uniform(0, TICK_SPREAD_S))

    def saw(self, next_tick_in: float | None, now: float) -> None:
        """Take in the worker's look at the store: a schedule is due in so many seconds."""
        if next_tick_in is None or next_tick_in > 0:
            if self._alive_since is not None:
                self._alive_since = max(self._alive_since, now)
            if next_tick_in is None:
                return
        elif self._unreadable:  # a schedule that this worker cannot read stays due for ever
            return
        if self._clock.monotonic() + next_tick_in < self._wakes_at:
            self._wake()

    async def _sleep(self, pause: float) -> None:
        """Sleep so long, or until a schedule is due sooner than was known."""
        self._wakes_at = self._clock.monotonic() + pause
        self._nap = asyncio.get_running_loop().create_future()
        alarm = self._spawn(self._clock.sleep(pause), "onward-ticker-alarm")
        alarm.add_done_callback(lambda done: None if done.cancelled() else self._wake())
        try:
            await self._nap
        finally:
            self._nap = None
            alarm.cancel()

    def _wake(self) -> None:
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    async def look(self) -> float:
        """Fire due schedules; returns in how many seconds to look again."""
        limit = SCHEDULES_PER_LOOK + len(self._unreadable)
        now, rows = await self._store.schedules.soonest(limit)
        alive_since = now if self._alive_since is None else self._alive_since
        next_times = [at for row in rows if (at := await self._fire(row, now, alive_since)) is not None]
        more = len(rows) == limit and next_times and max(row.next_at or 0.0 for row in rows) <= now
        if more or any(at <= now for at in next_times):
            return 0.0
        self._alive_since = now  # not before: the rest of this look was not missed
        return min(
            [
                LED_POLL_INTERVAL_S if self.led and not self._unreadable else POLL_INTERVAL_S,
                *(at - now for at in next_times),
            ]
        )

    async def _fire(self, row: ScheduleRow, now: float, alive_since: float) -> float | None:
        """Fire the due ticks of a schedule; returns when it is due next, or None when this worker cannot read it."""
        assert row.next_at is not None
        if row.next_at > now:
            return row.next_at
        if row.input[:1] in CODECS:
            self._skip(row, unreadable(row.input, f"the input of schedule {row.name}"))
            return None
        try:
            ticks, next_at = due(row.rhythm, row.missed, row.next_at, now, alive_since)
        except OnwardError as error:  # a time zone that this machine does not know: another worker may
            self._skip(row, error)
            return None
        tasks = [row.task_at(tick, self._ids(), lost_at(self._store.epoch, tick)) for tick in ticks]
        moved = row._replace(next_at=next_at, last_at=ticks[-1] if ticks else row.last_at, mark=self._ids())
        if not await self._store.schedules.advance(row.name, row.mark, moved, tasks):
            return now  # another worker was quicker; look at the schedule again
        if tasks:
            self._store.nudge("ready", [task.id for task in tasks])
        return next_at

    def _skip(self, row: ScheduleRow, error: OnwardError) -> None:
        if row.name not in self._unreadable:
            log.warning("schedule %s is left to other workers: %s", row.name, error)
            self._unreadable.add(row.name)
