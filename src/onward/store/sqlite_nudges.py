"""Nudges on SQLite: datagrams between the processes that use a file. Those who follow tasks ask the file itself whether somebody
wrote: that takes no word from the others, and next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import apsw

from onward.errors import OnwardError
from onward.store.lane import Lane
from onward.store.nudge import NEWS, Datagrams, Hub, News, send_datagrams
from onward.store.sqlite_file import MEMORY
from onward.store.sqlite_run import run

LOOK = 0.01
"""Seconds between two looks of those who follow."""


class SqliteNudges:
    """See `Store` for what each verb promises."""

    path: str
    inline: bool
    _hub: Hub
    _news: News
    _read: Lane | None
    _ears: Datagrams | None
    _sending: set[asyncio.Task[None]]
    _reading: Any

    def nudge(self, topic: str) -> None:
        self._hub.nudge(topic)

    def listen(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._hub.listen(topic, callback)

    def news(self) -> None:
        self._news.tell()

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        deaf = [
            self.listen(topic, callback) for topic in (NEWS, "ready", "ended")
        ]  # what outsiders append is one of these
        stopped = asyncio.Event()
        if self.path != MEMORY and not self.inline:
            self._spawn(self._watch(stopped))

        def stop() -> None:
            for end in deaf:
                end()
            stopped.set()

        return stop

    async def _watch(self, stopped: asyncio.Event) -> None:
        """Tell those who follow here when anybody has written to the file."""
        seen = 0
        while self._read is not None and not stopped.is_set():
            with contextlib.suppress(apsw.Error, RuntimeError):  # the next look tells
                now = await self._read.run(_version, single=True)
                if now != seen:
                    seen = now
                    self._hub.heard(NEWS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK)

    async def attend(self, worker: str) -> str:  # noqa: ARG002 -- the address is the process's
        if self.path == MEMORY or self.inline:
            return ""
        if self._ears is not None:
            self._ears.close()
        self._ears = Datagrams(self._hub.heard)
        return await self._ears.open()

    def _send(self, topics: set[str]) -> None:
        if self.inline:
            return
        self._spawn(self._send_now(topics))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_now(self, topics: set[str]) -> None:
        with contextlib.suppress(OnwardError, RuntimeError):  # a hint may be lost
            addresses = await self._reading(lambda c: [address for (address,) in run(c, "addresses")])
            send_datagrams(topics, addresses)


def _version(connection: apsw.Connection) -> int:
    """Another number whenever another connection has written."""
    ((found,),) = connection.execute("PRAGMA data_version")
    return int(found)
