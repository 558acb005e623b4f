"""Backups of a SQLite file.

The copy is made by SQLite's own backup API from one read transaction, so it has all commits up to one moment, also those that are in the
write-ahead log, and no other ones. A copied file has neither. A restore over a file that other processes have open uses the same API in the
other direction: for them it is one transaction. (A file that is renamed to the place of an open one gets the log of the old file.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apsw

from onward.core.clock import Clock
from onward.core.epoch import Epoch
from onward.errors import StoreUnavailable, UsageError
from onward.store import migrate
from onward.store.port.backup import Progress, Restoring, Snapshot, Tell, files_of
from onward.store.shared import epochs
from onward.store.sqlite.database import SqliteDatabase
from onward.store.sqlite.execute import S
from onward.store.sqlite.file import MEMORY, Plainly, sound

T = TypeVar("T")

FILE = "database.sqlite"
PAGES_PER_STEP = 2_000
"""Pages that are copied between two reports."""

CHUNK_BYTES = 4_000_000
MAX_FENCES = 5
"""How often a restore waits for leases of workers that were started meanwhile."""

BUSY_S = 60.0
"""Seconds that a restore waits for other writers of the file."""


class Migrating(Protocol):
    """A store that brings its tables up to date when it is opened."""

    async def open(self, *, migrate: bool | None = None) -> None: ...

    async def close(self) -> None: ...


class SqliteBackups:
    """See `port.backup.Backups`."""

    kind = "sqlite"

    def __init__(self, path: str, where: str, clock: Clock, store_of: Callable[[str], Migrating]) -> None:
        """`store_of` makes a store on another file, which is not open yet."""
        self._path, self._where, self._clock, self._store_of = Path(path), where, clock, store_of

    async def write(self, folder: Path, tell: Tell) -> Snapshot:
        if str(self._path) == MEMORY or not self._path.exists():
            raise UsageError(f"there is no {self._where} to back up")
        return await _in_thread(lambda stop: self._write(folder / FILE, tell, stop))

    def _write(self, target: Path, tell: Tell, stop: threading.Event) -> Snapshot:
        with Plainly(self._where), _opened(str(self._path)) as source:
            moment = self._clock.now()
            source.execute("BEGIN")
            state = _state(source)  # the first read: from here on this connection sees one moment
            if not state.done:
                raise UsageError(f"{self._where} has no tables of Onward; `onward migrate` makes them")
            _new_file(target)
            with _opened(str(target)) as copy:
                copy.execute("PRAGMA synchronous=OFF")
                _copy_pages(source, copy, FILE, tell, stop)
            source.execute("COMMIT")
        _sync(target)
        with _reading(target) as copy:
            name, fine, verdict = sound(copy)
            if not fine:
                raise StoreUnavailable(f"the copy of {self._where} is damaged ({name}: {verdict}); check the disk")
            counts = {
                "tasks": _count(copy, "onward_tasks"),
                "unfinished": _count(copy, "onward_queue"),
                "records": _count(copy, "onward_journal"),
            }
            epoch = _epoch_number(copy)
        return Snapshot(moment, sorted(state.done), epoch, counts, [FILE], {})

    async def check(self, snapshot: Snapshot, *, overwrite: bool) -> None:
        if str(self._path) == MEMORY:
            raise UsageError("a database in memory cannot be restored; name a file with --db")
        epochs.check_migrations(snapshot, {m.number for m in migrate.load("sqlite")})
        if not self._path.parent.is_dir():
            raise UsageError(f"the folder of {self._where} does not exist; make it first")
        if overwrite:
            self._check_sound()
            return
        if self._path.exists():
            with Plainly(self._where), _opened(str(self._path)) as connection:
                self._check_empty(connection)
        elif left := [name for name in (f"{self._path}-wal", f"{self._path}-shm") if os.path.exists(name)]:  # noqa: ASYNC240, PTH110
            raise UsageError(
                f"{', '.join(left)} is left of a database file that is gone, and would be taken for a part of the restored one; move it away"
            )

    def _check_sound(self) -> None:
        """Raise StoreUnavailable for a file that SQLite cannot read: it cannot write into it either."""
        if not self._path.exists():
            return
        with Plainly(self._where), _opened(str(self._path)) as connection:
            try:
                _epoch_number(connection)
                _lease_left(connection, 0.0)
                return
            except (apsw.CorruptError, apsw.NotADBError) as error:
                why = str(error)
        raise StoreUnavailable(
            f"{self._where} is damaged, or no database ({why}), and cannot be replaced in place; stop the processes that use it, "
            "move it away together with its -wal and -shm, and restore again"
        )

    def _check_empty(self, connection: apsw.Connection) -> None:
        tables = _tables(connection)
        others = sorted(name for name in tables if not name.startswith(("onward_", "sqlite_")))
        used = [name for name in epochs.OWNED if name in tables and _has_rows(connection, name)]
        if used or others:
            what = "tables of its own" if not used else f"rows in {used[0]}"
            raise UsageError(f"{self._where} has {what}; name another one with --db, or replace it with --overwrite")

    async def restore(self, folder: Path, snapshot: Snapshot, how: Restoring, tell: Tell) -> Epoch:
        quiet_at = time.monotonic() + how.lease_s
        temporary = self._path.with_name(f".{self._path.name}.restoring-{secrets.token_hex(4)}")
        fenced = False
        try:
            with files_of(self._where):
                await _in_thread(lambda stop: _copy_file(folder / FILE, temporary, tell, stop))
            number = 1 + max(snapshot.epoch, await asyncio.to_thread(self._known_epoch))
            await self._migrate(temporary)
            replaces = fenced = self._path.exists()
            await (self._quieten(how, quiet_at, tell) if replaces else epochs.wait(quiet_at, tell))
            # Not before: what earlier processes did until now is lost too.
            epoch = epochs.new_epoch(number, how.backup_at, self._clock.now(), own_tables=True)
            await self._begin(temporary, epoch)
            await asyncio.to_thread(self._check_begun, temporary, epoch)
            if replaces:
                await _in_thread(lambda stop: self._put_over(temporary, tell, stop))
            else:
                with files_of(self._where):
                    await asyncio.to_thread(self._put_new, temporary)
        except BaseException:
            if fenced:
                tell(
                    Progress(
                        "nothing was restored; restart the workers and servers all the same: they cannot write any more"
                    )
                )
            raise
        finally:
            for name in (temporary, Path(f"{temporary}-wal"), Path(f"{temporary}-shm")):
                with contextlib.suppress(OSError):
                    name.unlink(missing_ok=True)
        return epoch

    async def begin_epoch(self, how: Restoring, tell: Tell) -> Epoch:
        quiet_at = time.monotonic() + how.lease_s
        if not self._path.exists():
            raise UsageError(f"there is no {self._where}")
        await self._migrate(self._path)
        with Plainly(self._where), _opened(str(self._path)) as connection:
            ((newest,),) = connection.execute(S["epoch_moment"].sql)
            number = 1 + _epoch_number(connection)
        backup_at = how.backup_at or newest
        epoch = epochs.new_epoch(number, backup_at, self._clock.now(), own_tables=True)
        left = await asyncio.to_thread(self._leases)
        await self._begin(self._path, epoch)
        await epochs.wait(max(quiet_at, time.monotonic() + left), tell)
        return epoch

    # ── the parts of a restore ───────────────────────────────────────────────────────────────────────────────────

    async def _migrate(self, path: Path) -> None:
        store = self._store_of(str(path))
        await store.open(migrate=True)
        await store.close()

    async def _begin(self, path: Path, epoch: Epoch) -> None:
        database = SqliteDatabase(str(path), self._clock, inline=False)
        database.open()
        try:
            await database.transact(lambda connection: epochs.begin(connection, epoch))
        finally:
            database.close()

    def _check_begun(self, path: Path, epoch: Epoch) -> None:
        """Raise StoreUnavailable unless the file alone, without the log beside it, has the epoch: its log may not have been copied into it."""
        with Plainly(self._where), _reading(path) as connection:
            if _epoch_number(connection) != epoch.number:
                raise StoreUnavailable(
                    f"the file that was prepared for {self._where} has no epoch; check the disk, and restore again"
                )

    def _known_epoch(self) -> int:
        if not self._path.exists():
            return 0
        with Plainly(self._where), _opened(str(self._path)) as connection:
            return _epoch_number(connection)

    def _leases(self) -> float:
        """Seconds until all leases in the file have ended."""
        with Plainly(self._where), _opened(str(self._path)) as connection:
            return _lease_left(connection, self._clock.now())

    async def _quieten(self, how: Restoring, quiet_at: float, tell: Tell) -> None:
        """Refuse all writes of the processes that have the file open, and wait for the end of their leases. A worker that is started
        meanwhile has a lease too."""
        for _ in range(MAX_FENCES):
            left = await asyncio.to_thread(self._fence, how)
            if left == 0.0 and time.monotonic() >= quiet_at:
                return
            await epochs.wait(max(quiet_at, time.monotonic() + left), tell)
        raise self._restless()

    def _restless(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._where}: workers are started again and again; stop them, and restore again")

    def _fence(self, how: Restoring) -> float:
        """Begin an epoch for the time until the restore; returns in how many seconds the leases of earlier workers have ended."""
        with Plainly(self._where), _opened(str(self._path)) as connection:
            if "onward_epochs" not in _tables(connection):
                return 0.0
            connection.execute("BEGIN IMMEDIATE")
            number = _epoch_number(connection) + 1
            values = epochs.new_epoch(number, how.backup_at, self._clock.now(), own_tables=True)._asdict()
            connection.execute(S["epoch_begin"].sql, [values[name] for name in S["epoch_begin"].names])
            left = _lease_left(connection, self._clock.now())
            connection.execute("COMMIT")
            return left

    def _check_quiet(self) -> None:
        """Raise StoreUnavailable when a worker has a lease. The restore holds the lock by now: none joins after this."""
        with _opened(str(self._path)) as connection:
            if _lease_left(connection, self._clock.now()) > 0.0:
                raise self._restless()

    def _put_new(self, temporary: Path) -> None:
        for name in (f"{self._path}-wal", f"{self._path}-shm"):
            Path(name).unlink(missing_ok=True)  # the caller gave --overwrite, or there is no file
        with Plainly(self._where):
            _sync(temporary)
            os.link(temporary, self._path)  # not a rename: another process may have made the file just now
            _sync_folder(self._path.parent)

    def _put_over(self, temporary: Path, tell: Tell, stop: threading.Event) -> None:
        """Replace the pages of the file, which other processes have open, in one transaction."""
        with Plainly(self._where):
            self._copy_over(temporary, tell, stop)

    def _copy_over(self, temporary: Path, tell: Tell, stop: threading.Event) -> None:
        until = time.monotonic() + BUSY_S
        while time.monotonic() < until:
            with contextlib.suppress(apsw.BusyError, apsw.LockedError):
                with _reading(temporary) as source, _opened(str(self._path)) as target:
                    target.execute("PRAGMA journal_mode=WAL")  # else its lock would keep out the look at the leases
                    target.execute("PRAGMA synchronous=FULL")
                    _copy_pages(source, target, FILE, tell, stop, self._check_quiet)
                return
            time.sleep(0.05)
        raise StoreUnavailable(
            f"{self._where} was not free for {BUSY_S:g} s; stop the processes that use it, and restore again"
        )


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _in_thread(work: Callable[[threading.Event], T]) -> T:
    """Work that copies much, in a thread. A caller that is cancelled stops it and waits for its end."""
    stop = threading.Event()
    running = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        with contextlib.suppress(Exception):
            await running
        raise


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedError("interrupted")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(20_000)
    try:
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[apsw.Connection]:
    """A file that no other process writes, without a log beside it."""
    name = f"file:{urllib.parse.quote(str(path.absolute()))}?immutable=1"
    connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        yield connection
    finally:
        connection.close()


def _copy_pages(
    source: apsw.Connection,
    target: apsw.Connection,
    part: str,
    tell: Tell,
    stop: threading.Event,
    locked: Callable[[], None] = lambda: None,
) -> None:
    """Copy a database, in one transaction. `locked` is called when no other process can write to the target any more."""
    ((size,),) = source.execute("PRAGMA page_size")
    with target.backup("main", source, "main") as copying:
        copying.step(0)
        locked()
        while not copying.done:
            _check_stop(stop)
            copying.step(PAGES_PER_STEP)
            tell(Progress(part, (copying.page_count - copying.remaining) * size, copying.page_count * size))


def _copy_file(source: Path, target: Path, tell: Tell, stop: threading.Event) -> None:
    _new_file(target)
    done, total = 0, source.stat().st_size
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            _check_stop(stop)
            writer.write(chunk)
            done += len(chunk)
            tell(Progress(FILE, done, total))


def _new_file(path: Path) -> None:
    """An empty file that only its owner may read: tasks hold data of people."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _state(connection: apsw.Connection) -> migrate.State:
    tables = _tables(connection)
    done = connection.execute(migrate.READ) if "onward_migrations" in tables else ()
    return migrate.State(frozenset(number for (number,) in done))


def _tables(connection: apsw.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _count(connection: apsw.Connection, table: str) -> int:
    ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 -- a name of ours
    return int(count)


def _has_rows(connection: apsw.Connection, table: str) -> bool:
    return any(True for _ in connection.execute(f"SELECT 1 FROM {table} LIMIT 1"))  # noqa: S608 -- a name of ours


def _epoch_number(connection: apsw.Connection) -> int:
    if "onward_epochs" not in _tables(connection):
        return 0
    row: Any = next(connection.execute(S["epoch"].sql), (0,))
    return int(row[0])


def _lease_left(connection: apsw.Connection, now: float) -> float:
    if "onward_workers" not in _tables(connection):
        return 0.0
    ((until,),) = connection.execute("SELECT max(lease_until) FROM onward_workers")
    return max(0.0, (until or 0.0) - now)
