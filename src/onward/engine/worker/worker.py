"""The worker: a process with slots. It claims tasks, does a shift of each, and releases them.

Six chores run side by side, each a loop that survives an outage of the store: claiming; the journal writer; the heartbeat (a
thread); maintenance, which frees the tasks of workers that died; the ticker, for schedules; the relay, for events. Where old tasks
are pruned, that is a seventh. A nudge is a hint: without any, polling still finds every task.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from onward.artifacts.keeper import Artifacts
from onward.core.clock import Clock
from onward.core.control import Fenced, HandBack
from onward.core.ids import Ids
from onward.core.limit import LimitRow
from onward.core.shutdown import end_tasks
from onward.engine.background import Spawn, spawn
from onward.engine.context.secrets import Secrets
from onward.engine.handlers import Handler
from onward.engine.shift.shift import Shift
from onward.engine.shift.threads import Threads
from onward.engine.shift.traced import TracedShift, watching
from onward.engine.worker.lease import Heartbeat, Lease
from onward.engine.worker.maintenance import CancelChildren, Maintenance
from onward.engine.worker.presence import machine_id
from onward.engine.worker.relay import Relay
from onward.engine.worker.ticker import Ticker
from onward.engine.worker.watchdog import Watchdog, release_stuck_tasks
from onward.errors import OnwardError, StoreUnavailable, TooSlow
from onward.store.port.core import Claimed, Outlook, Store
from onward.store.port.workers import Beat, WorkerRow
from onward.store.writer import Writer
from onward.telemetry import CURRENT_WORKER, LEASES_LOST, counters

log = logging.getLogger("onward.worker")

MAX_CLAIM = 500
"""Tasks in one claim."""

ANNOUNCE_AFTER_S = 0.1
"""Seconds after which the start of a running step is recorded for watchers."""

SWITCH_INTERVAL_S = 0.0001
"""Seconds after which Python switches to another thread that is ready: SQLite's writer and the heartbeat have little to do in Python,
and must not wait behind a busy loop for Python's default of 5 ms."""

GC_THRESHOLD = 10_000
"""New objects after which Python's garbage collector looks at them. A worker has thousands of objects in use; at Python's default of
700 the collector would look through them again and again, a fifth of the worker's time."""

MAX_IDLE_POLLS = 4
"""The pause between two looks of an idle worker grows to this many polls, while nudges can reach it."""

LOOK_PAUSE_FACTOR, MAX_LOOK_PAUSE_S = 20, 5.0
"""After a look the worker pauses for this many times its duration, so looks take a small part of the time; but at most so many seconds."""

PASS_ON_INTERVAL_S = 0.25
"""Seconds between two nudges with which a full worker passes a nudge on to the others."""

WAKE_SPREAD_S = 0.01
"""Seconds, for each other worker, over which the workers spread their looks for a sleeper that none of them put to sleep."""

CANCEL_TIMEOUT_S = 3.0
"""Seconds that a stop waits for shifts that were cancelled, and for a claim that is under way."""

STOP_TIMEOUT_S = 5.0
"""Seconds that a stop waits for the background tasks that it cancels, and for the store to remove the worker."""

MAKE_ROOM_S = 10.0
"""Seconds for which a busy worker claims nothing new, so that a suspect can run alone."""

BLOCKED_AFTER_S = 1.0
"""Seconds after which a loop that has not turned counts as blocked, when a pause waits for it."""

Submit = Callable[[str, Any, dict[str, Any], str, str, "float | None"], Coroutine[Any, Any, str]]
"""How a shift submits a child: name, input, options, key, parent, deadline."""


