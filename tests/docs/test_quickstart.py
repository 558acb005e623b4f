"""The quickstart is true: every command of it is typed into one shell, in order, and ends as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
STATUS = re.compile(r" +# exit status (\d)\b.*$")
MARK = "@@status@@"


def typed() -> list[tuple[str, int]]:
    """All commands, and the exit status that the page promises."""
    lines = [line[2:] for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    return [(STATUS.sub("", line), int(match[1]) if (match := STATUS.search(line)) else 0) for line in lines]


class Shell:
    """A bash in a folder, one command after the other."""

    def __init__(self, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONWARD", "OPENAI"))}
        env = kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "ONWARD_PORT": "0",  # another program on this machine may have the usual port
        }
        self._bash = subprocess.Popen(
            ["bash", "--norc", "-m"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=folder, env=env, text=True, start_new_session=True,
        )  # fmt: skip

    def type(self, command: str) -> tuple[int, str]:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        inner = command if command.endswith("&") else f"{{ {command}\n}} < /dev/null"
        self._bash.stdin.write(f"{inner}\necho {MARK}$?\n")
        self._bash.stdin.flush()
        output = ""
        for line in self._bash.stdout:
            if line.startswith(MARK):
                return int(line.removeprefix(MARK)), output
            output += line
        raise AssertionError(f"the shell has ended: {output}")

    def close(self) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write("kill -9 $(jobs -p)\nexit\n")
        self._bash.stdin.close()
        self._bash.wait(20)


def ready(folder: Path, log: str) -> None:
    end, file = time.monotonic() + 30, folder / log
    while not file.exists() or "ready:" not in file.read_text(encoding="utf-8"):
        assert time.monotonic() < end, file.read_text(encoding="utf-8")
        time.sleep(0.05)


@pytest.mark.slow
def test_every_command_of_the_quickstart(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(# deploy\.py\n.*?)```", TEXT, re.DOTALL)
    (tmp_path / "deploy.py").write_text(code, encoding="utf-8")
    shell, output_of = Shell(tmp_path), dict[str, str]()
    try:
        for command, promised in typed():
            (tmp_path / "worker.log").unlink(missing_ok=True) if command.startswith("onward worker") else None
            status, output_of[command] = shell.type(command)
            assert status == promised, f"{command}\n{output_of[command]}"
            if command.endswith("&"):
                log = command.rpartition("> ")[2].removesuffix(" &")
                ready(tmp_path, log)
    finally:
        shell.close()
    assert "this serves the demo" in output_of["sleep 3; cat server.log"]
    assert "delete_logs" in output_of["onward approvals"]
    assert '"web:1.0 runs in asia"' in output_of["onward submit deploy '\"web\"' --follow"]
    assert "release" in output_of["onward handlers"]
    assert re.search(r"completed|running", output_of["onward list --text shop"])
    assert "broke off" in output_of["onward show $id"]
    assert '"shop:1.0 runs in asia"' in output_of["onward follow $id"]
    assert "released: 3 regions" in output_of["onward submit release '\"web\"' --key release-web-1 --wait"]
    assert "5 tasks" in output_of["onward cancel --all --state pending --name deploy --yes"]
    assert output_of["onward top --once"].startswith("onward top")


def test_it_has_commands_and_no_more_than_ten_minutes() -> None:
    assert len(typed()) > 25
    minutes = re.findall(r"\((\w+) minutes?\)", TEXT)
    assert sum({"one": 1, "two": 2, "three": 3}[word] for word in minutes) <= 10
