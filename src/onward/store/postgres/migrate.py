"""Migrations on PostgreSQL while workers run.

No statement has a time limit. A script waits only briefly for a lock, and then tries again: every other statement on the same table queues
behind it while it waits. Indexes are made CONCURRENTLY. The lock that keeps out a second `onward migrate` belongs to an open transaction
without a snapshot, on a connection of its own: so it also works behind a transaction pooler, and no index waits for it. A run that waits
for the lock has no open transaction: an index waits for the end of every transaction that it has once seen with a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from onward.errors import StoreUnavailable
from onward.store.migrate import (
    MARKS,
    MIRROR,
    OLDEST,
    READ,
    SCRIPTED,
    TABLES,
    Index,
    Migration,
    Progress,
    State,
    Tell,
    check_age,
    missing,
)
from onward.store.postgres import roles

T = TypeVar("T")

LOCK = 7_205_759_403
"""The advisory lock of a migration. Versions before this one use the same."""

LOCK_TIMEOUT_S = 0.5
"""Seconds that a script waits for a lock, and other statements behind it."""

MAX_WAIT_S = 600.0
"""Seconds for which a script tries again to get its locks."""

POLL_EVERY_S = 1.0
"""Seconds between two looks at the progress of another session."""

UNLIMITED = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
UNLIMIT = "SELECT set_config(name, '0', true) FROM pg_settings WHERE name = ANY($1::text[])"
BUSY = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)

# The session that holds a lock on a table of Onward for longest.
HOLDER = """
SELECT 'pid ' || a.pid || ' (' || COALESCE(NULLIF(a.application_name, ''), 'unnamed') || ', ' || COALESCE(a.state, 'unknown')
       || ', its transaction is ' || COALESCE(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::int || ' s old)'
FROM pg_stat_activity a
WHERE a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL AND EXISTS (
    SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE l.pid = a.pid AND l.granted AND c.relname LIKE 'onward\\_%')
ORDER BY a.xact_start LIMIT 1
"""
# An index by its name: whether it is valid, and the progress of the session that makes it.
INDEX = """
SELECT i.indisvalid AS valid, p.pid, p.phase, p.blocks_done, p.blocks_total, p.lockers_done, p.lockers_total, p.current_locker_pid AS locker
FROM pg_index i LEFT JOIN pg_stat_progress_create_index p ON p.index_relid = i.indexrelid AND p.datname = current_database()
WHERE i.indexrelid = to_regclass($1)
"""


async def state(connection: Any) -> State:
    """The state of the tables of a database."""
    query = "SELECT to_regclass('onward_migrations') IS NOT NULL, to_regclass('onward_schema') IS NOT NULL"
    migrated, marked = await connection.fetchrow(query)
    done = frozenset(row[0] for row in await connection.fetch(READ)) if migrated else frozenset()
    marks = {row[0]: row[1] for row in await connection.fetch(MARKS)} if marked else {}
    return State(done, marks.get(OLDEST, 0), marks.get(SCRIPTED, 0), MIRROR in marks)


class Migrator:
    """One run of `onward migrate`; the lock keeps out all others."""

    def __init__(self, url: str, where: str, migrations: Sequence[Migration], tell: Tell, *, pooled: bool) -> None:
        self._url, self._where, self._migrations, self._tell, self._pooled = url, where, migrations, tell, pooled

    async def run(self, prefix: str | None = None) -> list[str]:
        """Bring the tables up to date; the names of the migrations that ran. With a prefix, set up the roles of that name too."""
        async with self._connected() as guard:
            lock = await self._lock(guard)
            try:
                async with self._connected() as connection, self._connected() as monitor:
                    self._connection, self._monitor = connection, monitor
                    done = await self._run()
                    await self._set_up_roles(prefix, tables_changed=bool(done))
                    return done
            finally:
                await lock.rollback()

    async def _lock(self, guard: Any) -> Any:
        """The transaction that has the lock of migrations. Each try is a transaction of its own (see above)."""
        tries = 0
        while True:
            transaction = guard.transaction(isolation="read_committed")
            await transaction.start()
            await guard.execute(UNLIMIT, UNLIMITED)
            free = await guard.fetchval("SELECT pg_try_advisory_xact_lock($1)", LOCK)
            # The portal of a query keeps its snapshot until the next one; that of a query without parameters goes at once.
            await guard.execute("SELECT")
            if free:
                return transaction
            await transaction.rollback()
            tries += 1
            if tries == 6:
                self._tell(Progress("", "another `onward migrate` is at work; this one waits for it"))
            await asyncio.sleep(min(POLL_EVERY_S, 0.025 * 2**tries) * random.uniform(0.5, 1))  # noqa: S311 -- jitter

    async def _run(self) -> list[str]:
        async with self._connection.transaction():
            present = await state(self._connection)
        check_age(self._where, self._migrations, present)
        todo = missing(self._migrations, present)
        if not todo:
            return []
        if not present.done and not present.scripted:
            await self._apply([(m, m.whole) for m in todo], todo)  # no worker uses tables that do not exist
        else:
            for migration in todo:
                await self._run_one(migration, present)
        return [migration.name for migration in todo]

    async def _set_up_roles(self, prefix: str | None, *, tables_changed: bool) -> None:
        """Set up roles. Without a prefix: those that this database has, when it has new tables."""
        if prefix is None and tables_changed:
            async with self._connection.transaction():
                prefix = await roles.prefix_of(self._connection)
        if prefix is None:
            return
        wanted = prefix

        async def job() -> None:
            async with self._connection.transaction(isolation="read_committed"):
                await self._limit_waits()
                await roles.set_up(self._connection, wanted, self._where)

        await self._with_locks("roles", job)
        self._tell(Progress("roles", f"{', '.join(roles.names(prefix).values())}: done"))

    async def _run_one(self, migration: Migration, present: State) -> None:
        indexes = migration.indexes
        if present.scripted < migration.number:
            self._tell(Progress(migration.name, "begins"))
            await self._apply([(migration, migration.script)], [] if indexes else [migration])
        for index in indexes:
            await self._make(migration, index)
        if indexes:
            await self._apply([], [migration])
        self._tell(Progress(migration.name, "done"))

    # ── scripts ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _apply(self, scripts: Sequence[tuple[Migration, str]], done: Sequence[Migration]) -> None:
        """Run scripts and record them, in one transaction; try again when a lock is not free."""
        name = (scripts[-1][0] if scripts else done[-1]).name
        await self._with_locks(name, lambda: self._transaction(scripts, done))

    async def _with_locks(self, name: str, job: Callable[[], Awaitable[T]]) -> T:
        """Run a job that takes locks on tables; try again when one is not free."""
        began, pause = time.monotonic(), LOCK_TIMEOUT_S
        while True:
            try:
                return await job()
            except BUSY:
                waited = time.monotonic() - began
                holder = await self._look(HOLDER)
                cause = f"{holder[0]} holds it" if holder else "others took turns with it"
            if waited > MAX_WAIT_S:
                raise StoreUnavailable(
                    f"{self._where}: {name} waited {waited:.0f} s for a lock on a table ({cause}); nothing of it was done. End that "
                    "session, or run `onward migrate` again when it is gone"
                )
            self._tell(Progress(name, f"could not get a lock within {LOCK_TIMEOUT_S:g} s: {cause}; tries again"))
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 -- jitter
            pause = min(pause * 1.5, 5.0)

    async def _transaction(self, scripts: Sequence[tuple[Migration, str]], done: Sequence[Migration]) -> None:
        connection = self._connection
        async with connection.transaction(isolation="read_committed"):
            await self._limit_waits()
            await connection.execute(TABLES)
            for migration, script in scripts:
                await connection.execute(f"{script}\n;SELECT 1")  # asyncpg fails on a script that has only comments
                await self._mark(SCRIPTED, migration.number)
                if migration.oldest:
                    await self._mark(OLDEST, migration.oldest)
            for migration in done:
                row = (migration.number, migration.name, migration.checksum)
                await connection.execute("INSERT INTO onward_migrations VALUES ($1, $2, $3)", *row)

    async def _limit_waits(self) -> None:
        """Lift all limits of time for this transaction but the one for locks."""
        await self._connection.execute(UNLIMIT, UNLIMITED)
        await self._connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S * 1000:.0f}ms'")

    async def _mark(self, name: str, value: int) -> None:
        await self._connection.execute(
            "INSERT INTO onward_schema AS s (name, value) VALUES ($1, $2) "
            "ON CONFLICT (name) DO UPDATE SET value = GREATEST(s.value, excluded.value)",
            name,
            value,
        )

    # ── indexes ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _make(self, migration: Migration, index: Index) -> None:
        """Make an index; it is valid when this returns. The index that an interrupted run left is dropped first. While a session whose client
        is gone still builds it, this waits."""
        while row := await self._look(INDEX, index.name):
            if row["valid"]:
                return
            if row["pid"] is None:
                self._tell(Progress(migration.name, f"index {index.name} was left unfinished: it is made anew"))
                await self._connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index.name}")
                break
            self._tell(Progress(migration.name, f"index {index.name}: another session builds it; {_progress(row)}"))
            await asyncio.sleep(POLL_EVERY_S)
        self._tell(Progress(migration.name, f"index {index.name}: begins"))
        watching = asyncio.get_running_loop().create_task(self._watch(migration, index), name="onward-migrate-watch")
        try:
            await self._connection.execute(index.sql)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # its reports are optional
                await watching

    async def _watch(self, migration: Migration, index: Index) -> None:
        """Report the progress of an index when it changes."""
        reported = ""
        while True:
            await asyncio.sleep(POLL_EVERY_S / 2)
            row = await self._look(INDEX, index.name)
            if row is None or row["pid"] is None or (progress := _progress(row)) == reported:
                continue
            self._tell(Progress(migration.name, f"index {index.name}: {progress}"))
            reported = progress

    async def _look(self, query: str, *values: Any) -> Any:
        """A row, or None. It is read in a transaction: a pooler sends statements outside of one to several backends."""
        async with self._monitor.transaction():
            return await self._monitor.fetchrow(query, *values)

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """A connection without time limits. A pooler takes no settings: behind it, those of the server apply to indexes."""
        settings = {"application_name": "onward migrate", **dict.fromkeys(UNLIMITED[:3], "0")}
        connection = await asyncpg.connect(
            self._url, timeout=5, statement_cache_size=0, server_settings=None if self._pooled else settings
        )
        try:
            yield connection
        finally:
            try:
                await connection.close(timeout=5)  # after it has told the server of a cancelled statement
            except Exception:
                connection.terminate()


def _progress(row: Any) -> str:
    """The progress of an index that is being built, as the server reports it."""
    if row["lockers_total"]:
        return f"{row['phase']} (pid {row['locker']}), {row['lockers_done']} of {row['lockers_total']} gone"
    if row["blocks_total"]:
        return f"{row['phase']}, {row['blocks_done'] * 100 // row['blocks_total']} %"
    return str(row["phase"])
