"""Calls of a framework that reach an app from other threads.

An app lives in one event loop. A framework calls its checkpointer from that loop, or from threads beside it. `Bridge` runs each call in the
loop of the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from onward.core.clock import Clock
from onward.core.ids import Ids
from onward.errors import UsageError
from onward.store.port.core import Store

T = TypeVar("T")


class App(Protocol):
    """The parts of `Onward` that a bridge needs."""

    store: Store
    _clock: Clock
    _ids: Ids
    _loop: asyncio.AbstractEventLoop | None


class Bridge:
    """Runs coroutines in the loop of an app."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call from a coroutine."""
        loop = self.app._loop
        if loop is None or loop is asyncio.get_running_loop():
            return await call  # an app that is not open says so itself
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))

    def run_blocking(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call from a thread, which waits for it. Raises UsageError in the thread of the loop."""
        loop = self.app._loop
        if loop is None or loop is _running():
            call.close()
            raise UsageError(
                "the app is not open; open it with `async with app:`, or with `with app.in_thread():` in a program without an event loop"
                if loop is None
                else "a blocking call would stop the event loop of the app; use the async method (ainvoke, aget …), or open the app with "
                "`with app.in_thread():`"
            )
        return asyncio.run_coroutine_threadsafe(call, loop).result()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
