"""Notices changed files, for --reload.

It compares the times of the files twice a second. That costs a few milliseconds for a thousand files, needs no package, and works for
folders that are mounted into a container, where the system reports no changes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

POLL_S = 0.5
"""Seconds between two looks."""

MAX_FILES = 20_000
"""Files that are looked at. More are a folder that does not hold code alone."""

SUFFIXES = (".py", ".toml", ".env")
SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "dist", "build"})
"""Folders that hold no code of the app, beside those whose names begin with a dot."""

Times = dict[str, int]


class Watcher:
    """The files of a folder that hold code or settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times = self._read()

    async def changed(self) -> list[str]:
        """Wait for a change; the names of the files. It returns when a look finds no further change: an editor may save several."""
        names: set[str] = set()
        while True:
            await asyncio.sleep(POLL_S)
            new = await asyncio.to_thread(self._changes)
            if names and not new:
                return sorted(names)
            names |= new

    def _changes(self) -> set[str]:
        before, self._times = self._times, self._read()
        return {name for name, _ in before.items() ^ self._times.items()}

    def _read(self) -> Times:
        times: Times = {}
        for entry in _files(str(self._folder)):
            try:
                times[os.path.relpath(entry.path, self._folder)] = entry.stat().st_mtime_ns
            except OSError:  # it was deleted meanwhile
                continue
            if len(times) >= MAX_FILES:
                break
        return times


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in SKIPPED and not entry.name.startswith(".") and not _is_environment(entry.path):
                yield from _files(entry.path)
        elif entry.name.endswith(SUFFIXES):
            yield entry


def _is_environment(folder: str) -> bool:
    """Whether a folder is a virtual environment. One that this user must not enter, such as the data of a database, is none."""
    try:
        return Path(folder, "pyvenv.cfg").exists()
    except OSError:
        return False
