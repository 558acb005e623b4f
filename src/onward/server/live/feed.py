"""The feed: one reader of journals for everybody in this process who follows tasks.

    commit ─► news ─► look: one question for all followed tasks ─► the buffer of each follower ─► its stream

Whoever comes in reads its own way up to where the feed is, and is served from there on. A follower whose buffer is full drops
out, and reads on from its own cursor when it has room: it holds up neither a task nor its neighbours. Records of a task are
numbered without gaps, so a follower sees at once when one is missing, and none comes twice.

Nothing runs while nobody follows, nor did a moment ago.
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
from onward.errors import OnwardError
from onward.server.http.problem import Problem
from onward.store.port.follow import PAGE_BYTES, PAGE_RECORDS, PAGE_RECORDS_EACH, Tail, Tails

log = logging.getLogger("onward.feed")

PAUSE = 0.01
"""Seconds between two looks, however many news there are."""

POLL = 0.5
"""Seconds after which it looks without news."""

AGAIN = 0.3
"""Seconds after which a database that did not answer is asked again."""

BUFFER = 128
"""Records that wait for a follower."""

BUFFER_BYTES = 128_000
AT_ONCE = 64
"""Records that a follower gets at once."""

LINGER = 5.0
"""Seconds for which it stays ready after the last follower has left: most come back."""

COME_BACK = 5.0
"""Seconds after which there may be room for a stream again."""


class Closed(Exception):
    """The server stops, and every stream with it."""


class Feed:
    """All that is followed in this process."""

    def __init__(self, store: Tails, clock: Clock, *, streams: int, closing: asyncio.Event) -> None:
        self.store, self.clock, self._most, self._closing = store, clock, streams, closing
        self.followers: set[Follower] = set()
        self._seen: dict[str, int] = {}
        """The tasks that are followed, and up to where all of their live followers were told."""
        self._live: dict[str, set[Follower]] = {}
        self._from = ""
        """Where the last look ended, when there was more to see."""
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._left = 0.0
        self.looks = 0

    def check_room(self) -> None:
        """Raises Problem when there are as many streams as may be."""
        if len(self.followers) >= self._most:
            raise Problem(
                503,
                "too_many_streams",
                f"{self._most} streams are open here, and no more may be (ONWARD_STREAMS); come back in {COME_BACK:g} s",
                {"Retry-After": f"{COME_BACK:g}"},
            )

    def follow(self, after: Mapping[str, int]) -> Follower:
        """Somebody who follows these tasks, each after a number."""
        follower = Follower(self, after)
        self.followers.add(follower)
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run(), name="onward-feed")
        return follower

    @property
    def closed(self) -> bool:
        """Whether the server stops."""
        return self._closing.is_set()

    # ── what followers call ──────────────────────────────────────────────────────────────────────────────────────

    def join(self, follower: Follower, task_id: str) -> bool:
        """Serve it this task from where it is; False when it has to read up to where the others are."""
        if follower.last[task_id] < self._seen.setdefault(task_id, follower.last[task_id]):
            return False
        self._live.setdefault(task_id, set()).add(follower)
        self._news.set()
        return True

    def part(self, follower: Follower, task_id: str) -> None:
        """Serve it this task no longer."""
        there = self._live.get(task_id)
        if there is not None:
            there.discard(follower)
            if not there:
                del self._live[task_id], self._seen[task_id]

    def leave(self, follower: Follower) -> None:
        """It is gone."""
        for task_id in follower.last:
            self.part(follower, task_id)
        self.followers.discard(follower)
        self._left = self.clock.monotonic()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        stop = self.store.follow(self._news.set)
        closing = asyncio.ensure_future(self._closing.wait())
        closing.add_done_callback(lambda _: self._ring())
        try:
            while self.followers or self.clock.monotonic() - self._left < LINGER:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), POLL)
                if self.closed or _stopping():
                    self._closing.set()
                    return
                self._news.clear()
                began = self.clock.monotonic()
                pause = await self._looked()
                await self.clock.sleep(max(pause - (self.clock.monotonic() - began), 0))
        finally:
            closing.cancel()
            stop()

    def _ring(self) -> None:
        self._news.set()
        for follower in self.followers:
            follower.ring()

    async def _looked(self) -> float:
        """Look; how long to wait before the next time, counted from the beginning of this."""
        try:
            await self._look()
        except OnwardError as error:
            log.warning("cannot look at journals, trying again: %s", error)
        except Exception:
            log.exception("looking at journals failed")
        else:
            return PAUSE
        self._news.set()
        return AGAIN

    async def _look(self) -> None:
        wanted = {task_id: seq for task_id, seq in self._seen.items() if task_id > self._from}
        if not wanted:
            self._from = ""
            return
        self.looks += 1
        found = await self.store.read(wanted)
        for tail in found:
            self._hand_out(tail)
        # By task: what did not fit comes first the next time, so that no busy task is in the way of another.
        self._from = found[-1].task_id if len(found) >= PAGE_RECORDS else ""
        if len(found) >= PAGE_RECORDS_EACH or sum(len(tail.record.data) for tail in found) >= PAGE_BYTES:
            self._news.set()  # there is more

    def _hand_out(self, tail: Tail) -> None:
        task_id, record = tail
        if record.seq != self._seen.get(task_id, record.seq) + 1:  # everybody left meanwhile, or came anew
            return
        self._seen[task_id] = record.seq
        for follower in list(self._live[task_id]):
            follower.put(tail)


def _stopping() -> bool:
    """Whether uvicorn, where somebody else runs it, was told to stop. It waits for every answer to come to its end, and has no
    word for those that go on for ever; whom its signals go to is the one way to ask it."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


