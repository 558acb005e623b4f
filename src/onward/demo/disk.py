"""A disk that is nearly full: a real folder of real files, with a quota, for the tools of the demo's agent.

The tools never touch a file outside of that folder: they resolve each path first, including links, and refuse one that leads out
of it. They delete only rotated logs, and write each deletion into the ledger beside the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from onward.demo.ledger import Ledger
from onward.errors import UsageError

FOLDER_VARIABLE = "ONWARD_DEMO_FOLDER"
"""The environment variable with the folder of the demo's disk; the demo sets it for its workers."""

QUOTA_BYTES = 20_000_000
CRITICAL_PERCENT = 90

_MARKER_FILE = ".onward-demo"
_ROTATED = re.compile(r"\.log\.\d+$")
_DAY_S = 86_400
_LOG_LINE = "2026-03-{day:02} 12:{minute:02}:07 INFO  {name} request {n:06} answered in {n} ms, nothing to see here\n"

FILES: tuple[tuple[str, int, int], ...] = (
    ("var/log/app/app.log", 1_100_000, 0),
    ("var/log/app/app.log.1", 2_100_000, 2),
    ("var/log/app/app.log.2", 2_200_000, 9),
    ("var/log/app/app.log.3", 2_000_000, 16),
    ("var/log/app/app.log.4", 2_300_000, 23),
    ("var/log/app/app.log.5", 2_100_000, 30),
    ("var/log/nginx/access.log", 800_000, 0),
    ("var/log/nginx/access.log.1", 1_400_000, 1),
    ("var/log/nginx/access.log.2", 1_500_000, 8),
    ("var/log/nginx/access.log.3", 1_300_000, 15),
    ("var/log/nginx/access.log.4", 1_600_000, 22),
    ("var/lib/orders.db", 900_000, 0),
)
"""Path, bytes, and days since the last write."""


class File(NamedTuple):
    """A file as the tools show it."""

    path: str
    bytes: int
    days: int

    @property
    def kind(self) -> str:
        """`rotated` for a log that may be deleted, else `in use`."""
        return "rotated" if _ROTATED.search(self.path) else "in use"


class Disk:
    """A folder with a quota, and the ledger of what is done to it."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).resolve()
        if not (self._folder / _MARKER_FILE).is_file():
            raise UsageError(f"{folder} is no disk of `onward demo agent`, so nothing there is touched")
        self.root = self._folder / "disk"
        self.ledger = Ledger(self._folder / "ledger.jsonl")

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Make a disk that is nearly full, in an empty folder."""
        for path, size, days in FILES:
            file = folder / "disk" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_content(path, size))
            at = time.time() - days * _DAY_S
            os.utime(file, (at, at))
        (folder / _MARKER_FILE).touch()
        return cls(folder)

    @classmethod
    def here(cls) -> Self:
        """The disk of the demo that started this process."""
        if FOLDER_VARIABLE not in os.environ:
            raise UsageError("there is no disk here; `onward demo agent` makes one and starts its workers with it")
        return cls(os.environ[FOLDER_VARIABLE])

    def files(self) -> list[File]:
        """All files, the largest first."""
        now = time.time()
        stats = [(path, path.stat()) for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()]
        files = [File(self._name(path), stat.st_size, int((now - stat.st_mtime) // _DAY_S)) for path, stat in stats]
        return sorted(files, key=lambda file: (-file.bytes, file.path))

    def digests(self) -> dict[str, str]:
        """A hash of each file, for comparing."""
        return {file.path: hashlib.sha256((self.root / file.path).read_bytes()).hexdigest() for file in self.files()}

    def path(self, given: str) -> Path:
        """The file that a model names: "/" is the root of this disk, and no path leads out of it."""
        path = (self.root / given.lstrip("/")).resolve()
        if not path.is_relative_to(self.root):
            raise UsageError(f"{given!r} is not on this disk")
        return path

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    # ── deleting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def delete(self, paths: Iterable[str], key: str) -> Iterator[str]:
        """Delete rotated logs, one after the other. All are checked before the first is deleted; a file that an earlier attempt has
        deleted is skipped."""
        intended = self._intended(key)
        files = [self.path(path) for path in paths]
        for file in files:
            self._check(file, intended)
        for file in files:
            name = self._name(file)
            if name not in intended:
                self._write("deleting", path=name, bytes=file.stat().st_size, key=key)
            try:
                file.unlink()  # the effect: the file system lets it happen once
            except FileNotFoundError:
                continue
            self._write("deleted", path=name, key=key)
            yield name
        self._write("done", key=key)

    def _check(self, file: Path, intended: dict[str, int]) -> None:
        name = self._name(file)
        if name in intended:
            return
        if not file.is_file():
            raise UsageError(f"there is no file {name!r} on this disk")
        if not _ROTATED.search(name):
            raise UsageError(f"{name!r} is in use; only rotated logs (*.log.1 and so on) can be deleted. Nothing was")

    def gone(self, paths: Iterable[str]) -> bool:
        """Whether a tool deleted all of these: a worker asks this when it does not know how another one ended."""
        intended = self._intended()
        files = [self.path(path) for path in paths]
        gone = all(self._name(file) in intended and not file.exists() for file in files)
        self._write("asked", gone=gone)
        return gone

    def freed(self, paths: Iterable[str]) -> str:
        """The space that deleting these has freed, in a sentence."""
        intended = self._intended()
        names = {self._name(self.path(path)) for path in paths}
        files = "1 file" if len(names) == 1 else f"{len(names)} files"
        return f"deleted {files}, {megabytes(sum(intended[name] for name in names))} are free again"

    def _intended(self, key: str | None = None) -> dict[str, int]:
        """The files that a tool, or the call of this key, began to delete, and their sizes."""
        lines = [line for line in self.ledger.lines() if line["what"] == "deleting"]
        return {line["path"]: line["bytes"] for line in lines if key in (None, line["key"])}

    def _write(self, what: str, **more: object) -> None:
        self.ledger.write({"at": time.time(), "what": what, "pid": os.getpid(), **more})


def megabytes(size: int) -> str:
    """A size in megabytes."""
    return f"{size / 1_000_000:.1f} MB"


def _content(path: str, size: int) -> bytes:
    """Content of this size that fits the kind of file."""
    if not path.startswith("var/log"):
        return (hashlib.sha256(path.encode()).digest() * (size // 32 + 1))[:size]
    name = Path(path).name.partition(".")[0]
    page = "".join(_LOG_LINE.format(day=n % 28 + 1, minute=n % 60, name=name, n=n) for n in range(500)).encode()
    return (page * (size // len(page) + 1))[-size:]
