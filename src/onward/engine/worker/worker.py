"""The worker: a process with slots. It claims tasks, does a shift of each, and releases them.

Seven chores run side by side, each a loop that survives an outage of the store: claiming; the journal writer; the heartbeat (a
thread); maintenance, which frees the tasks of workers that died; the ticker, for schedules; the relay, for events; the pruner, for old
tasks and dead letters. A nudge is a hint: without any, polling still finds every task.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import json
import logging
import os
import random
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from onward.artifacts.keeper import Artifacts
from onward.coordinate.tasks import TaskLocks
from onward.core.approval import ApprovalRule
from onward.core.clock import Clock
from onward.core.control import Fenced, HandBack
from onward.core.ids import Ids
from onward.core.limit import LimitRow
from onward.core.shutdown import end_tasks
from onward.engine.background import Spawn, start
from onward.engine.context.secrets import Secrets
from onward.engine.handlers import Handler
from onward.engine.shift.shift import Shift
from onward.engine.shift.threads import Threads
from onward.engine.shift.traced import TracedShift, watching
from onward.engine.worker.claiming import Claiming
from onward.engine.worker.lease import Heartbeat, Lease
from onward.engine.worker.maintenance import CancelChildren, Maintenance
from onward.engine.worker.minutes import MinuteCounts
from onward.engine.worker.presence import machine_id
from onward.engine.worker.relay import Relay
from onward.engine.worker.shares import RunningLimit, TenantShares, no_limit
from onward.engine.worker.ticker import Ticker
from onward.engine.worker.watchdog import Watchdog, release_stuck_tasks
from onward.errors import OnwardError
from onward.store.port.core import Claimed, Store
from onward.store.port.workers import Beat, WorkerRow
from onward.store.writer import Writer
from onward.telemetry import CURRENT_WORKER, LEASES_LOST, counters

log = logging.getLogger("onward.worker")

ANNOUNCE_AFTER_S = 0.1
"""Seconds after which the start of a running step is recorded for watchers."""

SWITCH_INTERVAL_S = 0.0001
"""Seconds after which Python switches to another thread that is ready: SQLite's writer and the heartbeat have little to do in Python,
and must not wait behind a busy loop for Python's default of 5 ms."""

GC_THRESHOLD = 10_000
"""New objects after which Python's garbage collector looks at them. A worker has thousands of objects in use; at Python's default of
700 the collector would look through them again and again, a fifth of the worker's time."""

CANCEL_TIMEOUT_S = 3.0
"""Seconds that a stop waits for shifts that were cancelled, and for a claim that is under way."""

STOP_TIMEOUT_S = 5.0
"""Seconds that a stop waits for the background tasks that it cancels, and for the store to remove the worker."""

BLOCKED_AFTER_S = 1.0
"""Seconds after which a loop that has not turned counts as blocked, when a pause waits for it."""

Submit = Callable[[str, Any, dict[str, Any], str, str, "float | None"], Coroutine[Any, Any, str]]
"""How a shift submits a child: name, input, options, key, parent, deadline."""


