"""The installation as a whole: its queues, workers and figures. A part of the service.

A paused queue stays paused, over all workers and restarts, until it is unpaused: no worker starts a task of it, and running tasks go
on. Counts of unfinished tasks are exact; with many thousands they may be a few seconds old. Counts of ended tasks are exact up to a
bound (`Stats.exact`).
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from onward.core import wire
from onward.core.clock import Clock
from onward.core.history import History, HistoryPoint
from onward.core.page import Page, check_limit, every_item, fitting
from onward.core.task import ASKS_A_PERSON, Reason, State, open_state
from onward.core.view_json import from_row
from onward.core.views import CodeVersion, Queue, Stats, WorkerView
from onward.errors import BadSetting
from onward.service.shared_read import SharedRead
from onward.service.submission import named
from onward.store.port.core import Store
from onward.store.port.listing import PAGE_BYTES
from onward.store.port.overview import Ended, Unfinished
from onward.store.port.workers import WorkerRow
from onward.store.shared.minutes import Minute
from onward.store.shared.overview import PAGE_QUEUES
from onward.telemetry import OTHER

T = TypeVar("T")

PAGE_WORKERS = 1_000
"""Workers of a page."""

MAX_VERSIONS = 1_000
"""Versions of the code in one list."""

SPANS: Mapping[str, tuple[int, int]] = {"hour": (1, 60), "day": (15, 96)}
"""The time axes of `history`: the minutes of a piece, and how many pieces there are."""

MAX_COUNT_ENDED = 10_000
"""Ended tasks that are counted; above it they are estimated."""

MAX_FRESH_COUNT = 10_000
"""Unfinished tasks above which a count of them is used again for a while (see `SharedRead`)."""

READY = frozenset({Reason.QUEUED, Reason.CANCELLING})
"""Reasons of tasks that a worker may start now."""

WAITING = READY | {Reason.DELAYED, Reason.QUOTA}
"""Reasons of tasks that count for the bound of a queue."""


_ACTIVITIES: Mapping[str, str] = {Reason.RUNNING: "running", Reason.PARKED: "parked"}


class Cluster:
    """Reads queues, workers and figures; pauses queues."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        unfinished, reasons = store.overview.unfinished, store.overview.reasons
        self._first_queues = _for_readers(clock, unfinished, _many_unfinished)
        """The unfinished tasks of the first page of queues."""
        self._reasons = _for_readers(clock, reasons, _many)
        """How many unfinished tasks there are, by reason."""
        self._held = SharedRead(clock, self._read_held)

    async def _read_held(self) -> tuple[float, dict[str, int]]:
        return await self._store.overview.held()

    async def _count_unfinished(self, whose: str | None, cursor: str | None, limit: int) -> Page[Unfinished]:
        if cursor is None and whose in self._first_queues:
            return await self._first_queues[whose]()
        return await self._store.overview.unfinished(whose, after=cursor or "", limit=limit)

    async def _count_reasons(self, whose: str | None) -> dict[str, int]:
        if whose in self._reasons:
            return await self._reasons[whose]()
        return await self._store.overview.reasons(whose)

    async def queue_page(
        self, whose: str | None = None, *, limit: int = PAGE_QUEUES, cursor: str | None = None
    ) -> Page[Queue]:
        """A page of the queues that have unfinished tasks, a limit, or a worker that names them, by name; `next` is the cursor of the next
        page. With `whose`, only the tasks of that tenant count ("": those without a tenant), and a queue with no such task is left out
        unless it has a limit or a worker."""
        check_limit(limit, PAGE_QUEUES)
        unfinished, limits = await self._count_unfinished(whose, cursor, limit), await self._store.queues.limits()
        workers = await self.workers()
        rows: dict[str, list[Unfinished]] = collections.defaultdict(list)
        for row in unfinished:
            rows[row.queue].append(row)
        others = {*limits, *(queue for worker in workers if worker.alive for queue in worker.queues)}
        known = [name for name in sorted({*rows, *others}) if name > (cursor or "")]
        names = [name for name in known if unfinished.next is None or name <= unfinished.next][:limit]
        more = len(names) < len(known) or unfinished.next is not None
        queues = [_queue(name, rows[name], limits.get(name, (None, False)), workers) for name in names]
        return Page(queues, names[-1] if more else None)

    async def queues(self, whose: str | None = None) -> list[Queue]:
        """The queues of all pages."""
        return await every_item(lambda cursor: self.queue_page(whose, cursor=cursor))

    async def largest_queues(self, most: int) -> tuple[list[Queue], int]:
        """So many queues, by name: those that have a limit or are paused, and those with the most unfinished tasks. Also how many
        tasks wait in other queues."""
        limits, workers = await self._store.queues.limits(), await self.workers()
        rows: dict[str, list[Unfinished]] = collections.defaultdict(list)
        for row in await self._store.overview.largest(most):
            rows[row.queue].append(row)
        others = _queue(OTHER, rows.pop(OTHER, []), (None, False), ()).waiting
        names = [*limits, *(name for name in rows if name not in limits)]
        queues = [_queue(name, rows[name], limits.get(name, (None, False)), workers) for name in names]
        others += sum(queue.waiting for queue in queues[most:])
        return sorted(queues[:most], key=lambda queue: queue.name), others

    async def queue(self, name: str) -> Queue:
        """One queue; an unknown one is empty."""
        rows = await self._store.overview.unfinished_in(name)
        limit = (await self._store.queues.limits()).get(name, (None, False))
        return _queue(name, rows, limit, await self.workers())

    async def pause_queue(self, name: str) -> Queue:
        """Pause a queue: no worker starts a task of it until it is unpaused. Running tasks go on."""
        await self._store.queues.pause(named("queue", name), paused=True)
        return await self.queue(name)

    async def unpause_queue(self, name: str) -> Queue:
        """Unpause a queue."""
        await self._store.queues.pause(named("queue", name), paused=False)
        self._store.nudge("ready")
        return await self.queue(name)

    async def worker_page(self, *, limit: int = PAGE_WORKERS, cursor: str | None = None) -> Page[WorkerView]:
        """A page of the workers that were not declared dead, the oldest first; `next` is the cursor of the next page. Their handlers and
        queues have about 4 MB together."""
        check_limit(limit, PAGE_WORKERS)
        rows = await self._store.workers.list(after=cursor or "", limit=limit)
        now, held = await self._held()
        views = [_worker(row, now, held.get(row.id, 0)) for row in rows]
        page = fitting(views, PAGE_BYTES, _name_bytes)
        return Page(page, page[-1].id if page and (len(page) == limit or len(page) < len(views)) else None)

    async def workers(self) -> list[WorkerView]:
        """All workers that were not declared dead, the oldest first."""
        rows = await self._store.workers.list()
        now, held = await self._held()
        return [_worker(row, now, held.get(row.id, 0)) for row in rows]

    async def versions(self) -> list[CodeVersion]:
        """The versions of the code that living workers have, or that ran the latest shift of an unfinished task; the one with the most
        workers first, then the one with the most tasks, 1,000 at most. It reads a record of each unfinished task."""
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        for group in await every_item(lambda cursor: self._store.overview.latest_shifts(after=cursor or "")):
            if group.data is not None:
                counts[_version(group.data), _ACTIVITIES.get(group.reason, "waiting")] += group.tasks
        living = [worker for worker in await self.workers() if worker.alive]
        alive = collections.Counter(worker.version for worker in living)
        started = {worker.version: worker.started_at for worker in sorted(living, key=lambda w: -w.started_at)}
        names = {*alive, *(version for version, _ in counts)}
        versions = [
            CodeVersion(
                version=name,
                workers=alive[name],
                running=counts[name, "running"],
                waiting=counts[name, "waiting"],
                parked=counts[name, "parked"],
                started_at=started.get(name),
            )
            for name in names
        ]
        versions.sort(key=lambda v: (-v.workers, -(v.running + v.waiting + v.parked), v.version))
        return versions[:MAX_VERSIONS]

    async def _ended(self, whose: str | None) -> Ended:
        if whose is None:
            return await self._store.overview.ended(MAX_COUNT_ENDED)
        completed, failed, cancelled = [
            len(await self._store.listing.ids(limit=MAX_COUNT_ENDED, before=None, state=state, whose=whose))
            for state in (State.COMPLETED, State.FAILED, State.CANCELLED)
        ]
        return Ended(completed, failed, cancelled, max(completed, failed, cancelled) < MAX_COUNT_ENDED)

    async def stats(self, whose: str | None = None) -> Stats:
        """How many tasks there are, by state and reason, and how many the workers finish. With `whose`, only the tasks of that tenant count
        ("": those without a tenant); workers serve all tenants."""
        reasons, ended = await self._count_reasons(whose), await self._ended(whose)
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

    async def history(self, span: str = "hour") -> History:
        """The last hour or day on a time axis. It reads a row for each minute at most, however many tasks there were."""
        if span not in SPANS:
            raise BadSetting("span", span, " or ".join(map(repr, SPANS)))
        step, pieces = SPANS[span]
        now, _ = await self._store.overview.held()
        last = int(now // 60) // step
        first = last - pieces + 1
        found: dict[int, list[Minute]] = {}
        for minute in await self._store.minutes.since(first * step):
            found.setdefault(minute.minute // step, []).append(minute)
        return History(step * 60, tuple([_point(n * step * 60, found.get(n, ())) for n in range(first, last + 1)]))


def _point(at: int, minutes: Sequence[Minute]) -> HistoryPoint:
    completed, failed, cancelled = (
        sum(getattr(minute, name) for minute in minutes) for name in ("completed", "failed", "cancelled")
    )
    ended = completed + failed + cancelled
    return HistoryPoint(
        at=float(at),
        completed=completed,
        failed=failed,
        cancelled=cancelled,
        mean_s=sum(minute.seconds for minute in minutes) / ended if ended else None,
        slowest_s=max(minute.slowest for minute in minutes) if ended else None,
        cost_usd=sum(minute.cost for minute in minutes),
        waiting=max((minute.waiting for minute in minutes), default=None),
    )


def _for_readers(
    clock: Clock, read: Callable[[str | None], Awaitable[T]], large: Callable[[T], bool]
) -> dict[str | None, SharedRead[T]]:
    """A read that many callers ask for: of all tasks, and of those without a tenant."""
    return {whose: SharedRead(clock, functools.partial(read, whose), large) for whose in (None, "")}


def _many_unfinished(rows: Iterable[Unfinished]) -> bool:
    return sum(row.tasks for row in rows) > MAX_FRESH_COUNT


def _many(reasons: Mapping[str, int]) -> bool:
    return sum(reasons.values()) > MAX_FRESH_COUNT


def _name_bytes(worker: WorkerView) -> int:
    return sum(len(name.encode()) for name in (*worker.handlers, *worker.queues))


def _version(data: bytes) -> str:
    """The version in the data of a `shift.started` record; empty where it has none."""
    return str(wire.decode(data).get("version", ""))


def _queue(
    name: str, rows: Iterable[Unfinished], limit: tuple[int | None, bool], workers: Iterable[WorkerView]
) -> Queue:
    reasons = {row.reason: row.tasks for row in rows}
    ready = [max(0.0, row.oldest) for row in rows if row.reason in READY]
    return Queue(
        name=name,
        waiting=sum(count for reason, count in reasons.items() if reason in WAITING),
        running=reasons.get(Reason.RUNNING, 0),
        reasons=reasons,
        oldest_s=max(ready, default=None),
        paused=limit[1],
        limit=limit[0],
        rate=sum((worker.rate for worker in workers if worker.alive and _serves(worker, name)), 0.0),
    )


def _serves(worker: WorkerView, queue: str) -> bool:
    return not worker.queues or queue in worker.queues


def _worker(row: WorkerRow, now: float, running: int) -> WorkerView:
    lease_s = row.lease_until - now
    return from_row(WorkerView, row, running=running, handlers=row.names, lease_s=lease_s, alive=lease_s > 0)


def _states(reasons: dict[str, int], ended: Ended) -> dict[str, int]:
    counts = dict.fromkeys(State, 0)
    for reason, count in reasons.items():
        counts[open_state("a worker" if reason == Reason.RUNNING else None, reason)] += count
    counts |= {State.COMPLETED: ended.completed, State.FAILED: ended.failed, State.CANCELLED: ended.cancelled}
    return {state.value: count for state, count in counts.items()}
