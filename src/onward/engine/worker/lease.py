"""The lease: a worker's right to hold tasks, prolonged by one heartbeat for the whole process.

The heartbeat has a thread and a connection of its own, so that a step which blocks the loop for a while does not cost
the lease. The watchdog covers the other case: when the loop has not turned for three leases, the heartbeat stops, and other
workers continue with the tasks. The worker measures its own lease by its monotonic clock from the moment a heartbeat was
sent, never by the database's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from onward.core.clock import Clock
from onward.core.shutdown import end_tasks
from onward.store.port.core import Store
from onward.store.port.workers import Beat

log = logging.getLogger("onward.lease")

STOP_TIMEOUT_S = 5.0
"""Seconds that a stop waits for the heartbeat to end."""

STUCK_AFTER_LEASES = 3
"""Leases after which a loop that does not turn counts as stuck."""

OnStuck = Callable[[Store, str], Coroutine[Any, Any, None]]
"""Called in the thread of the heartbeat when the loop of this worker is stuck."""

OnBeat = Callable[[float, str, Beat], None]
"""Called with each answer: when the heartbeat was sent, for which worker, and what the store said."""

PAUSE_INTERVAL_S = 0.02
"""Seconds between two heartbeats while a paused task waits for this worker's confirmation."""


class Lease:
    """Whether this worker may start a step."""

    def __init__(self, clock: Clock, duration: float) -> None:
        self._clock = clock
        self.duration: float = duration
        self.until: float = 0.0
        self._renewed = asyncio.Event()
        self._steady_since = -float("inf")

    def renew(self, sent: float) -> None:
        """Prolong the lease: a heartbeat that was sent at this moment was answered."""
        if self.until and sent > self.until - self.duration / 2:
            self.doubt()  # it came late: the database or this process was away
        self.until = sent + self.duration
        self._renewed.set()

    def drop(self) -> None:
        """End the lease: this worker was declared dead."""
        self.until = 0.0

    def doubt(self) -> None:
        """Suspend verdicts on other workers for a lease: the database or this process had trouble just now."""
        self._steady_since = self._clock.monotonic()

    def holds(self) -> bool:
        return self._clock.monotonic() < self.until

    def may_judge(self) -> bool:
        """Whether the ended lease of another worker shows that this worker is dead. After an outage for all workers, the first one that
        comes back would otherwise declare all others dead."""
        return self.holds() and self._clock.monotonic() - self._steady_since > self.duration

    async def until_held(self) -> None:
        while not self.holds():
            self._renewed.clear()
            await self._renewed.wait()


class LoopWatch(Protocol):
    """Watches whether the event loop turns."""

    def look(self) -> float:
        """Returns for how many seconds the loop has not turned."""
        ...


class Heartbeat:
    """Sends the heartbeats of one worker; start, stop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        lease: float,
        interval_s: float,
        worker: Callable[[], str],
        rate: Callable[[], float],
        on_beat: OnBeat,
        watchdog: LoopWatch,
        on_stuck: OnStuck,
        halt: Callable[[frozenset[str]], bool] = lambda _: False,
        confirmed_pauses: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._store, self._clock, self._lease, self._interval_s = store, clock, lease, interval_s
        self._worker, self._rate, self._on_beat = worker, rate, on_beat
        self._watchdog, self._on_stuck = watchdog, on_stuck
        self._given_up = ""
        """The id of the worker that was given up because its loop is stuck."""
        self._halt_paused, self._confirmed_pauses, self._hurried = halt, confirmed_pauses, False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._store.inline:  # one loop, one thread: in the simulator and in tests that move the clock
            self._task = loop.create_task(self._beat_forever(self._store, self._on_beat), name="onward-heart")
            return
        clone = self._store.clone()

        def on_beat(sent: float, worker: str, beat: Beat) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_beat, sent, worker, beat)

        def run() -> None:
            asyncio.run(self._beat_on_clone(clone, on_beat))

        self._thread = threading.Thread(target=run, name="onward-heart", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Send a heartbeat now: a task was paused. Called from the worker's thread."""
        self._hurried = True

    async def beat_once(self) -> None:
        """Send one heartbeat out of turn, where the store runs in the worker's own loop."""
        with contextlib.suppress(Exception):  # the next heartbeat says the same
            await self._beat(self._store, self._on_beat)

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            await end_tasks([self._task], STOP_TIMEOUT_S, log, "the stop of the worker")
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning(
                    "the stop of the worker waited %g s for the thread of the heartbeat, which waits for the store; it is left behind",
                    STOP_TIMEOUT_S,
                )

    async def _beat_on_clone(self, clone: Store, on_beat: OnBeat) -> None:
        while not self._stopped:
            try:
                await clone.open(migrate=False)
                await self._beat_forever(clone, on_beat)
            except Exception as error:  # whatever it is: without a heartbeat the worker would live on and do nothing
                log.warning("the heartbeat cannot reach the store, trying again: %s", str(error) or repr(error))
                await self._clock.sleep(min(0.5, self._interval_s))
            finally:
                if clone is not self._store:
                    await clone.close()

    async def _beat_forever(self, store: Store, on_beat: OnBeat) -> None:
        while not self._stopped:
            if self._watchdog.look() > STUCK_AFTER_LEASES * self._lease:
                await self._give_up(store)
                await self._clock.sleep(self._interval_s)
                continue
            sent = self._clock.monotonic()
            try:
                await self._beat(store, on_beat)
            except Exception as error:
                log.warning("a heartbeat failed, trying again: %s", str(error) or repr(error))
                await self._clock.sleep(min(0.2, self._interval_s))
                continue
            await self._rest(sent)

    async def _beat(self, store: Store, on_beat: OnBeat) -> None:
        sent, worker, self._hurried = self._clock.monotonic(), self._worker(), False
        confirmed = self._confirmed_pauses()
        sending = store.workers.heartbeat(worker, self._lease, self._rate(), confirmed)
        # A connection that died without a word must not cost the lease: a new one may work at once.
        beat = await (sending if store.inline else asyncio.wait_for(sending, self._lease / 2))
        if new := beat.paused.difference(confirmed):
            # This thread tells the shifts first: a loop that is blocked finds it when it turns again.
            self._hurried = self._halt_paused(new) or self._hurried
        on_beat(sent, worker, beat)

    async def _give_up(self, store: Store) -> None:
        """Stop the heartbeat and release the tasks: the loop is stuck."""
        if self._given_up == (worker := self._worker()):
            return
        try:
            await asyncio.wait_for(self._on_stuck(store, worker), self._lease)
            self._given_up = worker
        except Exception as error:
            log.warning("could not release the tasks of a stuck loop, trying again: %s", str(error) or repr(error))

    async def _rest(self, sent: float) -> None:
        """Sleep until the next beat is due or a pause makes it urgent, in naps short enough to notice that."""
        pausing = self._hurried
        while not self._stopped and (left := sent + self._interval_s - self._clock.monotonic()) > 0:
            if pausing or (self._hurried and not self._store.inline):
                await self._clock.sleep(min(left, PAUSE_INTERVAL_S))
                return
            await self._clock.sleep(left if self._store.inline else min(left, 0.1))
