"""Artifacts in a folder: whole or not there, on the disk before anybody is told, and nothing is followed."""

from __future__ import annotations

import multiprocessing
import os
import random
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.app.connect import open_shelf
from onward.artifacts.directory import Directory
from onward.core import wire
from onward.errors import DiskFull, StoreUnavailable
from tests.kit import eventually, next_id

TASK, DATA = "0" * 26, b"bytes"
NAME = wire.content_id(DATA)


@pytest.fixture
def shelf(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "deep" / "shelf")


def place_of(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "shelf" / TASK


def test_a_file_for_each_and_nothing_beside_it(shelf: Directory, tmp_path: Path) -> None:
    assert shelf.get(TASK, NAME) is None
    shelf.put(TASK, NAME, DATA)
    shelf.put(TASK, NAME, DATA)
    assert [path.name for path in place_of(tmp_path).iterdir()] == [NAME]
    assert (place_of(tmp_path) / NAME).read_bytes() == DATA
    shelf.drop(TASK)
    shelf.drop(TASK)
    assert not place_of(tmp_path).exists()


def test_it_is_on_the_disk_before_it_has_its_name_and_the_name_before_we_return(
    shelf: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    fsync, replace = os.fsync, os.replace

    def on_disk(fd: int) -> None:
        told.append("file" if stat.S_ISREG(os.fstat(fd).st_mode) else Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    def renamed(*args: Any, **kwargs: Any) -> None:
        told.append("named")
        replace(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", on_disk)
    monkeypatch.setattr(os, "replace", renamed)
    shelf.put(TASK, NAME, DATA)
    assert told == ["shelf", "file", "named", TASK]


@pytest.mark.parametrize("hostile", ["link to a file", "link to nothing", "pipe", "folder"])
def test_what_is_no_file_of_ours_is_not_read(shelf: Directory, tmp_path: Path, hostile: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(DATA)
    shelf.put(TASK, NAME, DATA)
    path = place_of(tmp_path) / NAME
    path.unlink()
    if hostile.startswith("link"):
        path.symlink_to(secret if "file" in hostile else tmp_path / "nothing")
    elif hostile == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
        with pytest.raises(StoreUnavailable, match="artifacts cannot be read from the folder"):
            shelf.get(TASK, NAME)
        return
    assert shelf.get(TASK, NAME) is None
    shelf.put(TASK, NAME, b"new")
    assert secret.read_bytes() == DATA, "a link is replaced, not written through"
    assert shelf.get(TASK, NAME) == b"new"


def test_a_link_in_place_of_a_tasks_folder_is_not_followed(shelf: Directory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / NAME).write_bytes(DATA)
    shelf.put("1" * 26, NAME, DATA)
    place_of(tmp_path).symlink_to(elsewhere)
    assert shelf.get(TASK, NAME) is None
    for use in (lambda: shelf.put(TASK, NAME, b"other"), lambda: shelf.drop(TASK)):
        with pytest.raises(StoreUnavailable):
            use()
    assert (elsewhere / NAME).read_bytes() == DATA


def test_a_full_disk_is_said(shelf: Directory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="no room left to write to"):
            shelf.put(TASK, NAME, DATA)
    shelf.put(TASK, NAME, DATA)
    assert [path.name for path in place_of(tmp_path).iterdir()] == [NAME]


def write_for_ever(folder: Path) -> None:
    shelf, rng = Directory(folder), random.Random(os.getpid())
    while True:
        data = rng.randbytes(3_000_000)
        shelf.put(TASK, wire.content_id(data), data)


def test_killed_in_the_middle_of_a_write_nothing_is_there_by_half(tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    for _ in range(5):
        writer = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(folder,))
        writer.start()
        before = len(list(folder.rglob("*")))
        end = time.monotonic() + 10
        while len(list(folder.rglob("*"))) < before + 3 and time.monotonic() < end:
            time.sleep(0.001)
        writer.kill()
        writer.join()
    whole = [path for path in (folder / TASK).iterdir() if not path.name.startswith(".")]
    assert len(whole) >= 5
    assert [path.name for path in whole if wire.content_id(path.read_bytes()) != path.name] == []


async def test_a_task_waits_for_a_folder_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("no folder")
    app = Onward("sqlite://:memory:", artifacts=str(tmp_path / "taken"), poll_s=0.05)

    @app.task(retry=1)
    async def leave(ctx: Any) -> str:
        return str((await ctx.artifact("x")).artifact_id)

    async with app, app.worker():
        task = await app.submit(leave)

        async def complains() -> bool:
            return "artifacts cannot be written to the folder" in caplog.text

        await eventually(complains)
        (tmp_path / "taken").unlink()
        assert await app.artifact(task.id, await task.result(timeout=60)) == b"x"


@pytest.mark.parametrize("written", ["{}/a b", "file://{}/a%20b"])
def test_how_a_folder_is_named(tmp_path: Path, written: str) -> None:
    shelf = open_shelf(written.format(tmp_path))
    assert shelf is not None
    shelf.put(task_id := next_id(), NAME, DATA)
    assert (tmp_path / "a b" / task_id / NAME).read_bytes() == DATA


def test_only_the_owner_reads_what_onward_creates(shelf: Directory, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        shelf.put(TASK, NAME, DATA)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deep").rglob("*")}
    assert modes == {"shelf": 0o700, TASK: 0o700, NAME: 0o600}
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    Directory(folder).put(TASK, NAME, DATA)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / TASK).stat().st_mode) == 0o700
