"""The relay: what a process does for the outbox. It takes what is due, sends it, and writes down what came of it.

Nobody is in charge: every worker looks, and a row that one of them has taken is left alone by the others for a while. Each
receiver has a lane and each lane a pace of its own, so that one who is slow or dead holds up nobody else. Nothing is open in the
database while something is sent; a relay that dies in the middle leaves a row that is sent again, under the same id.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from onward.core import mask
from onward.core.clock import Clock
from onward.core.crash import crashpoint
from onward.core.event import Event, body, event, type_of
from onward.core.ids import Ids
from onward.core.shutdown import end_tasks
from onward.engine.background import Spawn
from onward.engine.context.arguments import is_async
from onward.engine.shift.threads import Threads
from onward.errors import StoreUnavailable
from onward.store.port.core import Store
from onward.store.port.outbox import DELIVERED, FAILED, PENDING, SKIPPED, Key, Settled, Taken
from onward.telemetry import DELIVERIES, Trace, counters, outgoing

log = logging.getLogger("onward.relay")

SCHEDULE = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds before each attempt, after the one before it: three days in all. Then it is given up."""

JITTER = 0.1
LEASE = 30.0
"""Seconds after which others send what we took, unless we prolong it."""

EACH = 8
"""Attempts for one receiver at a time, in one process; one that failed last is asked one by one."""

LANES = 200
"""Receivers at a time, in one process."""

CANCELLED_FOR = 5.0
"""Seconds that a stop waits for what it cancels."""

LONGEST_REST = 60.0
"""Seconds between two attempts at a receiver that is down, whatever waits for it."""

UNSUBSCRIBED = 5.0
"""Seconds between two looks while there is no subscription; a nudge tells of the first."""

IDLE = 4
"""How many polls the pause between two looks grows to while nothing is to be sent."""

GAP = 0.05
"""Seconds between two looks, however often we are nudged."""

SWEEP = 60.0
KEEP_DELIVERED, KEEP_FAILED, KEEP_WAITING, MOST_WAITING = 86_400.0, 30 * 86_400.0, 7 * 86_400.0, 100_000
FUNCTION = "on:"


class Said(NamedTuple):
    """What came of one attempt. `down`: the receiver has trouble with everything, not with this; `rest` is how long it wants to be
    left alone, `gone` that it is for good."""

    ok: bool
    words: str
    down: bool = False
    rest: float | None = None
    gone: bool = False


class Sink(Protocol):
    """The way out to URLs."""

    def serves(self, lane: str) -> bool:
        """Whether this process can send to a lane."""
        ...

    async def send(self, lane: str, subscription: str, message: str, url: str, body: bytes, trace: Trace) -> Said:
        """One attempt, which never raises and ends by itself. `trace` are headers, of which the signature knows nothing."""
        ...


@dataclasses.dataclass(slots=True)
class _Pace:
    """How a lane goes in this process."""

    busy: bool = False
    down: int = 0
    """Rounds in a row in which the receiver was down."""
    rests_until: float = -math.inf


