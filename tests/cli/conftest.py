"""Runs the command line inside the test process or as a separate process; and a worker that all tests share."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onward.cli.main import main
from rig.processes import Child

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Output:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def sentence(self) -> str:
        """The only line on stderr that begins with "onward: ". There must be no traceback."""
        assert "Traceback" not in self.err + self.out
        (line,) = [line for line in self.err.splitlines() if line.startswith("onward: ")]
        return line


Run = Callable[..., Output]


@pytest.fixture(autouse=True)
def _no_terminal_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'onward.db'}"


@pytest.fixture
def onward(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `onward` in the test process."""

    def run(*words: str) -> Output:
        capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return Output(status, captured.out, captured.err)

    return run


def process(*words: str, timeout: float = 180, **options: Any) -> Output:
    """Run `python -m onward` as a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "onward", *words],
        capture_output=True,
        timeout=timeout,
        check=False,
        cwd=options.pop("cwd", ROOT),
        stdin=subprocess.DEVNULL,
        **options,
    )
    return Output(done.returncode, done.stdout.decode(), done.stderr.decode())


def start_worker(db: str, *words: str) -> Child:
    """Start a worker of the shop, and wait until it is ready."""
    child = Child.module("onward", "worker", "tests.cli.shop:app", "--db", db, *words, cwd=ROOT)
    child.wait_for("ready", timeout=60)
    return child


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a database with a worker."""
    url = f"sqlite:///{tmp_path_factory.mktemp('crew') / 'onward.db'}"
    with start_worker(url):
        yield url


Waiting = Callable[..., str]


@pytest.fixture
def waiting(onward: Run, crew: str) -> Waiting:
    """Submits a task, and waits until it waits for the given reason. Returns its id."""
    return waiting_at(onward, crew)


def waiting_at(onward: Run, url: str) -> Waiting:
    """The same for the worker of another database."""

    def until(reason: str, *words: str) -> str:
        task_id = submitted(onward, url, *words)
        end = time.monotonic() + 60
        while (task := onward("show", task_id, "--json", "--db", url).json)["reason"] != reason:
            assert time.monotonic() < end, task
            time.sleep(0.02)
        return task_id

    return until


def submitted(onward: Run, url: str, *words: str) -> str:
    """Submit a task and return its id."""
    return onward("submit", *words, "--db", url).out.strip()


def journal(onward: Run, url: str, task_id: str) -> list[dict[str, Any]]:
    """The records of a task from `onward show`."""
    records: list[dict[str, Any]] = onward("show", task_id, "--json", "--db", url).json["journal"]
    return records


def controls(text: str) -> list[str]:
    """The control characters in a string."""
    return re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text)
