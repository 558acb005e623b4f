"""A terminal gets colours, moving parts and lines that fit; a pipe, or NO_COLOR, gets none of that."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT, Run, Waiting, controls, process
from tests.cli.terminal import ESCAPES, terminal


@pytest.mark.slow
def test_follow_moves_on_a_terminal_and_leaves_the_task_alone(onward: Run, crew: str):
    task_id = onward("submit", "slow", "--db", crew).out.strip()
    with terminal("follow", task_id[-8:], "--db", crew) as screen:
        screen.read("/1200")
        screen.read("━")  # the bar
        screen.interrupt()
        assert screen.status() == 130
        assert f"task {task_id} goes on" in screen.text
        assert "Traceback" not in screen.text
    assert onward("show", task_id, "--db", crew, "--json").json["state"] == "running"
    onward("cancel", task_id, "--db", crew)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("words", [["list"], ["doctor"], ["submit", "flaky", "--follow"]], ids=lambda words: words[0])
def test_lines_fit_the_terminal(words, columns, crew: str, onward: Run):
    onward("submit", "greet", json.dumps("you " * 100), "--wait", "--db", crew)
    with terminal(*words, "--db", crew, columns=columns) as screen:
        assert screen.status() == 0
        if words[0] == "list":
            lines = [ESCAPES.sub("", line) for line in re.split(r"[\r\n]+", screen.text)]
            assert max(map(len, lines)) <= columns
        assert "\x1b[" in screen.text


def test_colours_for_errors(crew: str):
    with terminal("show", "zzzz", "--db", crew) as screen:
        assert screen.status() == 4
        assert screen.text.startswith("\x1b[31monward: there is no task 'zzzz'")


@pytest.mark.slow
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
@pytest.mark.parametrize("words", [["list"], ["submit", "flaky", "--follow"], ["show", "zzzz"]], ids=lambda w: w[0])
def test_no_color_is_plain_text(words, env, crew: str):
    with terminal(*words, "--db", crew, **env) as screen:
        screen.status()
        assert not controls(screen.text.replace("\r\n", "\n"))


def test_no_color_has_lines_that_fit(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "janitor", json.dumps("/srv/" + "x" * 500))
    with terminal("list", "--db", crew, NO_COLOR="1") as screen:
        assert screen.status() == 0
        assert "approval: erase" in screen.text
        assert max(len(line) for line in screen.text.splitlines()) <= 80
    assert onward("cancel", task_id, "--db", crew).status == 0


def test_a_worker_on_a_terminal_has_a_status_line(db: str):
    with terminal("worker", "tests.cli.shop:app", "--db", db) as screen:
        screen.read("0/100 running")
        screen.interrupt()
        assert screen.status() == 0
        assert "stopped:" in screen.text


def test_an_encoding_without_symbols(crew: str):
    output = process("submit", "flaky", "--follow", "--db", crew, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert output.status == 0
    assert "  +  completed" in output.out
    assert output.out.isascii()


def test_a_closed_pipe_is_no_error(crew: str, onward: Run):
    for _ in range(3):
        onward("submit", "greet", '"you"', "--db", crew)
    command = f"{sys.executable} -m onward list --limit 1000 --json --db {crew} | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "{0\n"
    assert done.stderr == ""


# ── the tree ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (200, 50)])
def test_follow_is_a_tree_with_its_children(columns: int, rows: int, onward: Run, crew: str):
    task_id = onward("submit", "household", '"choose"', "--db", crew).out.strip()
    with terminal("follow", task_id[-8:], "--db", crew, columns=columns, rows=rows) as screen:
        head, child, asks, *rest = screen.look(lambda page: "asks: Which region?" in page).splitlines()
        assert head.startswith("household  waiting")
        assert child.startswith("└─ ☾ choose  waiting")
        assert asks.startswith("   └─ ! asks: Which region?")
        assert len(rest) < 3
        screen.interrupt()
        assert screen.ends() == 130
    onward("cancel", task_id, "--db", crew)


@pytest.mark.slow
def test_follow_shows_an_agent_turn_by_turn(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "janitor", '"/tmp/a\\u001b[31m\\u202e"')
    with terminal("follow", task_id[-8:], "--db", crew, columns=80, rows=24) as screen:
        assert screen.ends() == 5
        screen.read("waits for a person")
        head, turn, asks, *_ = screen.seen
        assert head.startswith("janitor  waiting")
        assert "1 turn" in head
        assert turn.startswith("└─ ✓ turn 1")
        assert asks.startswith("   └─ ! asks for approval: erase(")
        assert f"→ onward approve {task_id[-8:]}." in asks, "the command is whole"
        assert "\u202e" not in screen.text
        assert "\x1b[31m\\u202e" not in screen.text
    onward("cancel", task_id, "--db", crew)
