"""A handful of PostgreSQL connections, lent one at a time.

asyncpg's own pool resets a session at each return and wraps each loan in tasks and timers: two thirds of the cost of a
short statement. No statement of Onward leaves anything in a session, so a loan here is a list pop. A connection that
comes back broken, in the middle of something, or from a cancelled caller is thrown away and replaced when needed. The pool closes
connections that were idle for a while, but for one.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable
from typing import Any

IDLE_S = 10.0
"""Seconds after which an idle connection is closed."""


class Pool:
    """Lends up to `most` connections; the rest of the borrowers wait in line."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], most: int) -> None:
        self._connect, self._most = connect, most
        self._idle: list[tuple[Any, float]] = []
        """Idle connections, and since when; the last one to come back is the first to be lent, so the first is idle for longest."""
        self._timer: asyncio.TimerHandle | None = None
        self._made = 0
        self._line: collections.deque[asyncio.Future[None]] = collections.deque()
        self._closed = False

    async def borrow(self) -> Any:
        """A connection that is open as far as anybody knows."""
        while True:
            while self._idle:
                connection, _ = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._made -= 1
            if self._made < self._most:
                return await self._make()
            await self._wait()

    async def _make(self) -> Any:
        self._made += 1
        try:
            return await self._connect()
        except BaseException:
            self._made -= 1
            self._next()
            raise

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # our turn had come: the next may have it
                self._next()
            raise

    def give_back(self, connection: Any, *, sound: bool) -> None:
        """Return a connection; `sound` is False when the borrower does not know what state it is in."""
        if self._closed or not sound or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
            self._made -= 1
        else:
            loop = asyncio.get_running_loop()
            self._idle.append((connection, loop.time()))
            if len(self._idle) > 1 and self._timer is None:
                self._timer = loop.call_later(IDLE_S, self._release)
        self._next()

    def _release(self) -> None:
        """Close what was idle for too long, and come back for the rest."""
        self._timer, loop = None, asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0][1] + IDLE_S <= loop.time():
            connection, _ = self._idle.pop(0)
            self._made -= 1
            connection.terminate()
        if len(self._idle) > 1:
            self._timer = loop.call_at(self._idle[0][1] + IDLE_S, self._release)

    def _next(self) -> None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def close(self) -> None:
        """Say goodbye to those that are idle; those on loan end when they come back."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            try:
                await connection.close(timeout=1)
            except Exception:
                connection.terminate()
