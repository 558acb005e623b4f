"""A PostgreSQL database as a `Database`: connections from a pool, and errors in plain words."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg

from onward.core.limit import LimitRow
from onward.errors import StoreUnavailable
from onward.store.port.values import ChildEnd
from onward.store.postgres import limits
from onward.store.postgres.execute import S, tell_parents
from onward.store.postgres.pool import Pool
from onward.store.postgres.session import Loan, behind_a_pooler, connect, plain
from onward.store.shared.codec import Codec
from onward.store.shared.database import Job

T = TypeVar("T")


class PostgresConnection:
    """See `shared.database.Connection`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        return await self._connection.fetch(S[name].sql, *S[name](**values))  # type: ignore[no-any-return]

    async def fetch_named(self, name: str, /, **values: Any) -> list[Any]:
        return await self.fetch(name, **values)

    async def first(self, name: str, /, **values: Any) -> Any:
        return await self._connection.fetchrow(S[name].sql, *S[name](**values))

    async def run(self, name: str, /, *, timeout_s: float | None = None, **values: Any) -> int:
        tag = await self._connection.execute(S[name].sql, *S[name](**values), timeout=timeout_s)
        return count(tag)

    async def run_many(self, name: str, values: Sequence[Mapping[str, Any]]) -> None:
        if values:
            await self._connection.executemany(S[name].sql, [S[name](**value) for value in values])

    async def lock(self, name: str, /, **values: Any) -> None:
        await self._connection.execute(S[name].sql, *S[name](**values))

    async def tell_parents(self, ends: Sequence[ChildEnd]) -> None:
        await tell_parents(self._connection, ends)

    async def release_limits(self, gates: Iterable[str]) -> None:
        await limits.release(self._connection, gates)

    async def set_limits(self, limits_: Sequence[LimitRow]) -> None:
        await limits.set_limits(self._connection, limits_)


class PostgresDatabase:
    """See `shared.database.Database`."""

    def __init__(self, url: str, connections: int) -> None:
        parts = urllib.parse.urlsplit(url)
        self.url, self._max_connections = url, connections
        self.where = f"PostgreSQL {parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
        self.codec: Codec | None = None
        self.pool: Pool | None = None
        self.pooled = False
        """Whether a transaction pooler stands between this process and the server."""

    async def open(self) -> None:
        try:
            self.pooled = await behind_a_pooler(self.url)
        except Exception as error:
            raise plain(error, self.where) from None
        self.pool = Pool(lambda: connect(self.url, pooled=self.pooled), self._max_connections)

    async def close(self) -> None:
        if self.pool is not None:
            pool, self.pool = self.pool, None
            await pool.close()

    def connection(self) -> Loan:
        """A connection of asyncpg for the time of an `async with` block."""
        if self.pool is None:
            raise StoreUnavailable(f"{self.where} is not open; use `async with app:` around what you do")
        return Loan(self.pool, self.where, pooled=self.pooled)

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        statement = S[name]
        async with self.connection() as connection:
            return await connection.fetch(statement.sql, *statement(**values))  # type: ignore[no-any-return]

    async def fetch_named(self, name: str, /, **values: Any) -> list[Any]:
        return await self.fetch(name, **values)

    async def write(self, name: str, /, **values: Any) -> list[Any]:
        return await self.fetch(name, **values)

    async def write_many(self, name: str, values: Sequence[Mapping[str, Any]]) -> None:
        async with self.connection() as connection:
            await connection.executemany(S[name].sql, [S[name](**value) for value in values])

    async def read(self, job: Job[T]) -> T:
        async with self.connection() as connection:
            return await job(PostgresConnection(connection))

    async def sequence(self, job: Job[T]) -> T:
        return await self.read(job)

    async def transact(self, job: Job[T]) -> T:
        while True:
            try:
                async with self.connection() as connection, connection.transaction():
                    return await job(PostgresConnection(connection))
            except asyncpg.UniqueViolationError:  # a worker was quicker with the next number of a journal: look again
                await asyncio.sleep(0)


def count(tag: str) -> int:
    """How many rows a statement changed, from what the server says of it."""
    return int(tag.rsplit(" ", 1)[-1])
