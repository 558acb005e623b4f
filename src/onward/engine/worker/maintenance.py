"""Maintenance: what a worker does for other workers. It frees the tasks of workers that died, ends tasks whose cancelled parent
did not come to them, and wakes tasks whose lock is free where another process did not come to it.

Maintenance sends no query by itself while all is well: each look of the worker says whether there is something to do. No worker is
in charge. Where workers run on several machines, they take turns at looking for one whose presence lock is free: one of them every
half second, whichever has died.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from onward.coordinate.tasks import RENEW_INTERVAL_S
from onward.core.text import count
from onward.engine.worker.presence import CONFIRM_ABSENCE_S, PresenceWatch
from onward.engine.worker.services import ChoreServices
from onward.errors import CoordinatorUnavailable, OnwardError, StoreUnavailable
from onward.store.port.core import Outlook

log = logging.getLogger("onward.worker")

WATCH_INTERVAL_S = 0.5
"""Seconds between two looks for absent workers, of all workers together."""

MIN_TURN_INTERVAL_S = 1.0
"""Seconds between two such looks of one worker."""

ORPHANS_INTERVAL_S = 2.0
"""Seconds between two looks for orphans, of one worker; longer where there are many workers."""

LOCKS_INTERVAL_S = 1.0
"""Seconds between two looks for tasks whose lock is free, of one worker; longer where there are many workers."""

CancelChildren = Callable[[Sequence[str]], Coroutine[Any, Any, int]]


class Maintenance:
    """The maintenance chore of one worker."""

    def __init__(self, worker: ChoreServices, cancel_children: CancelChildren) -> None:
        self._worker, self._cancel_children = worker, cancel_children
        self._store, self._clock, self._rng, self._lease = worker.store, worker.clock, worker.rng, worker.lease
        self._giving_back: set[str] = set()
        self._watch = PresenceWatch(self._on_death, one_machine=worker.store.one_machine)
        self._outlook: Outlook | None = None
        self._outlook_set = asyncio.Event()
        self._crew: tuple[int, float] | None = None
        self._turn_at = math.inf
        self._rank, self._workers = 0, 1
        self._next_orphans = worker.clock.monotonic()
        self._next_locks, self._next_renewal = worker.clock.monotonic(), worker.clock.monotonic()
        # A new worker cannot know yet which of the others died and which are cut off.
        self._next_sweep = worker.clock.monotonic() + worker.lease.duration

    def saw(self, outlook: Outlook) -> None:
        """Take in what the worker's look at the store has found."""
        self._outlook = outlook
        self._outlook_set.set()

    async def run(self) -> None:
        """Do the maintenance after each look of the worker, for ever."""
        while True:
            await self._outlook_set.wait()
            self._outlook_set.clear()
            assert self._outlook is not None
            try:
                await self._check_workers(self._outlook)
                await self._check_orphans(self._outlook)
                await self._check_locks(self._outlook)
                if self._outlook.lost and self._clock.monotonic() >= self._next_sweep and self._lease.may_judge():
                    self._next_sweep = self._clock.monotonic() + self._lease.duration / 4 * self._rng.uniform(0.8, 1.2)
                    await self._rescue([], self._lease.duration)
            except StoreUnavailable:
                self._lease.doubt()
            except Exception:
                log.exception("maintenance failed")

    def close(self) -> None:
        self._watch.close()

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────

    def turn_in(self) -> float:
        """Seconds until it is this worker's turn to look for absent workers; infinite where the kernel watches all of them."""
        return self._turn_at - self._clock.monotonic()

    def takes_turn(self) -> float | None:
        """The lease to look for absent workers with, when it is this worker's turn; then the next turn is set. Else None."""
        if self.turn_in() > 0:
            return None
        self._set_turn()
        return self._lease.duration

    def _set_turn(self) -> None:
        """Set the next turn. The workers are ranked by their ids and use the time of the database, so their turns are half a second apart."""
        period, phase = max(MIN_TURN_INTERVAL_S, WATCH_INTERVAL_S * self._workers), WATCH_INTERVAL_S * self._rank
        self._turn_at = self._clock.monotonic() + period - (self._worker.now() - phase) % period

    async def _check_workers(self, outlook: Outlook) -> None:
        if self._store.inline:
            return
        me = self._worker.id
        if outlook.crew != self._crew:
            rows = await self._store.workers.list()
            self._crew, self._workers = outlook.crew, len(rows)
            self._rank = sum(row.id < me for row in rows)
            self._watch.watch(others := [row for row in rows if row.id != me])
            if self._watch.any_unwatched(others):
                self._set_turn()
            else:
                self._turn_at = math.inf
        if outlook.absent - {me}:
            self._watch.confirm_absent(set(outlook.absent - {me}), self._clock.monotonic())
            await self._clock.sleep(CONFIRM_ABSENCE_S)
            still = await self._store.workers.absent(self._lease.duration) - {me}
            absent = self._watch.confirm_absent(still, self._clock.monotonic())
            if absent and self._lease.may_judge():
                await self._rescue(sorted(absent))

    async def _check_orphans(self, outlook: Outlook) -> None:
        """Cancel the children of cancelled tasks: the process that cancelled a tree of tasks may have died on the way."""
        if not outlook.children or self._clock.monotonic() < self._next_orphans:
            return
        self._next_orphans = self._clock.monotonic() + max(ORPHANS_INTERVAL_S, WATCH_INTERVAL_S * self._workers)
        if orphans := await self._store.orphans():
            self._next_orphans = self._clock.monotonic()
            for orphan in orphans:
                await self._store.cancel(orphan)
            await self._cancel_children(orphans)

    async def _check_locks(self, outlook: Outlook) -> None:
        """Wake tasks whose lock is free: the process that freed it may have died on the way. And renew what tasks hold in a coordinator
        outside of the store."""
        now = self._clock.monotonic()
        if not outlook.locks or now < self._next_locks:
            return
        self._next_locks = now + max(LOCKS_INTERVAL_S, WATCH_INTERVAL_S * self._workers)
        await self._worker.locks.call_next()
        if now >= self._next_renewal:
            self._next_renewal = now + RENEW_INTERVAL_S
            try:
                await self._worker.locks.renew()
            except CoordinatorUnavailable as error:
                log.warning("the locks of tasks were not renewed: %s", error)

    async def hand_back(self, worker: str, task_ids: list[str]) -> None:
        """Release tasks of a claim that was answered after this worker began to stop. They were not begun."""
        try:
            await self._store.release(worker, task_ids, math.inf)
            self._store.nudge("ready")
        except OnwardError as error:
            log.warning(
                "could not give %d tasks back yet, they are freed as the worker leaves: %s", len(task_ids), error
            )

    # ── held tasks that are unknown here ─────────────────────────────────────────────────────────────────────────

    def give_back(self, task_ids: frozenset[str], before: float) -> None:
        """Release tasks that the store says this worker holds, and held at that time, and that are unknown here."""
        if new := task_ids - self._giving_back:
            self._giving_back |= new
            self._worker.spawn(self._give_back(sorted(new), before), "onward-give-back")

    async def _give_back(self, task_ids: list[str], before: float) -> None:
        log.warning("giving %d tasks back that the store says this worker holds", len(task_ids))
        try:
            await self._store.release(self._worker.id, task_ids, before)
            self._store.nudge("ready")
        except OnwardError as error:
            log.warning("could not give them back yet: %s", error)
        finally:
            self._giving_back -= set(task_ids)

    # ── dead workers ─────────────────────────────────────────────────────────────────────────────────────────────

    def _on_death(self, worker: str) -> None:
        self._worker.spawn(self._rescue_now(worker), "onward-rescue")

    async def _rescue_now(self, worker: str) -> None:
        try:
            await self._rescue([worker])
        except OnwardError as error:
            self._crew = None  # the next look checks all workers again
            log.warning("could not free the tasks of worker %s yet: %s", worker, error)

    async def _rescue(self, dead: list[str], lease: float | None = None) -> None:
        freed = await self._store.workers.rescue(dead, lease, self._worker.now())
        if freed:
            log.warning("%s of dead workers can go on", count(freed, "task"))
            self._store.nudge("ready")
