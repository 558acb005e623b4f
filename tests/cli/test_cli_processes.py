"""worker --processes, --reload and dev: real processes that are killed, changed and stopped."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward.cli.commands.worker import _Lines
from onward.cli.output.screen import Screen
from onward.cli.processes.reload import Watcher
from onward.cli.processes.supervisor import Supervisor
from rig.processes import Child
from rig.server import free_port
from tests.cli.conftest import ROOT, Output, Run, process
from tests.cli.terminal import terminal

START_S = 90.0
"""Seconds in which processes have to start or to end, on a slow machine too."""

APP = """
import asyncio, os
from onward import Context, Onward

app = Onward(heartbeat_s=0.2, lease_s=2, grace_s=5)

@app.task
async def where(ctx: Context, seconds: float = 0) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task
async def version(ctx: Context) -> str:
    return "VERSION"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an app, where the processes run."""
    write(tmp_path, "1")
    return tmp_path


def write(folder: Path, version: str) -> None:
    (folder / "crowd.py").write_text(APP.replace("VERSION", version), encoding="utf-8")


def start(folder: Path, *words: str, db: str) -> Child:
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    return Child.module("onward", *words, "--json", "--db", db, cwd=folder, env=env)


def until(condition: Callable[[], Any], seconds: float = START_S) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)
    return value


def events(child: Child, name: str) -> list[dict[str, Any]]:
    """The events of this name that it and its processes have printed."""
    return [event for line in list(child.lines) if (event := json.loads(line)).get("event") == name]


def ready_pids(child: Child, number: int) -> list[int]:
    """The processes that became ready, when there are so many."""
    until(lambda: len(events(child, "ready")) >= number)
    return [event["pid"] for event in events(child, "ready")]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if Path("/proc").exists()
        else True
    )


def test_two_processes_share_the_work_and_hand_it_back(folder: Path, db: str, onward: Run) -> None:
    with start(folder, "worker", "crowd:app", "--processes", "2", "--slots", "1", db=db) as crowd:
        pids = ready_pids(crowd, 2)
        assert len({*pids, crowd.pid}) == 3
        ids = [onward("submit", "where", "0.5", "--db", db).out.strip() for _ in range(4)]
        done = until(lambda: ended(onward, db, ids))
        assert {task["result"] for task in done} == set(pids), "each of them did some"
        crowd.terminate()
        assert crowd.wait() == 0
        assert not any(alive(pid) for pid in pids)
        (last,) = [event for event in events(crowd, "stopped") if event["pid"] == crowd.pid]
        assert last["message"].startswith("2 processes, ")
        assert len(events(crowd, "stopped")) == 3, "each has ended in order"


def ended(onward: Run, db: str, ids: list[str]) -> list[dict[str, Any]]:
    tasks = [onward("show", task_id, "--json", "--db", db).json for task_id in ids]
    return tasks if all(task["state"] == "completed" for task in tasks) else []


def test_a_killed_process_is_replaced_and_no_task_is_lost(folder: Path, db: str, onward: Run) -> None:
    with start(folder, "worker", "crowd:app", "--processes", "2", db=db) as crowd:
        first, second = ready_pids(crowd, 2)
        ids = [onward("submit", "where", "1", "--db", db).out.strip() for _ in range(6)]
        for pid in (first, second):
            os.kill(pid, signal.SIGKILL)
        new = ready_pids(crowd, 4)[2:]
        assert not {first, second} & set(new)
        assert {task["result"] for task in until(lambda: ended(onward, db, ids))} <= {first, second, *new}
        deaths = [event["message"] for event in events(crowd, "died")]
        assert any(
            "was killed by SIGKILL" in message and "another one starts in 0.5 s" in message for message in deaths
        )


def test_no_process_survives_a_killed_supervisor(folder: Path, db: str, onward: Run) -> None:
    with start(folder, "worker", "crowd:app", "--processes", "2", db=db) as crowd:
        pids = ready_pids(crowd, 2)
        task_id = onward("submit", "where", "60", "--db", db).out.strip()
        until(lambda: onward("show", task_id, "--json", "--db", db).json["state"] == "running")
        os.kill(crowd.pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in pids), 30)
    task = onward("show", task_id, "--json", "--db", db).json
    assert (task["state"], task["reason"]) == ("pending", "queued"), "it was handed back"


def test_an_app_that_cannot_be_imported_is_one_error(folder: Path, db: str) -> None:
    (folder / "crowd.py").write_text("import no_such_library\n", encoding="utf-8")
    refused = here(folder, "worker", "crowd:app", "--processes", "3", "--db", db)
    assert (refused.status, "no_such_library" in refused.sentence) == (2, True)


def here(folder: Path, *words: str) -> Output:
    return process(*words, cwd=folder, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"})


@pytest.mark.slow
def test_a_process_that_dies_at_once_is_started_again_after_a_pause(folder: Path, db: str) -> None:
    """Its code breaks after the first start: the supervisor goes on, and the pause doubles."""
    with start(folder, "worker", "crowd:app", "--processes", "1", db=db) as crowd:
        (pid,) = ready_pids(crowd, 1)
        (folder / "crowd.py").write_text("import no_such_library\n", encoding="utf-8")
        os.kill(pid, signal.SIGKILL)
        until(lambda: len(events(crowd, "died")) >= 3)
        pauses = [event["message"].rpartition("starts in ")[2] for event in events(crowd, "died")][:3]
        assert pauses == ["0.5 s", "1 s", "2 s"]
        write(folder, "2")
        ready_pids(crowd, 2)
        assert crowd.running


@pytest.mark.slow
def test_a_second_signal_exits_at_once(folder: Path, db: str, onward: Run) -> None:
    with start(folder, "worker", "crowd:app", "--processes", "2", db=db) as crowd:
        pids = ready_pids(crowd, 2)
        task_id = onward("submit", "where", "60", "--db", db).out.strip()
        until(lambda: onward("show", task_id, "--json", "--db", db).json["state"] == "running")
        crowd.terminate()
        until(lambda: any(event["pid"] == crowd.pid for event in events(crowd, "stopping")))
        crowd.terminate()
        assert crowd.wait() == 128 + signal.SIGTERM
        until(lambda: not any(alive(pid) for pid in pids))


def test_a_signal_to_all_processes_is_one_signal(folder: Path, db: str, onward: Run) -> None:
    """systemd sends SIGTERM to the supervisor and to its processes, and the supervisor sends another to these."""
    with start(folder, "worker", "crowd:app", "--processes", "2", db=db) as crowd:
        pids = ready_pids(crowd, 2)
        task_id = onward("submit", "where", "2", "--db", db).out.strip()
        until(lambda: onward("show", task_id, "--json", "--db", db).json["state"] == "running")
        for pid in (crowd.pid, *pids):
            os.kill(pid, signal.SIGTERM)
        assert crowd.wait() == 0
        assert len(events(crowd, "stopped")) == 3, "each has ended in order"
    assert onward("show", task_id, "--json", "--db", db).json["state"] == "completed", "it had its grace"


def _supervisor() -> Supervisor:
    return Supervisor(Screen(argparse.Namespace(json=True)), [["worker", "crowd:app"]])


async def test_a_process_that_dies_at_once_for_days_has_the_longest_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = _supervisor()
    (place,) = supervisor._places
    supervisor._first_ready.set()
    supervisor._stopping.set()  # so that the pause is not waited for
    place.early_deaths = 5000
    printed: list[str] = []
    monkeypatch.setattr("onward.cli.processes.supervisor.print_event", lambda _, name, text: printed.append(text))
    await supervisor._after_death(place, 1, "ended with status 1", 0.5)
    assert printed == ["process 1 ended with status 1 after 0 s; another one starts in 30 s"]


async def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has no memory just now. The other processes go on."""
    supervisor = _supervisor()
    (place,) = supervisor._places
    supervisor._first_ready.set()
    printed: list[str] = []
    tries: list[tuple[Any, ...]] = []

    async def no_memory(*words: Any, **_: Any) -> Any:
        tries.append(words)
        if len(tries) == 2:
            supervisor._stopping.set()
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("asyncio.create_subprocess_exec", no_memory)
    monkeypatch.setattr("onward.cli.processes.supervisor.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("onward.cli.processes.supervisor.print_event", lambda _, name, text: printed.append(text))
    await supervisor._keep(place)
    assert len(tries) == 2
    assert printed[0].startswith(
        "process 1 could not be started ([Errno 12] Cannot allocate memory) after 0 s; another one"
    )


def test_a_folder_that_must_not_be_entered_is_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of a database beside the code."""
    (tmp_path / "data").mkdir()
    (tmp_path / "app.py").write_text("", encoding="utf-8")

    def forbidden(path: Path, **_: Any) -> Any:
        if path.name == "pyvenv.cfg":
            raise PermissionError(13, "Permission denied")
        return os.stat(path)

    monkeypatch.setattr(Path, "stat", forbidden)
    assert set(Watcher(tmp_path)._times) == {"app.py"}


def two_free_ports() -> int:
    """The first of two free ports that follow each other."""
    while True:
        port = free_port()
        with socket.socket() as second, contextlib.suppress(OSError):
            second.bind(("127.0.0.1", port + 1))
            return port


@pytest.mark.slow
def test_each_process_has_its_own_metrics_port(folder: Path, db: str) -> None:
    port = two_free_ports()
    words = ("worker", "crowd:app", "--processes", "2", "--metrics-port", str(port))
    with start(folder, *words, db=db) as crowd:
        ready_pids(crowd, 2)
        messages = " ".join(event["message"] for event in events(crowd, "ready"))
        assert (f":{port}/metrics" in messages, f":{port + 1}/metrics" in messages) == (True, True)


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_wrong_number_of_processes(value: str, onward: Run) -> None:
    wrong = onward("worker", "crowd:app", "--processes", value)
    assert (wrong.status, "nor auto" in wrong.err) == (2, True)
    ports = onward("worker", "crowd:app", "--processes", "3", "--metrics-port", "65534").sentence
    assert "need the metrics ports 65534 to 65536" in ports
    assert "256 at most" in onward("worker", "crowd:app", "--processes", "257").sentence


# ── reload ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_reload_starts_the_new_code_and_waits_while_it_is_broken(folder: Path, db: str, onward: Run) -> None:
    with start(folder, "worker", "crowd:app", "--reload", db=db) as crowd:
        ready_pids(crowd, 1)
        assert onward("submit", "version", "--wait", "60", "--db", db).out.strip().strip('"') == "1"
        write(folder, "2")
        ready_pids(crowd, 2)
        assert events(crowd, "reload")[0]["message"] == "crowd.py changed"
        assert onward("submit", "version", "--wait", "60", "--db", db).out.strip().strip('"') == "2"
        (folder / "crowd.py").write_text("def broken(:\n", encoding="utf-8")
        until(lambda: events(crowd, "waiting"))
        assert crowd.running
        write(folder, "3")
        ready_pids(crowd, 3)
        assert onward("submit", "version", "--wait", "60", "--db", db).out.strip().strip('"') == "3"
        crowd.terminate()
        assert crowd.wait() == 0


@pytest.mark.slow
def test_dev_serves_the_console_and_reloads(folder: Path, db: str) -> None:
    port = free_port()
    with start(folder, "dev", "crowd:app", "--port", str(port), db=db) as crowd:
        ready_pids(crowd, 1)
        (console,) = until(lambda: events(crowd, "console"))
        address = console["message"].split()[0]
        assert address == f"http://127.0.0.1:{port}/"
        with urllib.request.urlopen(address, timeout=60) as page:
            assert "Onward" in page.read().decode()
        write(folder, "2")
        ready_pids(crowd, 2)
        with urllib.request.urlopen(f"{address}healthz", timeout=60) as page:
            assert page.status == 200
        crowd.terminate()
        assert crowd.wait() == 0


@pytest.mark.slow
def test_a_terminal_has_one_status_line(folder: Path, db: str, onward: Run) -> None:
    words = ("worker", "crowd:app", "--processes", "2", "--slots", "3", "--db", db)
    with terminal(*words, cwd=folder, columns=100, PYTHONPATH=f"{ROOT / 'src'}:{ROOT}") as live:
        live.look(lambda page: "2 of 2 processes  0/6 running" in page, START_S)
        onward("submit", "where", "--wait", "60", "--db", db)
        page = live.look(lambda page: "1 done" in page, START_S)
        assert page.count("ready: worker") == 2
        assert page.count("running") == 1
        live.interrupt()
        assert live.ends(START_S) == 0


async def test_a_watcher_sees_new_changed_and_deleted_files_of_the_code_alone(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "deep" / "a.py").write_text("1", encoding="utf-8")
    watcher = Watcher(tmp_path)
    for ignored in (".venv/x.py", "env/x.py", "notes.txt", "onward.db"):
        (tmp_path / ignored).write_text("1", encoding="utf-8")
    assert watcher._changes() == set()
    (tmp_path / "deep" / "a.py").write_text("22", encoding="utf-8")
    os.utime(tmp_path / "deep" / "a.py", ns=(1, 1))
    (tmp_path / "b.py").touch()
    assert await watcher.changed() == ["b.py", "deep/a.py"]
    (tmp_path / "b.py").unlink()
    assert watcher._changes() == {"b.py"}


def test_a_json_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of processes that share an output stay apart."""
    writes: list[str] = []

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Recorder())
    Screen(argparse.Namespace(json=True)).line({"event": "ready"})
    assert [text for text in writes if text] == ['{"event": "ready"}\n']
    writes.clear()
    _Lines(Screen(argparse.Namespace(json=True))).emit(logging.makeLogRecord({"msg": "late"}))
    (line,) = [text for text in writes if text]
    assert (json.loads(line)["message"], line[-1]) == ("late", "\n")