class Relay:
    """Start, stop; or `run`, for whoever has chores already. `save` writes the subscriptions that code declares."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rng: random.Random,
        ids: Ids,
        *,
        functions: Mapping[str, Callable[[Event], Any]],
        sink: Callable[[], Sink],
        save: Callable[[], Awaitable[None]],
        spawn: Spawn,
        poll: float = 0.5,
    ) -> None:
        self._store, self._clock, self._rng, self._ids = store, clock, rng, ids
        self._functions, self._sink, self._save, self._spawn, self._poll = functions, sink, save, spawn, poll
        self._paces: dict[str, _Pace] = {}
        self._sending: set[asyncio.Task[Any]] = set()
        self._threads = Threads()
        self._chore: asyncio.Task[Any] | None = None
        self._nap: asyncio.Future[None] | None = None
        self._subscribed = self._woken = self._unswept = False
        self._after, self._quiet = "", poll
        self._next_sweep = clock.monotonic() + SWEEP
        self.stopping = False

    # ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Write what code declares, and begin to send."""
        await self.save()
        self.begin()

    async def save(self) -> None:
        """Write the subscriptions that code declares: what can fail, before anything has begun."""
        await self._save()

    def begin(self) -> None:
        """Begin to send."""
        self._chore = self._spawn(self.run(), "onward-relay")

    async def stop(self, grace: float = 5.0) -> None:
        """Take nothing new; what is being sent may end within the grace."""
        self.stopping = True
        self._wake()
        end = self._clock.monotonic() + grace
        while self._sending and self._clock.monotonic() < end:
            await self._clock.sleep(0.01)
        await end_tasks(
            [*self._sending, *([self._chore] if self._chore else [])], CANCELLED_FOR, log, "the stop of the relay"
        )
        self._threads.close()

    async def run(self) -> None:
        """Send, for ever."""
        listening = [self._store.listen("ended", self._nudged), self._store.listen("outbox", self._wake)]
        try:
            while not self.stopping:
                await self._pause(await self._tick())
        finally:
            for stop_listening in listening:
                stop_listening()

    async def _tick(self) -> float:
        self._woken = False
        try:
            return await self.look()
        except StoreUnavailable as error:
            log.warning("cannot look after the outbox, trying again: %s", error)
        except Exception:
            log.exception("looking after the outbox failed")
        return self._poll

    def _nudged(self) -> None:
        if self._subscribed:  # whoever has no subscription pays nothing for the ends of tasks
            self._wake()

    def _wake(self) -> None:
        self._woken = True
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    async def _pause(self, seconds: float) -> None:
        """Until somebody nudges us, or so long."""
        await self._clock.sleep(min(GAP, seconds))
        if self._woken or seconds <= GAP:
            return
        self._nap = asyncio.get_running_loop().create_future()
        alarm = self._spawn(self._clock.sleep(seconds - GAP), "onward-relay-alarm")
        alarm.add_done_callback(lambda done: None if done.cancelled() else self._wake())
        try:
            await self._nap
        finally:
            self._nap = None
            alarm.cancel()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def look(self) -> float:
        """Begin to send what is due; in how many seconds to look again."""
        found = await self._store.outbox.lanes(self._after)
        self._subscribed = found is not None
        lanes = [lane for lane in found or () if self._serves(lane.name)]
        self._after = found[-1].name if found and len(found) >= 1000 else ""
        self._quiet = self._poll if found else min(self._quiet * 2, self._poll * IDLE)
        pause = self._quiet if self._subscribed else max(self._poll, UNSUBSCRIBED)
        for lane in lanes:
            pace = self._paces.setdefault(lane.name, _Pace())
            wait = max(lane.due_in, pace.rests_until - self._clock.monotonic())
            if pace.busy:
                continue
            if wait > 0 or len(self._sending) >= LANES or self.stopping:
                pause = min(pause, max(wait, GAP))
                continue
            pace.busy = True
            task = self._spawn(self._serve(lane.name, pace), "onward-lane")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        now, known = self._clock.monotonic(), {one.name for one in lanes}
        if found is not None and now >= self._next_sweep:
            await self._sweep([lane.name for lane in found], [lane.name for lane in found if lane.name not in known])
            pause = min(pause, max(self._next_sweep - now, GAP))
        self._paces = {  # those of other pages of receivers too, while they want to be left alone
            name: pace for name, pace in self._paces.items() if pace.busy or name in known or pace.rests_until > now
        }
        return pause

    def _serves(self, lane: str) -> bool:
        if lane.startswith(FUNCTION):
            return lane.removeprefix(FUNCTION) in self._functions
        return self._sink().serves(lane)

    async def _sweep(self, lanes: list[str], strange: list[str]) -> None:
        if not self._unswept:
            await self._save()
        self._unswept = await self._store.outbox.sweep(
            lanes, strange, delivered=KEEP_DELIVERED, failed=KEEP_FAILED, waiting=KEEP_WAITING, most=MOST_WAITING
        )  # what is done with must go as fast as it comes
        self._next_sweep = self._clock.monotonic() + SWEEP * (not self._unswept) * self._rng.uniform(0.8, 1.2)

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _serve(self, lane: str, pace: _Pace) -> None:
        """Send what a lane has, until there is no more just now."""
        rounds = 0
        try:
            while not self.stopping and await self._round(lane, pace):
                rounds += 1
        except StoreUnavailable as error:
            log.warning("cannot go on with what goes to %s, trying again: %s", lane, error)
        except Exception:
            log.exception("sending to %s failed", lane)
        finally:
            if rounds == 0:  # an error, or all that is due stands behind what others are sending
                pace.rests_until = max(pace.rests_until, self._clock.monotonic() + self._poll)
            pace.busy = False
            self._wake()

    async def _round(self, lane: str, pace: _Pace) -> bool:
        """Take some, send them, write down what came of it; True when there may be more to do at once."""
        holder = self._ids()
        taken = await self._store.outbox.take(lane, 1 if pace.down else EACH, holder, LEASE)
        if not taken:
            return False
        until = self._clock.monotonic() + LEASE
        ready, settled = await self._prepared(lane, holder, taken)
        guard = self._spawn(self._hold_on(holder, [one.key for one, _, _ in ready]), "onward-relay-lease")
        try:
            said = await asyncio.gather(*[self._send(lane, one, told, data, until) for one, told, data in ready])
        finally:
            guard.cancel()
        crashpoint("deliver.sent")
        settled += [self._came_of(one, words) for (one, _, _), words in zip(ready, said, strict=True)]
        await self._store.outbox.settle(holder, settled)
        for done in settled:
            counters.add(DELIVERIES, "delayed" if done.state == PENDING else done.state)
        for (one, _, _), words in zip(ready, said, strict=True):
            if words.gone:
                await self._store.outbox.disable(one.key.subscription, words.words)
        pace.down = pace.down + 1 if said and all(words.down for words in said) else 0
        rests = [words.rest for words in said if words.rest is not None]
        rest = max([*rests, min(2.0 ** min(pace.down - 1, 10), LONGEST_REST) if pace.down else 0.0])
        pace.rests_until = self._clock.monotonic() + rest
        return rest == 0

    async def _prepared(
        self, lane: str, holder: str, taken: list[Taken]
    ) -> tuple[list[tuple[Taken, Event, bytes]], list[Settled]]:
        """What there is to tell, its bytes kept before the first of them leaves; and what turned out to be nothing."""
        ready: list[tuple[Taken, Event, bytes]] = []
        settled: list[Settled] = []
        new: list[tuple[Key, bytes]] = []
        for one in taken:
            kind = type_of(one.types, one.record, first=one.origin.first)
            if one.attempts > len(SCHEDULE):
                settled.append(Settled(one.key, one.attempts, FAILED, 0.0, "whoever sent it died, again and again"))
                continue
            if kind is None:
                settled.append(Settled(one.key, one.attempts, SKIPPED, 0.0, "not of a type that was asked for"))
                continue
            told, data = event(one.key.task_id, one.record, kind, one.origin), one.body
            if data is None:
                data = b"" if lane.startswith(FUNCTION) else body(told)
                new += [(one.key, data)] if data else []
            ready.append((one, told, data))
        if new:
            await self._store.outbox.keep_bodies(holder, new)
        return ready, settled

    async def _hold_on(self, holder: str, keys: list[Key]) -> None:
        """A function may take its time."""
        while True:
            await self._clock.sleep(LEASE / 3)
            try:
                await self._store.outbox.extend(holder, keys, LEASE)
            except StoreUnavailable as error:
                log.warning("cannot prolong what is being sent: %s", error)

    async def _send(self, lane: str, one: Taken, told: Event, data: bytes, until: float) -> Said:
        if self._clock.monotonic() >= until:  # we were frozen, and somebody else has it
            return Said(False, "its lease ended before it was sent")
        if not lane.startswith(FUNCTION):
            trace = outgoing(one.key.task_id, {"trace": one.origin.trace})
            return await self._sink().send(lane, one.key.subscription, str(one.key), one.sink, data, trace)
        return await self._call(self._functions[lane.removeprefix(FUNCTION)], told)

    async def _call(self, function: Callable[[Event], Any], told: Event) -> Said:
        try:
            if is_async(function):
                await function(told)
            elif self._store.inline:
                function(told)
            else:
                await self._threads.run(function, told)
        except Exception as error:
            log.warning("%s of task %s: %r", told.type, told.task_id, error, exc_info=True)
            return Said(False, mask.text(f"{type(error).__name__}: {error}")[:300])
        return Said(True, "done")

    def _came_of(self, one: Taken, said: Said) -> Settled:
        if said.ok:
            return Settled(one.key, one.attempts, DELIVERED, 0.0, said.words)
        if said.gone or one.attempts >= len(SCHEDULE):
            return Settled(one.key, one.attempts, FAILED, 0.0, said.words)
        delay = SCHEDULE[one.attempts] * self._rng.uniform(1 - JITTER, 1 + JITTER)
        return Settled(one.key, one.attempts, PENDING, max(delay, said.rest or 0.0), said.words)
