"""The feed: one reader of journals for all streams of this process.

    commit ─► nudge ─► look: one query for all followed tasks ─► the buffer of each follower ─► its stream

A new follower reads by itself up to where the feed is, and the feed serves it from there on. A follower whose buffer is full
leaves the feed, and reads on from its own cursor when it has room: it delays neither a task nor other followers. Records of a
task are numbered without gaps, so a follower sees at once when one is missing, and gets no record twice.

The feed runs only while there are followers, and LINGER_S seconds longer.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import signal
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from onward.core.clock import Clock
from onward.errors import OnwardError, TooManyStreams
from onward.store.port.follow import PAGE_RECORDS, Tail, Tails

log = logging.getLogger("onward.feed")

MIN_INTERVAL_S = 0.01
"""Seconds between two looks at the store, at least."""

POLL_INTERVAL_S = 0.5
"""Seconds after which the feed looks without a nudge."""

RETRY_DELAY_S = 0.3
"""Seconds after which the feed asks again when the database did not answer."""

MAX_BUFFERED_RECORDS = 128
"""Records that wait for one follower, at most."""

MAX_BUFFERED_BYTES = 128_000
BATCH_RECORDS = 64
"""Records that a follower gets at once, at most."""

LINGER_S = 5.0
"""Seconds for which the feed stays ready after the last follower has left: most come back."""

RETRY_AFTER_S = 5.0
"""Seconds after which a client may try again when there are too many streams."""


class Closed(Exception):
    """The server stops, and all streams end."""


class Feed:
    """All followers of this process, and the loop that reads their tasks."""

    def __init__(self, store: Tails, clock: Clock, *, streams: int, closing: asyncio.Event) -> None:
        self.store, self.clock, self._max_streams, self._closing = store, clock, streams, closing
        self.followers: set[Follower] = set()
        self._seen: dict[str, int] = {}
        """For each followed task, the last record that its attached followers got."""
        self._live: dict[str, set[Follower]] = {}
        self._from = ""
        """The task where the last look ended, if it did not read all."""
        self._nudge = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._last_left = 0.0
        self.looks = 0

    def check_room(self) -> None:
        """Raises TooManyStreams if as many streams are open as allowed."""
        if len(self.followers) >= self._max_streams:
            raise TooManyStreams(self._max_streams, RETRY_AFTER_S)

    def follow(self, after: Mapping[str, int]) -> Follower:
        """A new follower of these tasks, each after a record number."""
        follower = Follower(self, after)
        self.followers.add(follower)
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run(), name="onward-feed")
        return follower

    async def close(self) -> None:
        """End all streams."""
        self._closing.set()
        self._wake_all()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    @property
    def closed(self) -> bool:
        """Whether the server stops."""
        return self._closing.is_set()

    # ── for followers ───────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, follower: Follower, task_id: str) -> bool:
        """Serve this task to the follower from its position on; False if it must first read up to where the others are."""
        if follower.last[task_id] < self._seen.setdefault(task_id, follower.last[task_id]):
            return False
        self._live.setdefault(task_id, set()).add(follower)
        self._nudge.set()
        return True

    def detach(self, follower: Follower, task_id: str) -> None:
        """Stop serving this task to the follower."""
        attached = self._live.get(task_id)
        if attached is not None:
            attached.discard(follower)
            if not attached:
                del self._live[task_id], self._seen[task_id]

    def remove(self, follower: Follower) -> None:
        """The follower has left."""
        for task_id in follower.last:
            self.detach(follower, task_id)
        self.followers.discard(follower)
        self._last_left = self.clock.monotonic()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        stop = self.store.follow(self._nudge.set)
        closing = asyncio.ensure_future(self._closing.wait())
        closing.add_done_callback(lambda _: self._wake_all())
        try:
            while self.followers or self.clock.monotonic() - self._last_left < LINGER_S:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._nudge.wait(), POLL_INTERVAL_S)
                if self.closed or _stopping():
                    self._closing.set()
                    return
                self._nudge.clear()
                began = self.clock.monotonic()
                pause = await self._try_look()
                await self.clock.sleep(max(pause - (self.clock.monotonic() - began), 0))
        finally:
            closing.cancel()
            stop()

    def _wake_all(self) -> None:
        self._nudge.set()
        for follower in self.followers:
            follower.wake()

    async def _try_look(self) -> float:
        """Look at the store; returns the seconds until the next look, counted from the beginning of this one."""
        try:
            await self._look()
        except OnwardError as error:
            log.warning("cannot read journals, trying again: %s", error)
        except Exception:
            log.exception("reading journals failed")
        else:
            return MIN_INTERVAL_S
        self._nudge.set()
        return RETRY_DELAY_S

    async def _look(self) -> None:
        after = {task_id: seq for task_id, seq in self._seen.items() if task_id > self._from}
        if not after:
            self._from = ""
            return
        self.looks += 1
        tails = await self.store.read(after)
        for tail in tails:
            self._hand_out(tail)
        # Ordered by task: the next look begins where this page ended, so that a busy task does not delay the others.
        self._from = tails[-1].task_id if len(tails) >= PAGE_RECORDS else ""
        if tails.next is not None:
            self._nudge.set()  # there is more to read

    def _hand_out(self, tail: Tail) -> None:
        task_id, record = tail
        if record.seq != self._seen.get(task_id, record.seq) + 1:  # its followers have left meanwhile, or new ones came
            return
        self._seen[task_id] = record.seq
        for follower in list(self._live[task_id]):
            follower.put(tail)


def _stopping() -> bool:
    """Whether uvicorn or gunicorn, where another program runs it, is about to stop. They wait for every response to end, and have no
    hook for endless ones. Their signal handler is the only way to find them."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True or getattr(server, "alive", True) is False


