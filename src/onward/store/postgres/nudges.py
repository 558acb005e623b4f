"""Nudges on PostgreSQL: NOTIFY and LISTEN, where no transaction pooler stands in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import asyncpg

from onward.errors import StoreUnavailable
from onward.store.nudge import FOLLOW, NEWS, READY, SPARE, WHO, Hub, News, Waiting
from onward.store.postgres.database import PostgresDatabase
from onward.store.postgres.listener import CHANNEL, NEWS_CHANNEL, OWN_CHANNEL, Listener
from onward.store.postgres.marks import Marks

SAY_SO = 4.0
"""Seconds after which those who follow say it again."""

AGAIN = "again"
"""What `ready` is called for a task that was begun before."""

LOOK = 0.05
"""Seconds between two looks of those who follow where nobody can tell them."""


class PostgresNudges:
    """See `Store` and `Tails` for what each verb promises."""

    _db: PostgresDatabase
    _hub: Hub
    _news: News
    _listener: Listener | None
    _sending: set[asyncio.Task[None]]
    _marks: Marks
    _submitted: frozenset[str]

    @property
    def hears(self) -> bool:
        return not self._db.pooled

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        if topic == READY and not (tasks and self._submitted.issuperset(tasks)):
            self._marks.drop()  # a task that is ready here may stand behind a mark, unless it is new
        self._hub.nudge(topic, tasks)

    def _hear(self, message: str) -> None:
        topic, _, queue = message.partition(" ")
        if topic == AGAIN:  # a task that was begun before, and may stand behind a mark
            self._marks.drop(queue)
            message = f"{READY} {queue}"
        elif message == READY:
            self._marks.drop()
        self._hub.heard(message)

    def listen(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        if self._listener is None and not self._db.pooled:
            self._listener = Listener(self._db.url, self._hear)
        return self._hub.listen(topic, callback)

    async def attend(self, worker: str) -> str:
        if self._db.pooled:
            return ""
        if self._listener is None:
            self._listener = Listener(self._db.url, self._hear)
        return "lock" if await self._listener.hold(worker) else ""

    def news(self) -> None:
        self._news.tell()

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        deaf = [
            self.listen(topic, lambda *_: callback()) for topic in (NEWS, READY, "ended")
        ]  # what outsiders append is one of these
        stopped = asyncio.Event()
        self._spawn(self._look_often(stopped) if self._db.pooled else self._say_so(stopped))

        def stop() -> None:
            for end in deaf:
                end()
            stopped.set()

        return stop

    async def _say_so(self, stopped: asyncio.Event) -> None:
        """As long as somebody follows here, workers everywhere know it."""
        ears = Listener(self._db.url, self._hub.heard, follows=True)
        asked = asyncio.Event()
        deaf = self._hub.listen(WHO, asked.set)
        try:
            while not stopped.is_set():
                asked.clear()
                await self._notify(CHANNEL, [FOLLOW])
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asked.wait(), SAY_SO)
        finally:
            deaf()
            await ears.stop()

    async def _look_often(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            self._hub.heard(NEWS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK)

    def _send(self, waiting: Waiting) -> None:
        if topics := [topic for topic, tasks in waiting.items() if tasks is None or topic != READY or self._db.pooled]:
            self._spawn(self._notify(CHANNEL, topics))
        if (tasks := waiting.get(READY)) and not self._db.pooled:
            self._spawn(self._notify_workers(tasks))

    def _send_news(self, waiting: Waiting) -> None:
        self._spawn(self._notify(NEWS_CHANNEL, list(waiting)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _notify(self, channel: str, topics: Sequence[str]) -> None:
        """Outside of every hot transaction: NOTIFY inside one would make all commits queue behind each other."""
        with contextlib.suppress(StoreUnavailable, asyncpg.PostgresError):  # a hint may be lost
            await self._db.fetch("notify", channel=channel, topics=list(topics))

    async def _notify_workers(self, tasks: Iterable[str]) -> None:
        """About as many workers as there is work, each on a channel of its own; the others do not hear of it."""
        with contextlib.suppress(StoreUnavailable, asyncpg.PostgresError):
            await self._db.fetch("notify_workers", ids=sorted(tasks), prefix=OWN_CHANNEL, spare=SPARE)
