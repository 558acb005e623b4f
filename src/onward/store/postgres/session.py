"""A PostgreSQL session: how it is opened, what its errors mean, and whether the server is in good health."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import asyncpg

from onward.core.epoch import FIRST
from onward.errors import DiskFull, EpochEnded, InvalidInput, ReadOnly, StoreUnavailable, TooSlow
from onward.store import statements
from onward.store.postgres.pool import Pool
from onward.store.shared.database import UNSTORABLE

CONNECT_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_S = 15.0
"""Seconds for one statement. A connection that died without an error must not hold up the work for longer."""

MIN_BYTES_PER_S = 1_000_000
"""The slowest line, in bytes a second: a large commit gets more time by this rate."""

SLOW = (asyncio.TimeoutError, asyncpg.QueryCanceledError)
GONE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,  # a connection was used after the server closed it and before the client noticed
)
AGAIN = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ObjectInUseError,
)
REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
# Every statement has one good plan for all parameters: to plan the larger ones again takes longer than to run them.
# A client that vanishes in the middle of a transaction leaves its locks behind, and the writer of a worker would wait for them.
SESSION = {
    "application_name": "onward",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "default_transaction_isolation": "read committed",  # a count under a lock must see all commits before it
    "idle_in_transaction_session_timeout": "5s",
}

SET_LOCAL = "".join(
    f"SET LOCAL {name} = '{value}';" for name, value in SESSION.items() if name != "default_transaction_isolation"
)
"""The settings of a session, for one transaction."""


EPOCH_SETTING = "onward.epoch"
"""The setting of a session that names its epoch. After a restore, triggers compare it with the epoch of the database."""

EPOCH_ID = statements.text("epoch_id")


class Pooled(asyncpg.Connection):  # type: ignore[misc]
    """A connection through a transaction pooler. It sends the settings of a session at the beginning of each transaction, in the same
    message: the next transaction may have another session, and without its limits a frozen client would keep its locks for ever."""

    BEGIN = f"BEGIN ISOLATION LEVEL READ COMMITTED;{SET_LOCAL}"

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Run a statement."""
        return await super().execute(self.BEGIN if query == "BEGIN;" else query, *args, timeout=timeout)  # type: ignore[no-any-return]


def _pooled_in(epoch: str | None) -> type[Pooled]:
    """The class of connections that name this epoch at the beginning of each transaction."""
    if epoch is None:
        return Pooled
    return type("Pooled", (Pooled,), {"BEGIN": f"{Pooled.BEGIN}SET LOCAL {EPOCH_SETTING} = '{epoch}';"})


async def attempt_connection(url: str, **options: Any) -> Any:
    """A connection. A cancelled attempt comes to its end first, within five seconds: asyncpg would report one that is torn apart as an
    exception that was never retrieved, on stderr."""
    attempt = asyncio.ensure_future(asyncpg.connect(url, timeout=CONNECT_TIMEOUT_S, **options))
    try:
        return await asyncio.shield(attempt)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            (await attempt).terminate()
        raise


async def connect(url: str, *, pooled: bool, epoch: str | None = None) -> Any:
    """A connection for statements that writes in this epoch only; without one, in any."""
    # The statements of an idle worker stay planned as long as its connection lasts: the next task must not wait for a plan.
    named = {} if epoch is None else {EPOCH_SETTING: epoch}
    planned = {"server_settings": SESSION | named, "max_cached_statement_lifetime": 0}
    session: dict[str, Any] = {"statement_cache_size": 0, "connection_class": _pooled_in(epoch)} if pooled else planned
    return await attempt_connection(url, command_timeout=STATEMENT_TIMEOUT_S, **session)


async def probe(url: str) -> tuple[bool, str | None]:
    """Whether a transaction pooler stands between this process and the server (it invents the process id of the backend), and the
    epoch of the database (None where there is none yet)."""
    connection = await attempt_connection(url, statement_cache_size=0)
    try:
        async with connection.transaction():
            pid, known = await connection.fetchrow("SELECT pg_backend_pid(), to_regclass('onward_epochs') IS NOT NULL")
            epoch = await connection.fetchval(EPOCH_ID) or FIRST.id if known else None
            return bool(pid != connection.get_server_pid()), epoch
    finally:
        await connection.close(timeout=5)


