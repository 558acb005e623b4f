"""The ticker: what a worker does for schedules. It submits the tasks of ticks that are due.

Nobody is in charge: every worker looks, and the first to turn a schedule from one tick to the next submits the task in the
same transaction. So a tick is fired once, however many look and whoever dies. The database's time counts.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

from onward.core.clock import Clock
from onward.core.ids import Ids
from onward.core.schedule import ScheduleRow, due
from onward.engine.background import Spawn, spawn
from onward.errors import OnwardError, StoreUnavailable
from onward.store.port.core import Store

log = logging.getLogger("onward.worker")

EVERY = 1.0
"""Seconds between two looks while nothing is due: others may add schedules, or change them."""

LED = 30.0
"""The same where a worker tells the ticker, after each of its own looks, when a schedule is due next."""

SPREAD = 0.05
"""Seconds within which the workers come to a tick. The first does it, and most others see that it is done."""

SOME = 20
"""Schedules in one look."""


class Ticker:
    """The chore of one worker; `save` writes the schedules that its code declares."""

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
        self._left: set[str] = set()
        self.led = False
        self._nap: asyncio.Future[None] | None = None
        self._rings_at = -math.inf

    async def run(self) -> None:
        """Look after schedules, for ever."""
        while True:
            pause = EVERY
            try:
                pause = await self.look()
            except StoreUnavailable as error:
                log.warning("cannot look after schedules, trying again: %s", error)
            except Exception:
                log.exception("looking after schedules failed")
            await self._rest(pause + self._rng.uniform(0, SPREAD))

    def saw(self, next_tick_in: float | None, now: float) -> None:
        """A worker has looked around: in so many seconds a schedule is due."""
        if next_tick_in is None or next_tick_in > 0:
            if self._alive_since is not None:
                self._alive_since = max(self._alive_since, now)
            if next_tick_in is None:
                return
        elif self._left:  # one that this worker cannot read is due for ever
            return
        if self._clock.monotonic() + next_tick_in < self._rings_at:
            self._ring()

    async def _rest(self, pause: float) -> None:
        """So long, or until a schedule is due sooner than was known."""
        self._rings_at = self._clock.monotonic() + pause
        self._nap = asyncio.get_running_loop().create_future()
        alarm = self._spawn(self._clock.sleep(pause), "onward-ticker-alarm")
        alarm.add_done_callback(lambda done: None if done.cancelled() else self._ring())
        try:
            await self._nap
        finally:
            self._nap = None
            alarm.cancel()

    def _ring(self) -> None:
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    async def look(self) -> float:
        """Fire what is due; in how many seconds to look again."""
        most = SOME + len(self._left)
        now, rows = await self._store.schedules.list(soonest=most)
        alive_since = now if self._alive_since is None else self._alive_since
        nexts = [at for row in rows if (at := await self._turn(row, now, alive_since)) is not None]
        more = len(rows) == most and nexts and max(row.next_at or 0.0 for row in rows) <= now
        if more or any(at <= now for at in nexts):
            return 0.0
        self._alive_since = now  # not before: what is left of this look was not missed
        return min([LED if self.led and not self._left else EVERY, *(at - now for at in nexts)])

    async def _turn(self, row: ScheduleRow, now: float, alive_since: float) -> float | None:
        """When to come back to a schedule; None for one that this worker cannot read."""
        assert row.next_at is not None
        if row.next_at > now:
            return row.next_at
        try:
            ticks, next_at = due(row.rhythm, row.missed, row.next_at, now, alive_since)
        except OnwardError as error:  # a time zone that this machine does not know: another may
            self._complain(row, error)
            return None
        tasks = [row.task_at(tick, self._ids()) for tick in ticks]
        to = row._replace(next_at=next_at, last_at=ticks[-1] if ticks else row.last_at, mark=self._ids())
        if not await self._store.schedules.advance(row.name, row.mark, to, tasks):
            return now  # somebody was quicker; look at what he made of it
        if tasks:
            self._store.nudge("ready", [task.id for task in tasks])
        return next_at

    def _complain(self, row: ScheduleRow, error: OnwardError) -> None:
        if row.name not in self._left:
            log.warning("schedule %s is left to other workers: %s", row.name, error)
            self._left.add(row.name)
