"""The part of an app that streams progress as server-sent events, for endpoints of your own web application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from onward.core.clock import SystemClock
from onward.core.journal.progress import Only, check_only
from onward.server.live.feed import Feed
from onward.server.live.pump import progress
from onward.store.port.core import Store

if TYPE_CHECKING:
    from onward.config import Settings


class Streams:
    """The streams of an app: one reader of journals for all of them, as in the server."""

    store: Store
    settings: Settings
    _feed: Feed | None = None

    def _stream(self, task_id: str, after: str | int | None, only: Only | None) -> AsyncGenerator[bytes, None]:
        """The progress of a task as server-sent events. Raises TooManyStreams and BadSetting before it begins."""
        check_only(only)
        if self._feed is not None:
            self._feed.check_room()
        return self._events(task_id, after, only)

    async def _events(self, task_id: str, after: str | int | None, only: Only | None) -> AsyncGenerator[bytes, None]:
        if self._feed is None:
            # A client waits in real time, also where a test moves the clock of the app.
            self._feed = Feed(self.store.tails, SystemClock(), streams=self.settings.streams, closing=asyncio.Event())
        stream = progress(self._feed, task_id, None if after is None else str(after), only)
        async with contextlib.aclosing(stream):
            async for piece in stream:
                yield piece

    async def _close_streams(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.close()
