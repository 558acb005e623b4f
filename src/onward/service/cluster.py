"""The place as a whole: its queues, its workers, its numbers. A part of the service.

A queue that is paused stays so, over all workers and restarts, until somebody lets it go on: nobody starts anything of it, and
what runs goes on. Numbers of what is unfinished are exact, and of many thousands a few seconds old at most; of what has ended they are exact
up to a bound (`Stats.exact`).
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
from collections.abc import Iterable

from onward.core.clock import Clock
from onward.core.task import ASKS_A_PERSON, Reason, State, open_state
from onward.service.submission import named
from onward.store.port.core import Store
from onward.store.port.overview import Ended, Unfinished
from onward.store.port.workers import WorkerRow

COUNTED = 10_000
"""Ended tasks that are counted; above it they are estimated."""

MANY = 10_000
"""Unfinished tasks above which a count of them is used again, for ten times as long as it took, and no longer than `STALE`."""

SLOW_COUNT_S = 0.25
"""A count that takes longer is used again as well: the database cannot clean up (see `onward doctor`), and walks over dead rows."""

STALE = 5.0

READY = frozenset({Reason.QUEUED, Reason.CANCELLING})
"""Those that a worker may start now."""

WAITING = READY | {Reason.DELAYED, Reason.QUOTA}
"""Those that count for the bound of a queue."""


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """A queue: all that is unfinished in it."""

    name: str
    waiting: int
    """Tasks that wait to be started, also for a limit or a time: what the bound of the queue counts."""
    running: int
    reasons: dict[str, int]
    """All its unfinished tasks by reason."""
    oldest_s: float | None
    """Seconds since the oldest task that could be started now was submitted."""
    paused: bool
    limit: int | None
    """How many of it may run at once, over all workers."""
    rate: float
    """Tasks that the workers which serve it finish in a second, of whatever queue."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that was not declared dead."""

    id: str
    host: str
    pid: int
    slots: int
    running: int
    queues: tuple[str, ...]
    """Those that it serves; empty for all."""
    handlers: tuple[str, ...]
    version: str
    started_at: float
    lease_s: float
    """Seconds until its lease ends, or, below 0, since it did."""
    rate: float
    """Tasks that it finishes in a second."""

    @property
    def alive(self) -> bool:
        """Whether it may still work."""
        return self.lease_s > 0


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of the place."""

    states: dict[str, int]
    """Tasks by state."""
    reasons: dict[str, int]
    """Unfinished tasks by reason."""
    people: int
    """Of them, those in which nothing goes on before a person has done something."""
    workers: int
    slots: int
    rate: float
    """Tasks that all workers finish in a second."""
    exact: bool
    """Whether all of `states` was counted: if not, what completed is an estimate, and what failed or was cancelled is at least
    so much."""


class Cluster:
    """All verbs about it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._counted: list[Unfinished] = []
        self._fresh_until = -math.inf
        self._counting = asyncio.Lock()

    async def _unfinished(self) -> list[Unfinished]:
        """All that is unfinished, by queue and reason. A count reads every unfinished task, and many look at once: they share it."""
        async with self._counting:
            began = self._clock.monotonic()
            if began < self._fresh_until:
                return self._counted
            found = await self._store.overview.unfinished()
            took = self._clock.monotonic() - began
            if sum(one.tasks for one in found) > MANY or took > SLOW_COUNT_S:
                self._counted, self._fresh_until = found, began + min(took * 11, STALE)
            return found

    async def queues(self) -> list[Queue]:
        """All queues that have something unfinished, a limit, or a worker that names them, by name."""
        unfinished, limits = await self._unfinished(), await self._store.queues.limits()
        workers = await self.workers()
        rows: dict[str, list[Unfinished]] = collections.defaultdict(list)
        for one in unfinished:
            rows[one.queue].append(one)
        names = {*rows, *limits, *(queue for worker in workers if worker.alive for queue in worker.queues)}
        return [_queue(name, rows[name], limits.get(name, (None, False)), workers) for name in sorted(names)]

    async def queue(self, name: str) -> Queue:
        """One of them; one that nobody has heard of is empty."""
        found = [queue for queue in await self.queues() if queue.name == name]
        return found[0] if found else _queue(name, [], (None, False), await self.workers())

    async def pause_queue(self, name: str) -> Queue:
        """Let nobody start anything of this queue until it is unpaused; what runs goes on."""
        await self._store.queues.pause(named("queue", name), paused=True)
        return await self.queue(name)

    async def unpause_queue(self, name: str) -> Queue:
        """Let it go on."""
        await self._store.queues.pause(named("queue", name), paused=False)
        self._store.nudge("ready")
        return await self.queue(name)

    async def workers(self) -> list[WorkerView]:
        """All workers that were not declared dead, the oldest first."""
        rows = await self._store.workers.list()
        now, held = await self._store.overview.held()
        return [_worker(row, now, held.get(row.id, 0)) for row in rows]

    async def stats(self) -> Stats:
        """How many tasks there are, by state and reason, and what the workers manage."""
        unfinished, ended = await self._unfinished(), await self._store.overview.ended(COUNTED)
        reasons: collections.Counter[str] = collections.Counter()
        for one in unfinished:
            reasons[one.reason] += one.tasks
        alive = [worker for worker in await self.workers() if worker.alive]
        return Stats(
            states=_states(reasons, ended),
            reasons=dict(sorted(reasons.items())),
            people=sum(count for reason, count in reasons.items() if reason in ASKS_A_PERSON),
            workers=len(alive),
            slots=sum(worker.slots for worker in alive),
            rate=sum((worker.rate for worker in alive), 0.0),
            exact=ended.exact,
        )


def _queue(
    name: str, rows: Iterable[Unfinished], limit: tuple[int | None, bool], workers: Iterable[WorkerView]
) -> Queue:
    reasons = {one.reason: one.tasks for one in rows}
    ready = [max(0.0, one.oldest) for one in rows if one.reason in READY]
    return Queue(
        name=name,
        waiting=sum(count for reason, count in reasons.items() if reason in WAITING),
        running=reasons.get(Reason.RUNNING, 0),
        reasons=reasons,
        oldest_s=max(ready, default=None),
        paused=limit[1],
        limit=limit[0],
        rate=sum((one.rate for one in workers if one.alive and (not one.queues or name in one.queues)), 0.0),
    )


def _worker(row: WorkerRow, now: float, running: int) -> WorkerView:
    return WorkerView(
        id=row.id,
        host=row.host,
        pid=row.pid,
        slots=row.slots,
        running=running,
        queues=row.queues,
        handlers=row.names,
        version=row.version,
        started_at=row.started_at,
        lease_s=row.lease_until - now,
        rate=row.rate,
    )


def _states(reasons: dict[str, int], ended: Ended) -> dict[str, int]:
    found = dict.fromkeys(State, 0)
    for reason, count in reasons.items():
        found[open_state("somebody" if reason == Reason.RUNNING else None, reason)] += count
    found |= {State.COMPLETED: ended.completed, State.FAILED: ended.failed, State.CANCELLED: ended.cancelled}
    return {state.value: count for state, count in found.items()}
