"""Completion: the words that each shell gets, and that a Tab imports little."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onward.cli.args import completing
from onward.cli.commands.completion import SCRIPTS
from onward.core.task import Reason, State
from tests.cli.conftest import ROOT, Run, submitted
from tests.kit import not_memory

BIN = Path(sys.executable).parent


def words(*typed: str) -> list[str]:
    return [candidate.value for candidate in completing.candidates(typed)]


def test_commands_options_and_values_come_from_the_parser():
    assert words("sch") == ["schedules"]
    assert "submit" in words("")
    assert words("schedules", "u") == ["unpause"]
    assert words("list", "--sta") == ["--state"]
    assert words("list", "--state", "f") == ["failed"]
    assert words("list", "--state=f") == ["--state=failed"]
    assert words("completion", "z") == ["zsh"]
    assert words("--db", "x", "li") == ["list"]
    assert words("resolve", "7k2m", "h") == ["happened"]
    assert words("nonsense", "") == []


def test_the_words_are_those_of_the_core():
    assert tuple(State) == completing.STATES
    assert set(completing.REASONS) == set(Reason)


def test_ids_and_names_come_from_the_database(onward: Run, crew: str):
    task_id = submitted(onward, crew, "greet", '"you"')
    at = ("--db", crew)
    assert task_id[-8:] in words(*at, "show", "")
    assert words(*at, "show", task_id[:20]) == [task_id]
    assert words(*at, "show", task_id[-8:-3]) == [task_id[-8:]]
    assert words(*at, "follow", "--json", task_id[-8:-3]) == [task_id[-8:]]
    assert words(*at, "submit", "gre") == ["greet"]
    assert words("list", *at, "--name", "gre") == ["greet"]
    assert words(*at, "schedules", "pause", "y") == ["yearly"]


def test_decisions_complete_only_open_approvals(onward: Run, crew: str, waiting):
    task_id = waiting("approval", "ship", '"tea"')
    assert task_id[-8:] in words("--db", crew, "approve", "")
    assert task_id[-8:] not in words("--db", crew, "answer", "")
    onward("cancel", task_id, "--db", crew)


@not_memory
async def test_both_databases_suggest(app) -> None:
    @app.task(name="greeting")
    async def greeting(ctx, name: str) -> str:
        return name

    async with app, app.worker(slots=1):
        task = await app.submit("greeting", "x")
        await task.result(timeout=60)
    values = await asyncio.to_thread(words, "--db", app.settings.db, "show", task.id[:20])
    assert values == [task.id]
    assert "greeting" in await asyncio.to_thread(words, "--db", app.settings.db, "submit", "")


def test_apps_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shop.py").write_text(
        "from onward import Onward\nwares = Onward()\nraise SystemExit('never imported')\n"
    )
    (tmp_path / "other.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    assert words("worker", "") == ["shop:wares"]
    assert words("worker", "shop:w") == ["shop:wares"]


def test_a_name_with_shell_syntax_is_not_offered(onward: Run, db: str):
    for name in ("good", "$(touch evil)", "a;b", "\x1b[31m"):
        onward("submit", name, "--anyway", "--queue", "q" if name == "good" else "q$(x)", "--db", db)
    assert words("--db", db, "list", "--queue", "") == ["q"]


def test_completion_without_a_database_prints_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    for url in (f"sqlite:///{tmp_path / 'none.db'}", "postgresql://127.0.0.1:1/none", "nonsense"):
        assert words("--db", url, "show", "") == []
    assert not (tmp_path / "none.db").exists()
    assert capsys.readouterr() == ("", "")


HEAVY = [
    "asyncio",
    "asyncpg",
    "cronsim",
    "onward.app.application",
    "onward.service.service",
    "pydantic",
    "rich",
    "uvloop",
]


@pytest.mark.parametrize("line", ["onward sho", "onward list --st", "onward show "])
def test_a_tab_imports_nothing_heavy(onward: Run, line: str, crew: str):
    onward("submit", "slow", "--delay", "1h", "--db", crew)
    code = f"""
import sys
from onward.cli.main import main
main(["__complete", "bash", {line!r}])
print("loaded:", *sorted(name for name in {HEAVY!r} if name in sys.modules))
"""
    env = {"ONWARD_DB": crew, "PYTHONPATH": f"{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    *values, loaded = done.stdout.splitlines()
    assert values
    assert loaded == "loaded:"


def shell(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed here")
    return path


def environment(crew: str) -> dict[str, str]:
    return {"ONWARD_DB": crew, "PATH": f"{BIN}:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), "HOME": "/nonexistent"}


def test_bash_offers_it(onward: Run, crew: str):
    task_id = submitted(onward, crew, "greet", '"you"')
    script = f"""
source <(onward completion bash)
ask() {{ COMP_LINE=$1; COMP_POINT=${{#1}}; read -ra COMP_WORDS <<< "$1"; COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _onward; echo "${{COMPREPLY[*]}}"; }}
ask 'onward sched'
ask 'onward list --state=fai'
ask "onward show {task_id[-8:-2]}"
ask "onward submit 'gre"
complete -p onward
"""
    done = subprocess.run(
        [shell("bash"), "--norc", "-c", script], capture_output=True, text=True, check=True, env=environment(crew)
    )
    assert done.stdout.splitlines() == [
        "schedules", "failed", task_id[-8:], "greet", "complete -o default -F _onward onward"
    ]  # fmt: skip
    assert done.stderr == ""


def test_fish_offers_it(onward: Run, crew: str, tmp_path: Path):
    task_id = submitted(onward, crew, "greet", '"you"')
    (tmp_path / "onward.fish").write_text(SCRIPTS["fish"])
    script = f"source {tmp_path}/onward.fish; complete -C 'onward sched'; complete -C 'onward show {task_id[-8:-2]}'"
    done = subprocess.run(
        [shell("fish"), "-N", "-c", script], capture_output=True, text=True, check=True,
        env=environment(crew) | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "schedules\tlist schedules and their next ticks", f"{task_id[-8:]}\tgreet"
    ]  # fmt: skip


def test_zsh_reads_it(crew: str):
    script = "autoload -U compinit; compinit -u -D; source <(onward completion zsh); print $_comps[onward]"
    done = subprocess.run(
        [shell("zsh"), "-fc", script], capture_output=True, text=True, check=True, env=environment(crew)
    )
    assert done.stdout == "_onward\n"


def test_no_names_of_a_database_where_a_server_is_asked(
    onward: Run, crew: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handlers(line: str) -> str:
        return onward("__complete", "bash", line).out

    assert "greet" in handlers(f"onward --db {crew} submit gr")
    assert "greet" not in handlers(f"onward --db {crew} --url https://onward.example.com submit gr")
    monkeypatch.setenv("ONWARD_DB", crew)
    assert "greet" in handlers("onward submit gr")
    assert "greet" not in handlers("onward submit gr --url=https://onward.example.com")
    monkeypatch.setenv("ONWARD_URL", "https://onward.example.com")
    assert "greet" not in handlers("onward submit gr")
    assert "greet" in handlers(f"onward --db={crew} submit gr")
