"""A SQLite file that is deleted or replaced under a process: the store notices it, raises, and acknowledges nothing more."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.errors import FileReplaced
from onward.store.port.core import Batch, Store
from onward.store.sqlite import guard as sqlite_guard
from tests.kit import begun, entry, eventually, new, only_file, submit

pytestmark = only_file


def _delete(path: Path) -> None:
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink()


def _replace(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


def _move(path: Path, to: Path) -> None:
    path.rename(to)


TROUBLES = pytest.mark.parametrize("trouble", [_delete, _replace])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "onward.db"


@TROUBLES
async def test_nothing_is_written_or_read_any_more(store: Any, path: Path, trouble: Callable[[Path], None]) -> None:
    held = await begun(store)
    trouble(path)
    with pytest.raises(FileReplaced, match="restart this process"):
        await submit(store, new())
    with pytest.raises(FileReplaced):
        await store.save("w1", Batch([entry(held, 1)]))
    with pytest.raises(FileReplaced):
        await store.workers.heartbeat("w1", 10.0, 0.0)
    with pytest.raises(FileReplaced):
        await store.get(held.id)

    async def pay(connection: Any) -> Any:
        return entry(held, 1)

    with pytest.raises(FileReplaced):
        await store.transact(pay, 5)


@TROUBLES
async def test_a_write_that_was_under_way_is_not_acknowledged(
    store: Any, path: Path, trouble: Callable[[Path], None]
) -> None:
    """The file is deleted between the call of a write and its commit."""

    def job(connection: Any) -> None:
        trouble(path)

    with pytest.raises(FileReplaced):
        await store._db.writing(job)


async def test_a_file_that_comes_back_is_the_same_file(store: Store, path: Path) -> None:
    held = await begun(store)
    away = path.with_suffix(".away")
    _move(path, away)
    with pytest.raises(FileReplaced, match="is not there any more"):
        await submit(store, new())
    _move(away, path)
    assert await store.save("w1", Batch([entry(held, 1)])) == set()


@pytest.mark.usefixtures("kind")
async def test_another_folder_is_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.db").symlink_to("real.db")
    monkeypatch.chdir(tmp_path)
    async with Onward("sqlite:///link.db") as app:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await app.list()


@pytest.mark.slow
@TROUBLES
async def test_a_worker_logs_it_and_its_process_accepts_no_tasks(
    app: Onward, path: Path, trouble: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @app.task(name="work", retry=1)
    async def work(ctx: Any, _: Any) -> int:
        await ctx.step(slow)
        return 1

    async def slow() -> int:
        began.set()
        await ended.wait()
        return 1

    @app.task(name="quick", retry=1)
    async def quick(ctx: Any, number: int) -> int:
        return number

    async with app.worker():
        task = await app.submit("work")
        assert await (await app.submit("quick", 1)).result(timeout=60) == 1
        await asyncio.wait_for(began.wait(), 60)
        with caplog.at_level(logging.WARNING):
            trouble(path)
            ended.set()

            async def logged() -> bool:
                return any("heartbeat" in line and "while this process had it open" in line for line in caplog.messages)

            await eventually(logged)
        with pytest.raises(FileReplaced) as refused:
            await app.submit("quick", 2)
        assert "restart this process" in str(refused.value)
        assert str(path) in str(refused.value)
        with pytest.raises(FileReplaced):
            await app.get(task.id)


LOOK = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM onward_tasks').fetchone()[0])"


def _look_from_here(path: Path) -> None:
    """Reads the tables with Python's own SQLite library, in the process of the worker."""
    connection = sqlite3.connect(path)
    connection.execute("SELECT count(*) FROM onward_tasks").fetchone()
    connection.close()


def _look_from_elsewhere(path: Path) -> int:
    """Another process opens the file, reads and ends."""
    return int(subprocess.check_output([sys.executable, "-c", LOOK, str(path)]))


async def test_another_sqlite_library_in_this_process_leaves_the_log_alone(store: Store, path: Path) -> None:
    log, shared = path.with_name("onward.db-wal"), path.with_name("onward.db-shm")
    for number in range(1, 4):
        await submit(store, new())
        before = log.stat().st_ino, shared.stat().st_ino
        _look_from_here(path)
        assert (log.stat().st_ino, shared.stat().st_ino) == before
        await submit(store, new())
        assert _look_from_elsewhere(path) == 2 * number
        assert (log.stat().st_ino, shared.stat().st_ino) == before
    assert await store.health.census() == []


async def test_without_the_guard_the_log_is_deleted(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds a missing guard."""
    monkeypatch.setattr(sqlite_guard.Guard, "hold", lambda *_: None)
    path = tmp_path / "onward.db"
    async with Onward(f"sqlite:///{path}") as app:
        app.task(name="quick")(lambda ctx: None)
        await app.submit("quick")
        _look_from_here(path)
        assert not path.with_name("onward.db-wal").exists()


async def test_the_last_store_of_a_process_takes_the_log_with_it(tmp_path: Path, kind: str) -> None:
    """The guard is released before the connections close, also when several stores have the file open."""
    path, log = tmp_path / "onward.db", tmp_path / "onward.db-wal"
    first, second = Onward(f"sqlite:///{path}"), Onward(f"sqlite:///{path}")
    others = set(sqlite_guard._in_use)  # of stores that other tests of this process left open, on purpose
    for _ in range(3):
        async with first:
            async with second:
                await second.list()
            assert log.exists()
            _look_from_here(path)
            assert log.exists()
        assert not log.exists()
        assert set(sqlite_guard._in_use) == others
