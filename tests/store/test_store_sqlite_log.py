"""The write-ahead log of a SQLite file: commits copy it into the file again and again, and while another program holds a snapshot,
only few commits try it in vain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from onward.core.clock import SystemClock
from onward.store.sqlite import file


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


@pytest.fixture
def hook() -> file.LogCheckpoints:
    return file.LogCheckpoints()


@pytest.fixture
def writer(path: str, hook: file.LogCheckpoints) -> Iterator[apsw.Connection]:
    connection = file.connect(path, SystemClock())
    connection.set_wal_hook(hook)
    connection.execute("PRAGMA synchronous=OFF")  # the test counts checkpoints, and needs no durability
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, d BLOB)")
    yield connection
    connection.close()


def fill(writer: apsw.Connection, commits: int) -> None:
    for _ in range(commits):
        writer.execute("INSERT INTO t (d) VALUES (zeroblob(4000))")


def log_pages(path: str) -> int:
    return Path(f"{path}-wal").stat().st_size // 4120


def snapshot(path: str) -> apsw.Connection:
    reader = apsw.Connection(path)
    reader.execute("BEGIN")
    list(reader.execute("SELECT count(*) FROM t"))
    return reader


def test_without_a_snapshot_the_log_stays_as_small_as_sqlite_keeps_it(
    path: str, writer: apsw.Connection, hook: file.LogCheckpoints
) -> None:
    fill(writer, 3000)
    assert file.CHECKPOINT_PAGES <= log_pages(path) < file.CHECKPOINT_PAGES + 20
    assert hook.tries >= 3


@pytest.mark.parametrize("log", ["empty", "begun"])
def test_a_held_snapshot_costs_few_tries_and_the_log_begins_again_after_it(
    path: str, writer: apsw.Connection, hook: file.LogCheckpoints, log: str
) -> None:
    list(writer.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
    fill(writer, 0 if log == "empty" else 100)
    reader = snapshot(path)
    fill(writer, 3000)
    assert 1 <= hook.tries <= 40, "SQLite's own hook tries thousands of times"
    held = log_pages(path)
    assert held > 3000
    reader.execute("COMMIT")
    before = hook.tries
    fill(writer, 1500)
    assert log_pages(path) < held + file.CHECKPOINT_PAGES + 20, "the log began again"
    assert hook.tries > before
    reader.close()


def test_a_log_that_begins_again_with_a_large_commit_is_copied_at_once(hook: file.LogCheckpoints) -> None:
    class Held:
        def wal_checkpoint(self, *_: object) -> tuple[int, int]:
            return 100_000, 0

    hook(Held(), "main", 100_000)
    hook(Held(), "main", 100_500)
    assert hook.tries == 1
    hook(Held(), "main", 2 * file.CHECKPOINT_PAGES)
    assert hook.tries == 2


def test_a_commit_succeeds_although_its_checkpoint_fails(writer: apsw.Connection, hook: file.LogCheckpoints) -> None:
    class Failing:
        def wal_checkpoint(self, *_: object) -> tuple[int, int]:
            raise apsw.FullError

    assert hook(Failing(), "main", 2 * file.CHECKPOINT_PAGES) == apsw.SQLITE_OK
    assert hook.tries == 1


def test_a_store_uses_the_hook_and_stays_durable(path: str) -> None:
    connection = file.connect(path, SystemClock())
    assert next(connection.execute("PRAGMA synchronous"))[0] == 2
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, d BLOB)")
    reader = snapshot(path)
    tries = []
    inner = file.LogCheckpoints.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file.LogCheckpoints, "__call__", lambda hook, *args: tries.append(args[2]) or inner(hook, *args))
        fill(connection, 3)
    assert len(tries) == 3
    reader.close()
    connection.close()
