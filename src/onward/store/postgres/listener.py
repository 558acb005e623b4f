"""The one PostgreSQL connection that keeps a session: it hears nudges and holds the presence locks of this process's workers.

When it breaks it is made anew, with growing pauses; until then polling finds the work and the lease says who lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any

import asyncpg

from onward.core.shutdown import end_tasks
from onward.store.nudge import NEWS, WHO
from onward.store.postgres.execute import S

log = logging.getLogger("onward.store")

CHANNEL = "onward"
NEWS_CHANNEL = "onward_news"
"""For those who follow tasks, so that workers do not hear of each other's commits."""

OWN_CHANNEL = "onward_"
"""Followed by the id of a worker: what is for that worker alone."""

FAILURES = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

MOST = 100
"""Workers of one process whose locks are held: one that was declared dead and came back has a new name, and its old one is of no use."""

PATIENCE = 5.0
"""Seconds for a connection, and for an answer."""

CHECK = 5.0
"""Seconds between signs of life: a peer that vanished without a word is not noticed otherwise."""


class Listener:
    """Runs from its making until stop()."""

    def __init__(self, url: str, heard: Callable[[str], None], *, follows: bool = False) -> None:
        self._url, self._heard, self._follows = url, heard, follows
        self._workers: list[str] = []
        self._held: set[str] = set()
        """Those whose lock this session has."""
        self._connection: Any = None
        self._turn = asyncio.Lock()
        """One question at a time."""
        self._broken = asyncio.Event()
        self._ready = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="onward-listener")

    async def hold(self, worker: str) -> bool:
        """Hold the presence lock of this worker from now on, beside those of others; False when it could not be had in time. (Then it
        is there with the next session.)"""
        self._workers = [*self._workers, worker][-MOST:]
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ready.wait()
                if worker not in self._held:
                    await self._ask("attend", worker)
                    self._held.add(worker)
                    async with self._turn:
                        await self._connection.add_listener(OWN_CHANNEL + worker, self._notified)
        except FAILURES:
            self._broken.set()
            return False
        return True

    async def release(self, worker: str) -> None:
        """Give back the presence lock of this worker."""
        if worker in self._workers:
            self._workers.remove(worker)
        if worker in self._held:
            self._held.remove(worker)
            with contextlib.suppress(*FAILURES):
                await self._ask("depart", worker)
                async with self._turn:
                    await self._connection.remove_listener(OWN_CHANNEL + worker, self._notified)

    def _notified(self, *message: Any) -> None:
        self._heard(message[3])

    async def stop(self) -> None:
        await end_tasks([self._task], PATIENCE, log, "the store")

    async def _run(self) -> None:
        pause = 0.05
        while True:
            try:
                await self._session()
                pause = 0.05
            except FAILURES:
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 -- jitter
                pause = min(pause * 2, 2.0)

    async def _session(self) -> None:
        """One life of the connection; returns when it should be made anew."""
        # An event of its own: a connection tells of its end when the next session has long begun, and that one must not hear it.
        broken = self._broken = asyncio.Event()
        connection = await asyncpg.connect(
            self._url,
            timeout=PATIENCE,
            command_timeout=PATIENCE,
            server_settings={"application_name": "onward listener"},
        )
        try:
            connection.add_termination_listener(lambda _: broken.set())
            self._held.clear()
            for worker in list(self._workers):
                await connection.execute(S["attend"].sql, worker)
                self._held.add(worker)
                await connection.add_listener(OWN_CHANNEL + worker, self._notified)
            await connection.add_listener(NEWS_CHANNEL if self._follows else CHANNEL, self._notified)
            self._connection = connection
            self._ready.set()
            for topic in (NEWS,) if self._follows else ("ready", "ended"):  # whatever was missed while there was no ear
                self._heard(topic)
            if not self._follows:
                await self._ask("notify", NEWS_CHANNEL, [WHO])
            while not broken.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(broken.wait(), CHECK)
                    return
                await self._ask("now")
        finally:
            self._ready.clear()
            self._held.clear()
            connection.terminate()

    async def _ask(self, name: str, *values: Any) -> None:
        async with self._turn:
            if self._connection is None:
                raise TimeoutError("there is no session yet")
            await self._connection.execute(S[name].sql, *values)
