"""Checks the database, the clock, the workers and the queues. A part of the service.

`onward doctor` and `GET /api/system` show the same findings.
"""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from onward.core.clock import Clock
from onward.core.task import ASKS_A_PERSON
from onward.core.text import count
from onward.core.views import Check, Health, Queue, Stats
from onward.service.cluster import Cluster
from onward.service.intakes import Intakes
from onward.service.locks import Locks
from onward.service.shared_read import SharedRead
from onward.store.port.core import Store
from onward.store.port.health import Faults, Seen, unseen
from onward.store.port.outbox import BROKER_LANE, NO_CLIENT, NO_KEY, UNSIGNED, LaneDepth
from onward.store.port.workers import WorkerRow

MAX_SKEW_S = 2.0
"""Seconds by which this machine's clock may differ from the database's. Leases work with any difference; it confuses people who
compare times."""

MAX_QUEUES = 100
"""Queues that have a check of their own."""

MAX_HELD_UP = 1_000
"""Events that no relay could decrypt, or sign, which are counted."""

UNSENT = {
    UNSIGNED: "a worker has no ONWARD_WEBHOOK_SECRET; give all workers the secret that the programs have which submit",
    NO_CLIENT: "a worker has no HTTP client; pip install 'onward[client]'",
}
"""Why webhooks wait that no process can send, and what to do."""

MAX_EVENT_AGE_S = 60.0
"""Seconds that an event may wait for its broker before the doctor warns."""

SAMPLE_TASKS = 200
"""Tasks that the quick census checks of each kind in which a fault shows first: the oldest unfinished tasks, those that are held, those
that sleep for ever, and the newest."""


BrokerChecks = Callable[[], Awaitable[Sequence[Check]]]
"""Checks the brokers that an app names."""


async def no_brokers() -> Sequence[Check]:
    """For a service without an app, which names no brokers."""
    return ()


