"""A SQLite file as a `Database`: one connection that writes, one that reads, and errors in plain words."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import apsw

from onward.core.clock import Clock
from onward.core.epoch import FIRST
from onward.core.limit import LimitRow
from onward.core.task import Message
from onward.errors import EpochEnded, StoreUnavailable
from onward.store.port.values import ChildEnd
from onward.store.shared import tasks
from onward.store.shared.codec import Codec
from onward.store.shared.database import Job
from onward.store.sqlite import limits
from onward.store.sqlite.execute import S, views
from onward.store.sqlite.file import MEMORY, Files, Plainly, connect
from onward.store.sqlite.guard import Guard
from onward.store.sqlite.lane import Inline, Lane, Threaded
from onward.store.statements import Statement

T = TypeVar("T")


class SqliteConnection:
    """See `shared.database.Connection`. Its methods never wait, so a job runs to its end inside one call in the thread of the lane."""

    __slots__ = ("raw",)

    def __init__(self, connection: apsw.Connection) -> None:
        self.raw = connection

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        return list(self._execute(name, values))

    async def fetch_named(self, name: str, /, **values: Any) -> list[dict[str, Any]]:
        return views(self._execute(name, values))

    async def first(self, name: str, /, **values: Any) -> Any:
        return next(self._execute(name, values), None)

    async def run(self, name: str, /, *, timeout_s: float | None = None, **values: Any) -> int:  # noqa: ARG002 -- SQLite has no limit
        self._execute(name, values)
        return self.raw.changes()

    async def run_many(self, name: str, values: Sequence[Mapping[str, Any]]) -> None:
        self.raw.executemany(S[name].sql, [bind(S[name], value) for value in values])

    async def lock(self, name: str, /, **values: Any) -> None: ...

    async def tell_parents(self, ends: Sequence[ChildEnd]) -> None:
        for parent, message, child, data in ends:
            await tasks.send(self, parent, Message(message, "child", child, None, data))

    async def release_limits(self, gates: Iterable[str]) -> None:
        limits.release(self.raw, gates)

    async def set_limits(self, limits_: Sequence[LimitRow]) -> None:
        limits.set_limits(self.raw, limits_)

    def _execute(self, name: str, values: Mapping[str, Any]) -> Any:
        return self.raw.execute(S[name].sql, bind(S[name], values))


def bind(statement: Statement, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a statement as SQLite takes them: a list or a dict is JSON."""
    ordered = [values[name] for name in statement.names]
    return tuple([json.dumps(value) if isinstance(value, list | dict) else value for value in ordered])


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a `SqliteConnection` to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("a job on SQLite waited for something")


def _anything(_: apsw.Connection) -> None:
    """The check of a transaction that may do anything."""


class SqliteDatabase:
    """See `shared.database.Database`."""

    def __init__(self, path: str, clock: Clock, *, inline: bool) -> None:
        self.path, self.clock, self.inline = path, clock, inline
        self.where = "SQLite in memory" if path == MEMORY else f"SQLite file {path}"
        self.codec: Codec | None = None
        self.epoch: str | None = None
        """The epoch of the database when this process opened it."""
        self.writer: Lane | None = None
        self.reader: Lane | None = None
        self._files = Files(MEMORY, self.where)
        self._guard = Guard()

    def open(self) -> None:
        with Plainly(self.where):
            self.writer = self._lane("BEGIN IMMEDIATE", "onward-writer")
            # In memory there is one connection: a second would see another database.
            alone = self.path == MEMORY or self.inline
            self.reader = self.writer if alone else self._lane("BEGIN", "onward-reader")

    async def enter(self, epoch: str) -> None:
        """Write in this epoch only."""
        self.epoch = epoch

    def protect(self) -> None:
        """Remember which file this is, and lock it against other SQLite libraries of this process. The file is in WAL mode now."""
        self._files = Files(self.path, self.where)
        if self.path != MEMORY:
            self._guard.hold(self.path)

    def _lane(self, begin: str, name: str) -> Lane:
        new_connection = functools.partial(connect, self.path, self.clock)
        reads = begin == "BEGIN"
        begun = _anything if reads or self.path == MEMORY else self._check_epoch  # no other process has this memory
        if self.inline:
            return Inline(new_connection, begin, begun)
        return Threaded(
            new_connection,
            name,
            begin,
            check=lambda: self._files.check_now_and_then() if reads else self._files.check(),
            begun=begun,
        )

    def _check_epoch(self, connection: apsw.Connection) -> None:
        """Refuse to write in a later epoch than the one that was opened. (A `single` job needs no such check: it appends records, and
        a restore has taken the numbers after those that this process knows.)"""
        if self.epoch is not None:
            (epoch,) = next(connection.execute(S["epoch_id"].sql), (FIRST.id,))
            if epoch != self.epoch:
                raise EpochEnded(self.where)

    def close(self) -> None:
        with self._guard.released():
            for lane in {id(lane): lane for lane in (self.writer, self.reader) if lane is not None}.values():
                lane.close()
        self.writer = self.reader = self.epoch = None
        self._files = Files(MEMORY, self.where)

    async def writing(self, job: Callable[[apsw.Connection], T], *, urgent: bool = False, single: bool = False) -> T:
        """Run a job in a transaction that writes. See `Lane.run` for `urgent` and `single`."""
        if self.writer is None:
            raise self._not_open()
        with Plainly(self.where):
            return await self.writer.run(job, urgent=urgent, single=single)

    async def reading(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run a job in a transaction that only reads."""
        if self.reader is None:
            raise self._not_open()
        with Plainly(self.where):
            return await self.reader.run(job, reads=True)

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.where} is not open; use `async with app:` around what you do")

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        bound = bind(S[name], values)
        return await self.reading(lambda c: list(c.execute(S[name].sql, bound)))

    async def fetch_named(self, name: str, /, **values: Any) -> list[dict[str, Any]]:
        bound = bind(S[name], values)
        return await self.reading(lambda c: views(c.execute(S[name].sql, bound)))

    async def write(self, name: str, /, **values: Any) -> list[Any]:
        bound = bind(S[name], values)
        return await self.writing(lambda c: list(c.execute(S[name].sql, bound)))

    async def write_many(self, name: str, values: Sequence[Mapping[str, Any]]) -> None:
        bound = [bind(S[name], value) for value in values]
        await self.writing(lambda c: c.executemany(S[name].sql, bound))

    async def read(self, job: Job[T]) -> T:
        return await self.reading(lambda c: finish(job(SqliteConnection(c))))  # type: ignore[arg-type]

    async def sequence(self, job: Job[T]) -> T:
        return await self.transact(job)

    async def transact(self, job: Job[T]) -> T:
        return await self.writing(lambda c: finish(job(SqliteConnection(c))))  # type: ignore[arg-type]
