"""Claiming: finds tasks for the free slots of a worker.

    a nudge ─► claim from the queue that it names          no nudge ─► look at the store ─► claim where the look found work

A look is the one statement of an idle worker; it also wakes sleepers, and tells maintenance and the ticker what there is to do.
Without any nudge, a look at every poll still finds every task.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onward.engine.handlers import Handler
from onward.engine.worker.maintenance import Maintenance
from onward.engine.worker.services import ClaimServices
from onward.engine.worker.ticker import Ticker
from onward.errors import StoreUnavailable, TooSlow
from onward.store.port.core import Claimed, Outlook
from onward.store.port.workers import Beat

log = logging.getLogger("onward.worker")

MAX_CLAIM = 500
"""Tasks in one claim."""

MAX_IDLE_POLLS = 4
"""The pause between two looks of an idle worker grows to this many polls, while nudges can reach it."""

LOOK_PAUSE_FACTOR, MAX_LOOK_PAUSE_S = 20, 5.0
"""After a look the worker pauses for this many times its duration, so looks take a small part of the time; but at most so many seconds."""

PASS_ON_INTERVAL_S = 0.25
"""Seconds between two nudges with which a full worker passes a nudge on to the others."""

WAKE_SPREAD_S = 0.01
"""Seconds, for each other worker, over which the workers spread their looks for a sleeper that none of them put to sleep."""

MAKE_ROOM_S = 10.0
"""Seconds for which a busy worker claims nothing new, so that a suspect can run alone."""


class Claiming:
    """The claims of one worker: when it looks, what it claims, and for how long it naps."""

    gets_nudges: bool = False
    """Whether nudges of other processes can reach the worker."""

    def __init__(
        self,
        worker: ClaimServices,
        maintenance: Maintenance,
        ticker: Ticker,
        *,
        handlers: Mapping[str, Handler],
        queues: tuple[str, ...],
        poll: float,
    ) -> None:
        self._worker, self._maintenance, self._ticker = worker, maintenance, ticker
        self._store, self._clock, self._rng, self._lease = worker.store, worker.clock, worker.rng, worker.lease
        self._handlers, self._queues, self._poll = handlers, queues, poll
        self._known = list(dict.fromkeys(queues or [handler.queue for handler in handlers.values()]))
        """The queues that the worker claims from, in the order of its next round."""
        self._own_queues = frozenset(self._known)
        self._passed: set[str] = set()
        """Queues in which the last claim found nothing but tasks of tenants without a free slot; such a claim is not repeated before the
        next look or nudge."""
        self._passed_over: list[str] = []
        """The tenants for which that holds."""
        self._unknown_held: frozenset[str] = frozenset()
        """Tasks that the store says this worker holds, and that it does not run."""
        self._unknown_held_at = 0.0
        self._claims_sent = self._claims_answered = self._claims_sent_then = 0
        self._alone = False
        """Whether the one running task is a suspect."""
        self._quiet_until = self._quiet_next = 0.0
        self._next_due: float | None = None
        self._next_look = 0.0
        self._look: asyncio.Task[Outlook] | None = None
        """The look at the store that is under way."""
        self._looked_at = 0.0
        self._pause = poll
        self._hints: set[str] = set()
        """The queues of nudges since the last round; an empty name means all queues."""
        self._next_pass_on = 0.0
        self._first = True
        self._woken = False
        self._napping: asyncio.Future[None] | None = None
        self._max_claim = MAX_CLAIM

    async def run(self) -> None:
        """Claim until the worker stops."""
        while not self._worker.stopping:
            self._woken = False
            hints, self._hints = self._hints, set()
            try:
                again = await self._claim_round(hints)
            except StoreUnavailable as error:
                log.warning("cannot claim, trying again: %s", error)
                self._lease.doubt()
                await self._clock.sleep(self._poll * self._rng.uniform(0.5, 1.5))
                continue
            except Exception:
                log.exception("claiming failed")
                await self._clock.sleep(self._poll)
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
        if self._look is not None and not hints:
            return False  # the look says where work is
        if self._room() <= 0:
            self._learn_queues(hints - {""})
            self._pass_on(hints)
            return False
        if self._look is not None and self._makes_room():
            self._hints |= hints
            return False  # the look finds the suspect for which this worker made room
        self._passed -= hints
        named = bool(hints) and "" not in hints
        if named:
            self._learn_queues(hints)
        claimed, full = await self._claim_from([queue for queue in self._known if not named or queue in hints])
        if claimed:
            self._pause = self._poll
            self._next_look = min(self._next_look, self._clock.monotonic() + self._poll)
        if not (full or claimed or named):
            self._begin_look()
        return full

    async def _claim_after_look(self, outlook: Outlook, hints: set[str]) -> bool:
        """Claims where the look found work, and where a nudge came while it was under way. The first look claims everywhere, so that the
        database has planned the statement when it matters."""
        self._passed.clear()
        self._learn_queues(hints - {""})
        if self._room() <= 0:
            self._pass_on(hints)
            return False
        everywhere, self._first = self._first or "" in hints, False
        ready = {*outlook.queues, *hints}
        claimed, full = await self._claim_from([queue for queue in self._known if everywhere or queue in ready])
        self._pause = (
            self._poll if claimed or not self.gets_nudges else min(self._pause * 2, self._poll * MAX_IDLE_POLLS)
        )
        # A nudge in between leads to a claim alone: a look beside it would need a second connection just then.
        self._next_look = max(self._next_look, self._looked_at + self._pause)
        return full

    def _look_is_due(self) -> bool:
        if self._look is not None:
            return False
        now = self._clock.monotonic()
        slept = self._next_due is not None and now >= self._next_due and self._room() > 0
        return now >= self._next_look or slept or self._quiet_until > 0 or self._maintenance.turn_in() <= 0

    def _begin_look(self) -> None:
        """Starts the one statement of an idle worker: it wakes sleepers, and finds suspects, queues that were not known, and work for
        upkeep and the ticker. It runs beside the claims, because it takes long where the database cannot remove dead rows."""
        if self._look is not None or self._worker.stopping:
            return
        self._looked_at = self._clock.monotonic()
        self._next_look = self._looked_at + self._poll
        self._next_due = None  # a task that goes to sleep meanwhile sets it anew
        self._look = self._worker.spawn(
            self._store.wake(list(self._handlers), absent=self._maintenance.takes_turn()), "onward-look"
        )
        self._look.add_done_callback(self._look_ended)

    def _look_ended(self, look: asyncio.Task[Outlook]) -> None:
        if not look.cancelled() and (look.exception() is None or not self._worker.stopping):
            self._end_nap()

    async def _finish_look(self, look: asyncio.Task[Outlook]) -> Outlook:
        """Takes the answer of a look that has ended, or raises its error."""
        self._look = None
        took = self._clock.monotonic() - self._looked_at
        outlook = look.result()
        self._next_look = self._looked_at + max(self._poll, min(LOOK_PAUSE_FACTOR * took, MAX_LOOK_PAUSE_S))
        if outlook.next_due_in is not None:
            spread = self._rng.uniform(0, WAKE_SPREAD_S * (outlook.crew[0] - 1)) if outlook.crew[0] > 1 else 0.0
            self.due(self._clock.monotonic() + max(outlook.next_due_in, 0.0) + spread, quietly=True)
        self._maintenance.saw(outlook)
        self._ticker.saw(outlook.next_tick_in, self._worker.now())
        if self._room() > 0 or (self._worker.held and not self._alone and not self._makes_room()):
            await self._claim_suspect(outlook)
        self._learn_queues(outlook.queues)
        return outlook

    def _pass_on(self, hints: set[str]) -> None:
        """Nudge the others: a nudge came to this worker, which has no free slot. A nudge that comes too early after the last one waits in
        the hints: the worker passes it on later, or claims when a slot is free by then."""
        hints = hints - {""}  # a nudge without a name went to all workers already
        now = self._clock.monotonic()
        if not hints or self._worker.stopping:
            return
        if now < self._next_pass_on:
            self._hints |= hints
            return
        self._next_pass_on = now + PASS_ON_INTERVAL_S
        self._store.nudge("ready")

    def _room(self) -> int:
        if self._alone or self._worker.stopping or not self._lease.holds():
            return 0
        if self._worker.held and self._makes_room():
            return 0
        return min(self._worker.slots - len(self._worker.held), self._max_claim)

    def _makes_room(self) -> bool:
        """Whether this worker claims nothing now, so that a suspect can run alone."""
        return self._clock.monotonic() < self._quiet_until

    async def _claim_from(self, queues: list[str]) -> tuple[bool, bool]:
        """Claim from these queues; returns whether a claim brought tasks, and whether one was answered in full. A queue that a nudge names
        meanwhile comes first: a tenant may have tasks in many queues, and the others must not wait for claims from all of them."""
        some = full = False
        self._known.append(self._known.pop(0))  # so that no queue is always served last
        line = collections.deque(queues)
        while line:
            if (room := self._room()) <= 0:
                break
            if names := self._take_named_hints():
                self._passed.difference_update(names)
                line = collections.deque([*names, *[queue for queue in line if queue not in names]])
            queue = line.popleft()
            room, full_tenants = await self._worker.shares.bound(room)
            if full_tenants and full_tenants != self._passed_over:
                self._passed_over = full_tenants
                self._passed.clear()
            if full_tenants and queue in self._passed:
                continue
            claimed = await self._claim(queue, room, without=full_tenants)
            self._worker.begin(claimed)
            some, full = some or bool(claimed), full or len(claimed) == room
            if not claimed:
                self._found_nothing(queue, bool(full_tenants))
        return some, full

    def _take_named_hints(self) -> list[str]:
        """The queues of this worker that nudges have named since the round began."""
        self._learn_queues(self._hints - {""})
        names = [queue for queue in self._hints if queue in self._known]
        self._hints.difference_update(names)
        return names

    def _found_nothing(self, queue: str, beside: bool) -> None:
        """A claim from this queue found nothing, or (`beside`) nothing but tasks of tenants without a free slot."""
        if beside:
            self._passed.add(queue)
        elif queue not in self._own_queues and queue in self._known:
            self._known.remove(queue)  # a nudge or a look names it again when it has tasks

    async def _claim(self, queue: str, room: int, *, alone: bool = False, without: Sequence[str] = ()) -> list[Claimed]:
        me = self._worker.id
        if self._worker.stopping:
            return []
        self._claims_sent += 1
        try:
            claimed = await self._keep_unless_stopping(
                me,
                await self._store.claim(
                    me,
                    queue,
                    list(self._handlers),
                    room,
                    alone=alone,
                    without=without,
                    version=self._worker.version,
                ),
            )
            self._max_claim = min(self._max_claim * 2, MAX_CLAIM)
        except TooSlow:  # the inputs may be large, and the connection slow: claim fewer at a time
            self._max_claim = max(1, room // 2)
            raise
        finally:
            self._claims_answered += 1
        # The store's clock was set forward: until the worker knows that, a due sleeper would go back to sleep at once.
        if claimed and claimed[0].claimed_at > self._worker.now():
            self._worker.sync(claimed[0].claimed_at, self._clock.monotonic())
        self._unknown_held -= {task.id for task in claimed}
        if claimed:
            self._store.tails.announce()
        # Other workers may have taken this one for dead meanwhile: then these tasks are free again.
        return claimed if me == self._worker.id else []

    async def _keep_unless_stopping(self, me: str, claimed: list[Claimed]) -> list[Claimed]:
        """The claimed tasks, or none when the stop has begun meanwhile: then they are given back."""
        if claimed and self._worker.stopping:
            await self._maintenance.hand_back(me, [task.id for task in claimed])
            return []
        return claimed

    def _learn_queues(self, queues: Iterable[str]) -> None:
        """Add queues that were not known. A worker without a list of queues serves all."""
        if not self._queues:
            self._known += [queue for queue in queues if queue not in self._known]

    async def _claim_suspect(self, outlook: Outlook) -> None:
        """Claim a suspect, which runs alone so that a crash counts against no other task. A busy worker makes room for it now and then."""
        now = self._clock.monotonic()
        self._quiet_until = 0.0
        if self._worker.held:
            if outlook.suspects and now > self._quiet_next:
                self._quiet_until, self._quiet_next = now + MAKE_ROOM_S, now + 6 * MAKE_ROOM_S
            return
        for queue in outlook.suspects:
            if not self._queues or queue in self._queues:
                claimed = await self._claim(queue, 1, alone=True)
                if claimed:
                    self._alone = True
                    self._worker.begin(claimed)
                    return

    async def _nap(self) -> None:
        """Sleep until a nudge, a free slot, the next sleeper, a turn of maintenance, the next nudge to pass on, or the next poll."""
        rest = max(self._pause, self._next_look - self._clock.monotonic())
        pause = rest
        if self._look is None:  # the end of a look that is under way ends the nap
            pause = max(0.001, min(rest, self._maintenance.turn_in()))
            # Without room an overdue sleeper would keep this worker awake.
            if self._next_due is not None and self._room() > 0:
                pause = min(pause, max(0.001, self._next_due - self._clock.monotonic()))
        if self._hints:  # nudges to pass on
            pause = min(pause, max(0.001, self._next_pass_on - self._clock.monotonic()))
        if self._woken:
            return
        self._napping = asyncio.get_running_loop().create_future()
        alarm = self._worker.spawn(self._clock.sleep(pause), "onward-alarm")
        alarm.add_done_callback(self._ring)
        try:
            await self._napping
        finally:
            self._napping = None
            alarm.cancel()

    def _ring(self, alarm: asyncio.Task[Any]) -> None:
        if not alarm.cancelled():
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

    # ── for the worker ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def under_way(self) -> bool:
        """Whether a claim has no answer yet."""
        return self._claims_sent > self._claims_answered

    @property
    def full(self) -> bool:
        """Whether the worker claims nothing more now."""
        return len(self._worker.held) >= self._worker.slots or self._alone or self._quiet_until > 0

    def slot_freed(self, *, awaited: bool) -> None:
        """A shift has ended. `awaited`: the worker was full, or its tenant had no slot left."""
        if not self._worker.held:
            self._alone = False
        if awaited:
            self.wake()

    def due(self, moment: float, *, quietly: bool = False) -> None:
        """Be awake at this time of the monotonic clock: a task sleeps until then, and a worker has to wake it."""
        if self._next_due is None or moment < self._next_due:
            self._next_due = moment
            if not quietly:
                self._end_nap()

    def give_back_lost(self, beat: Beat) -> None:
        """Give back tasks that the store says this worker holds, and that it does not run: the answer to their claim was lost. They are
        given back when two heartbeats in a row have them."""
        if self._claims_answered < self._claims_sent_then:  # the claim that was under way then may still bring them
            return
        unknown = beat.held - self._worker.held
        self._maintenance.give_back(unknown & self._unknown_held, self._unknown_held_at)
        self._unknown_held, self._unknown_held_at, self._claims_sent_then = unknown, beat.now, self._claims_sent
