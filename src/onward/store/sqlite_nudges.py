"""Nudges on SQLite: datagrams between the processes that use a file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from onward.errors import OnwardError
from onward.store.nudge import Datagrams, Hub, send_datagrams
from onward.store.sqlite_file import MEMORY
from onward.store.sqlite_run import run


class SqliteNudges:
    """See `Store` for what each verb promises."""

    path: str
    inline: bool
    _hub: Hub
    _ears: Datagrams | None
    _sending: set[asyncio.Task[None]]
    _reading: Any

    def nudge(self, topic: str) -> None:
        self._hub.nudge(topic)

    def listen(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._hub.listen(topic, callback)

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
        task = asyncio.get_running_loop().create_task(self._send_now(topics))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_now(self, topics: set[str]) -> None:
        with contextlib.suppress(OnwardError, RuntimeError):  # a hint may be lost
            addresses = await self._reading(lambda c: [address for (address,) in run(c, "addresses")])
            send_datagrams(topics, addresses)
