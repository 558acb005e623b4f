"""Upkeep: what a worker does for others. It frees the tasks of workers that died, and ends what a cancel did not come to.

Nobody is in charge: every worker does it now and then, and twice does no harm.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from onward.core.clock import Clock
from onward.engine.lease import Lease
from onward.engine.presence import Watch
from onward.errors import OnwardError, StoreUnavailable
from onward.store.port import Store

log = logging.getLogger("onward.worker")

WATCH_EVERY = 0.5

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

    async def run(self) -> None:
        """Look after others, for ever."""
        next_sweep = self._clock.monotonic() + self._lease.duration  # a newcomer cannot tell an outage from a death
        while True:
            try:
                await self._look_after_others()
                await self._look_after_orphans()
                if self._clock.monotonic() >= next_sweep and self._lease.may_judge():
                    next_sweep = self._clock.monotonic() + self._lease.duration / 4 * self._rng.uniform(0.8, 1.2)
                    await self._rescue([], self._lease.duration)
            except StoreUnavailable:
                self._lease.doubt()
            except Exception:
                log.exception("upkeep failed")
            await self._clock.sleep(WATCH_EVERY)

    def close(self) -> None:
        self._watch.close()

    async def _look_after_others(self) -> None:
        if self._store.inline:
            return
        me = self._me()
        self._watch.peers([row for row in await self._store.workers() if row.id != me])
        absent = self._watch.confirmed(await self._store.absent(self._lease.duration) - {me}, self._clock.monotonic())
        if absent and self._lease.may_judge():
            await self._rescue(sorted(absent))

    async def _look_after_orphans(self) -> None:
        """Whoever cancelled a tree of tasks may have died on the way."""
        if orphans := await self._store.orphans():
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
            log.warning("could not free the tasks of worker %s yet: %s", worker, error)

    async def _rescue(self, dead: list[str], lease: float | None = None) -> None:
        freed = await self._store.rescue(dead, lease, self._now())
        if freed:
            log.warning("%d tasks of dead workers are ready to go on", freed)
            self._store.nudge("ready")
