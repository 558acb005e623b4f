"""Backups: a folder with the tables of one moment, the artifacts that they name, and a manifest.

    manifest.json            version, moment, counts, and the size and hash of each file; it is written last
    database.sqlite          the tables of a SQLite file, or
    tables/NAME.copy         those of a PostgreSQL database
    artifacts/TASK/NAME      artifacts from a folder or a bucket
    artifacts.txt            a line for each of them: task, name, size, hash

A backup is written under another name, which ends in `.partial-` and some letters, and then renamed: a folder with the name that was asked for
is whole. Artifacts are copied before the tables, and those that are new are copied after them: a task that is pruned meanwhile has its
artifacts in the backup.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

from onward.artifacts.keeper import Shelf, is_stored_name
from onward.core.epoch import Epoch
from onward.errors import BackupDamaged, DiskFull, UsageError
from onward.store.port import backup as port
from onward.store.port.backup import Backups, Progress, Restoring, Snapshot, Tell

FORMAT = 1
"""The version of the layout of the folder."""

MANIFEST, ARTIFACTS, ARTIFACT_LIST = "manifest.json", "artifacts", "artifacts.txt"
CHUNK_BYTES = 4_000_000
MAX_MANIFEST_BYTES = 10_000_000
REPORT_EVERY_S = 1.0


class Manifest(NamedTuple):
    """What a backup is."""

    format: int
    onward: str
    """The version of Onward that made it."""
    kind: str
    """The kind of database: sqlite, postgresql."""
    database: str
    """The database that was backed up, without secrets."""
    tables: Snapshot
    artifacts: dict[str, int] | None
    """How many artifacts there are, and their bytes; None where the database has them, or they were left out."""
    files: dict[str, dict[str, Any]]
    """The size and hash of each file but the manifest and the artifacts."""

    def to_json(self) -> dict[str, Any]:
        """For the file, and for --json."""
        return {**self._asdict(), "tables": port.to_json(self.tables)}


class Restored(NamedTuple):
    """What a restore did."""

    manifest: Manifest | None
    epoch: Epoch


# ── backing up ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def back_up(
    backups: Backups, shelf: Shelf | None, folder: Path, *, where: str, version: str, tell: Tell
) -> Manifest:
    """Write a backup into a folder that does not exist yet. `shelf` is the place outside the database whose artifacts belong to it."""
    what = f"the backup {folder}"
    with port.files_of(what):
        partial = await asyncio.to_thread(_make_partial, folder)
    try:
        with port.files_of(what):
            return await _back_up(backups, shelf, partial, folder, where, version, tell)
    except BaseException as error:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
        if isinstance(error, DiskFull):  # the database is only read
            raise DiskFull(what) from None
        raise


async def _back_up(
    backups: Backups, shelf: Shelf | None, partial: Path, folder: Path, where: str, version: str, tell: Tell
) -> Manifest:
    copied = None if shelf is None else _Artifacts(shelf, partial, tell)
    if copied is not None:
        await asyncio.to_thread(copied.copy)
    tables = await backups.write(partial, tell)
    if copied is not None:
        await asyncio.to_thread(copied.copy)
        copied.close()
    names = tables.files + ([ARTIFACT_LIST] if copied is not None else [])
    files = await asyncio.to_thread(lambda: {name: _described(partial / name) for name in names})
    counts = None if copied is None else {"count": copied.count, "bytes": copied.bytes}
    manifest = Manifest(FORMAT, version, backups.kind, where, tables, counts, files)
    await asyncio.to_thread(_write_manifest, partial, manifest)
    await asyncio.to_thread(_rename, partial, folder)
    return manifest


def _make_partial(folder: Path) -> Path:
    """The folder in which a backup is written until it is whole."""
    if folder.exists():
        raise UsageError(f"{folder} exists already; a backup gets a folder of its own")
    if not folder.parent.is_dir():
        raise UsageError(f"the folder {folder.parent} does not exist; make it first")
    partial = folder.with_name(f"{folder.name}.partial-{secrets.token_hex(4)}")
    partial.mkdir(mode=0o700)
    return partial


class _Artifacts:
    """Copies what a shelf has, one artifact at a time."""

    def __init__(self, shelf: Shelf, folder: Path, tell: Tell) -> None:
        self._shelf, self._folder, self._tell = shelf, folder / ARTIFACTS, tell
        self._folder.mkdir(mode=0o700)
        self._list = (folder / ARTIFACT_LIST).open("x", encoding="ascii")
        self._reported_at = time.monotonic()
        self.count = self.bytes = 0

    def copy(self) -> None:
        """Copy all artifacts that were not copied yet."""
        for task_id, name in self._shelf.names():
            target = self._folder / task_id / name
            if not is_stored_name(task_id, name) or target.exists():
                continue
            data = self._shelf.get(task_id, name)
            if data is None:  # pruned just now
                continue
            target.parent.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._list.write(f"{task_id} {name} {len(data)} {hashlib.sha256(data).hexdigest()}\n")
            self.count, self.bytes = self.count + 1, self.bytes + len(data)
            if time.monotonic() - self._reported_at > REPORT_EVERY_S:
                self._reported_at = time.monotonic()
                self._tell(Progress(f"{self.count:,} artifacts", self.bytes))

    def close(self) -> None:
        """Make the list durable."""
        self._list.flush()
        os.fsync(self._list.fileno())
        self._list.close()


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    content = manifest.to_json()
    text = json.dumps({**content, "sha256": _hash_of(content)}, indent=1)
    with os.fdopen(os.open(folder / MANIFEST, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)


def _rename(partial: Path, folder: Path) -> None:
    partial.rename(folder)
    _sync_folder(folder.parent)


# ── restoring ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def restore(
    backups: Backups, shelf: Shelf | None, folder: Path, *, overwrite: bool, lease_s: float, tell: Tell
) -> Restored:
    """Verify a backup, and put it in place. Nothing is changed before all of it is verified."""
    with port.files_of(f"the backup {folder}"):
        manifest = await asyncio.to_thread(read_manifest, folder)
    if manifest.kind != backups.kind:
        raise UsageError(f"{folder} is a backup of {manifest.kind}, and --db names a database of {backups.kind}")
    if manifest.artifacts is not None and shelf is None:
        raise UsageError(
            f"{folder} has {manifest.artifacts['count']:,} artifacts from outside the database; set ONWARD_ARTIFACTS to the place where "
            "they go"
        )
    await backups.check(manifest.tables, overwrite=overwrite)
    with port.files_of(f"the backup {folder}"):
        await asyncio.to_thread(verify, folder, manifest, tell)
    if manifest.artifacts is not None and shelf is not None:
        await asyncio.to_thread(_put_artifacts, shelf, folder, tell)
    how = Restoring(manifest.tables.moment, overwrite, lease_s)
    epoch = await backups.restore(folder, manifest.tables, how, tell)
    if manifest.artifacts is not None and shelf is not None:  # an old worker may have pruned some until it was stopped
        there = await asyncio.to_thread(lambda: set(shelf.names()))
        await asyncio.to_thread(_put_artifacts, shelf, folder, tell, there)
    return Restored(manifest, epoch)


async def begin_epoch(backups: Backups, *, lease_s: float, tell: Tell) -> Restored:
    """Begin an epoch in a database that was put back by other means."""
    return Restored(None, await backups.begin_epoch(Restoring(0.0, True, lease_s), tell))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a backup. Raises BackupDamaged."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    if not path.is_file():
        raise BackupDamaged(folder, "it has no manifest: the backup was interrupted, or is no backup")
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise BackupDamaged(folder, f"its manifest has more than {MAX_MANIFEST_BYTES:,} bytes")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        claimed = content.pop("sha256")
        if content["format"] != FORMAT:
            raise UsageError(
                f"{folder} has the layout {content['format']!r}, and this program knows {FORMAT}; use a newer Onward"
            )
        if claimed != _hash_of(content):
            raise BackupDamaged(folder, "its manifest was changed")
        return Manifest(**{**content, "tables": port.from_json(content["tables"])})
    except (ValueError, KeyError, TypeError) as error:
        raise BackupDamaged(folder, f"its manifest cannot be read ({error!r:.100})") from None


def verify(folder: Path, manifest: Manifest, tell: Tell) -> None:
    """Compare all files with the manifest. Raises BackupDamaged for the first one that differs."""
    for name, claimed in manifest.files.items():
        _check_name(folder, name)
        tell(Progress(f"verifying {name}", 0, int(claimed["bytes"])))
        if not (folder / name).is_file():
            raise BackupDamaged(folder, f"{name} is missing")
        if _described(folder / name) != claimed:
            raise BackupDamaged(folder, f"{name} is not as it was written")
    if manifest.artifacts is None:
        return
    count = 0
    for task_id, name, size, digest in _listed(folder):
        path = folder / ARTIFACTS / task_id / name
        if not path.is_file() or _described(path) != {"bytes": size, "sha256": digest}:
            raise BackupDamaged(folder, f"the artifact {task_id}/{name} is missing, or is not as it was written")
        count += 1
    if count != manifest.artifacts["count"]:
        raise BackupDamaged(folder, f"it lists {count:,} artifacts, and had {manifest.artifacts['count']:,}")


def _put_artifacts(shelf: Shelf, folder: Path, tell: Tell, there: AbstractSet[tuple[str, str]] = frozenset()) -> None:
    """Put those artifacts in place that are not there."""
    done, reported_at = 0, time.monotonic()
    for task_id, name, size, _ in _listed(folder):
        if (task_id, name) in there:
            continue
        shelf.put(task_id, name, (folder / ARTIFACTS / task_id / name).read_bytes())
        done += size
        if time.monotonic() - reported_at > REPORT_EVERY_S:
            reported_at = time.monotonic()
            tell(Progress("artifacts", done))


def _listed(folder: Path) -> Iterator[tuple[str, str, int, str]]:
    with (folder / ARTIFACT_LIST).open(encoding="ascii") as lines:
        for line in lines:
            try:
                task_id, name, size, digest = line.split()
            except ValueError:
                raise BackupDamaged(folder, "its list of artifacts cannot be read") from None
            if not is_stored_name(task_id, name):
                raise BackupDamaged(folder, "its list of artifacts has a name that is none")
            yield task_id, name, int(size), digest


def _check_name(folder: Path, name: str) -> None:
    """A manifest may come from elsewhere: its names stay in the folder."""
    if name.startswith("/") or ".." in name.split("/"):
        raise BackupDamaged(folder, f"its manifest names a file outside of it ({name:.80})")


def _described(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _hash_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system that cannot sync a folder
            os.fsync(folder)
    finally:
        os.close(folder)
