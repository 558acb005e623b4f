"""Nudges on SQLite: datagrams between the processes that use a file. Those who follow tasks ask the file itself whether somebody
wrote: that takes no word from the others, and next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import apsw

from onward.errors import OnwardError
from onward.store.nudge import NEWS, READY, SPARE, Datagrams, Hub, News, Waiting, send_datagrams
from onward.store.sqlite.database import SqliteDatabase
from onward.store.sqlite.execute import run
from onward.store.sqlite.file import MEMORY

LOOK = 0.01
"""Seconds between two looks of those who follow."""


class SqliteNudges:
    """See `Store` for what each verb promises."""

    _db: SqliteDatabase
    _hub: Hub
    _news: News
    _ears: Datagrams | None
    _sending: set[asyncio.Task[None]]

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        self._hub.nudge(topic, tasks)

    def listen(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        return self._hub.listen(topic, callback)

    def news(self) -> None:
        self._news.tell()

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        deaf = [
            self.listen(topic, lambda *_: callback()) for topic in (NEWS, READY, "ended")
        ]  # what outsiders append is one of these
        stopped = asyncio.Event()
        if self._db.path != MEMORY and not self._db.inline:
            self._spawn(self._watch(stopped))

        def stop() -> None:
            for end in deaf:
                end()
            stopped.set()

        return stop

    async def _watch(self, stopped: asyncio.Event) -> None:
        """Tell those who follow here when anybody has written to the file."""
        seen = 0
        while self._db.reader is not None and not stopped.is_set():
            with contextlib.suppress(apsw.Error, RuntimeError):  # the next look tells
                now = await self._db.reader.run(_version, single=True)
                if now != seen:
                    seen = now
                    self._hub.heard(NEWS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK)

    async def attend(self, worker: str) -> str:  # noqa: ARG002 -- the address is the process's
        if self._db.path == MEMORY or self._db.inline:
            return ""
        if self._ears is not None:
            self._ears.close()
        self._ears = Datagrams(self._hub.heard)
        return await self._ears.open()

    def _send(self, waiting: Waiting) -> None:
        if self._db.inline:
            return
        self._spawn(self._send_now(waiting))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_now(self, waiting: Waiting) -> None:
        with contextlib.suppress(OnwardError, RuntimeError):  # a hint may be lost
            for address, messages in (await self._db.reading(lambda c: _messages(c, waiting))).items():
                send_datagrams(messages, [address])


def _messages(connection: apsw.Connection, waiting: Waiting) -> dict[str, set[str]]:
    """Who hears what: a topic without tasks is for everybody, one with tasks for about as many workers as there is work."""
    found: dict[str, set[str]] = {}
    if topics := {topic for topic, tasks in waiting.items() if tasks is None or topic != READY}:
        found = {address: set(topics) for (address,) in run(connection, "addresses")}
    if tasks := waiting.get(READY):
        for queue, task, ready, count in list(run(connection, "work", ids=json.dumps(sorted(tasks)))):
            for (address,) in run(connection, "workers_for", queue=queue, task=task, most=count + SPARE):
                found.setdefault(address, set()).add(f"{READY} {queue}" if ready else READY)
    return found


def _version(connection: apsw.Connection) -> int:
    """Another number whenever another connection has written."""
    ((found,),) = connection.execute("PRAGMA data_version")
    return int(found)
