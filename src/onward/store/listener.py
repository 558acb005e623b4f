"""The one PostgreSQL connection that keeps a session: it hears nudges and holds the worker's presence lock.

When it breaks it is made anew, with growing pauses; until then polling finds the work and the lease says who lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import asyncpg

from onward.store import statements
from onward.store.nudge import NEWS, WHO

S = statements.load("postgres")
CHANNEL = "onward"
NEWS_CHANNEL = "onward_news"
"""For those who follow tasks, so that workers do not hear of each other's commits."""

CHECK = 5.0
"""Seconds between signs of life: a peer that vanished without a word is not noticed otherwise."""


class Listener:
    """Runs from its making until stop()."""

    def __init__(self, url: str, heard: Callable[[str], None], *, follows: bool = False) -> None:
        self._url, self._heard, self._follows = url, heard, follows
        self._worker: str | None = None
        self._connection: Any = None
        self._broken = asyncio.Event()
        self._ready = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="onward-listener")

    async def hold(self, worker: str) -> bool:
        """Hold the presence lock of this worker from now on; False when it could not be had in time."""
        self._worker = worker
        self._ready.clear()
        self._broken.set()
        try:
            await asyncio.wait_for(self._ready.wait(), 5)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        pause = 0.05
        while True:
            try:
                await self._session()
                pause = 0.05
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 -- jitter
                pause = min(pause * 2, 2.0)

    async def _session(self) -> None:
        """One life of the connection; returns when it should be made anew."""
        # An event of its own: a connection tells of its end when the next session has long begun, and that one must not hear it.
        broken = self._broken = asyncio.Event()
        connection = await asyncpg.connect(
            self._url, timeout=5, command_timeout=5, server_settings={"application_name": "onward listener"}
        )
        try:
            connection.add_termination_listener(lambda _: broken.set())
            if self._worker is not None:
                await connection.execute(S["attend"].sql, self._worker)
            channel = NEWS_CHANNEL if self._follows else CHANNEL
            await connection.add_listener(channel, lambda *message: self._heard(message[3]))
            self._ready.set()
            for topic in (NEWS,) if self._follows else ("ready", "ended"):  # whatever was missed while there was no ear
                self._heard(topic)
            if not self._follows:
                await connection.execute(S["notify"].sql, NEWS_CHANNEL, [WHO])
            await self._until(broken, connection)
        finally:
            connection.terminate()

    @staticmethod
    async def _until(broken: asyncio.Event, connection: Any) -> None:
        while not broken.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(broken.wait(), CHECK)
                return
            await connection.execute("SELECT 1")