class Follower:
    """One reader of some tasks, with a cursor for each. Use it as an async context manager."""

    def __init__(self, feed: Feed, after: Mapping[str, int]) -> None:
        self._feed = feed
        self.last = dict(after)
        """For each task, the last record that was put into the buffer or returned."""
        self._behind = dict.fromkeys(after)
        """Tasks that it must read by itself."""
        self._buffer: collections.deque[Tail] = collections.deque()
        self._bytes = 0
        self._woken = False
        self._asleep: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._feed.remove(self)

    def add(self, after: Mapping[str, int]) -> None:
        """Follow these tasks too."""
        self.last |= after
        self._behind |= dict.fromkeys(after)
        self.wake()

    def drop(self, ids: Iterable[str]) -> None:
        """Stop following these tasks."""
        for task_id in ids:
            self._feed.detach(self, task_id)
            self.last.pop(task_id, None)
            self._behind.pop(task_id, None)

    async def missing(self, ids: Iterable[str]) -> set[str]:
        """Which of these tasks no longer exist."""
        wanted = list(ids)
        with contextlib.suppress(OnwardError):
            return set(wanted) - set(await self._feed.store.heads(wanted)) if wanted else set()
        return set()

    @property
    def idle(self) -> bool:
        """Whether it has returned all records that it knows of."""
        return not self._buffer and not self._behind

    @property
    def buffered(self) -> tuple[int, int]:
        """The number of buffered records, and their bytes."""
        return len(self._buffer), self._bytes

    def wake(self) -> None:
        """Wake `next`."""
        self._woken = True
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)

    def put(self, tail: Tail) -> None:
        """Buffer a record from the feed. If the buffer is full, or a record before it is missing, the follower is detached and
        reads by itself."""
        task_id, record = tail
        if record.seq <= self.last[task_id]:
            return
        full = len(self._buffer) >= MAX_BUFFERED_RECORDS or self._bytes >= MAX_BUFFERED_BYTES
        if full or record.seq != self.last[task_id] + 1:
            self._feed.detach(self, task_id)
            self._behind[task_id] = None
        else:
            self._buffer.append(tail)
            self._bytes += len(record.data)
            self.last[task_id] = record.seq
        self.wake()

    async def next(self, timeout: float) -> Sequence[Tail]:
        """The next records, in order for each task; empty if there are none within the time. Raises Closed."""
        end = self._feed.clock.monotonic() + timeout
        while True:
            self._woken = False
            if self._feed.closed:
                raise Closed
            if self._buffer:
                return self._take()
            if self._behind:
                return await self._read()
            left = end - self._feed.clock.monotonic()
            if left <= 0:
                return ()
            await self._sleep(left)

    async def _sleep(self, seconds: float) -> None:
        """Wait until woken. It uses a future and a timer: `wait_for` creates a task each time, and each of a hundred clients
        waits after each update."""
        if self._woken:
            return
        loop = asyncio.get_running_loop()
        self._asleep = loop.create_future()
        alarm = loop.call_later(seconds, self.wake)
        try:
            await self._asleep
        finally:
            alarm.cancel()
            self._asleep = None

    def _take(self) -> Sequence[Tail]:
        tails = [self._buffer.popleft() for _ in range(min(BATCH_RECORDS, len(self._buffer)))]
        self._bytes -= sum(len(tail.record.data) for tail in tails)
        return [tail for tail in tails if tail.task_id in self.last]

    async def _read(self) -> Sequence[Tail]:
        """Read a page by itself; after the last page the feed serves the task from there on."""
        after = {task_id: self.last[task_id] for task_id in self._behind}
        try:
            page = await self._feed.store.read(after, BATCH_RECORDS)
        except OnwardError as error:
            log.warning("cannot read a journal, trying again: %s", error)
            await self._feed.clock.sleep(RETRY_DELAY_S)
            return ()
        tails = [tail for tail in page if tail.task_id in self.last]
        for tail in tails:
            self.last[tail.task_id] = tail.record.seq
        if len(tails) < BATCH_RECORDS:
            for task_id in [task_id for task_id in after if task_id in self.last]:
                if self._feed.attach(self, task_id):
                    self._behind.pop(task_id, None)
        return tails
