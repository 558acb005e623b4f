"""Upkeep: what a worker does for others. It frees the tasks of workers that died, and ends what a cancel did not come to.

Upkeep asks the store nothing by itself while all is well: each look of the worker tells it whether there is something to do. No worker
is in charge. Where workers run on several machines, they take turns at looking for one whose presence lock is free: one of them every
half second, whichever has died.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from onward.core.clock import Clock
from onward.engine.worker.lease import Lease
from onward.engine.worker.presence import CONFIRM, Watch
from onward.errors import OnwardError, StoreUnavailable
from onward.store.port.core import Outlook, Store

log = logging.getLogger("onward.worker")

WATCH_EVERY = 0.5
"""Seconds between two looks for absent workers, of all workers together."""

LEAST = 1.0
"""Seconds between two such looks of one worker."""

ORPHANS_EVERY = 2.0
"""Seconds between two looks for orphans, of one worker; longer where there are many workers."""

CancelChildren = Callable[[Sequence[str]], Coroutine[Any, Any, int]]


class Upkeep:
    """The chore of one worker."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rng: random.Random,
        lease: Lease,
        *,
        me: Callable[[], str],
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, Any], str], Any],
        cancel_children: CancelChildren,
    ) -> None:
        self._store, self._clock, self._rng, self._lease = store, clock, rng, lease
        self._me, self._now, self._spawn, self._cancel_children = me, now, spawn, cancel_children
        self._leaving: set[str] = set()
        self._watch = Watch(self._died, one_machine=store.one_machine)
        self._outlook: Outlook | None = None
        self._told = asyncio.Event()
        self._crew: tuple[int, float] | None = None
        self._turn_at = math.inf
        self._rank, self._many = 0, 1
        self._next_orphans = clock.monotonic()
        self._next_sweep = (
            clock.monotonic() + lease.duration
        )  # a newcomer cannot tell a worker that died from one that is cut off

    def saw(self, outlook: Outlook) -> None:
        """The worker has looked around."""
        self._outlook = outlook
        self._told.set()

    async def run(self) -> None:
        """Look after others, for ever."""
        while True:
            await self._told.wait()
            self._told.clear()
            assert self._outlook is not None
            try:
                await self._look_after_others(self._outlook)
                await self._look_after_orphans(self._outlook)
                if self._outlook.lost and self._clock.monotonic() >= self._next_sweep and self._lease.may_judge():
                    self._next_sweep = self._clock.monotonic() + self._lease.duration / 4 * self._rng.uniform(0.8, 1.2)
                    await self._rescue([], self._lease.duration)
            except StoreUnavailable:
                self._lease.doubt()
            except Exception:
                log.exception("upkeep failed")

    def close(self) -> None:
        self._watch.close()

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────

    def turn_in(self) -> float:
        """Seconds until it is this worker's turn to look for absent workers; infinite where the kernel watches all of them."""
        return self._turn_at - self._clock.monotonic()

    def takes_turn(self) -> float | None:
        """The lease to look for absent workers with, when it is our turn; the next turn is set then."""
        if self.turn_in() > 0:
            return None
        self._set_turn()
        return self._lease.duration

    def _set_turn(self) -> None:
        """The workers are ranked by their ids and go by the time of the database, so that their turns lie half a second apart."""
        period, phase = max(LEAST, WATCH_EVERY * self._many), WATCH_EVERY * self._rank
        self._turn_at = self._clock.monotonic() + period - (self._now() - phase) % period

    async def _look_after_others(self, outlook: Outlook) -> None:
        if self._store.inline:
            return
        me = self._me()
        if outlook.crew != self._crew:
            rows = await self._store.workers.list()
            self._crew, self._many = outlook.crew, len(rows)
            self._rank = sum(row.id < me for row in rows)
            self._watch.peers(others := [row for row in rows if row.id != me])
            if self._watch.misses(others):
                self._set_turn()
            else:
                self._turn_at = math.inf
        if outlook.absent - {me}:
            self._watch.confirmed(set(outlook.absent - {me}), self._clock.monotonic())
            await self._clock.sleep(CONFIRM)
            still = await self._store.workers.absent(self._lease.duration) - {me}
            absent = self._watch.confirmed(still, self._clock.monotonic())
            if absent and self._lease.may_judge():
                await self._rescue(sorted(absent))

    async def _look_after_orphans(self, outlook: Outlook) -> None:
        """Whoever cancelled a tree of tasks may have died on the way."""
        if not outlook.children or self._clock.monotonic() < self._next_orphans:
            return
        self._next_orphans = self._clock.monotonic() + max(ORPHANS_EVERY, WATCH_EVERY * self._many)
        if orphans := await self._store.orphans():
            self._next_orphans = self._clock.monotonic()
            for orphan in orphans:
                await self._store.cancel(orphan)
            await self._cancel_children(orphans)

    async def hand_back(self, worker: str, task_ids: list[str]) -> None:
        """Make tasks ready that a claim brought when this worker had begun to stop. They were not begun, and it claims nothing after."""
        try:
            await self._store.release(worker, task_ids, math.inf)
            self._store.nudge("ready")
        except OnwardError as error:
            log.warning(
                "could not give %d tasks back yet, they are freed as the worker leaves: %s", len(task_ids), error
            )

    # ── what we hold and do not know of ──────────────────────────────────────────────────────────────────────────

    def give_back(self, task_ids: frozenset[str], before: float) -> None:
        """Make tasks ready that the store says we hold, and held at that time, and that we do not know of."""
        if again := task_ids - self._leaving:
            self._leaving |= again
            self._spawn(self._give_back(sorted(again), before), "onward-give-back")

    async def _give_back(self, task_ids: list[str], before: float) -> None:
        log.warning("giving %d tasks back that the store says we hold", len(task_ids))
        try:
            await self._store.release(self._me(), task_ids, before)
            self._store.nudge("ready")
        except OnwardError as error:
            log.warning("could not give them back yet: %s", error)
        finally:
            self._leaving -= set(task_ids)

    # ── those that died ──────────────────────────────────────────────────────────────────────────────────────────

    def _died(self, worker: str) -> None:
        self._spawn(self._rescue_now(worker), "onward-rescue")

    async def _rescue_now(self, worker: str) -> None:
        try:
            await self._rescue([worker])
        except OnwardError as error:
            self._crew = None  # look at all of them again
            log.warning("could not free the tasks of worker %s yet: %s", worker, error)

    async def _rescue(self, dead: list[str], lease: float | None = None) -> None:
        freed = await self._store.workers.rescue(dead, lease, self._now())
        if freed:
            log.warning("%d tasks of dead workers are ready to go on", freed)
            self._store.nudge("ready")