class Worker:
    """Start, stop. It is also the WorkerServices of its shifts."""

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
        spawn: Spawn = spawn,
    ) -> None:
        self.store: Store = store
        self.clock: Clock = clock
        self.rng: random.Random = rng
        self.threads: Threads = Threads()
        self.slots: int = slots
        self.finished: int = 0
        self.id: str = ""
        self._handlers, self._queues, self._version = handlers, queues, version
        self._poll, self._ids, self._spawn_bare = poll, ids, spawn
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """All background tasks of this worker that have not ended; a stop ends or logs each of them."""
        self._joining = ""
        """The id with which this worker is joining the store."""
        self._limits = (*limits, *[LimitRow("task", handler.name, handler.limit) for handler in handlers.values()])
        self._ticker = ticker
        self.submit: Submit = submit
        self.artifacts: Artifacts = artifacts or Artifacts(store)
        self.secrets: Secrets = secrets or Secrets()
        self._relay, self._prune = relay, prune
        self._known = list(dict.fromkeys(queues or [h.queue for h in handlers.values()]))
        self._shifts: dict[str, Shift] = {}
        self._unknown_held: frozenset[str] = frozenset()
        self._unknown_held_at = 0.0
        self._claims_sent = self._claims_answered = self._claims_sent_then = 0
        self._claims = 0
        self._chores: list[asyncio.Task[Any]] = []
        self._stopping = False
        self._alone = False
        self._quiet_until = self._quiet_next = 0.0
        self._next_due: float | None = None
        self._next_look = 0.0
        self._look: asyncio.Task[Outlook] | None = None
        """The look at the store that is under way."""
        self._looked_at = 0.0
        self._pause = poll
        self._gets_nudges = False
        """Whether nudges of other processes can reach this worker."""
        self._hints: set[str] = set()
        """The queues of nudges since the last round; an empty name means all queues."""
        self._passed_on = 0.0
        self._first = True
        self._woken = False
        self._napping: asyncio.Future[None] | None = None
        self._max_claim = MAX_CLAIM
        self._offset = clock.now() - clock.monotonic()
        self._measured = (clock.monotonic(), 0)
        self.lease: Lease = Lease(clock, lease)
        self._maintenance = Maintenance(
            store,
            clock,
            rng,
            self.lease,
            me=lambda: self.id,
            now=self.now,
            spawn=self._spawn,
            cancel_children=cancel_children,
        )
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
        await self.store.handlers.register([(handler.name, handler.offer()) for handler in self._handlers.values()])
        await self._ticker.save()
        await self.store.queues.set_limits(self._limits)
        if self._relay is not None:
            await self._relay.save()
        await self._join()
        if self._stopping:  # nothing begins after a stop
            await self._leave()
            return
        self._ticker.led = True
        self._stop_listening = self.store.listen("ready", self.wake)
        self._stop_hearing_of_pauses = self.store.listen("pause", self._hurry)
        self._watchdog.watch()
        self._heart.start()
        self._chores = [
            self._spawn(self.writer.run(), "onward-writer"),
            self._spawn(self.writer.run_large(), "onward-writer-large"),
            self._spawn(self._claim_forever(), "onward-claim"),
            self._spawn(self._maintenance.run(), "onward-maintenance"),
            self._spawn(self._ticker.run(), "onward-ticker"),
            self._spawn(self._announce_forever(), "onward-announce"),
        ]
        if self._prune is not None:
            self._chores.append(self._spawn(self._prune(), "onward-prune"))
        if self._relay is not None:
            self._relay.begin()

    async def stop(self, grace: float = 10.0) -> None:
        """Hand running tasks back: at their next step, or when the grace is over. No attempt is counted. Nothing begins after this call, and
        the tasks of a claim that is answered later are given back. Every wait is bounded; the log names each one that was in vain."""
        self._stopping = True
        self.wake()
        if not self._chores:
            return
        for shift in list(self._shifts.values()):
            shift.stop(HandBack(), now=False)
        await self._until_idle(grace)
        for shift in list(self._shifts.values()):
            shift.stop(HandBack(), now=True)
        await self._until_idle(CANCEL_TIMEOUT_S)
        self._log_unfinished(grace + CANCEL_TIMEOUT_S)
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
        while (self._shifts or self._claims_sent > self._claims_answered) and self.clock.monotonic() < end:
            await self.clock.sleep(0.01)

    def _log_unfinished(self, seconds: float) -> None:
        if self._claims_sent > self._claims_answered:
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

    def _spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._spawn_bare(coroutine, name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.__delitem__)
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
            version=self._version,
        )
        self._gets_nudges = bool(row.address)
        sent, self._joining = self.clock.monotonic(), name
        self._sync(await self.store.workers.join(row, self.lease.duration), sent)
        self.id, self._joining = name, ""
        self.writer.worker = name
        self.lease.renew(sent)

    # ── the services of its shifts ───────────────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        return self.clock.monotonic() + self._offset

    def due(self, at: float, *, quietly: bool = False) -> None:
        """Be awake at this time: a task of this worker sleeps until then, and a worker has to wake it."""
        moment = at - self._offset
        if self._next_due is None or moment < self._next_due:
            self._next_due = moment
            if not quietly:
                self._end_nap()

    def _sync(self, store_now: float, sent: float) -> None:
        offset = store_now - sent
        if abs(offset - self._offset) > self.lease.duration / 4:
            self.lease.doubt()  # its clock has jumped: leases that were prolonged before prove nothing now
        self._offset = offset

    @property
    def running(self) -> int:
        """How many tasks this worker does now."""
        return len(self._shifts)

    # ── claiming ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _claim_forever(self) -> None:
        CURRENT_WORKER.set(self)  # also for all tasks that begin from here
        while not self._stopping:
            self._woken = False
            hints, self._hints = self._hints, set()
            try:
                again = await self._claim_round(hints)
            except StoreUnavailable as error:
                log.warning("cannot claim, trying again: %s", error)
                self.lease.doubt()
                await self.clock.sleep(self._poll * self.rng.uniform(0.5, 1.5))
                continue
            except Exception:
                log.exception("claiming failed")
                await self.clock.sleep(self._poll)
                continue
            if not again:
                await self._nap()

    async def _claim_round(self, hints: set[str]) -> bool:
        """Fills the free slots; True when there is probably more. A worker that was nudged claims at once from the queue that the nudge
        named, also while a look is under way. A worker that was not nudged looks first, and claims where the look found work."""
        if self._look is not None and self._look.done():
            return await self._claim_after_look(await self._finish_look(self._look), hints)
        if self._look_is_due():  # sleepers, suspects and new queues must not wait until a backlog is done
            self._begin_look()
        if self._look is not None and (not hints or self._makes_room()):
            return False  # the look says where work is, or finds the suspect for which this worker made room
        if self._room() <= 0:
            self._pass_on(hints)
            return False
        named = bool(hints) and "" not in hints
        if named:
            self._learn_queues(hints)
        claimed, full = await self._claim_from([queue for queue in self._known if not named or queue in hints])
        if claimed:
            self._pause = self._poll
            self._next_look = min(self._next_look, self.clock.monotonic() + self._poll)
        if not (full or claimed or named):
            self._begin_look()
        return full

    async def _claim_after_look(self, outlook: Outlook, hints: set[str]) -> bool:
        """Claims where the look found work, and where a nudge came while it was under way. The first look claims everywhere, so that the
        database has planned the statement when it matters."""
        if self._room() <= 0:
            self._pass_on(hints)
            return False
        everywhere, self._first = self._first or "" in hints, False
        self._learn_queues(hints - {""})
        ready = {*outlook.queues, *hints}
        claimed, full = await self._claim_from([queue for queue in self._known if everywhere or queue in ready])
        self._pause = (
            self._poll if claimed or not self._gets_nudges else min(self._pause * 2, self._poll * MAX_IDLE_POLLS)
        )
        # A nudge in between leads to a claim alone: a look beside it would need a second connection just then.
        self._next_look = max(self._next_look, self._looked_at + self._pause)
        return full

    def _look_is_due(self) -> bool:
        if self._look is not None:
            return False
        now = self.clock.monotonic()
        slept = self._next_due is not None and now >= self._next_due and self._room() > 0
        return now >= self._next_look or slept or self._quiet_until > 0 or self._maintenance.turn_in() <= 0

    def _begin_look(self) -> None:
        """Starts the one statement of an idle worker: it wakes sleepers, and finds suspects, queues that were not known, and work for
        upkeep and the ticker. It runs beside the claims, because it takes long where the database cannot remove dead rows."""
        if self._look is not None or self._stopping:
            return
        self._looked_at = self.clock.monotonic()
        self._next_look = self._looked_at + self._poll
        self._next_due = None  # a task that goes to sleep meanwhile sets it anew
        self._look = self._spawn(
            self.store.wake(list(self._handlers), absent=self._maintenance.takes_turn()), "onward-look"
        )
        self._look.add_done_callback(self._look_ended)

    def _look_ended(self, look: asyncio.Task[Outlook]) -> None:
        if not look.cancelled() and (look.exception() is None or not self._stopping):
            self._end_nap()

    async def _finish_look(self, look: asyncio.Task[Outlook]) -> Outlook:
        """Takes the answer of a look that has ended, or raises its error."""
        self._look = None
        took = self.clock.monotonic() - self._looked_at
        outlook = look.result()
        self._next_look = self._looked_at + max(self._poll, min(LOOK_PAUSE_FACTOR * took, MAX_LOOK_PAUSE_S))
        if outlook.next_due_in is not None:
            spread = self.rng.uniform(0, WAKE_SPREAD_S * (outlook.crew[0] - 1)) if outlook.crew[0] > 1 else 0.0
            self.due(self.now() + max(outlook.next_due_in, 0.0) + spread, quietly=True)
        self._maintenance.saw(outlook)
        self._ticker.saw(outlook.next_tick_in, self.now())
        if self._room() > 0 or (self._shifts and not self._alone and not self._makes_room()):
            await self._claim_suspect(outlook)
        self._learn_queues(outlook.queues)
        return outlook

    def _pass_on(self, hints: set[str]) -> None:
        """Nudge the others: a nudge came to this worker, which has no free slot."""
        now = self.clock.monotonic()
        if hints - {""} and now >= self._passed_on and not self._stopping:
            self._passed_on = now + PASS_ON_INTERVAL_S
            self.store.nudge("ready")

    def _room(self) -> int:
        if self._alone or self._stopping or not self.lease.holds():
            return 0
        if self._shifts and self._makes_room():
            return 0
        return min(self.slots - len(self._shifts), self._max_claim)

    def _makes_room(self) -> bool:
        """Whether this worker claims nothing now, so that a suspect can run alone."""
        return self.clock.monotonic() < self._quiet_until

    async def _claim_from(self, queues: list[str]) -> tuple[bool, bool]:
        """Claim from these queues; returns whether a claim brought tasks, and whether one was answered in full."""
        some = full = False
        for queue in queues:
            if (room := self._room()) <= 0:
                break
            claimed = await self._claim(queue, room)
            self._begin(claimed)
            some, full = some or bool(claimed), full or len(claimed) == room
        self._known.append(self._known.pop(0))  # so that no queue is always served last
        return some, full

    async def _claim(self, queue: str, room: int, *, alone: bool = False) -> list[Claimed]:
        me = self.id
        if self._stopping:
            return []
        self._claims_sent += 1
        try:
            claimed = await self._keep_unless_stopping(
                me, await self.store.claim(me, queue, list(self._handlers), room, alone=alone)
            )
            self._max_claim = min(self._max_claim * 2, MAX_CLAIM)
        except TooSlow:  # the inputs may be large, and the connection slow: claim fewer at a time
            self._max_claim = max(1, room // 2)
            raise
        finally:
            self._claims_answered += 1
        # The store's clock was set forward: until the worker knows that, a due sleeper would go back to sleep at once.
        if claimed and claimed[0].claimed_at > self.now():
            self._sync(claimed[0].claimed_at, self.clock.monotonic())
        self._unknown_held -= {task.id for task in claimed}
        if claimed:
            self.store.tails.announce()
        # Other workers may have taken this one for dead meanwhile: then these tasks are free again.
        return claimed if me == self.id else []

    async def _keep_unless_stopping(self, me: str, claimed: list[Claimed]) -> list[Claimed]:
        """The claimed tasks, or none when the stop has begun meanwhile: then they are given back."""
        if claimed and self._stopping:
            await self._maintenance.hand_back(me, [task.id for task in claimed])
            return []
        return claimed

    def _learn_queues(self, queues: Iterable[str]) -> None:
        """Add queues that were not known. A worker without a list of queues serves all."""
        if not self._queues:
            self._known += [queue for queue in queues if queue not in self._known]

    async def _claim_suspect(self, outlook: Outlook) -> None:
        """Claim a suspect, which runs alone so that a crash counts against no other task. A busy worker makes room for it now and then."""
        now = self.clock.monotonic()
        self._quiet_until = 0.0
        if self._shifts:
            if outlook.suspects and now > self._quiet_next:
                self._quiet_until, self._quiet_next = now + MAKE_ROOM_S, now + 6 * MAKE_ROOM_S
            return
        for queue in outlook.suspects:
            if not self._queues or queue in self._queues:
                claimed = await self._claim(queue, 1, alone=True)
                if claimed:
                    self._alone = True
                    self._begin(claimed)
                    return

    def _begin(self, claimed: list[Claimed]) -> None:
        make = TracedShift if watching() else Shift
        self._claims += 1
        for task in claimed:
            shift = make(self, task, self._handlers[task.task])
            # Under limits a claim is several commits, each at its time.
            shift.hold.claim = (self._claims, task.claimed_at)
            self._shifts[task.id] = shift
            self._spawn(self._run_shift(shift), f"onward-task-{task.id}")

    async def _run_shift(self, shift: Shift) -> None:
        full = False
        try:
            await shift.work()
        except OnwardError as error:
            log.error("task %s: %s", shift.task_id, error)  # noqa: TRY400 -- a sentence, not a trace
        finally:
            full = len(self._shifts) >= self.slots or self._alone or self._quiet_until > 0
            self.finished += 1
            if self._shifts.get(shift.task_id) is shift:
                del self._shifts[shift.task_id]
            if not self._shifts:
                self._alone = False
            if full:
                self.wake()

    async def _nap(self) -> None:
        """Sleep until a nudge, a free slot, the next sleeper, a turn of maintenance, or the next poll."""
        rest = max(self._pause, self._next_look - self.clock.monotonic())
        pause = rest
        if self._look is None:  # the end of a look that is under way ends the nap
            pause = max(0.001, min(rest, self._maintenance.turn_in()))
            # Without room an overdue sleeper would keep this worker awake.
            if self._next_due is not None and self._room() > 0:
                pause = min(pause, max(0.001, self._next_due - self.clock.monotonic()))
        if self._woken:
            return
        self._napping = asyncio.get_running_loop().create_future()
        alarm = self._spawn(self.clock.sleep(pause), "onward-alarm")
        alarm.add_done_callback(self._ring)
        try:
            await self._napping
        finally:
            self._napping = None
            alarm.cancel()

    def _ring(self, alarm: asyncio.Task[Any]) -> None:
        if not alarm.cancelled():  # a cancelled alarm wakes nobody
            self._end_nap()

    def wake(self, queue: str = "") -> None:
        """Look for work now, and not only at the next poll; in this queue, where it is known."""
        self._hints.add(queue)
        self._end_nap()

    def _end_nap(self) -> None:
        """End the nap, without a hint that there is work."""
        self._woken = True
        if self._napping is not None and not self._napping.done():
            self._napping.set_result(None)

    # ── heartbeat ────────────────────────────────────────────────────────────────────────────────────────────────

    def _rate(self) -> float:
        before, count = self._measured
        now = self.clock.monotonic()
        self._measured = (now, self.finished)
        return (self.finished - count) / max(now - before, 0.001)

    def _on_beat(self, sent: float, worker: str, beat: Beat) -> None:
        if worker != self.id or not worker:
            return
        if not beat.alive:
            self._declared_dead()
            return
        self.lease.renew(sent)
        self._sync(beat.now, sent)
        self._compare(sent, beat)

    def _compare(self, sent: float, beat: Beat) -> None:
        """Compare the tasks that the store says this worker holds with its shifts. A shift that lost its task (a cancel) is dropped at once.
        A held task without a shift is of a claim whose answer was lost; it is given back when the next heartbeat has it too."""
        for shift in list(self._shifts.values()):
            if shift.began < sent and shift.task_id not in beat.held and not shift.settling:
                self.writer.lose([shift.hold])
                shift.stop(Fenced(), now=True)
        self._halt_in_loop(beat.paused)
        if self._claims_answered < self._claims_sent_then:  # the claim that was under way then may still bring them
            return
        unknown = beat.held - self._shifts.keys()
        self._maintenance.give_back(unknown & self._unknown_held, self._unknown_held_at)
        self._unknown_held, self._unknown_held_at, self._claims_sent_then = unknown, beat.now, self._claims_sent

    # ── pause ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hurry(self) -> None:
        """Send a heartbeat now: a task was paused, and it may be one of this worker."""
        if self._shifts and self.store.inline:
            self._spawn(self._heart.beat_once(), "onward-beat")
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
        self._spawn(self._rejoin(), "onward-rejoin")

    async def _rejoin(self) -> None:
        while not self._stopping:
            try:
                await self._join()
            except Exception as error:
                log.warning("cannot rejoin, trying again: %s", str(error) or repr(error))
                await self.clock.sleep(self._poll)
            else:
                self.wake()
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
