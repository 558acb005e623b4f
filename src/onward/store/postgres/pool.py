"""A pool of a few PostgreSQL connections.

The pool of asyncpg resets a session at each return and wraps each loan in tasks and timers: that is two thirds of the cost of a short
statement. No statement of Onward leaves anything in a session, so a loan here is a list pop. The pool closes a connection that
comes back broken, inside a transaction, or from a cancelled caller, and makes a new one when it needs it. It also closes connections
that were idle for a while, but for one.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable
from typing import Any

IDLE_S = 10.0
"""Seconds after which an idle connection is closed."""


class Pool:
    """Lends up to `size` connections; other borrowers wait in line."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self._connect, self._size = connect, size
        self._idle: list[tuple[Any, float]] = []
        """Idle connections, and since when. The last one that came back is lent first, so the first of the list is idle for longest."""
        self._timer: asyncio.TimerHandle | None = None
        self._open = 0
        self._line: collections.deque[asyncio.Future[None]] = collections.deque()
        self._closed = False

    async def borrow(self) -> Any:
        """A connection that is open, as far as the client knows."""
        while True:
            while self._idle:
                connection, _ = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._open -= 1
            if self._open < self._size:
                return await self._make()
            await self._wait()

    async def _make(self) -> Any:
        self._open += 1
        try:
            return await self._connect()
        except BaseException:
            self._open -= 1
            self._next()
            raise

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # this borrower was next: let the one behind it go on
                self._next()
            raise

    def give_back(self, connection: Any, *, sound: bool) -> None:
        """Return a connection; `sound` is False when the borrower does not know what state it is in."""
        if self._closed or not sound or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
            self._open -= 1
        else:
            loop = asyncio.get_running_loop()
            self._idle.append((connection, loop.time()))
            if len(self._idle) > 1 and self._timer is None:
                self._timer = loop.call_later(IDLE_S, self._close_idle)
        self._next()

    def _close_idle(self) -> None:
        """Close connections that were idle for too long, and set the timer for the others."""
        self._timer, loop = None, asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0][1] + IDLE_S <= loop.time():
            connection, _ = self._idle.pop(0)
            self._open -= 1
            connection.terminate()
        if len(self._idle) > 1:
            self._timer = loop.call_at(self._idle[0][1] + IDLE_S, self._close_idle)

    async def drop_idle(self) -> None:
        """Close the idle connections: the next borrower gets a new one."""
        idle, self._idle = self._idle, []
        self._open -= len(idle)
        for connection, _ in idle:
            await _close(connection)

    def _next(self) -> None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def close(self) -> None:
        """Close the idle connections; those on loan are closed when they come back."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await _close(connection)


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=1)
    except Exception:
        connection.terminate()
