"""serve without an app, and mcp."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.processes import Child
from tests.cli.conftest import ROOT, Output, process

ENV = {name: value for name, value in os.environ.items() if not name.startswith(("ONWARD", "OPENAI"))}


def environment() -> dict[str, str]:
    # The default, set: a child inherits the environment of this process, where another test may have named a database.
    return {**ENV, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "ONWARD_DB": "sqlite:///onward.db"}


def served(folder: Path, *words: str) -> Child:
    return Child.module("onward", "serve", "--port", "0", *words, cwd=folder, env=environment())


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder in which `onward serve` runs, and its output."""
    folder = tmp_path_factory.mktemp("newcomer")
    with served(folder) as child:
        child.wait_for("ready:", timeout=60)
        yield folder, "\n".join(child.lines)


def here(folder: Path, *words: str) -> Output:
    return process(*words, cwd=folder, env=environment())


def test_without_an_app_it_serves_the_demo(demo: tuple[Path, str]):
    folder, output = demo
    first, *rest = [line for line in output.splitlines() if line]
    assert first.startswith("No app was named, so this serves the demo")
    address = re.search(r"open +(http://127\.0\.0\.1:\d+)", output)
    assert address is not None
    with urllib.request.urlopen(f"{address[1]}/healthz") as answer:
        assert answer.status == 200
    assert any("onward submit demo.agent" in line for line in rest[:6])
    assert (folder / "onward-demo" / "disk" / "var" / "log").is_dir()


@pytest.mark.slow
def test_its_next_commands_work_as_they_are_printed(demo: tuple[Path, str]):
    folder, output = demo
    assert "onward submit demo.agent '\"Free some disk space.\"' --follow" in output
    followed = here(folder, "submit", "demo.agent", '"Free some disk space."', "--follow")
    assert followed.status == 5, followed.err
    assert "onward approve" in followed.sentence
    assert "delete_logs" in here(folder, "approvals").out
    assert here(folder, "approve").status == 0
    (task,) = here(folder, "list", "--json").json["tasks"]
    ended = here(folder, "follow", task["task_id"][-8:], "--json")
    assert ended.status == 0
    assert ended.lines[-1]["state"] == "completed"
    assert "13.0 MB are free again" in ended.lines[-1]["result"]
    turns = here(folder, "show", task["task_id"], "--turns", "--json").json["turns"]
    assert [turn["turn"] for turn in turns] == [1, 2, 3, 4, 5, 6]
    assert "TURN" in here(folder, "show", task["task_id"], "--turns").out


def test_the_demo_says_so_in_json_too(tmp_path: Path):
    with served(tmp_path, "--json") as child:
        child.wait_for('"ready"', timeout=60)
        lines = [json.loads(line) for line in child.lines]
    (demo,) = [line for line in lines if line.get("event") == "demo"]
    assert demo["task"] == "demo.agent"
    assert demo["open"].startswith("http://127.0.0.1:")
    assert demo["next"].startswith("onward submit demo.agent")


@pytest.mark.slow
def test_a_folder_of_another_program_is_left_alone(tmp_path: Path):
    (tmp_path / "onward-demo").mkdir()
    (tmp_path / "onward-demo" / "mine.txt").write_text("mine")
    output = here(tmp_path, "serve", "--port", "0")
    assert output.status == 2
    assert "is in the way" in output.sentence
    assert [path.name for path in (tmp_path / "onward-demo").iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_mcp_prints_only_the_protocol_on_stdout(tmp_path: Path):
    for words in ([], ["--json"]):
        output = here(tmp_path, "mcp", *words)
        assert (output.status, output.out) == (0, "")
