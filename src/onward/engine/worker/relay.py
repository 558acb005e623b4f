"""The relay: the part of a process that serves the outbox. It takes due rows, sends them, and records the results.

No relay is in charge: every worker looks, and the other relays leave a row alone for a while that one of them has taken. Each
receiver has a lane, and each lane has its own pace, so a slow or dead receiver delays no other. No transaction is open while a
relay sends. A relay that dies in the middle leaves a row that is sent again, under the same id.

Webhooks and functions get several attempts over three days. Rows for a broker wait until it is there (`Rules.lasting`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onward.core.clock import Clock
from onward.core.crash import crashpoint
from onward.core.event import body, event, type_of
from onward.core.ids import Ids
from onward.core.sealed import CODECS, LOCKED, unreadable
from onward.core.shutdown import end_tasks
from onward.engine.background import Spawn
from onward.engine.worker.sinks import Outgoing, SendResult, Sink
from onward.errors import StoreUnavailable
from onward.store.port.core import Store
from onward.store.port.outbox import BROKER_LANE, DELIVERED, FAILED, NO_KEY, PENDING, SKIPPED, Key, Lane, Settled, Taken
from onward.telemetry import DELIVERIES, counters

log = logging.getLogger("onward.relay")

ATTEMPT_DELAYS_S = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds before each attempt, after the one before it: three days in all. Then the delivery has failed."""

KEY_RETRY_S = 60.0
"""Seconds after which an event is tried again whose payload the relay could not decrypt."""

KEY_WAIT_S = sum(ATTEMPT_DELAYS_S)
"""Seconds after an event at which a webhook or a function gets it no more when no relay could decrypt it: as long as for a receiver that is
down. For a broker it waits as long as it takes."""

JITTER = 0.1
"""The share by which these delays vary at random."""

LEASE_S = 30.0
"""Seconds after which other relays send the rows that this one took, unless it extends its lease."""

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

UNSENT_AFTER_S, UNSENT_INTERVAL_S = 10.0, 60.0
"""Seconds for which a row is due, and no other relay took it, until this one reports that it cannot send it; and seconds between two
reports on one receiver."""

BROKER_REST_S, MAX_BROKER_REST_S = 0.1, 5.0
"""The first and the longest pause between two attempts at a broker that is down."""

WARN_INTERVAL_S = 60.0
"""Seconds between two warnings about a broker that is down."""


@dataclasses.dataclass(slots=True)
class _Pace:
    """The pace of a lane in this process."""

    busy: bool = False
    down: int = 0
    """Rounds in a row in which the receiver was down."""
    rests_until: float = -math.inf
    warned_at: float = -math.inf