class Worker:
    """Start, stop. It is also the WorkerServices of its shifts, and the ClaimServices of its chores."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        *,
        slots: int,
        queues: tuple[str, ...] = (),
        lease: float,
        heartbeat: float,
        poll: float,
        version: str,
        clock: Clock,
        rng: random.Random,
        ids: Ids,
        submit: Submit,
        cancel_children: CancelChildren,
        ticker: Ticker,
        relay: Relay | None = None,
        prune: Callable[[], Coroutine[Any, Any, None]] | None = None,
        limits: tuple[LimitRow, ...] = (),
        artifacts: Artifacts | None = None,
        secrets: Secrets | None = None,
        approval_rules: Sequence[ApprovalRule] = (),
        locks: TaskLocks | None = None,
        running_limit: RunningLimit = no_limit,
        spawn: Spawn = start,
    ) -> None:
        self.store: Store = store
        self.locks: TaskLocks = locks or TaskLocks(store)
        self.clock: Clock = clock
        self.rng: random.Random = rng
        self.threads: Threads = Threads()
        self.slots: int = slots
        self.shares: TenantShares = TenantShares(slots, running_limit)
        self.finished: int = 0
        self._ended = 0
        """How many tasks have ended here. `finished` also counts shifts after which a task waits."""
        self._minutes = MinuteCounts(store, clock)
        self.id: str = ""
        self._handlers, self._queues, self.version = handlers, queues, version
        self._poll, self._ids, self._spawn_bare = poll, ids, spawn
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """All background tasks of this worker that have not ended; a stop ends or logs each of them."""
        self._remove = self._tasks.__delitem__
        self._no_context = contextvars.Context()
        """For `_remove`: without one, each of thousands of tasks would get a copy of the current context for it."""
        self._joining = ""
        """The id with which this worker is joining the store."""
        self._limits = (*limits, *[LimitRow("task", handler.name, handler.limit) for handler in handlers.values()])
        self._ticker = ticker
        self.submit: Submit = submit
        self.artifacts: Artifacts = artifacts or Artifacts(store)
        self.secrets: Secrets = secrets or Secrets()
        self.approval_rules: Sequence[ApprovalRule] = approval_rules
        self._relay, self._prune = relay, prune
        self._shifts: dict[str, Shift] = {}
        self.held: AbstractSet[str] = self._shifts.keys()
        self._claims = 0
        self._chores: list[asyncio.Task[Any]] = []
        self.stopping: bool = False
        self._offset = clock.now() - clock.monotonic()
        self._measured = (clock.monotonic(), 0)
        self.lease: Lease = Lease(clock, lease)
        self._maintenance = Maintenance(self, cancel_children)
        self._claiming = Claiming(self, self._maintenance, ticker, handlers=handlers, queues=queues, poll=poll)
        self.writer: Writer = Writer(store, clock, self.now, rng)
        self._halted: dict[str, tuple[Shift, float, bool]] = {}
        """Paused tasks that this worker holds: the shift, since when it is told to stop, and whether the loop has told it."""
        self._watchdog = Watchdog(clock, heartbeat)
        self._heart = Heartbeat(
            store,
            clock,
            lease=lease,
            interval_s=heartbeat,
            worker=lambda: self.id,
            rate=self._rate,
            on_beat=self._on_beat,
            halt=self._halt,
            confirmed_pauses=self._confirmed_pauses,
            watchdog=self._watchdog,
            on_stuck=self._on_stuck,
        )

    # ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Join the store and begin to claim."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        young, *older = gc.get_threshold()
        if 0 < young < GC_THRESHOLD:  # with 0 the collector is off, and stays off
            gc.set_threshold(GC_THRESHOLD, *older)
        await self.store.data_keys.check()
        handlers = self._handlers.values()
        await self.store.handlers.register(
            [(handler.name, json.dumps(handler.registration()).encode()) for handler in handlers]
        )
        await self._ticker.save()
        await self.store.queues.set_limits(self._limits)
        if self._relay is not None:
            await self._relay.save()
        await self._join()
        if self.stopping:  # nothing begins after a stop
            await self._leave()
            return
        self._ticker.led = True
        self._stop_listening = self.store.listen("ready", self._claiming.wake)
        self._stop_hearing_of_pauses = self.store.listen("pause", self._hurry)
        self._watchdog.watch()
        self._heart.start()
        self._chores = [
            self.spawn(self.writer.run(), "onward-writer"),
            self.spawn(self.writer.run_large(), "onward-writer-large"),
            self.spawn(self._claim_forever(), "onward-claim"),
            self.spawn(self._maintenance.run(), "onward-maintenance"),
            self.spawn(self._ticker.run(), "onward-ticker"),
            self.spawn(self._announce_forever(), "onward-announce"),
        ]
        if self._prune is not None:
            self._chores.append(self.spawn(self._prune(), "onward-prune"))
        if self._relay is not None:
            self._relay.begin()

    async def stop(self, grace: float = 10.0) -> None:
        """Hand running tasks back: at their next step, or when the grace is over. No attempt is counted. Nothing begins after this call, and
        the tasks of a claim that is answered later are given back. Every wait is bounded; the log names each one that was in vain."""
        self.stopping = True
        self._claiming.wake()
        if not self._chores:
            return
        for shift in list(self._shifts.values()):
            shift.stop(HandBack(), now=False)
        await self._until_idle(grace)
        for shift in list(self._shifts.values()):
            shift.stop(HandBack(), now=True)
        await self._until_idle(CANCEL_TIMEOUT_S)
        self._log_unfinished(grace + CANCEL_TIMEOUT_S)
        with contextlib.suppress(OnwardError, TimeoutError):  # the charts can do without the last seconds
            await asyncio.wait_for(self._minutes.add(None), CANCEL_TIMEOUT_S)
        self._stop_listening()
        self._stop_hearing_of_pauses()
        if self._relay is not None:
            await self._relay.stop()
        await end_tasks(self._tasks, STOP_TIMEOUT_S, log, "the stop of the worker")
        self._chores = []
        self.writer.close()  # also when its task was cancelled before it began
        await self._heart.stop()
        self._maintenance.close()
        self.threads.close()
        await self._leave()

    async def _until_idle(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while (self._shifts or self._claiming.under_way) and self.clock.monotonic() < end:
            await self.clock.sleep(0.01)

    def _log_unfinished(self, seconds: float) -> None:
        if self._claiming.under_way:
            log.warning(
                "the stop of the worker waited %g s for the answer to a claim; the tasks that it took are freed as the worker leaves",
                seconds,
            )
        for shift in self._shifts.values():
            log.warning(
                "the stop of the worker waited %g s for task %s (%s), which goes on after it was cancelled; another worker takes it over, "
                "and nothing that it still does here is recorded",
                seconds,
                shift.task_id,
                shift.handler_name,
            )

    async def _leave(self) -> None:
        """Leave the store, with every id that it may know."""
        for name in dict.fromkeys((self.id, self._joining)):
            try:
                if name:
                    await asyncio.wait_for(self.store.workers.leave(name), STOP_TIMEOUT_S)
            except (OnwardError, TimeoutError) as error:
                why = str(error) or f"no answer within {STOP_TIMEOUT_S:g} s"
                log.warning("could not leave the store, the lease will end by itself: %s", why)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._spawn_bare(coroutine, name)
        self._tasks[task] = None
        task.add_done_callback(self._remove, context=self._no_context)
        return task

    async def _join(self) -> None:
        """Join with a new id: at the start, and after other workers took this one for dead. The id counts once the store has it: a heartbeat
        with an id that is still on its way would get the answer that it is dead."""
        name = self._ids()
        row = WorkerRow(
            id=name,
            machine=machine_id(),
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self.slots,
            names=tuple(sorted(self._handlers)),
            queues=self._queues,
            address=await self.store.workers.attend(name),
            version=self.version,
        )
        self._claiming.gets_nudges = bool(row.address)
        sent, self._joining = self.clock.monotonic(), name
        self.sync(await self.store.workers.join(row, self.lease.duration), sent)
        self.id, self._joining = name, ""
        self.writer.worker = name
        self.lease.renew(sent)

    async def others_may_fit(self, task_id: str, tried: AbstractSet[str]) -> bool:
        """See `WorkerServices`."""
        task, workers = await self.store.get(task_id), await self.store.workers.list()
        anyone = not self.lease.may_judge()  # after an outage the leases of all have ended
        return task is not None and any(
            row.version not in tried
            and (anyone or row.lease_until > self.now())
            and task.task in row.names
            and (not row.queues or task.queue in row.queues)
            for row in workers
        )

    # ── the services of its shifts ───────────────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        return self.clock.monotonic() + self._offset

    def due(self, at: float) -> None:
        self._claiming.due(at - self._offset)

    def sync(self, store_now: float, sent: float) -> None:
        offset = store_now - sent
        if abs(offset - self._offset) > self.lease.duration / 4:
            self.lease.doubt()  # its clock has jumped: leases that were prolonged before prove nothing now
        self._offset = offset

    @property
    def running(self) -> int:
        """How many tasks this worker does now."""
        return len(self._shifts)

    # ── shifts ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _claim_forever(self) -> None:
        CURRENT_WORKER.set(self)  # also for all tasks that begin from here
        await self._claiming.run()

    def begin(self, claimed: list[Claimed]) -> None:
        make = TracedShift if watching() else Shift
        self._claims += 1
        claim = (self._claims, 0.0)
        for task in claimed:
            shift = make(self, task, self._handlers[task.task])
            if claim[1] != task.claimed_at:  # under limits a claim is several commits, each at its time
                claim = (self._claims, task.claimed_at)
            shift.hold.claim = claim
            self._shifts[task.id] = shift
            self.shares.take(task.tenant)
            self.spawn(self._run_shift(shift, task), f"onward-task-{task.id}")

    async def _run_shift(self, shift: Shift, claimed: Claimed) -> None:
        try:
            await shift.work()
        except OnwardError as error:
            log.error("task %s: %s", shift.task_id, error)  # noqa: TRY400 -- a sentence, not a trace
        finally:
            was_full = self._claiming.full
            self.finished += 1
            if shift.ended is not None:
                self._ended += 1
                self._minutes.ended(shift.ended, self.now(), claimed.created_at, shift.usage)
            if self._shifts.get(shift.task_id) is shift:
                del self._shifts[shift.task_id]
            self._claiming.slot_freed(awaited=self.shares.free(claimed.tenant) or was_full)

    # ── heartbeat ────────────────────────────────────────────────────────────────────────────────────────────────

    def _rate(self) -> float:
        before, count = self._measured
        now = self.clock.monotonic()
        self._measured = (now, self._ended)
        return (self._ended - count) / max(now - before, 0.001)

    def _on_beat(self, sent: float, worker: str, beat: Beat) -> None:
        if worker != self.id or not worker:
            return
        if not beat.alive:
            self._declared_dead()
            return
        self.lease.renew(sent)
        self.sync(beat.now, sent)
        self._compare(sent, beat)

    def _compare(self, sent: float, beat: Beat) -> None:
        """Compare the tasks that the store says this worker holds with its shifts. A shift that lost its task (a cancel) is dropped at once."""
        for shift in list(self._shifts.values()):
            if shift.began < sent and shift.task_id not in beat.held and not shift.settling:
                self.writer.lose([shift.hold])
                shift.stop(Fenced(), now=True)
        self._halt_in_loop(beat.paused)
        self._claiming.give_back_lost(beat)

    # ── pause ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hurry(self) -> None:
        """Send a heartbeat now: a task was paused, and it may be one of this worker."""
        if self._shifts and self.store.inline:
            self.spawn(self._heart.beat_once(), "onward-beat")
        elif self._shifts:
            self._heart.hurry()

    def _halt(self, paused: frozenset[str]) -> bool:
        """Tell the shifts of these tasks to begin nothing more; whether there is one. Called from the thread of the heartbeat."""
        ours = False
        for task_id in paused:
            if (shift := self._shifts.get(task_id)) is not None:
                shift.stop(HandBack(), now=False)
                if task_id not in self._halted or self._halted[task_id][0] is not shift:
                    self._halted[task_id] = (shift, self.clock.monotonic(), False)
                ours = True
        return ours

    def _halt_in_loop(self, paused: frozenset[str]) -> None:
        """The same in the loop, where it cannot come between the last check of a step and its begin. From here on the pause may be
        confirmed."""
        self._halted = {task_id: entry for task_id, entry in list(self._halted.items()) if task_id in paused}
        for task_id in paused & self._shifts.keys():
            shift = self._shifts[task_id]
            shift.stop(HandBack(), now=False)
            if self._halted.get(task_id) != (halted := (shift, 0.0, True)):
                self._halted[task_id] = halted
                self._hurry()

    def _confirmed_pauses(self) -> list[str]:
        """The paused tasks of which no further step begins. A loop that is blocked has not told its shifts itself, but the thread of the
        heartbeat did, and a step that was about to begin then has begun since. The stop of an earlier shift does not count for a
        task that was resumed and claimed anew. Called from that thread."""
        late = self.clock.monotonic() - BLOCKED_AFTER_S
        return [
            task_id
            for task_id, (shift, since, in_loop) in list(self._halted.items())
            if (in_loop or since < late) and not shift.submitting and self._shifts.get(task_id) is shift
        ]

    def _declared_dead(self) -> None:
        log.warning(
            "this worker was declared dead: its lease ended while it was away; it starts anew under another name"
        )
        counters.add(LEASES_LOST)
        self.lease.drop()
        self.lease.doubt()
        self.writer.lose([shift.hold for shift in self._shifts.values()])
        for shift in list(self._shifts.values()):
            shift.stop(Fenced(), now=True)
        self.id = ""
        self.spawn(self._rejoin(), "onward-rejoin")

    async def _rejoin(self) -> None:
        while not self.stopping:
            try:
                await self._join()
            except Exception as error:
                log.warning("cannot rejoin, trying again: %s", str(error) or repr(error))
                await self.clock.sleep(self._poll)
            else:
                self._claiming.wake()
                return

    async def _on_stuck(self, store: Store, worker: str) -> None:
        """Log the handler and the line that block the event loop, and release the tasks of this worker, so that others continue. The
        thread of the heartbeat calls it."""
        stuck, seconds = self._watchdog.locate(), self._watchdog.stuck_for
        shift = self._shifts.get(stuck.task_id or "")
        if shift is None:
            log.error(
                "the event loop has been stuck for %.0f s at %s: the heartbeat stops, and other workers go on with the tasks",
                seconds,
                stuck.where,
            )
            return
        why = f"its handler {shift.handler_name!r} blocked the event loop of its worker for {seconds:.0f} s at {stuck.where}"
        what = "it is quarantined" if shift.suspected else "it is suspected and runs alone the next time"
        log.error(
            "task %s: %s; %s, and other workers go on with the other tasks. Await instead of blocking there, or make it a step that is a "
            "plain function, which gets a thread",
            shift.task_id,
            why,
            what,
        )
        await release_stuck_tasks(store, worker, shift, why, self.now())

    async def _announce_forever(self) -> None:
        while True:
            await self.clock.sleep(ANNOUNCE_AFTER_S)
            self._watchdog.turned()
            try:
                for shift in list(self._shifts.values()):
                    shift.announce(ANNOUNCE_AFTER_S)
            except Exception:
                log.exception("could not record the start of running steps")
            if self._minutes.is_due(busy=bool(self._shifts)):  # a slow store must not delay the loop
                self.spawn(self._add_minutes(), "onward-minutes")

    async def _add_minutes(self) -> None:
        try:
            await self._minutes.add(self.now())
        except OnwardError as error:
            log.debug("could not add the counts of the last minute: %s", error)
