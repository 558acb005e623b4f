"""The port of backups: copies all tables as of one moment, and puts them back in a new epoch.

It works on a database that is not open, and that may have older tables than this program.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from onward.core.epoch import Epoch
from onward.errors import DiskFull, StoreUnavailable


class Progress(NamedTuple):
    """How far a backup or a restore is."""

    part: str
    """The name of the part that is copied, or a sentence about a wait."""
    done: int = 0
    """Bytes that are done."""
    total: int = 0
    """Bytes of the part; 0 where they are not known."""


Tell = Callable[[Progress], None]


class Snapshot(NamedTuple):
    """The tables of a backup. All of it is JSON, for the manifest."""

    moment: float
    """The moment of the backup: all that was committed before it is in it."""
    migrations: list[int]
    """The migrations that have run."""
    epoch: int
    """The number of the epoch."""
    counts: dict[str, int]
    """Tasks, unfinished tasks, and records."""
    files: list[str]
    """The files of the tables, in the folder of the backup."""
    details: dict[str, Any]
    """More that the same kind of store needs to put them back."""


class Restoring(NamedTuple):
    """How to restore."""

    backup_at: float
    overwrite: bool = False
    """Whether the tables that are there may be replaced."""
    lease_s: float = 0.0
    """Seconds after which the leases of all workers of the epoch before have ended."""


class Backups(Protocol):
    """See the head of this file."""

    kind: str
    """The kind of database that the tables of a backup belong to."""

    async def write(self, folder: Path, tell: Tell) -> Snapshot:
        """Copy all tables into files in this folder, as of one moment, while other processes write. Memory does not grow with the
        tables."""
        ...

    async def check(self, snapshot: Snapshot, *, overwrite: bool) -> None:
        """Raises UsageError where this program cannot restore these tables here. Changes nothing."""
        ...

    async def restore(self, folder: Path, snapshot: Snapshot, how: Restoring, tell: Tell) -> Epoch:
        """Put the tables in place, all or nothing, and begin a new epoch. Processes of an earlier epoch cannot write from then on. It
        returns when the leases of their workers have ended."""
        ...

    async def begin_epoch(self, how: Restoring, tell: Tell) -> Epoch:
        """Begin a new epoch in a database that was put back by other means, as with `restore`. `how.backup_at` is 0 where the moment
        of the backup is not known: then it is the time of the newest record."""
        ...


@contextlib.contextmanager
def files_of(what: str) -> Iterator[None]:
    """Translates errors of the file system, in work on the files of a backup or of a restore. `what` names it."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not of the system
            raise
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFull(what) from None
        place = f" ({error.filename})" if error.filename else ""
        raise StoreUnavailable(
            f"{what}{place}: {error.strerror or error}; check the folder and its permissions"
        ) from None


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot for the manifest."""
    return snapshot._asdict()


def from_json(value: Mapping[str, Any]) -> Snapshot:
    """A snapshot from the manifest."""
    return Snapshot(**{name: value[name] for name in Snapshot._fields})
