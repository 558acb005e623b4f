"""Artifacts in a folder: FOLDER/TASK/NAME. A file is there whole or not at all, also after a power cut.

Nothing is followed: a link where a task's folder or a file should be is not ours, and is not read or written through.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from onward.errors import DiskFull, StoreUnavailable

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: a pipe that somebody put there must not be waited for."""


class Directory:
    """A shelf that is a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, task_id: str, name: str, data: bytes) -> None:
        """Write it beside its place, then move it there; each with its folder forced to the disk."""
        with self._in_words("written to"):
            self._folder.mkdir(parents=True, exist_ok=True)
            with _opened(self._folder) as root:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(task_id, dir_fd=root)
                os.fsync(root)  # whoever made it: the record that follows is ours
                with _opened(task_id, root) as folder:
                    _write(folder, name, data)

    def get(self, task_id: str, name: str) -> bytes | None:
        """The bytes of the file."""
        with self._in_words("read from"):
            try:
                with _opened(self._folder) as root, _opened(task_id, root) as folder:
                    return _read(folder, name)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                    return None
                raise

    def drop(self, task_id: str) -> None:
        """Remove the task's folder."""
        with self._in_words("removed from"), contextlib.suppress(FileNotFoundError), _opened(self._folder) as root:
            shutil.rmtree(task_id, dir_fd=root)

    @contextlib.contextmanager
    def _in_words(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise DiskFull(str(self._folder)) from None
            raise StoreUnavailable(
                f"artifacts cannot be {verb} the folder {self._folder}: {error.strerror or error}; check that it is there, "
                "its permissions, and ONWARD_ARTIFACTS"
            ) from None


@contextlib.contextmanager
def _opened(path: Path | str, within: int | None = None) -> Iterator[int]:
    flags = _FOLDER if within is None else _FOLDER | os.O_NOFOLLOW  # where the shelf stands is for its owner to say
    folder = os.open(path, flags, dir_fd=within)
    try:
        yield folder
    finally:
        os.close(folder)


def _write(folder: int, name: str, data: bytes) -> None:
    beside = f".{name}.{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(beside, _NEW, 0o666, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise
    os.fsync(folder)


def _read(folder: int, name: str) -> bytes | None:
    with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
