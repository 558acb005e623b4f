"""Nudges on SQLite: datagrams between the processes that use a file. A follower asks the file itself whether another process wrote:
that needs no message, and costs next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

import apsw

from onward.errors import OnwardError
from onward.store.nudge import ENDED, NEWS, READY, SPARE, Datagrams, Hub, News, Waiting, send_datagrams
from onward.store.sqlite.database import SqliteDatabase
from onward.store.sqlite.execute import run
from onward.store.sqlite.file import MEMORY

FOLLOW_PAUSE_S = 0.01
"""Seconds between two looks of a follower at the file."""


class SqliteNudges:
    """The nudges of one store. See `port.core.Store`, `port.workers.Workers` and `port.follow.Tails` for what each verb promises."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._db = database
        self.hub = Hub(None if database.path == MEMORY else self._send)
        self.news = News(self.hub)
        self._datagrams: Datagrams | None = None
        self._running: set[asyncio.Task[None]] = set()

    def announce(self) -> None:
        self.news.tell()

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        # A record of an outsider comes with one of the other two topics.
        ends = [self.hub.listen(topic, lambda *_: callback()) for topic in (NEWS, READY, ENDED)]
        stopped = asyncio.Event()
        if self._db.path != MEMORY and not self._db.inline:
            self._spawn(self._watch(stopped))

        def stop() -> None:
            for end in ends:
                end()
            stopped.set()

        return stop

    async def _watch(self, stopped: asyncio.Event) -> None:
        """Tell the followers of this process when another connection has written to the file."""
        seen = 0
        while self._db.reader is not None and not stopped.is_set():
            with contextlib.suppress(apsw.Error, RuntimeError):  # the next look tells
                version = await self._db.reader.run(_data_version, single=True)
                if version != seen:
                    seen = version
                    self.hub.heard(NEWS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), FOLLOW_PAUSE_S)

    async def attend(self, worker: str) -> str:  # noqa: ARG002 -- the address is that of the process
        if self._db.path == MEMORY or self._db.inline:
            return ""
        if self._datagrams is not None:
            self._datagrams.close()
        self._datagrams = Datagrams(self.hub.heard)
        return await self._datagrams.open()

    def close(self) -> None:
        self.hub.close()
        for task in self._running:
            task.cancel()
        if self._datagrams is not None:
            self._datagrams.close()
            self._datagrams = None

    def _send(self, waiting: Waiting) -> None:
        if not self._db.inline:
            self._spawn(self._send_now(waiting))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _send_now(self, waiting: Waiting) -> None:
        """Read the addresses before all other reads that wait, and send in the thread that reads: a way back to the loop takes longer."""
        with contextlib.suppress(OnwardError, RuntimeError, apsw.Error):  # a hint may be lost
            if self._db.reader is not None:
                await self._db.reader.run(lambda c: _send_all(c, waiting), urgent=True, reads=True)


def _send_all(connection: apsw.Connection, waiting: Waiting) -> None:
    for address, messages in _messages(connection, waiting).items():
        send_datagrams(messages, [address])


def _messages(connection: apsw.Connection, waiting: Waiting) -> dict[str, set[str]]:
    """The messages for each address. A topic without tasks goes to all workers, one with tasks to about as many as there is work."""
    messages: dict[str, set[str]] = {}
    if topics := {topic for topic, tasks in waiting.items() if tasks is None or topic != READY}:
        messages = {address: set(topics) for (address,) in run(connection, "addresses")}
    if tasks := waiting.get(READY):
        for queue, task, ready, count in list(run(connection, "work", ids=json.dumps(sorted(tasks)))):
            for (address,) in run(connection, "workers_for", queue=queue, task=task, most=count + SPARE):
                messages.setdefault(address, set()).add(f"{READY} {queue}" if ready else READY)
    return messages


def _data_version(connection: apsw.Connection) -> int:
    """A number that changes whenever another connection has written."""
    ((version,),) = connection.execute("PRAGMA data_version")
    return int(version)
