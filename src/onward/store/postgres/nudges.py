"""Nudges on PostgreSQL: NOTIFY and LISTEN. Where a transaction pooler stands in between, a broker can carry them (`Bell`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import asyncpg

from onward.core.shutdown import end_tasks
from onward.errors import StoreUnavailable
from onward.store.nudge import ENDED, FOLLOW, NEWS, READY, SPARE, WHO, Bell, Hub, News, Waiting
from onward.store.postgres.database import PostgresDatabase
from onward.store.postgres.listener import CHANNEL, ENDED_CHANNEL, NEWS_CHANNEL, OWN_CHANNEL, Listener
from onward.store.postgres.marks import Marks

log = logging.getLogger("onward.store")

FOLLOW_EVERY_S = 4.0
"""Seconds after which a follower says again that it follows."""

AGAIN = "again"
"""The topic `ready` for a task that was begun before."""

FOLLOW_PAUSE_S = 0.05
"""Seconds between two looks of a follower where no process can tell it."""

BELL_TIMEOUT_S = 3.0
"""Seconds in which a bell must be connected for a check."""

CLOSE_TIMEOUT_S = 5.0
"""Seconds that a close waits for nudges that are being sent."""


class PostgresNudges:
    """The nudges of one store. See `port.core.Store`, `port.workers.Workers` and `port.follow.Tails` for what each verb promises."""

    def __init__(self, database: PostgresDatabase, marks: Marks) -> None:
        self._db, self._marks = database, marks
        self.hub = Hub(self._send)
        self.news = News(self.hub, self._send_news)
        self.submitted: frozenset[str] = frozenset()
        """The tasks of the last submit: they stand behind no mark."""
        self.bell: Bell | None = None
        """Carries nudges where there is a pooler."""
        self._listener: Listener | None = None
        self._running: set[asyncio.Task[None]] = set()

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        if topic == READY and not (tasks and self.submitted.issuperset(tasks)):
            self._marks.drop()  # a task that is ready here may stand behind a mark, unless it is new
        self.hub.nudge(topic, tasks)

    def _receive(self, message: str) -> None:
        topic, _, queue = message.partition(" ")
        if topic == AGAIN:  # the task may stand behind a mark
            self._marks.drop(queue)
            message = f"{READY} {queue}"
        elif message == READY:
            self._marks.drop()
        self.hub.heard(message)

    def listen(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        if not self._db.pooled:
            self._listener = self._listener or Listener(self._db.url, self._receive)
            if topic == ENDED:  # this process may wait for a task again soon, so it goes on to listen
                self._listener.hear(ENDED_CHANNEL)
        elif self.bell is not None:
            self.bell.listen(self._receive)
        return self.hub.listen(topic, callback)

    @property
    def received(self) -> bool:
        """Whether nudges of other processes arrive."""
        return not self._db.pooled or (self.bell is not None and self.bell.listening)

    async def check(self) -> tuple[bool | None, str]:
        """How nudges reach this process, for `onward doctor`: whether that is fine, and a sentence. It connects the bell, if there is one."""
        if not self._db.pooled:
            return True, "direct"
        if self.bell is None:
            return True, "through a pooler: no LISTEN, polling instead (a bell is faster: set ONWARD_BELL)"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BELL_TIMEOUT_S):
                await self.bell.connected()
                return True, "through a pooler: no LISTEN, the bell rings instead"
        return (
            None,
            "through a pooler: no LISTEN, and the broker of the bell does not answer: polling instead",
        )

    async def attend(self, worker: str) -> str:
        if self._db.pooled:
            return ""
        self._listener = self._listener or Listener(self._db.url, self._receive)
        return "lock" if await self._listener.hold(worker) else ""

    async def depart(self, worker: str) -> None:
        """Give back the presence lock of a worker."""
        if self._listener is not None:
            await self._listener.release(worker)

    async def close(self) -> None:
        self.hub.close()
        self.news.close()
        await end_tasks(list(self._running), CLOSE_TIMEOUT_S, log, "closing the store")
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None
        if self.bell is not None:
            await self.bell.close()

    def announce(self) -> None:
        self.news.tell()

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        # A record of an outsider comes with one of the other two topics.
        ends = [self.listen(topic, lambda *_: callback()) for topic in (NEWS, READY, ENDED)]
        stopped = asyncio.Event()
        self._spawn(self._look_often(stopped) if self._db.pooled else self._follow(stopped))

        def stop() -> None:
            for end in ends:
                end()
            stopped.set()

        return stop

    async def _follow(self, stopped: asyncio.Event) -> None:
        """Tell workers everywhere that this process follows, as long as it does."""
        listener = Listener(self._db.url, self.hub.heard, NEWS_CHANNEL)
        asked = asyncio.Event()
        end = self.hub.listen(WHO, asked.set)
        try:
            while not stopped.is_set():
                asked.clear()
                await self._notify(CHANNEL, [FOLLOW])
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asked.wait(), FOLLOW_EVERY_S)
        finally:
            end()
            await listener.stop()

    async def _look_often(self, stopped: asyncio.Event) -> None:
        """Where no process can tell this one; with a bell, only while it is broken."""
        while not stopped.is_set():
            pause = FOLLOW_PAUSE_S
            if self.bell is not None and self.bell.listening:
                self.bell.ring([FOLLOW])
                pause = FOLLOW_EVERY_S
            else:
                self.hub.heard(NEWS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), pause)

    def _send(self, waiting: Waiting) -> None:
        pooled = self._db.pooled
        if pooled and self.bell is not None:
            self.bell.ring(list(waiting))
            return
        if ENDED in waiting:
            self._spawn(self._notify(ENDED_CHANNEL, [ENDED]))
        if topics := [
            topic for topic, tasks in waiting.items() if topic != ENDED and (tasks is None or topic != READY or pooled)
        ]:
            self._spawn(self._notify(CHANNEL, topics))
        if (tasks := waiting.get(READY)) and not pooled:
            self._spawn(self._notify_workers(tasks))

    def _send_news(self, waiting: Waiting) -> None:
        if self._db.pooled and self.bell is not None:
            self.bell.ring(list(waiting))
            return
        self._spawn(self._notify(NEWS_CHANNEL, list(waiting)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _notify(self, channel: str, topics: Sequence[str]) -> None:
        """Notify outside of the transactions of the work: a NOTIFY inside one would make all commits queue behind each other."""
        with contextlib.suppress(StoreUnavailable, asyncpg.PostgresError):  # a hint may be lost
            await self._db.write("notify", channel=channel, topics=list(topics))

    async def _notify_workers(self, tasks: Iterable[str]) -> None:
        """Notify about as many workers as there is work, each on its own channel."""
        with contextlib.suppress(StoreUnavailable, asyncpg.PostgresError):
            await self._db.write("notify_workers", ids=sorted(tasks), prefix=OWN_CHANNEL, spare=SPARE)
