"""The lease: a worker's right to hold tasks, prolonged by a heartbeat for the whole process.

The heartbeat has a thread and a connection of its own, so that a step which blocks the loop for a while does not cost
the lease. A watchdog looks the other way: when the loop has not turned for three leases it is taken for hung, the
heartbeat stops, and others go on with the work. The worker judges its own lease by its monotonic clock from the moment a
heartbeat was sent, never by the database's.
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

STOP_FOR = 5.0
"""Seconds that a stop waits for the heartbeat to end."""

STUCK_AFTER = 3
"""Leases after which a loop that does not turn is taken for stuck."""

GiveUp = Callable[[Store, str], Coroutine[Any, Any, None]]
"""Told, in the thread of the heartbeat, that the loop of this worker is stuck."""

Heard = Callable[[float, str, Beat], None]
"""Told of each answer: when the heartbeat was sent, for which worker, and what the store said."""

PAUSING = 0.02
"""Seconds between two heartbeats while a pause waits for this worker to confirm it."""


class Lease:
    """Whether this worker may start something new."""

    def __init__(self, clock: Clock, duration: float) -> None:
        self._clock, self.duration = clock, duration
        self.until = 0.0
        self._renewed = asyncio.Event()
        self._steady_since = -float("inf")

    def renew(self, sent: float) -> None:
        """A heartbeat that was sent at this moment was answered."""
        if self.until and sent > self.until - self.duration / 2:
            self.doubt()  # it came late: the database was away, or we were
        self.until = sent + self.duration
        self._renewed.set()

    def drop(self) -> None:
        """We were declared dead."""
        self.until = 0.0

    def doubt(self) -> None:
        """Something was wrong with the database or with us just now: no verdict on others for a while."""
        self._steady_since = self._clock.monotonic()

    def holds(self) -> bool:
        return self._clock.monotonic() < self.until

    def may_judge(self) -> bool:
        """Whether a lease of another that has ended tells something about that other. After an outage that hit everybody,
        a worker that came back first would otherwise declare dead all that come back second."""
        return self.holds() and self._clock.monotonic() - self._steady_since > self.duration

    async def until_held(self) -> None:
        while not self.holds():
            self._renewed.clear()
            await self._renewed.wait()


class Watch(Protocol):
    """Sees whether the loop turns."""

    def look(self) -> float:
        """For how many seconds it has not."""
        ...


class Heart:
    """Beats for one worker; start, stop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        lease: float,
        every: float,
        worker: Callable[[], str],
        rate: Callable[[], float],
        heard: Heard,
        watchdog: Watch,
        stuck: GiveUp,
        halt: Callable[[frozenset[str]], bool] = lambda _: False,
        resting: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._store, self._clock, self._lease, self._every = store, clock, lease, every
        self._worker, self._rate, self._heard = worker, rate, heard
        self._watchdog, self._stuck = watchdog, stuck
        self._gave_up = ""
        """The worker that was given up because its loop is stuck."""
        self._halt, self._resting, self._hurried = halt, resting, False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._store.inline:  # one loop, one thread: the simulator and tests that move the clock
            self._task = loop.create_task(self._beat_forever(self._store, self._heard), name="onward-heart")
            return
        twin = self._store.clone()

        def heard(sent: float, worker: str, beat: Beat) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._heard, sent, worker, beat)

        def run() -> None:
            asyncio.run(self._on_a_twin(twin, heard))

        self._thread = threading.Thread(target=run, name="onward-heart", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Beat now: a task was paused. Called from the worker's thread."""
        self._hurried = True

    async def beat_once(self) -> None:
        """One heartbeat beside the others, where the store is in the worker's own loop and the heart sleeps by its clock."""
        with contextlib.suppress(Exception):  # the next one tells the same
            await self._beat(self._store, self._heard)

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            await end_tasks([self._task], STOP_FOR, log, "the stop of the worker")
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_FOR)
            if self._thread.is_alive():
                log.warning(
                    "the stop of the worker waited %g s for the thread of the heartbeat, which waits for the store; it is left behind",
                    STOP_FOR,
                )

    async def _on_a_twin(self, twin: Store, heard: Heard) -> None:
        while not self._stopped:
            try:
                await twin.open(migrate=False)
                await self._beat_forever(twin, heard)
            except Exception as error:  # whatever it is: without a heart the worker would live on and do nothing
                log.warning("the heartbeat cannot reach the store, trying again: %s", str(error) or repr(error))
                await self._clock.sleep(min(0.5, self._every))
            finally:
                if twin is not self._store:
                    await twin.close()

    async def _beat_forever(self, store: Store, heard: Heard) -> None:
        while not self._stopped:
            if self._watchdog.look() > STUCK_AFTER * self._lease:
                await self._give_up(store)
                await self._clock.sleep(self._every)
                continue
            sent = self._clock.monotonic()
            try:
                await self._beat(store, heard)
            except Exception as error:
                log.warning("a heartbeat failed, trying again: %s", str(error) or repr(error))
                await self._clock.sleep(min(0.2, self._every))
                continue
            await self._rest(sent)

    async def _beat(self, store: Store, heard: Heard) -> None:
        sent, worker, self._hurried = self._clock.monotonic(), self._worker(), False
        resting = self._resting()
        sending = store.workers.heartbeat(worker, self._lease, self._rate(), resting)
        # A connection that died without a word must not cost the lease: a new one may work at once.
        beat = await (sending if store.inline else asyncio.wait_for(sending, self._lease / 2))
        if new := beat.paused.difference(resting):
            # The shifts are told from this thread first: a loop that is blocked finds it when it turns again.
            self._hurried = self._halt(new) or self._hurried
        heard(sent, worker, beat)

    async def _give_up(self, store: Store) -> None:
        """The loop is stuck: no heartbeat, and others go on with the tasks."""
        if self._gave_up == (worker := self._worker()):
            return
        try:
            await asyncio.wait_for(self._stuck(store, worker), self._lease)
            self._gave_up = worker
        except Exception as error:
            log.warning("could not let go of the tasks of a stuck loop, trying again: %s", str(error) or repr(error))

    async def _rest(self, sent: float) -> None:
        """Until the next beat is due or somebody hurries it, in naps short enough to notice that."""
        pausing = self._hurried
        while not self._stopped and (left := sent + self._every - self._clock.monotonic()) > 0:
            if pausing or (self._hurried and not self._store.inline):
                await self._clock.sleep(min(left, PAUSING))
                return
            await self._clock.sleep(left if self._store.inline else min(left, 0.1))
