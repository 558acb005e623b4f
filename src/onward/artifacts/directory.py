"""Artifacts in a folder: FOLDER/TASK/NAME. A file exists with all its bytes or not at all, even after a power cut.

Links are never followed: a link in the place of a task's folder or of a file is neither read nor written through.
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

SUPPORTED = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether this system can open a file in an open folder without following links. Windows cannot."""

if SUPPORTED:
    _FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    _NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    _READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    """O_NONBLOCK: a named pipe in the place of a file must not block."""

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""Artifacts hold data of people: only the owner may read those that Onward creates. Folders that exist already keep their mode."""


class Directory:
    """A shelf in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, task_id: str, name: str, data: bytes) -> None:
        """Write a temporary file, then rename it; sync the file and its folder to the disk."""
        with self._as_store_unavailable("written to"):
            # each by itself: `parents=True` would give the others the mode of the umask
            for path in (*reversed(self._folder.parents), self._folder):
                if not path.exists():
                    path.mkdir(FOLDER_MODE, exist_ok=True)
            with _open_folder(self._folder) as root:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(task_id, FOLDER_MODE, dir_fd=root)
                os.fsync(root)  # also if another process made the folder: the record that follows refers to it
                with _open_folder(task_id, root) as folder:
                    _write(folder, name, data)

    def get(self, task_id: str, name: str) -> bytes | None:
        """The bytes of the file."""
        with self._as_store_unavailable("read from"):
            try:
                with _open_folder(self._folder) as root, _open_folder(task_id, root) as folder:
                    return _read(folder, name)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                    return None
                raise

    def drop(self, task_id: str) -> None:
        """Remove the task's folder."""
        with (
            self._as_store_unavailable("removed from"),
            contextlib.suppress(FileNotFoundError),
            _open_folder(self._folder) as root,
        ):
            shutil.rmtree(task_id, dir_fd=root)

    def names(self) -> Iterator[tuple[str, str]]:
        """Reads one folder after the other."""
        with self._as_store_unavailable("listed in"):
            if not self._folder.exists():
                return
            with os.scandir(self._folder) as tasks:
                for task in tasks:
                    if task.is_dir(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):  # pruned just now
                            yield from ((task.name, name) for name in os.listdir(task.path))  # noqa: PTH208 -- names only

    @contextlib.contextmanager
    def _as_store_unavailable(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise DiskFull(str(self._folder)) from None
            raise StoreUnavailable(
                f"artifacts cannot be {verb} the folder {self._folder}: {error.strerror or error}; check that it exists, "
                "its permissions, and ONWARD_ARTIFACTS"
            ) from None


@contextlib.contextmanager
def _open_folder(path: Path | str, within: int | None = None) -> Iterator[int]:
    flags = _FOLDER if within is None else _FOLDER | os.O_NOFOLLOW  # the root itself may be a link: its owner chose it
    folder = os.open(path, flags, dir_fd=within)
    try:
        yield folder
    finally:
        os.close(folder)


def _write(folder: int, name: str, data: bytes) -> None:
    temporary = f".{name}.{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(temporary, _NEW, FILE_MODE, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)


def _read(folder: int, name: str) -> bytes | None:
    with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
