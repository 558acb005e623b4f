"""The relay: the part of a process that serves the outbox. It takes due rows, sends them, and records the results.

No relay is in charge: every worker looks, and the other relays leave a row alone for a while that one of them has taken. Each
receiver has a lane, and each lane has its own pace, so a slow or dead receiver delays no other. No transaction is open while a
relay sends. A relay that dies in the middle leaves a row that is sent again, under the same id.
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
from onward.core.sealed import CODECS, ENCRYPTED_TEXT, LOCKED, unreadable
from onward.core.shutdown import end_tasks
from onward.engine.background import Spawn
from onward.engine.context.arguments import is_async
from onward.engine.shift.threads import Threads
from onward.errors import StoreUnavailable
from onward.store.port.core import Store
from onward.store.port.outbox import DELIVERED, FAILED, PENDING, SKIPPED, Key, Settled, Taken
from onward.telemetry import DELIVERIES, Trace, counters, outgoing

log = logging.getLogger("onward.relay")

ATTEMPT_DELAYS_S = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds before each attempt, after the one before it: three days in all. Then the delivery has failed."""

KEY_RETRY_S = 60.0
"""Seconds after which an event is tried again whose payload the relay could not decrypt."""

JITTER = 0.1
"""The share by which these delays vary at random."""

LEASE_S = 30.0
"""Seconds after which other relays send the rows that this one took, unless it extends its lease."""

MAX_ATTEMPTS_PER_LANE = 8
"""Attempts for one receiver at a time, in one process; a receiver that failed last gets one at a time."""

MAX_LANES = 200
"""Receivers that one process serves at a time."""

CANCEL_TIMEOUT_S = 5.0
"""Seconds that a stop waits for the tasks that it cancels."""

MAX_REST_S = 60.0
"""The longest pause between two attempts at a receiver that is down."""

UNSUBSCRIBED_INTERVAL_S = 5.0
"""Seconds between two looks while there is no subscription; a nudge reports the first row."""

MAX_IDLE_POLLS = 4
"""The interval between two looks grows to this many polls while nothing is to be sent."""

MIN_INTERVAL_S = 0.05
"""The shortest interval between two looks, however often the relay is nudged."""

SWEEP_INTERVAL_S = 60.0
"""Seconds between two sweeps, which delete old rows of the outbox."""

KEEP_DELIVERED_S, KEEP_FAILED_S, KEEP_WAITING_S, MAX_WAITING = 86_400.0, 30 * 86_400.0, 7 * 86_400.0, 100_000
"""For how many seconds a sweep keeps delivered and failed rows, after how many it fails the rows of lanes that this process does not
serve, and how many waiting rows one receiver may have."""

FUNCTION_PREFIX = "on:"
"""The name of a lane whose receiver is a function of the app begins with this."""


class SendResult(NamedTuple):
    """The result of one attempt. `down`: the receiver has trouble with all requests, not with this one; `rest`: for how many seconds it
    wants no request; `gone`: it wants none ever again."""

    ok: bool
    detail: str
    down: bool = False
    rest: float | None = None
    gone: bool = False


class Sink(Protocol):
    """Sends events to URLs."""

    def serves(self, lane: str) -> bool:
        """Whether this process can send to a lane."""
        ...

    async def send(self, lane: str, subscription: str, message: str, url: str, body: bytes, trace: Trace) -> SendResult:
        """Make one attempt, which never raises and ends by itself. `trace` are headers that the signature does not cover."""
        ...


@dataclasses.dataclass(slots=True)
class _Pace:
    """The pace of a lane in this process."""

    busy: bool = False
    down: int = 0
    """Rounds in a row in which the receiver was down."""
    rests_until: float = -math.inf


