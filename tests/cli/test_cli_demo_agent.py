"""The agent demo: killed twice it deletes once, asks before, accepts a denial, and touches only its own disk."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward.agent.models.scripted import ScriptedModel
from onward.cli.demo.agent_proof import AgentProof
from onward.cli.demo.workers import Kill
from onward.core.record import Record
from onward.core.task import State, Task
from onward.demo import agent
from onward.demo.disk import FILES, FOLDER_VARIABLE, QUOTA_BYTES, Disk
from onward.errors import UsageError
from onward.testing import crashes, drain
from tests.cli.conftest import ROOT, Run, controls, process
from tests.cli.terminal import ESCAPES, terminal
from tests.kit import only_postgres

OLD = sorted(path for path, _, days in FILES if days > agent.OLD_AFTER_DAYS)
FREED = sum(size for path, size, _ in FILES if path in OLD)


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ONWARD_MODEL"):
        monkeypatch.delenv(name, raising=False)


def lines_of(text: str) -> str:
    """The text on a terminal without escape sequences and line breaks."""
    return re.sub(r"\s+", " ", ESCAPES.sub("", text))


# ── the whole of it ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_it_is_killed_twice_and_deletes_once(tmp_path: Path) -> None:
    environment = {**os.environ, "ONWARD_DB": "nonsense", "TMPDIR": str(tmp_path)}
    output = process("demo", "agent", "--yes", cwd=tmp_path, env=environment)
    assert output.status == 0, output.out + output.err
    assert not controls(output.out)
    assert "a scripted one" in output.out
    assert [line.partition("  ")[0] for line in output.out.splitlines() if line.startswith("✗")] == [
        "✗ worker 1 killed with -9",
        "✗ worker 2 killed with -9",
    ]
    assert output.out.count("✓ delete_logs") == 1
    assert "! approved by demo --yes" in output.out
    assert "I deleted 7 files, 13.0 MB are free again" in output.out
    assert "Killed twice; 13.0 MB freed, every file deleted once; 6 answers paid for once." in output.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_proof_as_json_and_the_files_that_stay(tmp_path: Path) -> None:
    output = process("demo", "agent", "--yes", "--keep", "--json", env={**os.environ, "TMPDIR": str(tmp_path)})
    proof = output.json
    assert proof["holds"] is True
    assert (proof["model"], proof["turns"], proof["answers"], proof["tokens"]) == ("scripted", 6, 6, None)
    assert (proof["deleted"], proof["freed_bytes"]) == (dict.fromkeys(OLD, 1), FREED)
    assert [(kill["status"], kill["waiting"]) for kill in proof["kills"]] == [(-9, True), (-9, False)]
    (folder,) = tmp_path.iterdir()
    assert {file.path for file in Disk(folder).files()} == {path for path, _, _ in FILES} - set(OLD)
    shown = process("show", proof["task"]["task_id"], "--db", f"sqlite:///{folder / 'onward.db'}")
    assert shown.out.count("broke off in step delete_logs") == 1


@pytest.mark.slow
def test_without_a_decision(tmp_path: Path) -> None:
    output = process("demo", "agent", "--patience", "0.3s", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert output.status == 5
    assert re.search(rf"onward approve \w{{8}}\.\d+ --db sqlite:///{tmp_path}/onward-demo-\w+/onward.db ", output.err)
    assert "the agent was stopped; start it in a terminal, or with --yes" in output.sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@only_postgres
def test_it_runs_on_a_given_database(url: str) -> None:
    proof = process("demo", "agent", "--yes", "--json", "--db", url).json
    assert proof["holds"] is True, proof["claims"]
    given_up = process("demo", "agent", "--patience", "0.1s", "--db", url)
    assert given_up.status == 5
    assert "--db URL" in given_up.err
    listed = process("list", "--json", "--db", url).json["tasks"]
    assert [task["state"] for task in listed] == ["cancelled", "completed"], "no worker continues without the disk"


@pytest.mark.slow
def test_a_decision_from_another_terminal(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "onward", "demo", "agent"], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert demo.stderr is not None
    line = next(line for line in demo.stderr if "onward approve" in line)
    match = re.search(r"onward (approve \S+ --db \S+)", line)
    assert match is not None
    assert process(*match[1].split()).status == 0
    out, err = demo.communicate(timeout=240)
    assert demo.returncode == 0, out + err
    assert "every file deleted once" in out


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_decision_at_the_prompt(answer: str, tmp_path: Path) -> None:
    with terminal("demo", "agent", TMPDIR=str(tmp_path)) as screen:
        screen.read("[y/n] ", 40)
        prompt = lines_of(screen.text)
        assert all(path in prompt for path in OLD), "the exact arguments are shown"
        assert "worker 1 killed with -9" in prompt
        screen.type("what?\n")
        screen.read("what?\r\n\x1b[1m  Allow it? [y/n] ")
        screen.type(f"{answer}\n")
        assert screen.status() == 0
        shown = lines_of(screen.text)
        if answer == "y":
            assert "! approved by demo prompt" in shown
            assert "every file deleted once" in shown
        else:
            assert "! denied by demo prompt a person said no" in shown
            assert "I deleted nothing (denied: a person said no)" in shown
            assert "nothing was deleted: all 12 files are there, byte for byte" in shown
        assert max(len(line) for line in re.split(r"[\r\n]+", ESCAPES.sub("", screen.text))) <= 80
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_it_can_be_left_at_the_prompt(tmp_path: Path) -> None:
    with terminal("demo", "agent", TMPDIR=str(tmp_path)) as screen:
        screen.read("[y/n] ", 40)
        screen.interrupt()
        assert screen.status() == 130
        assert "Traceback" not in screen.text
    assert list(tmp_path.iterdir()) == []


def test_its_help_fits_80_columns(onward: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = onward("demo", "agent", "--help")
    assert all(word in output.out for word in ("--yes", "--keep", "--patience", "OPENAI_API_KEY", "ONWARD_MODEL"))
    assert max(map(len, output.out.splitlines())) <= 80


# ── the agent ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_killed_anywhere_it_deletes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "DELETE_S", 0)
    monkeypatch.setattr(agent, "MAX_LINGER_S", 0)
    monkeypatch.setattr("onward.demo.disk.FILES", [(path, size // 1000, days) for path, size, days in FILES])
    points = 0
    tools = [agent.check_disk, agent.largest_files, agent.read_tail, agent.delete_logs]
    async for app in crashes():
        disk = Disk.make(tmp_path / str(points))
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / str(points)))
        janitor = app.agent("janitor", model=ScriptedModel(agent.SCRIPT), tools=tools)
        task = await app.submit(janitor, agent.GOAL)
        await drain(app)
        assert str(await task.result(timeout=1)).startswith("I deleted 7 files"), app.killed_at
        deleted = [line["path"] for line in disk.ledger.lines() if line["what"] == "deleted"]
        assert sorted(deleted) == OLD, app.killed_at
        points += 1
    assert points > 12


@pytest.mark.parametrize(
    ("environment", "name", "words"),
    [
        ({}, "", "a scripted one"),
        ({"ONWARD_MODEL": "x"}, "", "a scripted one"),
        ({"OPENAI_API_KEY": "k"}, "gpt-5-mini", "gpt-5-mini of OpenAI, as OPENAI_API_KEY is set"),
        ({"OPENAI_API_KEY": "k", "ONWARD_MODEL": "openai:gpt-x"}, "gpt-x", "gpt-x of OpenAI"),
        (
            {"OPENAI_BASE_URL": "http://me:secret@host:1/v1", "ONWARD_MODEL": "x"},
            "x",
            "x at host:1, as OPENAI_BASE_URL",
        ),
    ],
)
def test_which_model_it_uses_and_that_it_says_so(environment: dict[str, str], name: str, words: str) -> None:
    assert agent.real_model(environment) == name
    assert agent.model_words(environment).startswith(words)
    assert "secret" not in agent.model_words(environment)


# ── the disk ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "demo"))
    return Disk.make(tmp_path / "demo")


def test_the_disk_is_nearly_full_and_its_files_are_real(disk: Disk) -> None:
    files = disk.files()
    assert [(file.path, file.bytes) for file in sorted(files)] == sorted((path, size) for path, size, _ in FILES)
    assert sum(file.bytes for file in files) > 0.95 * QUOTA_BYTES
    assert agent.check_disk().startswith("19.3 MB of 20.0 MB are used (96 %, CRITICAL)\n")
    assert "2.3 MB   23 days  rotated  var/log/app/app.log.4" in agent.largest_files(1)
    assert agent.read_tail("/var/log/app/app.log.2", 2).count("nothing to see here") == 2


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../outside.log.1", "is not on this disk"),
        ("link.log.1", "is not on this disk"),
        ("folder/outside.log.1", "is not on this disk"),
        ("/etc/passwd", "there is no file 'etc/passwd'"),
        ("var/log/app/app.log", "is in use"),
        ("var/lib/orders.db", "is in use"),
        ("var/log", "there is no file"),
        ("", "there is no file"),
    ],
)
def test_only_rotated_logs_of_this_disk_can_be_deleted(disk: Disk, path: str, why: str) -> None:
    outside = disk.root.parent / "outside.log.1"
    outside.write_text("mine")
    (disk.root / "link.log.1").symlink_to(outside)
    (disk.root / "folder").symlink_to(disk.root.parent)
    before = disk.digests()
    with pytest.raises(UsageError, match=re.escape(why)):
        list(disk.delete([OLD[0], path], "key"))
    assert disk.digests() == before, "not even those that could be"
    assert outside.read_text() == "mine"


def test_a_folder_that_is_no_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match="is no disk of `onward demo agent`"):
        agent.check_disk()
    monkeypatch.delenv(FOLDER_VARIABLE)
    with pytest.raises(UsageError, match="there is no disk here"):
        agent.check_disk()


def test_a_deletion_that_was_cut_off_is_finished_and_not_repeated(disk: Disk) -> None:
    going = disk.delete(OLD, "key")
    assert [next(going), next(going)] == OLD[:2]
    going.close()
    assert not disk.gone(OLD)
    assert list(disk.delete(OLD, "key")) == OLD[2:]
    assert disk.gone(OLD)
    assert disk.freed(OLD) == "deleted 7 files, 13.0 MB are free again"
    with pytest.raises(UsageError, match="there is no file"):
        list(disk.delete(OLD[:1], "another call"))


# ── a proof that can fail ────────────────────────────────────────────────────────────────────────────────────────────


def record(seq: int, kind: str, key: str = "", /, **fields: Any) -> Record:
    return Record(seq, 0, kind, key, json.dumps(fields).encode(), float(seq))


def good() -> AgentProof:
    task = Task(
        "id", "demo.agent", State.COMPLETED, None, None, "done", None, 0, "q", 1, 0, 0, 0, None, None, None, {}, None
    )
    turn = {"turn": 1, "asked": {"model": "m"}, "id": "x", "usage": {"input": 3, "output": 4}}
    records = [
        record(1, "shift.started"),
        record(2, "step.completed", "model", result=turn),
        record(3, "approval.requested", "a", data={"arguments": {"paths": ["/a.log.1"]}}),
        record(4, "message.received", "", kind="decision", ref=3, value={"decision": "approve"}),
        record(5, "shift.started"),
        record(9, "shift.started"),
        record(10, "step.completed", "delete_logs", result={}),
    ]
    ledger: list[dict[str, Any]] = [
        {"what": "model"},
        {"what": "answered"},
        {"what": "deleting", "path": "a.log.1", "bytes": 5, "at": 6.0},
        {"what": "deleted", "path": "a.log.1", "at": 6.0},
        {"what": "asked", "gone": True, "at": 9.5},
    ]
    kills = [Kill(1, -9, 4.5, ("model",), waiting=True), Kill(2, -9, 7.0, ("model",))]
    return AgentProof(task, records, kills, ledger, {"a.log.1": "1", "b": "2"}, {"b": "2"}, "gpt")


def test_a_proof_built_by_hand_holds() -> None:
    proof = good()
    assert proof.holds, proof.claims
    assert (proof.freed, proof.tokens, proof.as_json()["deleted"]) == (5, 7, {"a.log.1": 1})


@pytest.mark.parametrize(
    "flaw",
    [
        {"kills": []},
        {"kills": [good().kills[0]._replace(at=6.5), good().kills[1]]},
        {"kills": [good().kills[0]._replace(status=0), good().kills[1]]},
        {"kills": [good().kills[0], good().kills[1]._replace(recorded=("model", "delete_logs"))]},
        {"kills": [good().kills[0], good().kills[1]._replace(at=5.5)]},
        {"after": {"b": "2", "a.log.1": "1"}},
        {"after": {"b": "3"}},
        {"after": {}},
        {"ledger": [*good().ledger, {"what": "deleted", "path": "a.log.1", "at": 9.6}]},
        {"ledger": [*good().ledger, {"what": "deleting", "path": "a.log.1", "bytes": 5, "at": 9.6}]},
        {"ledger": [*good().ledger, {"what": "answered"}]},
        {"ledger": [*good().ledger[:-1], {"what": "asked", "gone": False, "at": 9.5}]},
        {"records": [entry for entry in good().records if entry.kind != "message.received"]},
        {"records": [entry for entry in good().records if entry.seq != 9]},
        {"records": [entry for entry in good().records if entry.key != "model"]},
        {"task": dataclasses.replace(good().task, state=State.FAILED)},
    ],
    ids=lambda flaw: next(iter(flaw)),
)
def test_each_flaw_fails_the_proof(flaw: dict[str, Any]) -> None:
    assert not dataclasses.replace(good(), **flaw).holds


def test_a_denial_is_proven_too() -> None:
    denied = dataclasses.replace(
        good(), kills=good().kills[:1], ledger=good().ledger[:2], after=good().before, records=good().records[:3]
    )
    assert denied.holds, denied.claims
    assert not dataclasses.replace(denied, after={"b": "2"}).holds
