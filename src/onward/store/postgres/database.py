"""A PostgreSQL database as a `Database`: connections from a pool, and errors in plain words."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg

from onward.core.limit import LimitRow
from onward.errors import StoreUnavailable
from onward.store.port.tenancy import reading_tenant
from onward.store.port.values import ChildEnd
from onward.store.postgres import limits
from onward.store.postgres.execute import S, tell_parents
from onward.store.postgres.pool import Pool
from onward.store.postgres.session import Loan, connect, plain, probe
from onward.store.postgres.tenancy import OF_ALL_TENANTS, TenantLoan, TenantReads
from onward.store.shared.codec import Codec
from onward.store.shared.database import Job

T = TypeVar("T")

MAX_ATTEMPTS = 1_000
"""Attempts of a transaction whose rows another transaction wrote first. A row that can never be written ends here."""


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

    def __init__(self, url: str, connections: int, epoch: str | None = None) -> None:
        """With an epoch, this process writes in that one only, whatever the database has when it is opened."""
        parts = urllib.parse.urlsplit(url)
        self.url, self._max_connections = url, connections
        self.where = f"PostgreSQL {parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
        self.codec: Codec | None = None
        self.epoch: str | None = epoch
        self._inherited_epoch = epoch
        self.pool: Pool | None = None
        self.pooled = False
        """Whether a transaction pooler stands between this process and the server."""
        self.tenant_reads = TenantReads()
        self._tenant_pool: Pool | None = None

    async def open(self) -> None:
        try:
            self.pooled, epoch = await probe(self.url)
        except Exception as error:
            raise plain(error, self.where) from None
        self.epoch = self._inherited_epoch or epoch
        self.pool = Pool(lambda: connect(self.url, pooled=self.pooled, epoch=self.epoch), self._max_connections)

    async def enter(self, epoch: str) -> None:
        """Write in this epoch only. Connections that were made before it was known are closed: the tables are new."""
        if self._inherited_epoch is None and epoch != self.epoch and self.pool is not None:
            self.epoch = epoch
            await self.pool.drop_idle()

    async def close(self) -> None:
        pools, self.pool, self._tenant_pool = [self.pool, self._tenant_pool], None, None
        for pool in pools:
            if pool is not None:
                await pool.close()

    def connection(self) -> Loan:
        """A connection of asyncpg for the time of an `async with` block, with the rights of this process."""
        if self.pool is None:
            raise StoreUnavailable(f"{self.where} is not open; use `async with app:` around what you do")
        return Loan(self.pool, self.where, pooled=self.pooled)

    async def _reader(self) -> Loan | TenantLoan:
        """A connection for a read: with the rights of a tenant, when this process reads for one and the tables have row-level security."""
        if (tenant := reading_tenant()) is None:
            return self.connection()
        if self.tenant_reads.wants_look:
            await self.tenant_reads.find(self.connection)
        if self.tenant_reads.role is None:
            return self.connection()
        if self._tenant_pool is None:
            self._tenant_pool = Pool(
                lambda: connect(self.url, pooled=self.pooled, epoch=self.epoch), self._max_connections
            )
        return self.tenant_reads.loan(self._tenant_pool, self.where, tenant, pooled=self.pooled)

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        statement = S[name]
        async with self.connection() if name in OF_ALL_TENANTS else await self._reader() as connection:
            return await connection.fetch(statement.sql, *statement(**values))  # type: ignore[no-any-return]

    async def fetch_named(self, name: str, /, **values: Any) -> list[Any]:
        return await self.fetch(name, **values)

    async def write(self, name: str, /, **values: Any) -> list[Any]:
        statement = S[name]
        async with self.connection() as connection:
            return await connection.fetch(statement.sql, *statement(**values))  # type: ignore[no-any-return]

    async def write_many(self, name: str, values: Sequence[Mapping[str, Any]]) -> None:
        async with self.connection() as connection:
            await connection.executemany(S[name].sql, [S[name](**value) for value in values])

    async def read(self, job: Job[T]) -> T:
        async with await self._reader() as connection:
            return await job(PostgresConnection(connection))

    async def sequence(self, job: Job[T]) -> T:
        async with self.connection() as connection:
            return await job(PostgresConnection(connection))

    async def transact(self, job: Job[T]) -> T:
        for _ in range(MAX_ATTEMPTS):
            try:
                return await self._transact_once(job)
            except asyncpg.UniqueViolationError:  # a worker was quicker with the next number of a journal: look again
                await asyncio.sleep(0)
        return await self._transact_once(job)

    async def _transact_once(self, job: Job[T]) -> T:
        async with self.connection() as connection, connection.transaction():
            return await job(PostgresConnection(connection))


def count(tag: str) -> int:
    """How many rows a statement changed, from what the server says of it."""
    return int(tag.rsplit(" ", 1)[-1])