class Relay:
    """Start, stop; or `run`, inside a worker. `save` writes the subscriptions that the app's code declares."""

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
        self._stop_ends: Callable[[], None] | None = None
        self._last_lane, self._interval = "", poll
        self._next_sweep = clock.monotonic() + SWEEP_INTERVAL_S
        self.stopping: bool = False

    # ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Write the subscriptions that the app's code declares, and begin to send."""
        await self.save()
        self.begin()

    async def save(self) -> None:
        """Write the subscriptions that the app's code declares: the part of a start that can fail."""
        await self._save()

    def begin(self) -> None:
        """Begin to send."""
        self._chore = self._spawn(self.run(), "onward-relay")

    async def stop(self, grace: float = 5.0) -> None:
        """Take no new rows; attempts under way may end within the grace."""
        self.stopping = True
        self._wake()
        end = self._clock.monotonic() + grace
        while self._sending and self._clock.monotonic() < end:
            await self._clock.sleep(0.01)
        await end_tasks(
            [*self._sending, *([self._chore] if self._chore else [])], CANCEL_TIMEOUT_S, log, "the stop of the relay"
        )
        self._threads.close()

    async def run(self) -> None:
        """Send due rows, for ever."""
        stop_listening = self._store.listen("outbox", self._wake)
        try:
            while not self.stopping:
                pause = await self._tick()
                self._listen_to_ends()
                await self._sleep(pause)
        finally:
            self._subscribed = False
            self._listen_to_ends()
            stop_listening()

    def _listen_to_ends(self) -> None:
        """Listen to the ends of tasks as long as there is a subscription: without one they cost nothing here."""
        if self._subscribed and self._stop_ends is None:
            self._stop_ends = self._store.listen("ended", self._wake)
            self._wake()  # a task may have ended just before
        elif not self._subscribed and self._stop_ends is not None:
            self._stop_ends()
            self._stop_ends = None

    async def _tick(self) -> float:
        self._woken = False
        try:
            return await self.look()
        except StoreUnavailable as error:
            log.warning("cannot read the outbox, trying again: %s", error)
        except Exception:
            log.exception("reading the outbox failed")
        return self._poll

    def _wake(self) -> None:
        self._woken = True
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    async def _sleep(self, seconds: float) -> None:
        """Waits for a nudge, at most so many seconds."""
        await self._clock.sleep(min(MIN_INTERVAL_S, seconds))
        if self._woken or seconds <= MIN_INTERVAL_S:
            return
        self._nap = asyncio.get_running_loop().create_future()
        alarm = self._spawn(self._clock.sleep(seconds - MIN_INTERVAL_S), "onward-relay-alarm")
        alarm.add_done_callback(lambda done: None if done.cancelled() else self._wake())
        try:
            await self._nap
        finally:
            self._nap = None
            alarm.cancel()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def look(self) -> float:
        """Begin to send due rows; returns in how many seconds to look again."""
        page = await self._store.outbox.lanes(self._last_lane)
        self._subscribed = page is not None
        lanes = [lane for lane in page or () if self._serves(lane.name)]
        self._last_lane = page[-1].name if page and len(page) >= 1000 else ""
        self._interval = self._poll if page else min(self._interval * 2, self._poll * MAX_IDLE_POLLS)
        pause = self._interval if self._subscribed else max(self._poll, UNSUBSCRIBED_INTERVAL_S)
        for lane in lanes:
            pace = self._paces.setdefault(lane.name, _Pace())
            wait = max(lane.due_in, pace.rests_until - self._clock.monotonic())
            if pace.busy:
                continue
            if wait > 0 or len(self._sending) >= MAX_LANES or self.stopping:
                pause = min(pause, max(wait, MIN_INTERVAL_S))
                continue
            pace.busy = True
            task = self._spawn(self._serve(lane.name, pace), "onward-lane")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        now, served = self._clock.monotonic(), {lane.name for lane in lanes}
        if page is not None and now >= self._next_sweep:
            await self._sweep([lane.name for lane in page], [lane.name for lane in page if lane.name not in served])
            pause = min(pause, max(self._next_sweep - now, MIN_INTERVAL_S))
        self._paces = {  # those of other pages too, while their receivers want no request
            name: pace for name, pace in self._paces.items() if pace.busy or name in served or pace.rests_until > now
        }
        return pause

    def _serves(self, lane: str) -> bool:
        if lane.startswith(FUNCTION_PREFIX):
            return lane.removeprefix(FUNCTION_PREFIX) in self._functions
        return self._sink().serves(lane)

    async def _sweep(self, lanes: list[str], unserved: list[str]) -> None:
        if not self._unswept:
            await self._save()
        self._unswept = await self._store.outbox.sweep(
            lanes, unserved, delivered=KEEP_DELIVERED_S, failed=KEEP_FAILED_S, waiting=KEEP_WAITING_S, most=MAX_WAITING
        )  # rows must be deleted as fast as they come
        self._next_sweep = self._clock.monotonic() + SWEEP_INTERVAL_S * (not self._unswept) * self._rng.uniform(
            0.8, 1.2
        )

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _serve(self, lane: str, pace: _Pace) -> None:
        """Send the rows of a lane, until none is due."""
        rounds = 0
        try:
            while not self.stopping and await self._send_round(lane, pace):
                rounds += 1
        except StoreUnavailable as error:
            log.warning("cannot go on with deliveries to %s, trying again: %s", lane, error)
        except Exception:
            log.exception("sending to %s failed", lane)
        finally:
            if rounds == 0:  # an error, or all due rows stand behind rows that other relays are sending
                pace.rests_until = max(pace.rests_until, self._clock.monotonic() + self._poll)
            pace.busy = False
            self._wake()

    async def _send_round(self, lane: str, pace: _Pace) -> bool:
        """Take some rows, send them, and record the results; True when more may be due at once."""
        holder = self._ids()
        taken = await self._store.outbox.take(lane, 1 if pace.down else MAX_ATTEMPTS_PER_LANE, holder, LEASE_S)
        if not taken:
            return False
        until = self._clock.monotonic() + LEASE_S
        ready, settled = await self._prepare(lane, holder, taken)
        guard = self._spawn(self._extend_lease(holder, [row.key for row, _, _ in ready]), "onward-relay-lease")
        try:
            results = await asyncio.gather(*[self._send(lane, row, event_, data, until) for row, event_, data in ready])
        finally:
            guard.cancel()
        crashpoint("deliver.sent")
        settled += [self._to_settled(row, result) for (row, _, _), result in zip(ready, results, strict=True)]
        await self._store.outbox.settle(holder, settled)
        for delivery in settled:
            counters.add(DELIVERIES, "delayed" if delivery.state == PENDING else delivery.state)
        for (row, _, _), result in zip(ready, results, strict=True):
            if result.gone:
                await self._store.outbox.disable(row.key.subscription, result.detail)
        pace.down = pace.down + 1 if results and all(result.down for result in results) else 0
        rests = [result.rest for result in results if result.rest is not None]
        rest = max([*rests, min(2.0 ** min(pace.down - 1, 10), MAX_REST_S) if pace.down else 0.0])
        pace.rests_until = self._clock.monotonic() + rest
        return rest == 0

    async def _prepare(
        self, lane: str, holder: str, taken: list[Taken]
    ) -> tuple[list[tuple[Taken, Event, bytes]], list[Settled]]:
        """The events and bodies to send, the new bodies stored before the first is sent; and the rows that are settled without sending."""
        ready: list[tuple[Taken, Event, bytes]] = []
        settled: list[Settled] = []
        new: list[tuple[Key, bytes]] = []
        for row in taken:
            if (without_sending := self._unreadable(row)) is not None:
                settled.append(without_sending)
                continue
            kind = type_of(row.types, row.record, first=row.origin.first)
            if row.attempts > len(ATTEMPT_DELAYS_S):
                settled.append(
                    Settled(
                        row.key,
                        row.attempts,
                        FAILED,
                        0.0,
                        "each relay that sent it died before it could record the result",
                    )
                )
                continue
            if kind is None:
                settled.append(
                    Settled(
                        row.key, row.attempts, SKIPPED, 0.0, "the subscription does not ask for events of this type"
                    )
                )
                continue
            event_, data = event(row.key.task_id, row.record, kind, row.origin), row.body
            if data is None:
                data = b"" if lane.startswith(FUNCTION_PREFIX) else body(event_)
                new += [(row.key, data)] if data else []
            ready.append((row, event_, data))
        if new:
            await self._store.outbox.keep_bodies(holder, new)
        return ready, settled

    @staticmethod
    def _unreadable(row: Taken) -> Settled | None:
        """The result for an event whose payload cannot be opened: erased ones have failed, others wait for a relay with the key."""
        data = row.record.data if row.body is None or row.record.data[:1] in CODECS else row.body
        if data[:1] not in CODECS:
            return None
        if data.startswith(LOCKED):
            return Settled(row.key, row.attempts, PENDING, KEY_RETRY_S, "this relay has not its encryption key")
        return Settled(row.key, row.attempts, FAILED, 0.0, str(unreadable(data, "the event")))

    async def _extend_lease(self, holder: str, keys: list[Key]) -> None:
        """Extend the lease of taken rows: a function may take its time."""
        while True:
            await self._clock.sleep(LEASE_S / 3)
            try:
                await self._store.outbox.extend(holder, keys, LEASE_S)
            except StoreUnavailable as error:
                log.warning("cannot extend the lease of deliveries under way: %s", error)

    async def _send(self, lane: str, row: Taken, event_: Event, data: bytes, until: float) -> SendResult:
        if self._clock.monotonic() >= until:  # this process was frozen, and another relay has the row
            return SendResult(False, "its lease ended before it was sent")
        if not lane.startswith(FUNCTION_PREFIX):
            trace = outgoing(row.key.task_id, {"trace": row.origin.trace})
            return await self._sink().send(lane, row.key.subscription, str(row.key), row.sink, data, trace)
        return await self._call_function(self._functions[lane.removeprefix(FUNCTION_PREFIX)], event_)

    async def _call_function(self, function: Callable[[Event], Any], event_: Event) -> SendResult:
        try:
            if is_async(function):
                await function(event_)
            elif self._store.inline:
                function(event_)
            else:
                await self._threads.run(function, event_)
        except Exception as error:
            kind = type(error).__name__
            if self._store.codec is not None:  # its message may quote values that are encrypted in the journal
                log.warning("%s of task %s: %s %s", event_.type, event_.task_id, kind, ENCRYPTED_TEXT)
                return SendResult(False, kind)
            log.warning("%s of task %s: %r", event_.type, event_.task_id, error, exc_info=True)
            return SendResult(False, mask.text(f"{kind}: {error}")[:300])
        return SendResult(True, "done")

    def _to_settled(self, row: Taken, result: SendResult) -> Settled:
        if result.ok:
            return Settled(row.key, row.attempts, DELIVERED, 0.0, result.detail)
        if result.gone or row.attempts >= len(ATTEMPT_DELAYS_S):
            return Settled(row.key, row.attempts, FAILED, 0.0, result.detail)
        delay = ATTEMPT_DELAYS_S[row.attempts] * self._rng.uniform(1 - JITTER, 1 + JITTER)
        return Settled(row.key, row.attempts, PENDING, max(delay, result.rest or 0.0), result.detail)
