"""Backups of a PostgreSQL database: its tables by COPY, from one snapshot.

`pg_dump` has to be there, and as new as the server. COPY needs neither, works on every managed PostgreSQL and through a transaction pooler, and
its binary form of the five types that Onward uses is the same in all versions of the server. The tables themselves come from the migrations.
Only the tables of Onward are copied: tables of the application in the same database stay as they are (`Epoch.own_tables`).

A restore is one transaction. It locks all tables, drops them, makes them as of the backup, loads them, migrates them and begins the epoch. So
other processes see the tables as before or as restored, and an interrupted restore changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg

from onward.core.epoch import Epoch
from onward.errors import BackupDamaged, StoreUnavailable, UsageError
from onward.store import migrate
from onward.store.migrate import SCRIPTED
from onward.store.port.backup import Progress, Restoring, Snapshot, Tell, files_of
from onward.store.postgres import migrate as postgres_migrate
from onward.store.postgres import roles
from onward.store.postgres.database import PostgresConnection
from onward.store.postgres.execute import S
from onward.store.postgres.migrate import BUSY, LOCK, UNLIMIT, UNLIMITED
from onward.store.postgres.session import EPOCH_SETTING, attempt_connection, plain
from onward.store.shared import epochs

FOLDER = "tables"
CHUNK_BYTES = 1_000_000
REPORT_BYTES = 4_000_000
"""Bytes between two reports."""

LOCK_TIMEOUT_S = 10.0
"""Seconds that a restore waits for the locks of all tables, before it lets the others go on and tries again."""

MAX_LOCK_TRIES = 12

COLUMNS = """
SELECT a.attname FROM pg_attribute a WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
"""
IDENTITIES = """
SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'onward\\_%' AND c.relkind = 'r' AND a.attidentity <> ''
"""
OUTBOX_TRIGGERS = """
SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass('onward_journal') AND tgname IN ('onward_outbox_tasks', 'onward_outbox_busy')
"""
FENCED = frozenset({"onward_journal", "onward_tasks", "onward_outcomes"})
"""Tables whose inserts need no trigger, which takes some 15 µs of a statement. The numbers of the journal refuse a record of an earlier epoch.
A transaction that inserts a task, an end or the beginning of a shift also writes to the queue, which has the trigger."""

VIEWS = "SELECT viewname FROM pg_views WHERE schemaname = current_schema() AND viewname LIKE 'onward\\_%'"
FUNCTIONS = """
SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND proname LIKE 'onward\\_%'
"""
LEASES = "SELECT COALESCE(max(lease_until) - extract(epoch FROM clock_timestamp()), 0)::float8 FROM onward_workers"
NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


class PostgresBackups:
    """See `port.backup.Backups`."""

    kind = "postgresql"

    def __init__(self, url: str, where: str) -> None:
        self._url, self._where = url, where

    # ── backing up ───────────────────────────────────────────────────────────────────────────────────────────────

    async def write(self, folder: Path, tell: Tell) -> Snapshot:
        (folder / FOLDER).mkdir(mode=0o700)
        async with self._session() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(UNLIMIT, UNLIMITED)
            # A user that may not see all rows gets an error, and not a backup of a part of them.
            await connection.execute("SET LOCAL row_security = off")
            moment = await connection.fetchval(NOW)
            state = await postgres_migrate.state(connection)  # takes the snapshot
            if not state.done:
                raise UsageError(f"{self._where} has no tables of Onward; `onward migrate` makes them")
            if state.scripted > state.newest:
                raise UsageError(
                    f"{self._where} is in the middle of a migration; run `onward migrate` to its end first"
                )
            tables, counts = [], {}
            for (table,) in await connection.fetch(S["own_tables"].sql):
                columns = [row[0] for row in await connection.fetch(COLUMNS, table)]
                path = folder / FOLDER / f"{table}.copy"
                counts[table] = await self._copy_out(connection, table, columns, path, tell)
                tables.append({"name": table, "columns": columns, "rows": counts[table]})
            triggers = [row[0] for row in await connection.fetch(OUTBOX_TRIGGERS)]
            epoch = await _epoch_number(connection)
        return Snapshot(
            moment,
            sorted(state.done),
            epoch,
            {
                "tasks": counts["onward_tasks"],
                "unfinished": counts["onward_queue"],
                "records": counts["onward_journal"],
            },
            [f"{FOLDER}/{table['name']}.copy" for table in tables],
            {"tables": tables, "triggers": triggers},
        )

    async def _copy_out(self, connection: Any, table: str, columns: list[str], path: Path, tell: Tell) -> int:
        """Copy the rows of a table into a file; returns how many they are."""
        total = await connection.fetchval("SELECT pg_table_size(to_regclass($1))", table)
        report = _reporter(table, int(total or 0), tell)
        # An error of a file may not be taken for one of the connection.
        with files_of(str(path)):
            file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb", buffering=0)
        with file:

            async def take(data: bytes) -> None:
                with files_of(str(path)):
                    left = memoryview(data)
                    while left:
                        left = left[file.write(left) :]
                report(len(data))

            tag = await connection.copy_from_table(table, columns=columns, output=take, format="binary", timeout=None)
            with files_of(str(path)):
                os.fsync(file.fileno())
        return int(tag.rsplit(" ", 1)[-1])

    # ── restoring ────────────────────────────────────────────────────────────────────────────────────────────────

    async def check(self, snapshot: Snapshot, *, overwrite: bool) -> None:
        epochs.check_migrations(snapshot, {m.number for m in migrate.load("postgres")})
        if overwrite:
            return
        async with self._session() as connection, connection.transaction():
            tables = {row[0] for row in await connection.fetch(S["own_tables"].sql)}
            for table in [name for name in epochs.OWNED if name in tables]:
                if await connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table})"):  # noqa: S608 -- a name of ours
                    raise UsageError(
                        f"{self._where} has rows in {table}; name another one with --db, or replace it with --overwrite"
                    )

    async def restore(self, folder: Path, snapshot: Snapshot, how: Restoring, tell: Tell) -> Epoch:
        quiet_at = time.monotonic() + how.lease_s
        async with self._session() as connection, _locked(connection, self._where, tell) as present:
            prefix = await roles.prefix_of(connection) if present else None
            quiet_at = max(quiet_at, time.monotonic() + await _lease_left(connection, present))
            number = 1 + max(snapshot.epoch, await _epoch_number(connection))
            await self._drop(connection, present)
            await self._make(connection, snapshot)
            own = {row[0] for row in await connection.fetch(S["own_tables"].sql)}
            for table in snapshot.details["tables"]:
                name = str(table["name"])
                if name not in own or f"{FOLDER}/{name}.copy" not in snapshot.files:
                    raise BackupDamaged(folder, f"its manifest names a table that is none ({name:.80})")
                await self._copy_in(connection, table, folder, tell)
            await _set_sequences(connection)
            await self._finish_migrations(connection, snapshot)
            await _watch(connection, snapshot.details["triggers"])
            restored_at = await connection.fetchval(NOW)
            epoch = epochs.new_epoch(number, how.backup_at, restored_at, own_tables=False)
            await self._enter(connection, epoch)
            if prefix is not None:
                await roles.set_up(connection, prefix, self._where)
            await epochs.wait(quiet_at, tell)
        async with self._session() as connection:
            for (table,) in await connection.fetch(S["own_tables"].sql):
                await connection.execute(f"ANALYZE {table}")
        return epoch

    async def begin_epoch(self, how: Restoring, tell: Tell) -> Epoch:
        quiet_at = time.monotonic() + how.lease_s
        async with self._session() as connection, _locked(connection, self._where, tell) as present:
            state = await postgres_migrate.state(connection)
            migrate.check(self._where, migrate.load("postgres"), state)
            quiet_at = max(quiet_at, time.monotonic() + await _lease_left(connection, present))
            backup_at = how.backup_at or await connection.fetchval(S["epoch_moment"].sql)
            restored_at = await connection.fetchval(NOW)
            number = 1 + await _epoch_number(connection)
            epoch = epochs.new_epoch(number, backup_at, restored_at, own_tables=True)
            await self._enter(connection, epoch)
            await epochs.wait(quiet_at, tell)
        return epoch

    async def _drop(self, connection: Any, tables: list[str]) -> None:
        """Drop all that Onward has made. Raises UsageError where an object of the application depends on it."""
        try:
            for (view,) in await connection.fetch(VIEWS):
                await connection.execute(f"DROP VIEW {view}")
            if tables:
                await connection.execute(f"DROP TABLE {', '.join(tables)}")
            for (function,) in await connection.fetch(FUNCTIONS):
                await connection.execute(f"DROP FUNCTION {function}")
        except asyncpg.DependentObjectsStillExistError as error:
            raise UsageError(
                f"{self._where} has objects that depend on tables of Onward ({error.detail or error}); drop them, and make them anew afterwards"
            ) from None

    async def _make(self, connection: Any, snapshot: Snapshot) -> None:
        """Make the tables as of the backup."""
        await connection.execute(migrate.TABLES)
        for migration in migrate.load("postgres"):
            if migration.number in snapshot.migrations:
                await connection.execute(f"{migration.whole}\n;SELECT 1")

    async def _copy_in(self, connection: Any, table: dict[str, Any], folder: Path, tell: Tell) -> None:
        """Replace the rows of a table. Its triggers do not run: the rows have gone through them before."""
        name, path = table["name"], folder / FOLDER / f"{table['name']}.copy"
        report = _reporter(name, path.stat().st_size, tell)

        async def rows() -> AsyncIterator[bytes]:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
                    report(len(chunk))

        await connection.execute(f"ALTER TABLE {name} DISABLE TRIGGER USER")
        await connection.execute(f"TRUNCATE {name}")
        tag = await connection.copy_to_table(
            name, columns=table["columns"], source=rows(), format="binary", timeout=None
        )
        await connection.execute(f"ALTER TABLE {name} ENABLE TRIGGER USER")
        if (count := int(tag.rsplit(" ", 1)[-1])) != table["rows"]:
            raise StoreUnavailable(f"{name} got {count} rows from a backup of {table['rows']}; nothing was restored")

    async def _finish_migrations(self, connection: Any, snapshot: Snapshot) -> None:
        for migration in migrate.load("postgres"):
            if migration.number not in snapshot.migrations:
                await connection.execute(f"{migration.whole}\n;SELECT 1")
                row = (migration.number, migration.name, migration.checksum)
                await connection.execute("INSERT INTO onward_migrations VALUES ($1, $2, $3)", *row)
                await connection.execute(
                    "UPDATE onward_schema SET value = $2 WHERE name = $1", SCRIPTED, migration.number
                )

    async def _enter(self, connection: Any, epoch: Epoch) -> None:
        """Begin an epoch, and make the triggers that refuse the writes of sessions of another one. A session that names none is no process
        of Onward."""
        await epochs.begin(PostgresConnection(connection), epoch)
        setting = f"COALESCE(NULLIF(current_setting('{EPOCH_SETTING}', true), ''), '{epoch.id}')"
        for (table,) in await connection.fetch(S["own_tables"].sql):
            await connection.execute(
                f"DROP TRIGGER IF EXISTS onward_epoch ON {table};"
                f"CREATE TRIGGER onward_epoch BEFORE {'' if table in FENCED else 'INSERT OR '}UPDATE OR DELETE ON {table} FOR EACH STATEMENT "
                f"WHEN ({setting} <> '{epoch.id}') EXECUTE FUNCTION onward_epoch_ended()"
            )

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        """A connection without time limits; behind a pooler those of the server hold outside of transactions."""
        try:
            connection = await attempt_connection(self._url, statement_cache_size=0, command_timeout=None)
        except Exception as error:
            raise plain(error, self._where) from None
        try:
            yield connection
        except Exception as error:
            if (translated := plain(error, self._where)) is error:
                raise
            raise translated from None
        finally:
            with contextlib.suppress(Exception):
                await connection.close(timeout=5)
            connection.terminate()


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def _locked(connection: Any, where: str, tell: Tell) -> AsyncIterator[list[str]]:
    """A transaction that has locked all tables of Onward; yields their names. No other process reads or writes them until it ends."""
    for tries in range(1, MAX_LOCK_TRIES + 1):
        transaction = connection.transaction(isolation="read_committed")
        await transaction.start()
        try:
            await connection.execute(UNLIMIT, UNLIMITED)
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S:g}s'")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            tables = [row[0] for row in await connection.fetch(S["own_tables"].sql)]
            if tables:
                await connection.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
            break
        except BUSY:
            await transaction.rollback()
            tell(Progress(f"the tables are in use; try {tries} of {MAX_LOCK_TRIES}"))
            await asyncio.sleep(0.2 * tries)
        except BaseException:
            await transaction.rollback()
            raise
    else:
        raise StoreUnavailable(
            f"{where}: the tables were not free; stop the processes that use them, and restore again"
        )
    try:
        yield tables
    except BaseException:
        with contextlib.suppress(Exception):
            await transaction.rollback()
        raise
    await transaction.commit()


async def _lease_left(connection: Any, tables: list[str]) -> float:
    """Seconds until all leases in the database have ended."""
    return max(0.0, float(await connection.fetchval(LEASES))) if "onward_workers" in tables else 0.0


async def _epoch_number(connection: Any) -> int:
    if not await connection.fetchval("SELECT to_regclass('onward_epochs') IS NOT NULL"):
        return 0
    return int(await connection.fetchval("SELECT COALESCE(max(number), 0) FROM onward_epochs"))


async def _set_sequences(connection: Any) -> None:
    """Let identity columns go on after the rows that were loaded."""
    for table, column in await connection.fetch(IDENTITIES):
        await connection.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), COALESCE(max({column}), 0) + 1, false) FROM {table}"  # noqa: S608
        )


async def _watch(connection: Any, triggers: list[str]) -> None:
    """Make the triggers of the outbox that the backed up database had."""
    if triggers:
        await connection.execute("SELECT onward_watch($1)", "onward_outbox_busy" in triggers)


def _reporter(part: str, total: int, tell: Tell) -> Callable[[int], None]:
    """A function that counts bytes, and reports them now and then."""
    done = reported = 0

    def report(size: int) -> None:
        nonlocal done, reported
        done += size
        if done - reported >= REPORT_BYTES:
            reported = done
            tell(Progress(part, done, max(done, total)))

    return report