def plain(error: BaseException, where: str) -> BaseException:
    """Translate an error of asyncpg or the system into one of errors.py; other errors stay as they are."""
    match error:
        case asyncpg.PostgresError(sqlstate="OW001"):
            return EpochEnded(where)
        case asyncpg.ReadOnlySQLTransactionError():
            return ReadOnly(where)
        case asyncpg.DiskFullError():
            return DiskFull(where)
        case asyncpg.CharacterNotInRepertoireError():  # NUL
            return InvalidInput(UNSTORABLE)
        case asyncpg.DataError(__cause__=UnicodeEncodeError()):
            return InvalidInput(UNSTORABLE)
        case asyncpg.InsufficientPrivilegeError():
            return StoreUnavailable(
                f"{where} refuses ({error}); give the user in ONWARD_DB the role it needs: `onward doctor` says which roles there are"
            )
        case _ if isinstance(error, REFUSED):
            return StoreUnavailable(
                f"{where} refuses the connection ({error}); check user, password and database name in ONWARD_DB"
            )
        case _ if isinstance(error, GONE):
            why = str(error) or type(error).__name__
            return StoreUnavailable(f"{where} cannot be reached ({why}); check that it runs, and ONWARD_DB")
        case _ if isinstance(error, AGAIN):
            return StoreUnavailable(f"{where} asks to try again ({error})")
        case _:
            return error


class Loan:
    """A connection for the time of a block; it translates the errors inside. It is a class, because two nested generators took as long as a
    short statement."""

    __slots__ = ("_connection", "_in_transaction", "_pool", "_transaction", "_where")

    def __init__(self, pool: Pool, where: str, *, pooled: bool) -> None:
        self._pool, self._where = pool, where
        # Without a transaction a pooler may send each message of a query to another backend.
        self._in_transaction = pooled

    async def __aenter__(self) -> Any:
        try:
            self._connection = await self._pool.borrow()
        except Exception as error:
            raise plain(error, self._where) from None
        if self._in_transaction:
            try:
                await self._begin()
            except BaseException as error:
                self._pool.give_back(self._connection, sound=False)
                raise plain(error, self._where) from None
        return self._connection

    async def _begin(self) -> None:
        self._transaction = self._connection.transaction()
        await self._transaction.start()

    async def _end(self, *, failed: bool) -> None:
        await (self._transaction.rollback() if failed else self._transaction.commit())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error of the server the connection is usable. After any other error its state is unknown: the pool closes it, and that
        # ends its transaction.
        cause, sound = error, error is None or isinstance(error, asyncpg.PostgresError)
        try:
            if self._in_transaction and sound:
                await self._end(failed=error is not None)
        except BaseException as failed:
            sound = isinstance(failed, asyncpg.PostgresError)
            if cause is None or not isinstance(failed, Exception):
                cause = failed
        self._pool.give_back(self._connection, sound=sound)
        if isinstance(cause, SLOW):
            raise TooSlow(self._where, str(cause) or f"{STATEMENT_TIMEOUT_S:g} s") from None
        if cause is not None and (translated := plain(cause, self._where)) is not error:
            raise translated from None


def health(row: Mapping[str, Any], connection: tuple[bool | None, str]) -> list[tuple[str, bool | None, str]]:
    """The checks of `onward doctor`, from the section `health`: name, whether it is fine, and what it means."""
    return [
        (
            "PostgreSQL",
            row["version"] >= 140000,
            f"{row['version'] // 10000}.{row['version'] % 10000} (14 and later)",
        ),
        ("fsync", row["fsync"] == "on", f"{row['fsync']} (on: an acknowledged write survives a power cut)"),
        (
            "synchronous_commit",
            row["sync"] != "off",
            f"{row['sync']} (off would lose acknowledged writes in a crash)",
        ),
        ("connection", *connection),
        (
            "open transactions",
            row["oldest"] < 60,
            f"the oldest is {row['oldest']:.0f} s old (a forgotten one slows every queue down)",
        ),
    ]
