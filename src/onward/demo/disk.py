"""A disk that is nearly full: a real folder of real files, with a quota. The tools of the demo's agent, and their witness.

The tools never touch anything outside of that folder: a path is resolved first, links and all, and one that leads out of it
is refused. Only rotated logs can be deleted, and whoever deletes one writes it into the ledger beside the disk.
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

FOLDER = "ONWARD_DEMO_FOLDER"
"""Where the disk of this demo is; its workers are told so."""

QUOTA = 20_000_000
CRITICAL = 90
"""Percent."""

_MARK = ".onward-demo"
_ROTATED = re.compile(r"\.log\.\d+$")
_DAY = 86_400
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
"""Names, bytes, and days since the last write."""


class File(NamedTuple):
    """A file as the tools tell of it."""

    path: str
    bytes: int
    days: int

    @property
    def kind(self) -> str:
        """What it is to the one who wants room."""
        return "rotated" if _ROTATED.search(self.path) else "in use"


class Disk:
    """A folder with a quota, and the ledger of what is done to it."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).resolve()
        if not (self._folder / _MARK).is_file():
            raise UsageError(f"{folder} is no disk of `onward demo agent`, so nothing there is touched")
        self.root = self._folder / "disk"
        self.ledger = Ledger(self._folder / "ledger.jsonl")

    @classmethod
    def make(cls, folder: Path) -> Self:
        """A disk that is nearly full, in an empty folder."""
        for path, size, days in FILES:
            file = folder / "disk" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_content(path, size))
            at = time.time() - days * _DAY
            os.utime(file, (at, at))
        (folder / _MARK).touch()
        return cls(folder)

    @classmethod
    def here(cls) -> Self:
        """The disk of the demo that started this process."""
        if FOLDER not in os.environ:
            raise UsageError("there is no disk here; `onward demo agent` makes one and starts its workers with it")
        return cls(os.environ[FOLDER])

    def files(self) -> list[File]:
        """All files, the largest first."""
        now = time.time()
        found = [(path, path.stat()) for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()]
        listed = [File(self._name(path), at.st_size, int((now - at.st_mtime) // _DAY)) for path, at in found]
        return sorted(listed, key=lambda file: (-file.bytes, file.path))

    def digests(self) -> dict[str, str]:
        """What is in each file, for comparing."""
        return {file.path: hashlib.sha256((self.root / file.path).read_bytes()).hexdigest() for file in self.files()}

    def path(self, given: str) -> Path:
        """The file that a model means: "/" is the root of this disk, and nothing leads out of it."""
        found = (self.root / given.lstrip("/")).resolve()
        if not found.is_relative_to(self.root):
            raise UsageError(f"{given!r} is not on this disk")
        return found

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    # ── deleting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def delete(self, paths: Iterable[str], key: str) -> Iterator[str]:
        """Delete rotated logs, one after the other. All are looked at before the first is deleted; one that is gone
        already, by an earlier attempt, is passed over."""
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
        """Whether somebody here deleted all of these: what a worker asks that does not know how another one ended."""
        intended = self._intended()
        files = [self.path(path) for path in paths]
        gone = all(self._name(file) in intended and not file.exists() for file in files)
        self._write("asked", gone=gone)
        return gone

    def freed(self, paths: Iterable[str]) -> str:
        """What deleting these has brought, in a sentence."""
        intended = self._intended()
        names = {self._name(self.path(path)) for path in paths}
        files = "1 file" if len(names) == 1 else f"{len(names)} files"
        return f"deleted {files}, {megabytes(sum(intended[name] for name in names))} are free again"

    def _intended(self, key: str | None = None) -> dict[str, int]:
        """The files that somebody, or the call of this key, set out to delete, and how large they were."""
        lines = [line for line in self.ledger.lines() if line["what"] == "deleting"]
        return {line["path"]: line["bytes"] for line in lines if key in (None, line["key"])}

    def _write(self, what: str, **more: object) -> None:
        self.ledger.write({"at": time.time(), "what": what, "pid": os.getpid(), **more})


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1_000_000:.1f} MB"


def _content(path: str, size: int) -> bytes:
    """As much of what such a file has in it."""
    if not path.startswith("var/log"):
        return (hashlib.sha256(path.encode()).digest() * (size // 32 + 1))[:size]
    name = Path(path).name.partition(".")[0]
    page = "".join(_LOG_LINE.format(day=n % 28 + 1, minute=n % 60, name=name, n=n) for n in range(500)).encode()
    return (page * (size // len(page) + 1))[-size:]