class Relay:
    """Start, stop; or `run`, inside a worker. `save` writes the subscriptions that the app's code declares."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rng: random.Random,
        ids: Ids,
        *,
        sinks: Sequence[Sink],
        save: Callable[[], Awaitable[None]],
        spawn: Spawn,
        poll: float = 0.5,
    ) -> None:
        self._store, self._clock, self._rng, self._ids = store, clock, rng, ids
        self._sinks, self._save, self._spawn, self._poll = sinks, save, spawn, poll
        self._paces: dict[str, _Pace] = {}
        self._sending: set[asyncio.Task[Any]] = set()
        self._chore: asyncio.Task[Any] | None = None
        self._nap: asyncio.Future[None] | None = None
        self._subscribed = self._woken = self._unswept = False
        self._stop_ends: Callable[[], None] | None = None
        self._last_lane, self._interval = "", poll
        self._reported: dict[str, float] = {}
        """When this relay last reported on a receiver to which it cannot send."""
        self._warned: set[str] = set()
        """The reasons for that which it has logged."""
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
        for sink in self._sinks:
            await sink.close()

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
        await self._report_unsent([lane for lane in page or () if lane.name not in served])
        if page is not None and now >= self._next_sweep:
            await self._sweep([lane.name for lane in page], [lane.name for lane in page if lane.name not in served])
            pause = min(pause, max(self._next_sweep - now, MIN_INTERVAL_S))
        self._paces = {  # those of other pages too, while their receivers want no request
            name: pace for name, pace in self._paces.items() if pace.busy or name in served or pace.rests_until > now
        }
        return pause

    def _serves(self, lane: str) -> bool:
        sink = self._sink_of(lane)
        return sink is not None and sink.serves(lane)

    async def _report_unsent(self, unserved: list[Lane]) -> None:
        """Report on rows that no process sends, where this process lacks what it needs for that: once in the log, and at each delivery."""
        now = self._clock.monotonic()
        for lane in unserved:
            sink = self._sink_of(lane.name)
            why = None if sink is None or lane.due_in > -UNSENT_AFTER_S else sink.lacks(lane.name)
            if why is None or now - self._reported.get(lane.name, -math.inf) < UNSENT_INTERVAL_S:
                continue
            if why not in self._warned:
                self._warned.add(why)
                log.warning("webhooks wait, and this worker cannot send them (`onward deliveries` lists them): %s", why)
            await self._store.outbox.note_unsent(lane.name, why, UNSENT_AFTER_S)
            self._reported[lane.name] = now
        self._reported = {name: at for name, at in self._reported.items() if now - at < UNSENT_INTERVAL_S}

    def _sink_of(self, lane: str) -> Sink | None:
        return next((sink for sink in self._sinks if sink.owns(lane)), None)

    async def _sweep(self, lanes: list[str], unserved: list[str]) -> None:
        if not self._unswept:
            await self._save()
            for lane in unserved:
                if lane.startswith(BROKER_LANE):
                    await self._store.outbox.realign(lane)
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
            now = self._clock.monotonic()
            if rounds == 0 and pace.rests_until <= now:
                # An error of the store, or all due rows stand behind rows that other relays are sending.
                pace.rests_until = now + self._poll
            pace.busy = False
            self._wake()

    async def _send_round(self, lane: str, pace: _Pace) -> bool:
        """Take some rows, send them, and record the results; True when more may be due at once."""
        sink = self._sink_of(lane)
        assert sink is not None  # `_serves` has it
        if (trouble := await sink.connect(lane)) is not None:
            await self._rest(lane, pace, trouble)
            return False
        rules, holder = sink.rules, self._ids()
        rows = 1 if pace.down and not rules.lasting else rules.rows
        taken = await self._store.outbox.take(lane, rows, holder, LEASE_S, runs=rules.lasting)
        if not taken:
            return False
        until = self._clock.monotonic() + LEASE_S
        batch, settled, behind = await self._prepare(sink, holder, taken)
        guard = self._spawn(self._extend_lease(holder, [outgoing.row.key for outgoing in batch]), "onward-relay-lease")
        try:
            if self._clock.monotonic() < until:
                results = await sink.send(lane, batch)
            else:  # this process was frozen, and other relays have the rows
                results = [SendResult(False, "its lease ended before it was sent") for _ in batch]
        finally:
            guard.cancel()
        crashpoint("deliver.sent")
        if rules.lasting:
            return await self._record_lasting(lane, pace, holder, batch, results, settled, behind)
        return await self._record(pace, holder, batch, results, settled)

    async def _record(
        self, pace: _Pace, holder: str, batch: list[Outgoing], results: list[SendResult], settled: list[Settled]
    ) -> bool:
        """Record the results of attempts, and set the pace of the lane; True when more may be due at once."""
        pairs = list(zip(batch, results, strict=True))
        settled = settled + [self._to_settled(outgoing.row, result) for outgoing, result in pairs]
        await self._store.outbox.settle(holder, settled)
        for delivery in settled:
            counters.add(DELIVERIES, "delayed" if delivery.state == PENDING else delivery.state)
        for outgoing, result in pairs:
            if result.gone:
                await self._store.outbox.disable(outgoing.row.key.subscription, result.detail)
        pace.down = pace.down + 1 if results and all(result.down for result in results) else 0
        rests = [result.rest for result in results if result.rest is not None]
        rest = max([*rests, min(2.0 ** min(pace.down - 1, 10), MAX_REST_S) if pace.down else 0.0])
        pace.rests_until = self._clock.monotonic() + rest
        return rest == 0

    async def _record_lasting(
        self,
        lane: str,
        pace: _Pace,
        holder: str,
        batch: list[Outgoing],
        results: list[SendResult],
        settled: list[Settled],
        behind: list[Taken],
    ) -> bool:
        """The same for rows that wait as long as it takes: those that were sent are deleted, those that were not are due as before."""
        done = [outgoing.row.number for outgoing, result in zip(batch, results, strict=True) if result.ok]
        failed = [
            Settled(outgoing.row.key, outgoing.row.attempts, FAILED, 0.0, result.detail)
            for outgoing, result in zip(batch, results, strict=True)
            if result.refused
        ]
        released = [
            outgoing.row.number
            for outgoing, result in zip(batch, results, strict=True)
            if not result.ok and not result.refused
        ] + [row.number for row in behind]
        trouble = next((result.detail for result in results if not result.ok and not result.refused), "")
        if done:
            await self._store.outbox.finish(holder, done)
            counters.add(DELIVERIES, DELIVERED, by=len(done))
        if settled or failed:
            await self._store.outbox.settle(holder, settled + failed)
            for delivery in settled + failed:
                counters.add(DELIVERIES, "delayed" if delivery.state == PENDING else delivery.state)
        for delivery in failed:
            log.warning("%s refuses the event %s: %s", lane.removeprefix(BROKER_LANE), delivery.key, delivery.said)
        if released:
            await self._store.outbox.release(holder, released, trouble or "it stands behind another event of its task")
        if trouble:
            await self._rest(lane, pace, trouble)
            return False
        pace.down, pace.rests_until, pace.warned_at = 0, -math.inf, -math.inf
        return True

    async def _rest(self, lane: str, pace: _Pace, trouble: str) -> None:
        """Leave a broker alone for a while that does not take events, and warn now and then."""
        rest = min(BROKER_REST_S * 2.0 ** min(pace.down, 10), MAX_BROKER_REST_S) * self._rng.uniform(1 - JITTER, 1)
        pace.down += 1
        pace.rests_until = self._clock.monotonic() + rest
        if self._clock.monotonic() - pace.warned_at < WARN_INTERVAL_S:
            return
        pace.warned_at = self._clock.monotonic()
        waiting = sum(depth.events for depth in await self._store.outbox.depths(lane) if depth.name == lane)
        log.warning(
            "%s takes no events now; %d wait for it, and none is lost: %s",
            lane.removeprefix(BROKER_LANE),
            waiting,
            trouble,
        )

    async def _prepare(
        self, sink: Sink, holder: str, taken: list[Taken]
    ) -> tuple[list[Outgoing], list[Settled], list[Taken]]:
        """The events to send, with their bodies; the rows that are settled without sending; and the rows that stand behind one of these that
        is tried again later."""
        batch: list[Outgoing] = []
        settled: list[Settled] = []
        behind: list[Taken] = []
        new: list[tuple[Key, bytes]] = []
        held_up: set[tuple[str, str]] = set()
        for row in taken:
            line = (row.key.subscription, row.key.task_id)
            if line in held_up:
                behind.append(row)
                continue
            kind, without_sending = self._kind_of(sink, row)
            if without_sending is not None:
                settled.append(without_sending)
                if without_sending.state == PENDING:
                    held_up.add(line)
                continue
            event_ = event(row.key.task_id, row.record, kind, row.origin)
            if sink.rules.lasting:
                event_ = dataclasses.replace(event_, id=row.id)
            data = row.body
            if data is None:
                data = b"" if sink.rules.bodiless else body(event_)
                new += [(row.key, data)] if sink.rules.keeps_bodies else []
            batch.append(Outgoing(row, event_, data))
        if new:
            await self._store.outbox.keep_bodies(holder, new)
        return batch, settled, behind

    def _kind_of(self, sink: Sink, row: Taken) -> tuple[str, Settled | None]:
        """The type of the event of a row; and the result when it is not sent now."""
        if (unreadable_ := self._unreadable(row, sink.rules.lasting)) is not None:
            return "", unreadable_
        if row.attempts > len(ATTEMPT_DELAYS_S) and not sink.rules.lasting:
            why = "each relay that sent it died before it could record the result"
            return "", Settled(row.key, row.attempts, FAILED, 0.0, why)
        kind = type_of(row.types, row.record, first=row.origin.first)
        if kind is None:
            why = "the subscription does not ask for events of this type"
            return "", Settled(row.key, row.attempts, SKIPPED, 0.0, why)
        return kind, None

    def _unreadable(self, row: Taken, lasting: bool) -> Settled | None:
        """The result for an event whose payload cannot be opened: erased ones have failed, others wait for a relay with the key. The events
        of its task behind it wait too, because they are sent in order; those of other tasks go on. That was no attempt."""
        data = row.record.data if row.body is None or row.record.data[:1] in CODECS else row.body
        if data[:1] not in CODECS:
            return None
        if data.startswith(LOCKED):
            if not lasting and self._clock.now() - row.record.at > KEY_WAIT_S:
                return Settled(row.key, row.attempts, FAILED, 0.0, f"{NO_KEY} for three days")
            return Settled(row.key, row.attempts, PENDING, KEY_RETRY_S, NO_KEY, attempt=0)
        return Settled(row.key, row.attempts, FAILED, 0.0, str(unreadable(data, "the event")))

    async def _extend_lease(self, holder: str, keys: list[Key]) -> None:
        """Extend the lease of taken rows: a function may take its time."""
        while True:
            await self._clock.sleep(LEASE_S / 3)
            try:
                await self._store.outbox.extend(holder, keys, LEASE_S)
            except StoreUnavailable as error:
                log.warning("cannot extend the lease of deliveries under way: %s", error)

    def _to_settled(self, row: Taken, result: SendResult) -> Settled:
        if result.ok:
            return Settled(row.key, row.attempts, DELIVERED, 0.0, result.detail)
        if result.gone or row.attempts >= len(ATTEMPT_DELAYS_S):
            return Settled(row.key, row.attempts, FAILED, 0.0, result.detail)
        delay = ATTEMPT_DELAYS_S[row.attempts] * self._rng.uniform(1 - JITTER, 1 + JITTER)
        return Settled(row.key, row.attempts, PENDING, max(delay, result.rest or 0.0), result.detail)
