"""Help imports little, and wrong usage prints one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onward.cli.args.parser import build
from rig.commands import commands
from tests.cli.conftest import Run, process

EVERY = {" ".join(path): path for path, _, _ in commands(build())}
COMMANDS = [command for command in EVERY if " " not in command]
# No test of milliseconds: imports cost the time, and the test can count them.
HEAVY = ["apsw", "asyncio", "asyncpg", "cronsim", "onward.app.application", "pydantic", "rich", "uvloop"]


def test_a_typing_error_gets_a_suggestion(onward: Run):
    output = onward("sumbit", "x")
    assert (output.status, output.sentence) == (
        2,
        "onward: there is no 'sumbit'; perhaps you meant 'submit'; see `onward --help`",
    )
    assert "perhaps" not in onward("zzz").sentence


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["nonsense"], ["completion", "bash"]])
def test_help_imports_nothing_heavy(words):
    code = f"""
import sys
from onward.cli.main import main
try:
    main({words!r})
except SystemExit:
    pass
print("loaded:", *sorted(name for name in {HEAVY!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_public_names_are_imported_on_first_use():
    code = """
import sys, onward
assert "onward.app.application" not in sys.modules
assert set(onward.__all__) <= set(dir(onward))
for name in onward.__all__:
    assert getattr(onward, name) is getattr(onward, name), name
try:
    onward.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'onward' has no attribute 'nothing'\n"


def test_help_names_every_command_and_exit_status(onward: Run):
    output = onward("--help")
    assert output.status == 0
    assert all(f"\n    {command} " in output.out for command in COMMANDS)
    assert all(f"\n  {status}  " in output.out for status in range(7))


@pytest.mark.parametrize("command", EVERY)
def test_each_command_has_help_that_fits_80_columns(command, onward: Run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    output = onward(*EVERY[command], "--help")
    assert output.status == 0
    assert "--db" in output.out
    assert "--json" in output.out
    assert max(map(len, output.out.splitlines())) <= 80


def test_version(onward: Run):
    assert onward("--version").out == "onward 0.1.0\n"
    assert onward("--version", "--json").json == {"version": "0.1.0"}


def test_no_command_is_wrong_usage():
    output = process()
    assert output.status == 2
    assert output.out == ""
    assert "commands:" in output.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["fly"], "there is no 'fly'"),
        (["list", "--limit", "0"], "'0' is not a whole number of 1 or more"),
        (["list", "--limt", "1"], "unrecognized arguments: --limt 1"),
        (["prioritize", "x", "high"], "invalid int value: 'high'"),
        (["prioritize", "x"], "the following arguments are required: N"),
        (["submit", "x", "--label", "novalue"], "'novalue' is not of the form NAME=VALUE"),
        (["worker", "a:b", "--queues", " , "], "names no queue"),
        (["worker", "a:b", "--slots", "-1"], "'-1' is not a whole number of 1 or more"),
        (["show", "\x1b[31mred\u202e", "more"], "unrecognized arguments: more"),
        (["list", "\x1b[31mred"], "unrecognized arguments: \\x1b[31mred"),
    ],
)
def test_wrong_usage_is_one_sentence(words, part, onward: Run):
    output = onward(*words)
    assert output.status == 2
    assert part in output.sentence
    assert "--help`" in output.sentence
    assert output.out == ""


def test_db_and_json_stand_before_or_after_the_command(onward: Run, db: str):
    before, after = onward("--db", db, "--json", "list"), onward("list", "--db", db, "--json")
    assert before.json == after.json == {"tasks": [], "next": None}
    assert onward("--db", "nonsense", "list", "--db", db).status == 0


def test_onward_db_is_the_default(onward: Run, db: str, monkeypatch):
    monkeypatch.setenv("ONWARD_DB", db)
    assert onward("migrate").status == 0
    assert db.removeprefix("sqlite:///") in onward("doctor").out
