"""artifacts: the list, the bytes of one to a pipe, a file or a terminal, and errors about ids."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from tests.cli.conftest import ROOT, Run, controls
from tests.cli.terminal import Terminal

TEXT = "first\tline\n\x1b[2J\x1b]0;owned\x07 second ä\n"
BYTES = bytes(range(256))

Done = tuple[str, str, dict[str, str]]


@pytest.fixture(params=["database", "folder"])
def done(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Done:
    """A database, the id of a task with two artifacts, and their ids by type."""
    if request.param == "folder":
        monkeypatch.setenv("ONWARD_ARTIFACTS", str(tmp_path / "shelf"))
    url = f"sqlite:///{tmp_path / 'onward.db'}"
    app = Onward(url)

    @app.task
    async def leave(ctx: Any) -> dict[str, str]:
        async def make(data: str) -> str:
            return str((await ctx.artifact(TEXT, type="text [red]", summary=f"{data} \x1b[31mtext")).artifact_id)

        raw = await ctx.artifact(BYTES, type="raw")
        return {"text": await ctx.step(make, "a"), "raw": raw.artifact_id}

    @app.task
    async def nothing(ctx: Any) -> None: ...

    async def work() -> tuple[str, dict[str, str]]:
        async with app.worker():
            await (await app.submit(nothing, key="none")).result(timeout=60)
            handle = await app.submit(leave)
            return handle.id, await handle.result(timeout=60)

    return (url, *asyncio.run(work()))


def test_the_list_is_a_table(onward: Run, done: Done) -> None:
    url, task_id, ids = done
    output = onward("artifacts", task_id, "--db", url)
    header, *rows = output.out.splitlines()
    assert header.split() == ["ARTIFACT", "TYPE", "BYTES", "STEP", "SUMMARY"]
    assert [row.split()[0] for row in rows] == [ids["raw"], ids["text"]]
    assert "text [red]" in rows[1]
    assert "make" in rows[1]
    assert "a \\x1b[31mtext" in rows[1]
    assert controls("".join(rows)) == []
    assert onward("artifacts", task_id[-8:], "--db", url).out == output.out


def test_the_list_as_json(onward: Run, done: Done) -> None:
    url, task_id, ids = done
    assert onward("artifacts", task_id, "--db", url, "--json").json == {
        "task_id": task_id,
        "artifacts": [
            {"artifact_id": ids["raw"], "type": "raw", "summary": "", "bytes": 256, "step": "artifact"},
            {
                "artifact_id": ids["text"],
                "type": "text [red]",
                "summary": "a \x1b[31mtext",
                "bytes": len(TEXT.encode()),
                "step": "make",
            },
        ],
    }


def test_a_task_without_artifacts(onward: Run, done: Done) -> None:
    url = done[0]
    (task_id,) = [task["task_id"] for task in onward("list", "--task", "nothing", "--db", url, "--json").json["tasks"]]
    output = onward("artifacts", task_id, "--db", url)
    assert (output.status, output.out) == (0, "")
    assert "has no artifacts so far" in output.err
    assert onward("artifacts", task_id, "--db", url, "--json").json == {"task_id": task_id, "artifacts": []}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "data"), [("text", TEXT.encode()), ("raw", BYTES)])
def test_the_bytes_go_into_a_pipe_or_a_file_as_they_are(
    done: Done, onward: Run, tmp_path: Path, kind: str, data: bytes
) -> None:
    url, task_id, ids = done
    command = [sys.executable, "-m", "onward", "artifacts", task_id, ids[kind][:8], "--db", url]
    assert subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout == data
    output = onward("artifacts", task_id, "--out", str(tmp_path / "file"), ids[kind][-8:], "--db", url)
    assert (output.status, output.out) == (0, "")
    assert f"{len(data):,} bytes saved to {tmp_path / 'file'}" in output.err
    assert (tmp_path / "file").read_bytes() == data


def test_one_artifact_as_json(done: Done, onward: Run) -> None:
    url, task_id, ids = done
    text = onward("artifacts", task_id, ids["text"], "--db", url, "--json").json
    assert (text["text"], text["artifact_id"], text["task_id"]) == (TEXT, ids["text"], task_id)
    raw = onward("artifacts", task_id, ids["raw"], "--db", url, "--json").json
    assert base64.b64decode(raw["base64"]) == BYTES
    assert "text" not in raw


@pytest.mark.slow
def test_a_terminal_gets_no_control_characters(done: Done) -> None:
    url, task_id, ids = done
    shown = Terminal("artifacts", task_id, ids["text"], "--db", url)
    assert shown.status() == 0
    assert controls(shown.text.replace("\r\n", "\n")) == []
    assert shown.text.splitlines() == ["first   line", "\\x1b[2J\\x1b]0;owned\\x07 second ä"]
    raw = Terminal("artifacts", task_id, ids["raw"], "--db", url)
    assert raw.status() == 2
    assert "is no text (256 bytes); save it with --out FILE" in raw.text


@pytest.mark.parametrize("artifact_id", ["../../etc/passwd", "%2e%2e", "", "a" * 32, "\x1b[31m", "/etc/passwd"])
def test_an_invalid_id(done: Done, onward: Run, artifact_id: str) -> None:
    url, task_id, ids = done
    output = onward("artifacts", task_id, artifact_id, "--db", url)
    assert output.status == 4
    assert output.out == ""
    assert "has no artifact" in output.sentence
    assert f"it has {ids['raw']}, {ids['text']}" in output.sentence
    assert controls(output.sentence) == []
    assert (
        onward("artifacts", task_id, artifact_id, "--db", url, "--json").json["error"]["code"] == "artifact_not_found"
    )


def test_errors_name_the_cause(done: Done, onward: Run, tmp_path: Path) -> None:
    url, task_id, ids = done
    assert "say which artifact to save" in onward("artifacts", task_id, "--out", "x", "--db", url).sentence
    output = onward("artifacts", task_id, ids["raw"], "--out", str(tmp_path), "--db", url)
    assert (output.status, "cannot write" in output.sentence) == (2, True)
    assert onward("artifacts", "zzzzzzzz", "--db", url).status == 4
    first = {artifact_id[0] for artifact_id in ids.values()} & {artifact_id[-1] for artifact_id in ids.values()}
    for shared in first:
        assert onward("artifacts", task_id, shared, "--db", url).status in {0, 2}


def test_an_artifact_in_another_place_names_the_setting(
    done: Done, onward: Run, tmp_path: Path, monkeypatch: Any
) -> None:
    url, task_id, ids = done
    monkeypatch.setenv("ONWARD_ARTIFACTS", str(tmp_path / "another"))
    output = onward("artifacts", task_id, ids["raw"], "--db", url, "--json")
    if (tmp_path / "shelf").exists():
        assert output.status == 4
        assert "ONWARD_ARTIFACTS must name the place where they are stored" in output.sentence
    else:
        assert output.status == 0, "the database is looked into as well"