class Follower:
    """One reader of some tasks, with its own cursor for each. Use it as a context."""

    def __init__(self, feed: Feed, after: Mapping[str, int]) -> None:
        self._feed = feed
        self.last = dict(after)
        """For each task, the last record that was put into the buffer or handed out."""
        self._behind = dict.fromkeys(after)
        """Tasks that it has to read on its own."""
        self._buffer: collections.deque[Tail] = collections.deque()
        self._bytes = 0
        self._rung = False
        self._asleep: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._feed.leave(self)

    def add(self, after: Mapping[str, int]) -> None:
        """Follow these as well."""
        self.last |= after
        self._behind |= dict.fromkeys(after)
        self.ring()

    def drop(self, ids: Iterable[str]) -> None:
        """Follow these no longer."""
        for task_id in ids:
            self._feed.part(self, task_id)
            self.last.pop(task_id, None)
            self._behind.pop(task_id, None)

    async def gone(self, ids: Iterable[str]) -> set[str]:
        """Which of these tasks are not there any more."""
        asked = list(ids)
        with contextlib.suppress(OnwardError):
            return set(asked) - set(await self._feed.store.heads(asked)) if asked else set()
        return set()

    @property
    def idle(self) -> bool:
        """Whether it has been handed everything that is known to be there."""
        return not self._buffer and not self._behind

    @property
    def buffered(self) -> tuple[int, int]:
        """Records that wait for it, and their bytes."""
        return len(self._buffer), self._bytes

    def ring(self) -> None:
        """Wake it."""
        self._rung = True
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)

    def put(self, tail: Tail) -> None:
        """One more record, for the feed; without room, or with one missing before it, it is left to its own reading."""
        task_id, record = tail
        if record.seq <= self.last[task_id]:
            return
        full = len(self._buffer) >= BUFFER or self._bytes >= BUFFER_BYTES
        if full or record.seq != self.last[task_id] + 1:
            self._feed.part(self, task_id)
            self._behind[task_id] = None
        else:
            self._buffer.append(tail)
            self._bytes += len(record.data)
            self.last[task_id] = record.seq
        self.ring()

    async def next(self, timeout: float) -> Sequence[Tail]:
        """The next records, in order for each task; none when there are none within the time. Raises Closed."""
        end = self._feed.clock.monotonic() + timeout
        while True:
            self._rung = False
            if self._feed.closed:
                raise Closed
            if self._buffer:
                return self._taken()
            if self._behind:
                return await self._read()
            left = end - self._feed.clock.monotonic()
            if left <= 0:
                return ()
            await self._sleep(left)

    async def _sleep(self, seconds: float) -> None:
        """Until it is rung. With a future and a timer: `wait_for` makes a task each time, and this is what each of a hundred
        clients does for each update."""
        if self._rung:
            return
        loop = asyncio.get_running_loop()
        self._asleep = loop.create_future()
        alarm = loop.call_later(seconds, self.ring)
        try:
            await self._asleep
        finally:
            alarm.cancel()
            self._asleep = None

    def _taken(self) -> Sequence[Tail]:
        taken = [self._buffer.popleft() for _ in range(min(AT_ONCE, len(self._buffer)))]
        self._bytes -= sum(len(tail.record.data) for tail in taken)
        return [tail for tail in taken if tail.task_id in self.last]

    async def _read(self) -> Sequence[Tail]:
        """A page of what it has not seen; when that is all, the feed serves it from there on."""
        asked = {task_id: self.last[task_id] for task_id in self._behind}
        try:
            found = await self._feed.store.read(asked, AT_ONCE)
        except OnwardError as error:
            log.warning("cannot read a journal, trying again: %s", error)
            await self._feed.clock.sleep(AGAIN)
            return ()
        found = [tail for tail in found if tail.task_id in self.last]
        for tail in found:
            self.last[tail.task_id] = tail.record.seq
        if len(found) < AT_ONCE:
            for task_id in [one for one in asked if one in self.last]:
                if self._feed.join(self, task_id):
                    self._behind.pop(task_id, None)
        return found
