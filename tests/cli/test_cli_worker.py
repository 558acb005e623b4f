"""worker: it does tasks, hands them back, exits at once on a second signal, and names the cause if it cannot start."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.cli.commands.worker import log_lines
from onward.cli.output.screen import Screen
from rig.processes import Child
from tests.cli.conftest import ROOT, Run, start_worker


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


def kinds(onward: Run, db: str, task_id: str) -> list[str]:
    return [record["kind"] for record in onward("show", task_id, "--db", db, "--json").json["journal"]]


def test_client_libraries_print_no_line_for_each_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest has its own
    httpx, loud = logging.getLogger("httpx"), logging.getLogger("openai")
    loud.setLevel(logging.INFO)
    try:
        with log_lines(Screen(Namespace(json=True, no_color=True))):
            httpx.info("HTTP Request: POST …")
            httpx.warning("slow")
            loud.info("the app wants this")
    finally:
        loud.setLevel(logging.NOTSET)
    assert [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()] == [
        "slow",
        "the app wants this",
    ]
    assert httpx.level == logging.NOTSET


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_hands_running_tasks_back(number, onward: Run, db: str):
    task_id = onward("submit", "slow", "--anyway", "--db", db).out.strip()
    with start_worker(db) as worker:
        until(lambda: "step.completed" in kinds(onward, db, task_id))
        worker.signal(number)
        assert worker.wait() == 0
        assert "stopping: handing 1 task back" in "\n".join(worker.lines)
        assert worker.lines[-1].endswith("stopped: 1 shift done")
        assert worker.errors == []
    task = onward("show", task_id, "--db", db, "--json").json
    assert (task["state"], task["reason"], task["attempt"]) == ("pending", "queued", 1)
    assert task["journal"][-1]["kind"] == "shift.ended"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["long_step", "block"])
def test_a_second_signal_exits_at_once(name, onward: Run, db: str, tmp_path: Path):
    """Even when a handler blocks the event loop."""
    mark = tmp_path / "begun"
    onward("submit", name, json.dumps(str(mark)), "--anyway", "--db", db)
    with start_worker(db) as worker:
        until(mark.exists)
        worker.signal(signal.SIGTERM)
        time.sleep(0.2)
        assert worker.running
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_slots_and_queues(onward: Run, db: str):
    with start_worker(db, "--slots", "3", "--queues", "a, b") as worker:
        assert worker.lines[-1].endswith("queues a, b · 3 slots")
        assert onward("submit", "greet", '"you"', "--queue", "b", "--wait", "10", "--db", db).status == 0
        output = onward("submit", "greet", '"you"', "--queue", "c", "--wait", "0.3", "--db", db)
        assert output.status == 3


@pytest.mark.slow
def test_json_lines(onward: Run, db: str):
    with Child.module("onward", "worker", "tests.cli.shop:app", "--db", db, "--json", cwd=ROOT) as worker:
        ready = json.loads(worker.line(20))
        assert (ready["event"], ready["pid"]) == ("ready", worker.pid)
        worker.terminate()
        assert worker.wait() == 0
    assert [json.loads(line)["event"] for line in worker.lines] == ["ready", "stopping", "stopped"]


@pytest.mark.slow
def test_warnings_are_plain_lines_on_stderr(onward: Run, db: str):
    task_id = onward("submit", "slow", "--anyway", "--db", db).out.strip()
    with start_worker(db) as victim, start_worker(db) as other:
        until(lambda: "step.completed" in kinds(onward, db, task_id))
        holder = onward("show", task_id, "--db", db, "--json").json["worker"]
        first, second = (victim, other) if holder[-8:] in victim.lines[0] else (other, victim)
        first.kill9()
        until(lambda: any("warning: " in line for line in second.errors))
        until(lambda: kinds(onward, db, task_id).count("shift.started") == 2)
    assert "broke off" in onward("show", task_id, "--db", db).out


# ── MODULE:APP ───────────────────────────────────────────────────────────────────────────────────────────────────────

MODULES = {
    "fine": "from onward import Onward\napp = Onward('sqlite:///own.db')\n@app.task\ndef f(ctx): ...\n",
    "empty": "from onward import Onward\napp = Onward('sqlite:///own.db')\n",
    "broken": "import json\njson.loads('nonsense')\n",
    "needy": "import no_such_library\n",
    "wrong_syntax": "def f(:\n",
    "leaves": "raise SystemExit(0)\n",
    "other": "app = {}\n",
    "setting": "from onward import Onward\napp = Onward(lease_s='soon')\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with these modules."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("nowhere:app", ["there is no module 'nowhere' here", "PYTHONPATH"]),
        ("nowhere.deeper:app", ["there is no module 'nowhere' here"]),
        ("fine", ["'fine' must name a module and the app in it, as in fine:app"]),
        ("fine:", ["as in fine:app"]),
        ("fine.py:app", ["is a file; name the module instead: fine:app"]),
        ("./deep/er/fine.py", ["name the module instead: deep.er.fine:app"]),
        ("fine:ap", ["module 'fine' has no 'ap'; did you mean fine:app?"]),
        ("empty:app", ["this app has no handlers"]),
        ("other:thing", ["module 'other' has no 'thing'; write `thing = Onward()` there"]),
        ("other:app", ["other:app is of type dict, not an Onward app"]),
        ("broken:app", ["importing 'broken' failed at", "decoder.py", "JSONDecodeError: Expecting value"]),
        ("needy:app", ["importing 'needy' failed at", "needy.py:1 with ModuleNotFoundError", "no_such_library"]),
        ("wrong_syntax:app", ["wrong_syntax.py:1 with SyntaxError"]),
        ("leaves:app", ["importing 'leaves' failed at", "leaves.py:1 with SystemExit"]),
        ("setting:app", ["importing 'setting' failed at", "with BadSetting: ONWARD_LEASE_S is 'soon'"]),
    ],
)
def test_an_app_that_cannot_be_loaded_is_a_sentence(target, parts, folder: Path, onward: Run):
    output = onward("worker", target)
    assert output.status == 2
    assert all(part in output.sentence for part in parts), output.sentence


@pytest.mark.slow
def test_db_overrides_the_database_of_the_app(folder: Path, db: str):
    with Child.module("onward", "worker", "fine:app", "--db", db, cwd=folder) as worker:
        assert db.removeprefix("sqlite:///") in worker.wait_for("ready", 60)
    with Child.module("onward", "worker", "fine:app", cwd=folder) as worker:
        assert "SQLite file own.db" in worker.wait_for("ready", 60)
