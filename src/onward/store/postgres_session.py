"""A PostgreSQL session: how it is opened, what its errors mean, and whether the server is in good health."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg

from onward.errors import DiskFull, ReadOnly, StoreUnavailable

PATIENCE = 15.0
"""Seconds for one statement. A connection that died without a word must not hold up the work for longer."""

GONE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,  # a connection was used between the server's last word and the end of the line
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
    asyncpg.InsufficientPrivilegeError,
)
# Every statement has one good plan, whatever its parameters: planning the larger ones anew takes longer than running them.
# A client that vanishes in the middle of a transaction leaves its locks behind, and a worker's writer would wait for them.
SESSION = {
    "application_name": "onward",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "idle_in_transaction_session_timeout": "5s",
}


async def connect(url: str, *, pooled: bool) -> Any:
    """A connection for statements."""
    session: dict[str, Any] = {"statement_cache_size": 0} if pooled else {"server_settings": SESSION}
    return await asyncpg.connect(url, timeout=5, command_timeout=PATIENCE, **session)


async def behind_a_pooler(url: str) -> bool:
    """Whether a transaction pooler stands between us and the server: it makes up the backend's process id."""
    connection = await asyncpg.connect(url, timeout=5, statement_cache_size=0)
    try:
        async with connection.transaction():
            return bool(await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid())
    finally:
        await connection.close(timeout=5)


@contextlib.asynccontextmanager
async def plainly(where: str) -> AsyncIterator[None]:
    """What asyncpg and the system raise, as the sentences of errors.py."""
    try:
        yield
    except asyncpg.ReadOnlySQLTransactionError:
        raise ReadOnly(where) from None
    except asyncpg.DiskFullError:
        raise DiskFull(where) from None
    except REFUSED as error:
        raise StoreUnavailable(
            f"{where} refuses us ({error}); check user, password and database name in ONWARD_DB"
        ) from None
    except GONE as error:
        raise StoreUnavailable(
            f"{where} cannot be reached ({error or type(error).__name__}); check that it runs, and ONWARD_DB"
        ) from None
    except AGAIN as error:
        raise StoreUnavailable(f"{where} asks to try again ({error})") from None


def health(row: Mapping[str, Any], *, pooled: bool) -> list[tuple[str, bool, str]]:
    """What `onward doctor` says of the row of the section `health`: name, fine or not, and what it means."""
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
        (
            "connection",
            True,
            "through a transaction pooler: no LISTEN, polling instead" if pooled else "direct",
        ),
        (
            "open transactions",
            row["oldest"] < 60,
            f"the oldest is {row['oldest']:.0f} s old (a forgotten one slows every queue down)",
        ),
    ]
