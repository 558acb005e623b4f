"""migrate and doctor; databases that are missing, of another program, or read-only."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest

from onward.store import migrate
from rig.postgres import Postgres
from tests.cli.conftest import Run
from tests.kit import not_memory, only_postgres

UNREACHABLE = "postgresql://nobody:secret@127.0.0.1:1/none"


def test_migrate_makes_roles_on_postgresql_alone(onward: Run, db: str, postgres: Postgres):
    refused = onward("migrate", "--db", db, "--roles")
    assert refused.status == 2
    assert "has no roles" in refused.err
    url = postgres.database("with_roles")
    made = onward("migrate", "--db", url, "--roles", "till")
    assert made.status == 0, made.err
    assert "GRANT till_server TO the user of your server" in made.out
    assert "roles: till_server, till_worker, till_reader, till_tenant: done" in made.err
    doctor = onward("doctor", "--db", url)
    assert "set up, but connected as postgres, a superuser" in doctor.out


def test_migrate_makes_the_tables_once(onward: Run, db: str):
    newest = migrate.load("sqlite")[-1].number
    assert onward("migrate", "--db", db).out.endswith(f"is now up to date: table version {newest}\n")
    assert onward("migrate", "--db", db).out.endswith(f"was up to date already: table version {newest}\n")
    assert onward("migrate", "--db", db, "--json").json["migrated"] is False


@not_memory
def test_doctor_finds_a_healthy_database_healthy(onward: Run, url: str):
    onward("migrate", "--db", url)
    output = onward("doctor", "--db", url)
    for name in ("tables", "clock", "tasks", "people", "workers", "queue default"):
        assert f"  {name} " in output.out
    document = onward("doctor", "--db", url, "--json").json
    wrong = [check["name"] for check in document["checks"] if not check["fine"]]
    # The PostgreSQL of the tests does without fsync, and the doctor is right to mind.
    assert wrong == (["fsync"] if url.startswith("postgres") else [])
    assert (document["fine"], output.status) == ((False, 1) if wrong else (True, 0))


def test_doctor_knows_the_workers(onward: Run, crew: str):
    assert "1 alive, 100 slots" in onward("doctor", "--db", crew).out


def test_doctor_finds_work_without_workers(onward: Run, db: str):
    onward("submit", "x", "--anyway", "--queue", "far", "--db", db)
    output = onward("doctor", "--db", db)
    assert output.status == 1
    assert "1 task waiting, and none is running" in output.out
    assert "queue far" in output.out


def test_doctor_finds_a_stuck_task(onward: Run, db: str):
    task_id = onward("submit", "x", "--anyway", "--db", db).out.strip()
    apsw.Connection(db.removeprefix("sqlite:///")).execute("DELETE FROM onward_queue")
    output = onward("doctor", "--db", db, "--json")
    assert output.status == 1
    (wrong,) = [check for check in output.json["checks"] if not check["fine"]]
    assert wrong == {"name": "tasks", "fine": False, "detail": f"{task_id} has neither a queue row nor an outcome"}


def test_doctor_goes_deep_on_demand(onward: Run, db: str):
    onward("submit", "x", "--anyway", "--db", db)
    assert "every page" not in onward("doctor", "--db", db).out
    assert "quick_check of every page says ok" in onward("doctor", "--deep", "--db", db).out


def test_a_database_of_a_newer_version(onward: Run, db: str):
    onward("migrate", "--db", db)
    connection = apsw.Connection(db.removeprefix("sqlite:///"))
    connection.execute("INSERT INTO onward_migrations VALUES (999, 'later', '')")
    assert onward("list", "--db", db).status == 0, "newer, and of the same major version"
    assert "a newer program" in onward("doctor", "--db", db).out
    connection.execute("INSERT INTO onward_schema VALUES ('oldest', 998)")
    for command in (["list"], ["migrate"]):
        output = onward(*command, "--db", db)
        assert output.status == 6
        assert "upgrade this program" in output.sentence
    doctor = onward("doctor", "--db", db)
    assert doctor.status == 6
    assert "upgrade this program" in doctor.out


@only_postgres
def test_a_database_that_is_behind_is_migrated_on_demand_alone(onward: Run, fresh_url: str):
    url = fresh_url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE onward_migrations (number int PRIMARY KEY, name text, checksum text)")
        connection.execute("INSERT INTO onward_migrations VALUES (0, 'older', '')")
    output = onward("list", "--db", url)
    assert output.status == 6
    assert "run `onward migrate`" in output.sentence
    output = onward("migrate", "--db", url, "--json")
    assert output.status == 0
    assert output.json["migrated"] is True
    lines = [json.loads(line) for line in output.err.splitlines()]
    assert {"migration": "0002_messages", "said": "done"} in lines
    assert any("index onward_tasks_parent" in line["said"] for line in lines)
    assert onward("list", "--db", url).status == 0


# ── databases that cannot be had ─────────────────────────────────────────────────────────────────────────────────────

EVERY = [["list"], ["show", "x"], ["submit", "x", "--anyway"], ["migrate"], ["worker", "tests.cli.shop:app"]]


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
def test_an_unreachable_server_is_exit_status_6_and_keeps_its_password(words, onward: Run):
    output = onward(*words, "--db", UNREACHABLE)
    assert output.status == 6
    assert "PostgreSQL 127.0.0.1:1/none cannot be reached" in output.sentence
    assert "secret" not in output.out + output.err


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("a folder", "cannot be opened"),
        ("no/folder/here.db", "cannot be opened"),
        ("text.db", "is not an Onward database"),
    ],
)
def test_an_invalid_file(words, place, sentence, onward: Run, tmp_path: Path):
    (tmp_path / "a folder").mkdir()
    (tmp_path / "text.db").write_text("dear diary, " * 100)
    output = onward(*words, "--db", f"sqlite:///{tmp_path / place}")
    assert output.status == 6
    assert sentence in output.sentence


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Permissions do not apply to root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def read_only(onward: Run) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:  # the user nobody cannot read pytest's own folders
        url = f"sqlite:///{folder}/onward.db"
        assert onward("migrate", "--db", url).status == 0
        (Path(folder) / "onward.db").chmod(0o444)
        Path(folder).chmod(0o555)
        yield url
        Path(folder).chmod(0o755)


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
def test_a_file_that_may_not_be_written(words, onward: Run, read_only: str, as_nobody: None):
    output = onward(*words, "--db", read_only)
    assert output.status == 6
    assert "cannot be written; check its permissions" in output.sentence


@pytest.mark.parametrize("url", ["mysql://x", "nonsense", "sqlite:/x"])
def test_an_invalid_url(url, onward: Run):
    output = onward("list", "--db", url)
    assert output.status == 2
    assert "must be sqlite:///FILE" in output.sentence
