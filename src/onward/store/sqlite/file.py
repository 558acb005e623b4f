"""A SQLite file: how it is opened, what its errors mean, and whether it is in good health."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from onward.core.clock import Clock
from onward.errors import DiskFull, FileReplaced, ReadOnly, StoreUnavailable
from onward.store.sqlite.lane import Patient

MEMORY = ":memory:"
BUSY = 20.0
"""Seconds to wait for another process that writes."""

LARGE_LOG_BYTES = 256_000_000
"""A write-ahead log of this size has not been started again for long. Usually it has 4 MB; one large commit makes it larger."""

FIXED_IN = (3, 51, 3)
"""The first library without the WAL-reset bug."""


def connect(path: str, clock: Clock) -> apsw.Connection:
    """A durable connection: WAL, synchronous=FULL, patient with others, and with the database's clock."""
    if path != MEMORY and not Path(path).exists():
        with contextlib.suppress(FileExistsError):  # tasks hold people's data: for the owner's eyes
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = apsw.Connection(path)
    connection.set_busy_handler(Patient(BUSY))
    connection.create_scalar_function("onward_now", lambda *_: clock.now(), 0)
    connection.create_scalar_function("onward_has", _has, 2, deterministic=True)
    _set_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA journal_size_limit={LARGE_LOG_BYTES // 4}")  # a log that had grown gives its space back
    return connection


def _has(*values: Any) -> bool:
    """Whether the second stands somewhere in the first."""
    data, part = values
    return part in data


def _set_wal(connection: apsw.Connection) -> None:
    """The one change for which SQLite does not ask the busy handler: several processes may open a new file at once."""
    patient = Patient(BUSY)
    for tries in itertools.count():
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except apsw.BusyError:
            if not patient(tries):
                raise
        else:
            return


class Files:
    """The file of a database as it was opened. SQLite itself does not look at its name again: it goes on in a file that was deleted.
    The write-ahead log is not compared. A program that closes a connection of another SQLite library in this process may delete
    the log, and that is no reason to stop."""

    def __init__(self, path: str, where: str) -> None:
        self._where = where
        names = [] if path == MEMORY else [str(Path(path).absolute())]
        self._files = [(name, _identity(name)) for name in names if _identity(name) is not None]

        self._fine_until = 0.0

    def check(self) -> None:
        """Raises FileReplaced when one of them is not there, or is another. A commit is acknowledged only after that."""
        for name, was in self._files:
            if (now := _identity(name)) != was:
                self._fine_until = 0.0
                raise FileReplaced(self._where, name, there=now is not None)

    def check_now_and_then(self) -> None:
        """The same for reads, of which none is a promise: not more often than every tenth of a second."""
        if (now := time.monotonic()) >= self._fine_until:
            self.check()
            self._fine_until = now + 0.1


def _identity(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)  # noqa: PTH116 -- half the time of Path.stat, before and after each commit
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def plainly(where: str) -> Iterator[None]:
    """What apsw and the system raise, as the sentences of errors.py."""
    try:
        yield
    except (apsw.ReadOnlyError, apsw.PermissionsError, PermissionError):
        raise ReadOnly(where) from None
    except apsw.FullError:
        raise DiskFull(where) from None
    except (apsw.CantOpenError, FileNotFoundError, IsADirectoryError):
        raise StoreUnavailable(f"{where} cannot be opened; check that its folder exists and is writable") from None
    except apsw.NotADBError:
        raise StoreUnavailable(f"{where} is not an Onward database; name another file with --db or ONWARD_DB") from None
    except apsw.BusyError:
        raise StoreUnavailable(
            f"{where} is locked by another program for more than {BUSY:g} s; end that program or wait"
        ) from None
    except (apsw.IOError, apsw.CorruptError) as error:
        raise StoreUnavailable(f"{where} cannot be read or written ({error}); check the disk") from None


def sound(connection: apsw.Connection) -> tuple[str, bool, str]:
    """Whether every page of the file is as it should be. Reads all of them."""
    said = next(connection.execute("PRAGMA quick_check(1)"))[0]
    return "file", said == "ok", f"quick_check of every page says {said}"


def sound_file(path: str, clock: Clock) -> tuple[str, bool, str]:
    """The same, over a connection of its own."""
    connection = connect(path, clock)
    try:
        return sound(connection)
    finally:
        connection.close()


def health(connection: apsw.Connection, path: str) -> list[tuple[str, bool, str]]:
    """What `onward doctor` looks at: name, fine or not, and what it means."""
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
    ]


def _log_size(path: str) -> tuple[str, bool, str]:
    """SQLite starts its log again when no reader needs what is in it. A log that grows has a reader that does not end."""
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
