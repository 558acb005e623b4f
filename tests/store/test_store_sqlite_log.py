"""The write-ahead log of a SQLite file: it is moved into the file again and again, and a snapshot that another program holds does
not make every commit try in vain."""

from __future__ import annotations

from pathlib import Path

import apsw

from onward.core.clock import SystemClock
from onward.store import sqlite_file


def test_a_snapshot_that_is_held_costs_a_few_tries_not_one_a_commit(tmp_path: Path) -> None:
    path = str(tmp_path / "log.db")
    writer = sqlite_file.connect(path, SystemClock())
    hook = sqlite_file.Checkpoints()
    writer.set_wal_hook(hook)
    writer.execute("PRAGMA synchronous=OFF")
    writer.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, d BLOB)")
    reader = apsw.Connection(path)
    reader.execute("BEGIN")
    list(reader.execute("SELECT count(*) FROM t"))
    for _ in range(3000):
        writer.execute("INSERT INTO t (d) VALUES (zeroblob(4000))")
    assert 1 <= hook.tries <= 15
    log = Path(f"{path}-wal")
    held = log.stat().st_size
    assert held > 3000 * 4000
    reader.execute("COMMIT")
    for _ in range(4000):
        writer.execute("INSERT INTO t (d) VALUES (zeroblob(4000))")
    assert log.stat().st_size < held * 1.6, "the log is used again when the snapshot is gone"
    assert next(writer.execute("SELECT count(*) FROM t"))[0] == 7000
    writer.close()
    reader.close()


def test_without_a_snapshot_the_log_stays_short(tmp_path: Path) -> None:
    path = str(tmp_path / "log.db")
    writer = sqlite_file.connect(path, SystemClock())
    writer.execute("PRAGMA synchronous=OFF")
    writer.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, d BLOB)")
    for _ in range(5000):
        writer.execute("INSERT INTO t (d) VALUES (zeroblob(4000))")
    assert Path(f"{path}-wal").stat().st_size < 3 * sqlite_file.Checkpoints.FIRST * 4120
    writer.close()
