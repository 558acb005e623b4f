"""`onward backup`, `onward restore` and `onward doubts`, from a shell."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_LEASE_S", "0.3")
    monkeypatch.setenv("ONWARD_HEARTBEAT_S", "0.1")
    monkeypatch.setenv("ONWARD_POLL_S", "0.05")


def _app(db: str) -> Onward:
    app = Onward(db)

    @app.task
    async def pay(ctx: Any) -> str:
        async def charge() -> str:
            return "paid"

        return str(await ctx.step(charge, effect="once"))

    return app


def _submit(db: str) -> str:
    async def submit() -> str:
        app = _app(db)
        async with app:
            return (await app.submit("pay")).id

    return asyncio.run(submit())


def test_backup_restore_doubts_resolve(onward: Run, db: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    task_id = _submit(db)
    output = onward("backup", str(folder), "--db", db)
    assert output.status == 0
    assert "1 task, 1 of them unfinished" in output.out
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "database.sqlite"}

    output = onward("restore", str(folder), "--db", db)
    assert output.status == 2
    assert "--overwrite" in output.sentence
    output = onward("restore", str(folder), "--overwrite", "--db", db)
    assert output.status == 0
    assert "epoch 1 has begun" in output.out
    assert "1 task had not ended" in output.out
    assert task_id in output.out
    assert "restart all workers and servers" in output.err
    assert "restore" in onward("audit", "--db", db).out

    async def work() -> None:
        app = _app(db)
        async with app, app.worker(), asyncio.timeout(60):
            while not await app.store.listing.doubts(1):  # noqa: ASYNC110 -- of another process
                await asyncio.sleep(0.05)

    asyncio.run(work())
    document = onward("doubts", "--db", db, "--json").json
    assert [(doubt["task_id"], doubt["step"]) for doubt in document["doubts"]] == [(task_id, "charge")]
    assert [task["task_id"] for task in document["restored"]] == [task_id]
    output = onward("doubts", "--db", db)
    assert "restored from a backup" in output.out
    assert onward("resolve", task_id, "nothing_happened", "--db", db).status == 0
    assert "no effect is in doubt" in onward("doubts", "--db", db).err


def test_json(onward: Run, db: str, tmp_path: Path) -> None:
    _submit(db)
    document = onward("backup", str(tmp_path / "copy"), "--db", db, "--json").json
    assert document["tables"]["counts"] == {"tasks": 1, "unfinished": 1, "records": 1}
    assert set(document["files"]["database.sqlite"]) == {"bytes", "sha256"}
    other = f"sqlite:///{tmp_path / 'new.db'}"
    document = onward("restore", str(tmp_path / "copy"), "--db", other, "--json").json
    assert (document["epoch"], document["unfinished"], len(document["tasks"])) == (1, 1, 1)
    document = onward("restore", "--here", "--db", other, "--json").json
    assert (document["epoch"], document["unfinished"]) == (2, 1)


def test_artifacts_in_a_folder(onward: Run, db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "shelf"
    monkeypatch.setenv("ONWARD_ARTIFACTS", str(shelf))
    task_id = _submit(db)
    (shelf / task_id).mkdir(parents=True)
    (shelf / task_id / ("a" * 32)).write_bytes(b"bytes")
    assert "1 artifact (0.0 MB)" in onward("backup", str(tmp_path / "copy"), "--db", db).out
    assert "artifacts left out" in onward("backup", str(tmp_path / "less"), "--no-artifacts", "--db", db).out
    shutil.rmtree(shelf)
    assert onward("restore", str(tmp_path / "copy"), "--overwrite", "--db", db).status == 0
    assert (shelf / task_id / ("a" * 32)).read_bytes() == b"bytes"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["restore"], "say which backup to restore"),
        (["restore", "x", "--here"], "say which backup to restore"),
        (["restore", "nowhere"], "there is no folder nowhere"),
        (["backup", "nowhere/else"], "does not exist; make it first"),
    ],
)
def test_wrong_usage(onward: Run, db: str, words: list[str], sentence: str) -> None:
    output = onward(*words, "--db", db)
    assert output.status == 2
    assert sentence in output.sentence


def test_a_missing_database_is_named(onward: Run, db: str, tmp_path: Path) -> None:
    output = onward("backup", str(tmp_path / "copy"), "--db", db)
    assert output.status == 2
    assert "there is no SQLite file" in output.sentence
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_backup_is_refused(onward: Run, db: str, tmp_path: Path) -> None:
    (tmp_path / "copy.partial-1").mkdir()
    output = onward("restore", str(tmp_path / "copy.partial-1"), "--db", db)
    assert output.status == 1
    assert "no manifest" in output.sentence
