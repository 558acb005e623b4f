"""The one PostgreSQL connection that keeps a session: it receives nudges and holds the presence locks of the workers of this process.

When the connection breaks, the listener makes a new one, with growing pauses. Until then workers find tasks by polling, and the lease
decides which workers live.
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
from onward.store.nudge import ENDED, NEWS, READY, WHO
from onward.store.postgres.execute import S
from onward.store.postgres.session import attempt_connection

log = logging.getLogger("onward.store")

CHANNEL = "onward"
ENDED_CHANNEL = "onward_ended"
"""The channel of processes that wait for tasks, so that the end of a task does not wake idle workers."""

NEWS_CHANNEL = "onward_news"
"""The channel of followers, so that workers do not receive the news of each other's commits."""

OWN_CHANNEL = "onward_"
"""The beginning of the channel of one worker; its id follows."""

MISSED = {CHANNEL: READY, ENDED_CHANNEL: ENDED, NEWS_CHANNEL: NEWS}
"""By channel, the topic of nudges that may have been missed before the listener listened to it."""

FAILURES = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

MAX_WORKERS = 100
"""Workers of one process whose locks are held. A worker that was declared dead and came back has a new id, and its old one is of no use."""

TIMEOUT_S = 5.0
"""Seconds for a connection, and for an answer."""

CHECK_EVERY_S = 5.0
"""Seconds between two checks of the connection: a server that vanished is not noticed otherwise."""


class Listener:
    """Runs from its creation until `stop`."""

    def __init__(self, url: str, receive: Callable[[str], None], channel: str = CHANNEL) -> None:
        self._url, self._receive = url, receive
        self._channels = [channel]
        self._heard: set[str] = set()
        """Channels that this session listens to."""
        self._workers: list[str] = []
        self._held: set[str] = set()
        """Workers whose lock this session has."""
        self._connection: Any = None
        self._statement_lock = asyncio.Lock()
        """One statement at a time."""
        self._broken = asyncio.Event()
        self._stirred = asyncio.Event()
        """Set when the connection is broken, and when there is a channel more to listen to."""
        self._ready = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="onward-listener")

    async def hold(self, worker: str) -> bool:
        """Hold the presence lock of this worker from now on, beside those of others. False when the listener could not get it in time: then
        the next session takes it."""
        self._workers = [*self._workers, worker][-MAX_WORKERS:]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._ready.wait()
                if worker not in self._held:
                    await self._run_statement("attend", worker)
                    self._held.add(worker)
                    async with self._statement_lock:
                        await self._connection.add_listener(OWN_CHANNEL + worker, self._notified)
        except FAILURES:
            self._break(self._broken)
            return False
        return True

    async def release(self, worker: str) -> None:
        """Give back the presence lock of this worker."""
        if worker in self._workers:
            self._workers.remove(worker)
        if worker in self._held:
            self._held.remove(worker)
            with contextlib.suppress(*FAILURES):
                await self._run_statement("depart", worker)
                async with self._statement_lock:
                    await self._connection.remove_listener(OWN_CHANNEL + worker, self._notified)

    def hear(self, channel: str) -> None:
        """Listen to one more channel from now on."""
        if channel not in self._channels:
            self._channels.append(channel)
            self._stirred.set()

    async def _hear_all(self, connection: Any) -> None:
        async with self._statement_lock:
            while missing := [channel for channel in self._channels if channel not in self._heard]:
                await connection.add_listener(missing[0], self._notified)
                self._heard.add(missing[0])
                self._receive(MISSED[missing[0]])

    def _notified(self, *message: Any) -> None:
        self._receive(message[3])

    async def stop(self) -> None:
        await end_tasks([self._task], TIMEOUT_S, log, "the store")

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
        """Work with one connection until it is broken."""
        # A new event: a connection may report its end after the next session has begun, which must not see it.
        broken = self._broken = asyncio.Event()
        connection = await attempt_connection(
            self._url, command_timeout=TIMEOUT_S, server_settings={"application_name": "onward listener"}
        )
        try:
            connection.add_termination_listener(lambda _: self._break(broken))
            self._held.clear()
            for worker in list(self._workers):
                await connection.execute(S["attend"].sql, worker)
                self._held.add(worker)
                await connection.add_listener(OWN_CHANNEL + worker, self._notified)
            self._heard.clear()
            await self._hear_all(connection)
            self._connection = connection
            self._ready.set()
            if CHANNEL in self._channels:
                await self._run_statement("notify", NEWS_CHANNEL, [WHO])
            while not broken.is_set():
                await self._hear_all(connection)
                try:
                    await asyncio.wait_for(self._stirred.wait(), CHECK_EVERY_S)
                    self._stirred.clear()
                except TimeoutError:
                    await self._run_statement("now")
        finally:
            self._ready.clear()
            self._held.clear()
            connection.terminate()

    def _break(self, broken: asyncio.Event) -> None:
        broken.set()
        self._stirred.set()

    async def _run_statement(self, name: str, *values: Any) -> None:
        async with self._statement_lock:
            if self._connection is None:
                raise TimeoutError("there is no session yet")
            await self._connection.execute(S[name].sql, *values)
