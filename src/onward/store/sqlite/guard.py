"""A guard over an open SQLite file: another SQLite library in this process must not delete its write-ahead log.

SQLite locks a file with POSIX locks, and those belong to the process. Python's `sqlite3` module is another library than ours. When a
program closes a `sqlite3` connection to our file, that library sees no lock of ours: it believes that it was the last
user, and deletes the log that our connection goes on to write. The close also drops our own locks, so that another process may
believe the same. The guard holds the two locks that say "this file is in use" once more, as locks of an open file description,
which other libraries and other processes respect, and which no close of another file descriptor drops.

It does not make two libraries safe that write at the same time: nothing does (https://sqlite.org/howtocorrupt.html, 2.2.1).
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

SHARED = (0x40000002, 510)
"""The bytes of the database file that every user of it has a shared lock on."""

ALIVE = (128, 1)
"""The byte of the `-shm` file that says that its contents are in use."""

_lock = threading.Lock()
_in_use: dict[tuple[int, int], _Descriptors] = {}
"""The descriptors of this process for each file (device and inode), shared by all stores that have it open."""


class _Descriptors:
    """Closing one of them drops the POSIX locks of all connections to its file, so they stay open until the last store is closed."""

    def __init__(self, path: str) -> None:
        self.stores = 0
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC)]
        with contextlib.suppress(OSError):
            self._files.append(os.open(f"{path}-shm", os.O_RDONLY | os.O_CLOEXEC))

    def lock(self, kind: int) -> None:
        for file, (start, length) in zip(self._files, (SHARED, ALIVE), strict=False):
            with contextlib.suppress(OSError):  # a file system without such locks
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, start, length, 0))

    def close(self) -> None:
        for file in self._files:
            os.close(file)


class Guard:
    """The share of one store in the guard over its file."""

    def __init__(self) -> None:
        self._descriptors: _Descriptors | None = None

    def hold(self, path: str) -> None:
        """Lock the file, which the caller has open in WAL mode. Does nothing where the system has no such locks."""
        if not hasattr(fcntl, "F_OFD_SETLK"):
            return
        real = os.path.realpath(path)
        stat = os.stat(real)  # noqa: PTH116 -- as os.open below
        with _lock:
            file = (stat.st_dev, stat.st_ino)
            descriptors = _in_use.get(file)
            if (
                descriptors is None or descriptors.stores == 0
            ):  # the last store is closing: it may have deleted its -shm
                descriptors = _in_use[file] = _Descriptors(real)
                descriptors.lock(fcntl.F_RDLCK)
            descriptors.stores += 1
            self._descriptors = descriptors

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """The caller closes its connections inside: the last one may delete the log."""
        descriptors, self._descriptors = self._descriptors, None
        if descriptors is None:
            yield
            return
        with _lock:
            descriptors.stores -= 1
            last = descriptors.stores == 0
            if last:
                descriptors.lock(fcntl.F_UNLCK)
        try:
            yield
        finally:
            if last:
                with _lock:
                    for file in [file for file, held in _in_use.items() if held is descriptors]:
                        del _in_use[file]
                    descriptors.close()
