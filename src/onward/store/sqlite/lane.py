"""Lanes: how calls reach a SQLite connection.

A connection belongs to one thread. Callers give it jobs and wait. While one commit is on its way the next jobs gather, and all of them
share the commit after it. An urgent job (a heartbeat) goes to the front. Each job runs inside a savepoint, so it succeeds or fails
alone, and only its caller gets its error. `Inline` is the same without a thread, for the simulator and for tests with a clock that is
moved by hand.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol, TypeVar

import apsw

log = logging.getLogger("onward.store")

CLOSE_TIMEOUT_S = 30.0
"""Seconds that a close waits for a running statement."""

T = TypeVar("T")
Job = Callable[[apsw.Connection], T]


class Lane(Protocol):
    """A way to a connection."""

    async def run(
        self, job: Job[T], *, urgent: bool = False, single: bool = False, alone: bool = False, reads: bool = False
    ) -> T:
        """Run the job inside a transaction; returns its result after the commit. A job that is a `single` statement needs no BEGIN when no
        other job shares its transaction. An `alone` job shares its transaction with none. A job that only `reads` does not wait while the
        connection is lent to code of the caller (see `transaction.py`): it runs inside that transaction."""
        ...

    def close(self) -> None: ...


def transact(connection: apsw.Connection, begin: str, job: Job[T], begun: Job[None]) -> T:
    """Run one job in a transaction of its own."""
    connection.execute(begin)
    try:
        begun(connection)
        result = job(connection)
        connection.execute("COMMIT")
    except BaseException:
        undo(connection)
        raise
    return result


def undo(connection: apsw.Connection) -> None:
    """Roll back a transaction that is open: SQLite ends it by itself when the disk is full."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class Patient:
    """A busy handler that sleeps for short random times. Those of SQLite itself grow to 100 ms, which is too long for a heartbeat."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until = seconds, 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + self._seconds
        time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311 -- jitter between processes, not a secret
        return now < self._until


class Inline:
    """Jobs run at once, in the caller."""

    def __init__(
        self, connect: Callable[[], apsw.Connection], begin: str = "BEGIN IMMEDIATE", begun: Job[None] = lambda _: None
    ) -> None:
        self._connection = connect()
        self._begin = begin
        self.begun = begun
        self._held: asyncio.Future[None] | None = None

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[apsw.Connection]:
        """The connection for one borrower; all other callers wait."""
        while self._held is not None:
            await asyncio.shield(self._held)
        self._held = asyncio.get_running_loop().create_future()
        try:
            yield self._connection
        finally:
            self._held.set_result(None)
            self._held = None

    async def run(self, job: Job[T], *, reads: bool = False, **_: bool) -> T:
        while self._held is not None:
            if reads:
                return job(self._connection)
            await asyncio.shield(self._held)
        return transact(self._connection, self._begin, job, (lambda _: None) if reads else self.begun)

    def close(self) -> None:
        self._connection.close()


class Call:
    """A job of a caller, and its result."""

    __slots__ = ("alone", "error", "future", "job", "loop", "result", "single")

    def __init__(self, job: Job[Any], loop: asyncio.AbstractEventLoop, single: bool, alone: bool) -> None:
        self.job, self.loop, self.single, self.alone = job, loop, single, alone
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None


def _deliver(calls: list[Call]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)


class Threaded:
    """Jobs run in a thread of their own, many to a commit."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        name: str,
        begin: str = "BEGIN IMMEDIATE",
        most: int = 500,
        check: Callable[[], None] = lambda: None,
        begun: Job[None] = lambda _: None,
    ) -> None:
        """`begun` is called in each transaction before its jobs, and raises when they may not run (a `single` job has no such call).
        `check` raises when the database is not the one that was opened. It is called after each commit, before the callers get their
        results: only then is it known which file the commit went to. (It is not called before as well: a system call lets the event
        loop run first, which costs more than the call.)"""
        self._connect, self._begin, self._most, self._check, self._begun = connect, begin, most, check, begun
        self._waiting: collections.deque[Call] = collections.deque()
        self._lock = threading.Condition()
        self._lent: queue.SimpleQueue[Any] | None = None
        self._closed = False
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    async def run(
        self, job: Job[T], *, urgent: bool = False, single: bool = False, alone: bool = False, reads: bool = False
    ) -> T:
        call = Call(job, asyncio.get_running_loop(), single, alone)
        with self._lock:
            if self._closed:
                raise RuntimeError("the store is closed")
            if reads and self._lent is not None:
                self._lent.put(call)
            else:
                (self._waiting.appendleft if urgent else self._waiting.append)(call)
                self._lock.notify()
        return await call.future  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def lent(self, line: queue.SimpleQueue[Any]) -> Iterator[None]:
        """Inside a job that lends its connection: reads go into its line meanwhile. Those that it leaves there run after it."""
        with self._lock:
            self._lent = line
        try:
            yield
        finally:
            with self._lock:
                self._lent = None
                while not line.empty():
                    if isinstance(request := line.get(), Call):
                        self._waiting.append(request)

    def read_within(self, connection: apsw.Connection, call: Call) -> None:
        """Run a read inside the transaction that is open."""
        try:
            call.result = call.job(connection)
        except BaseException as error:
            call.error = error
        self._deliver_all([call])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning(
                "closing the store waited %g s for its thread %s, which is in the middle of a statement; it is left behind",
                CLOSE_TIMEOUT_S,
                self._thread.name,
            )

    def _work(self) -> None:
        try:
            connection = self._connect()
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._started.set()
        while calls := self._next():
            self._commit(connection, calls)
            self._deliver_all(calls)
        connection.close()

    def _next(self) -> list[Call]:
        with self._lock:
            while not self._waiting and not self._closed:
                self._lock.wait()
            calls: list[Call] = []
            while self._waiting and len(calls) < self._most and not (calls and self._waiting[0].alone):
                calls.append(self._waiting.popleft())
                if calls[-1].alone:
                    break
            return calls

    def _commit(self, connection: apsw.Connection, calls: list[Call]) -> None:
        try:
            self._run_all(connection, calls)
        except BaseException as error:
            undo(connection)
            for call in calls:
                call.error = call.error or error
        try:
            self._check()
        except BaseException as error:  # also for a job that failed: its error is about another file
            for call in calls:
                call.error = error

    def _run_all(self, connection: apsw.Connection, calls: list[Call]) -> None:
        if len(calls) == 1 and calls[0].single:
            calls[0].result = calls[0].job(connection)
            return
        connection.execute(self._begin)
        self._begun(connection)
        if len(calls) == 1:
            calls[0].result = calls[0].job(connection)
        else:
            for call in calls:
                self._run_within(connection, call)
        connection.execute("COMMIT")

    @staticmethod
    def _run_within(connection: apsw.Connection, call: Call) -> None:
        connection.execute("SAVEPOINT job")
        try:
            call.result = call.job(connection)
        except BaseException as error:
            if not connection.in_transaction:  # a full disk ended the transaction of all jobs
                raise
            connection.execute("ROLLBACK TO job")
            call.error = error
        connection.execute("RELEASE job")

    @staticmethod
    def _deliver_all(calls: list[Call]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
        for call in calls:
            loops.setdefault(call.loop, []).append(call)
        for loop, own_calls in loops.items():
            try:
                loop.call_soon_threadsafe(_deliver, own_calls)
            except RuntimeError:  # that loop is closed, and its callers are gone
                continue
