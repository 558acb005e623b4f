"""A SQLite file: how it is opened, what its errors mean, and whether it is in good health."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import apsw

from onward.core.clock import Clock
from onward.errors import DiskFull, FileReplaced, InvalidInput, ReadOnly, StoreUnavailable
from onward.store.shared.database import UNSTORABLE
from onward.store.sqlite.lane import Patient

MEMORY = ":memory:"
BUSY_TIMEOUT_S = 20.0
"""Seconds that a statement waits for another process that writes."""

LARGE_LOG_BYTES = 256_000_000
"""A write-ahead log of this size was not restarted for a long time. Usually it has 4 MB; one large commit makes it larger."""

CHECKPOINT_PAGES = 1000
"""Pages of the write-ahead log from which on a commit copies it into the file, so that it can begin again: SQLite's own number."""

FIXED_IN = (3, 51, 3)
"""The first library without the WAL-reset bug."""


def connect(path: str, clock: Clock) -> apsw.Connection:
    """A durable connection: WAL, synchronous=FULL, a busy handler, and the clock of the database."""
    if path != MEMORY and not Path(path).exists():
        with contextlib.suppress(FileExistsError):  # tasks hold data of people: only the owner may read it
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = apsw.Connection(path)
    connection.set_busy_handler(Patient(BUSY_TIMEOUT_S))
    connection.create_scalar_function("onward_now", lambda *_: clock.now(), 0)
    connection.create_scalar_function("onward_has", _has, 2, deterministic=True)
    _set_wal(connection)
    connection.set_wal_hook(LogCheckpoints())
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA journal_size_limit={LARGE_LOG_BYTES // 4}")  # a log that has grown gives its space back
    return connection


def _has(*values: Any) -> bool:
    """Whether the first value contains the second."""
    data, part = values
    return part in data


def _set_wal(connection: apsw.Connection) -> None:
    """Switch to WAL, and try again while the file is busy: SQLite does not call the busy handler here, and several processes may open a new
    file at once."""
    patient = Patient(BUSY_TIMEOUT_S)
    for tries in itertools.count():
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except apsw.BusyError:
            if not patient(tries):
                raise
        else:
            return


class LogCheckpoints:
    """The hook of a connection that copies the log into the file. SQLite itself tries that at each commit from CHECKPOINT_PAGES on. While
    another program holds a snapshot that began with an empty log, nothing can be copied, and each try sorts all pages of the log: with
    600 MB a commit takes 12 ms instead of 0.6. So after a try that left pages in the log, it has to grow by a tenth, at most by
    CHECKPOINT_PAGES, before the next try."""

    def __init__(self) -> None:
        self.tries = 0
        self._last_pages, self._next_pages = 0, CHECKPOINT_PAGES

    def __call__(self, connection: apsw.Connection, database: str, pages: int) -> int:
        if pages < self._last_pages:  # the log began again
            self._next_pages = CHECKPOINT_PAGES
        self._last_pages = pages
        if pages >= self._next_pages:
            self.tries += 1
            with contextlib.suppress(apsw.Error):  # the commit is done: a later try meets the error again, if it lasts
                in_log, copied = connection.wal_checkpoint(database, apsw.SQLITE_CHECKPOINT_PASSIVE)
                in_vain = copied < in_log
                self._next_pages = pages + min(pages // 10, CHECKPOINT_PAGES) if in_vain else CHECKPOINT_PAGES
        return apsw.SQLITE_OK


class Files:
    """The identity of a database file as it was opened. SQLite itself does not look at the name again: it goes on in a file that was
    deleted. The write-ahead log is not compared: a program that closes a connection of another SQLite library in this process may
    delete the log, and that is no reason to stop."""

    def __init__(self, path: str, where: str) -> None:
        self._where = where
        names = [] if path == MEMORY else [str(Path(path).absolute())]
        self._files = [(name, _identity(name)) for name in names if _identity(name) is not None]

        self._fine_until = 0.0

    def check(self) -> None:
        """Raise FileReplaced when the file is gone, or is another one. A commit is acknowledged only after this check."""
        for name, was in self._files:
            if (now := _identity(name)) != was:
                self._fine_until = 0.0
                raise FileReplaced(self._where, name, there=now is not None)

    def check_now_and_then(self) -> None:
        """The same for reads, which promise nothing: at most every tenth of a second."""
        if (now := time.monotonic()) >= self._fine_until:
            self.check()
            self._fine_until = now + 0.1


def _identity(name: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(name)  # noqa: PTH116 -- half the time of Path.stat, before and after each commit
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def plain(error: BaseException, where: str) -> BaseException:
    """Translate an error of apsw or the system into one of errors.py; other errors stay as they are."""
    match error:
        case apsw.ReadOnlyError() | apsw.PermissionsError() | PermissionError():
            return ReadOnly(where)
        case apsw.FullError():
            return DiskFull(where)
        case UnicodeEncodeError():
            return InvalidInput(UNSTORABLE)
        case apsw.CantOpenError() | FileNotFoundError() | IsADirectoryError():
            return StoreUnavailable(f"{where} cannot be opened; check that its folder exists and is writable")
        case apsw.NotADBError():
            return StoreUnavailable(f"{where} is not an Onward database; name another file with --db or ONWARD_DB")
        case apsw.BusyError():
            return StoreUnavailable(
                f"{where} is locked by another program for more than {BUSY_TIMEOUT_S:g} s; end that program or wait"
            )
        case apsw.IOError() | apsw.CorruptError():
            return StoreUnavailable(f"{where} cannot be read or written ({error}); check the disk")
        case _:
            return error


class Plainly:
    """A block in which `plain` translates the errors. It is a class, because a generator would take longer than a short statement."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (translated := plain(error, self._where)) is not error:
            raise translated from None


def sound(connection: apsw.Connection) -> tuple[str, bool, str]:
    """Check every page of the file."""
    result = next(connection.execute("PRAGMA quick_check(1)"))[0]
    return "file", result == "ok", f"quick_check of every page says {result}"


def sound_file(path: str, clock: Clock) -> tuple[str, bool, str]:
    """The same over a new connection."""
    connection = connect(path, clock)
    try:
        return sound(connection)
    finally:
        connection.close()


def health(connection: apsw.Connection, path: str) -> list[tuple[str, bool | None, str]]:
    """The checks of `onward doctor`: name, whether it is fine, and what it means."""
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    mode = next(connection.execute("PRAGMA journal_mode"))[0]
    sync = next(connection.execute("PRAGMA synchronous"))[0]
    return [
        (
            "SQLite library",
            version >= FIXED_IN,
            f"{apsw.sqlite_lib_version()} (3.51.3 and later are free of the WAL-reset bug)",
        ),
        (
            "journal mode",
            mode == "wal" or path == MEMORY,
            f"{mode} (wal lets readers and the writer work side by side)",
        ),
        ("synchronous", sync == 2, f"{sync} (2 is FULL: an acknowledged write survives a power cut)"),
        _log_size(path),
        _readers(path),
    ]


def _readers(path: str) -> tuple[str, bool, str]:
    """Onward creates the file for its owner alone, and SQLite gives its log the same mode. A file from elsewhere keeps its mode."""
    names = [] if path == MEMORY else [path, f"{path}-wal", f"{path}-shm"]
    if os.name == "nt":  # the mode says nothing there
        return "file mode", True, "Windows decides by the rights of the folder"
    wide = [name for name in names if Path(name).exists() and Path(name).stat().st_mode & 0o007]
    if not wide:
        return "file mode", True, "other users of this machine cannot read the database"
    return (
        "file mode",
        False,
        f"other users of this machine may read or write {', '.join(wide)}; `chmod o= {' '.join(wide)}` shuts them out",
    )


def _log_size(path: str) -> tuple[str, bool, str]:
    """SQLite restarts its log when no reader needs it. A log that grows has a reader that does not end."""
    try:
        size = 0 if path == MEMORY else os.stat(f"{path}-wal").st_size  # noqa: PTH116 -- as above
    except FileNotFoundError:
        size = 0
    if size < LARGE_LOG_BYTES:
        return "write-ahead log", True, f"{size / 1e6:.1f} MB"
    return (
        "write-ahead log",
        False,
        f"{size / 1e6:,.0f} MB: some program has had a read transaction open on this file for a long time, SQLite cannot shorten the log, "
        f"and every read gets slower. `fuser {path}` lists the programs that have the file open; end that transaction",
    )