class Doctor:
    """Checks the system."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cluster: Cluster,
        queue_limit: int,
        locks: Locks,
        intakes: Intakes,
        broker_checks: BrokerChecks = no_brokers,
    ) -> None:
        self._store, self._clock, self._cluster, self._limit = store, clock, cluster, queue_limit
        self._locks, self._intakes, self._broker_checks = locks, intakes, broker_checks
        self._sample = SharedRead(clock, lambda: store.health.recent_census(SAMPLE_TASKS))

    async def look(self, settings: Mapping[str, Any], version: str) -> Health:
        """The health of the system, with its settings and versions."""
        version_there, version_wanted = await self._store.version()
        return Health(
            database=self._store.where,
            store="sqlite" if self._store.one_machine else "postgres",
            tables=version_there,
            tables_wanted=version_wanted,
            skew_s=round(await self._skew(), 3),
            bytes=await self._store.overview.size(),
            stats=await self._cluster.stats(),
            settings=settings,
            version=version,
            python=platform.python_version(),
            checks=await self.checks(),
        )

    async def checks(self, *, deep: bool = False, seen: Seen = unseen) -> list[Check]:
        """All checks. Their cost does not depend on the history, unless they are `deep`: then they read the whole database, in slices, and
        report to `seen` how many records they have read."""
        queues, elsewhere = await self._cluster.largest_queues(MAX_QUEUES)
        stats = await self._cluster.stats()
        return [
            *(Check(*entry) for entry in await self._store.health.doctor(deep=deep)),
            await self._tables(),
            await self._time(),
            await (self._whole_census(seen) if deep else self._census()),
            *await self._locks.checks(),
            _people(stats),
            *await self._workers_and_queues(queues, elsewhere),
            *await self._broker_checks(),
            *await self._intakes.checks(),
            *[_events(depth) for depth in await self._store.outbox.depths(BROKER_LANE)],
            *_locked(*await self._store.outbox.held_up(NO_KEY, MAX_HELD_UP)),
            *[
                check
                for why, advice in UNSENT.items()
                for check in _unsent(*await self._store.outbox.held_up(why, MAX_HELD_UP), advice)
            ],
        ]

    async def _tables(self) -> Check:
        there, ours = await self._store.version()
        newer = "; a newer program made them, and this one works with them" if there > ours else ""
        return Check("tables", None if newer else there == ours, f"version {there} (this program: {ours}){newer}")

    async def _skew(self) -> float:
        sent = self._clock.now()
        beat = await self._store.workers.heartbeat(
            "", 0.0, 0.0
        )  # of no worker: it changes nothing, and returns the time
        return beat.now - (sent + self._clock.now()) / 2

    async def _time(self) -> Check:
        skew = await self._skew()
        side = "ahead of" if skew < 0 else "behind"
        return Check("clock", abs(skew) <= MAX_SKEW_S, f"{abs(skew):.2f} s {side} the database's")

    async def _census(self) -> Check:
        return _tasks(
            await self._sample(),
            "none is stuck of those looked at (all: onward doctor --deep)",
        )

    async def _whole_census(self, seen: Seen) -> Check:
        return _tasks(await self._store.health.census(seen), "none is stuck")

    async def _workers_and_queues(self, listed: list[Queue], elsewhere: int) -> list[Check]:
        now = self._clock.now()
        rows = await self._store.workers.list()
        alive = [row for row in rows if row.lease_until > now]
        queues = {queue.name: queue for queue in listed}
        if "default" not in queues:
            queues["default"] = default = await self._cluster.queue("default")
            elsewhere = max(0, elsewhere - default.waiting)
        return [
            _workers(alive, len(rows) - len(alive), sum(queue.waiting for queue in queues.values()) + elsewhere),
            *(_queue(queues[name], self._limit) for name in sorted(queues)),
            *([_others(elsewhere)] if elsewhere else []),
        ]


def _tasks(faults: Faults, fine: str) -> Check:
    some = "; ".join(f"{task_id} {fault}" for task_id, fault in faults[:3])
    more = f" and {len(faults) - 3:,} more" if len(faults) > 3 else ""
    return Check("tasks", not faults, f"{some}{more}" if faults else fine)


def _people(stats: Stats) -> Check:
    reasons = {reason: many for reason, many in stats.reasons.items() if reason in ASKS_A_PERSON}
    if not reasons:
        return Check("people", True, "no task waits for a person")
    number = stats.people
    some = f"{count(number, 'task')} {'waits' if number == 1 else 'wait'}"
    by_reason = ", ".join(f"{many:,} {reason}" for reason, many in sorted(reasons.items()))
    return Check("people", None, f"{some} for a person ({by_reason}): onward list --state waiting")


def _workers(alive: list[WorkerRow], gone: int, waiting: int) -> Check:
    dead = f"; {count(gone, 'lease')} ended and not cleared up yet" if gone else ""
    if not alive:
        tasks = f"{count(waiting, 'task')} waiting, and " if waiting else ""
        return Check("workers", False if waiting else None, f"{tasks}none is running: onward worker MODULE:APP{dead}")
    slots, rate = sum(row.slots for row in alive), sum(row.rate for row in alive)
    hosts = ", ".join(sorted({f"{row.host} (pid {row.pid})" for row in alive})[:3])
    return Check("workers", True, f"{len(alive)} alive, {count(slots, 'slot')}, {rate:.1f} tasks/s: {hosts}{dead}")


def _events(depth: LaneDepth) -> Check:
    place = depth.name.removeprefix(BROKER_LANE)
    waiting = f"{count(depth.events, 'event')} {'waits' if depth.events == 1 else 'wait'}, the oldest for {depth.oldest_s:,.0f} s"
    if depth.oldest_s <= MAX_EVENT_AGE_S:
        return Check(f"events for {place}", True, waiting)
    variable = f"ONWARD_BROKER_{place.partition('/')[0].upper()}"
    why = f"the broker is away or refuses them (the log says why), or no worker has {variable}; none is lost"
    return Check(f"events for {place}", False, f"{waiting}: {why}")


def _locked(events: int, oldest_s: float | None) -> list[Check]:
    if not events:
        return []
    number = f"{events:,} or more events" if events >= MAX_HELD_UP else count(events, "event")
    waits = f"{number} cannot be decrypted, the oldest for {oldest_s or 0.0:,.0f} s, and the events of their tasks wait behind them"
    advice = "give the workers the key in ONWARD_ENCRYPTION_KEYS (onward encryption names it)"
    return [Check("encrypted events", False, f"{waits}: {advice}")]


def _unsent(events: int, oldest_s: float | None, advice: str) -> list[Check]:
    if not events:
        return []
    number = f"{events:,} or more" if events >= MAX_HELD_UP else f"{events:,}"
    return [Check("webhooks", False, f"{number} not sent, the oldest from {oldest_s or 0.0:,.0f} s ago: {advice}")]


def _others(waiting: int) -> Check:
    return Check("other queues", None, f"{count(waiting, 'task')} waiting in smaller queues: onward queues")


def _queue(queue: Queue, limit: int) -> Check:
    full = f" of {limit:,}; more workers, or a higher ONWARD_QUEUE_LIMIT" if queue.waiting > limit * 0.9 else ""
    waiting = f"{count(queue.waiting, 'task')} waiting{full}"
    if queue.paused:
        return Check(f"queue {queue.name}", None, f"paused, {waiting}: onward queues unpause {queue.name}")
    return Check(f"queue {queue.name}", not full, waiting)
