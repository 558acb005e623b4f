"""A transaction on the one writer of SQLite in which code of the caller takes part.

The thread of the writer opens it, and then runs the statements of the borrower one by one until the borrower gives it back. Meanwhile
all other writers wait. In memory there is no other connection for readers: their statements run inside the transaction too, and see
what it has written so far. The connection that the borrower gets has the interface of asyncpg.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from typing import Any

import apsw

from onward.core.record import Entry
from onward.store.sqlite.execute import save, views
from onward.store.sqlite.lane import Call, Inline, Lane, Threaded, undo

Request = tuple[Callable[[apsw.Connection], Any], "asyncio.Future[Any]"]


class Taken(Exception):
    """The record is refused: its number is taken, or its predecessor is gone. The other writes of the transaction are undone."""


class Borrowed:
    """The connection of a transaction: `execute`, `fetch`, `fetchrow`, `fetchval`, each with `$1`, `$2` … in their order."""

    def __init__(self, ask: Callable[[Callable[[apsw.Connection], Any]], Awaitable[Any]]) -> None:
        self._ask = ask

    async def execute(self, sql: str, *args: Any) -> None:
        """Run a statement."""
        await self._ask(lambda connection: list(connection.execute(sql, args)))

    async def executemany(self, sql: str, args: Any) -> None:
        """Run a statement once for each of many values."""
        await self._ask(lambda connection: connection.executemany(sql, args) and None)

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        """The rows of a statement."""
        return await self._ask(lambda connection: views(connection.execute(sql, args)))  # type: ignore[no-any-return]

    async def fetchrow(self, sql: str, *args: Any) -> dict[str, Any] | None:
        """The first row of a statement, or None."""
        return next(iter(await self.fetch(sql, *args)), None)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """The first value of the first row of a statement, or None."""
        row = await self.fetchrow(sql, *args)
        return None if row is None else next(iter(row.values()))


async def borrow(
    lane: Lane, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None = None
) -> None:
    """Run the body and commit what it wrote with the record it returns. Raises Taken when the record is refused."""
    if isinstance(lane, Inline):
        await _borrow_inline(lane, body, seconds, known)
        return
    assert isinstance(lane, Threaded)
    loop = asyncio.get_running_loop()
    line: queue.SimpleQueue[Request | Call | Entry | None] = queue.SimpleQueue()
    opened: asyncio.Future[None] = loop.create_future()

    def job(connection: apsw.Connection) -> None:
        with lane.lent(line):
            loop.call_soon_threadsafe(_set, opened, None)
            while True:
                try:
                    request = line.get(timeout=2 * seconds)  # a loop that hangs must not block all other writers
                except queue.Empty:
                    raise TimeoutError(f"a transaction took longer than {seconds:g} s") from None
                if request is None:
                    raise _GivenBack
                if isinstance(request, Call):
                    lane.read_within(connection, request)
                elif len(request) != 2:
                    _record(connection, request, known)
                    return
                else:
                    _answer(loop, connection, *request)

    async def ask(todo: Callable[[apsw.Connection], Any]) -> Any:
        answer: asyncio.Future[Any] = loop.create_future()
        line.put((todo, answer))
        return await answer

    done = asyncio.ensure_future(lane.run(job, alone=True))
    try:
        await asyncio.wait({done, opened}, return_when=asyncio.FIRST_COMPLETED)
        line.put(await asyncio.wait_for(body(Borrowed(ask)), seconds) if not done.done() else None)
    except BaseException:
        line.put(None)
        await asyncio.wait({done})
        done.cancelled() or done.exception()  # the error of the borrower is the one to raise
        raise
    await done


class _GivenBack(Exception):
    """The borrower gave the transaction back with nothing to commit."""


def _answer(
    loop: asyncio.AbstractEventLoop,
    connection: apsw.Connection,
    todo: Callable[[apsw.Connection], Any],
    answer: asyncio.Future[Any],
) -> None:
    try:
        value = todo(connection)
    except BaseException as error:
        loop.call_soon_threadsafe(_fail, answer, error)
    else:
        loop.call_soon_threadsafe(_set, answer, value)


async def _borrow_inline(
    lane: Inline, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None
) -> None:
    async with lane.held() as connection:

        async def ask(todo: Callable[[apsw.Connection], Any]) -> Any:
            return todo(connection)

        connection.execute("BEGIN IMMEDIATE")
        try:
            lane.begun(connection)
            _record(connection, await asyncio.wait_for(body(Borrowed(ask)), seconds), known)
            connection.execute("COMMIT")
        except BaseException:
            undo(connection)
            raise


def _record(connection: apsw.Connection, entry: Entry, known: float | None) -> None:
    try:
        save(connection, [entry], [], {entry[0]: known})
    except apsw.ConstraintError:
        raise Taken from None


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
