"""check, replay, fork."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from onward import Onward
from tests.cli.conftest import ROOT, Run, controls, process

BEFORE = """
from onward import Onward
app = Onward()

@app.task
async def work(ctx, n: int = 1):
    await ctx.step(lambda: "a", name="a")
    await ctx.step(lambda: "b", name="b")
    if n:
        await ctx.sleep(1000)
    return n
"""
AFTER = BEFORE.replace('name="b"', 'name="x"').replace("await ctx.step", "print('hello'); await ctx.step", 1)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command with this code of the app, in a new module each time."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = iter(f"shop_of_{tmp_path.name}_{n}".replace("-", "_") for n in range(9))

    def write(code: str) -> str:
        name = next(names)
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        return f"{name}:app"

    yield write
    for name in [name for name in sys.modules if name.startswith("shop_of_")]:
        del sys.modules[name]


@pytest.fixture
def two(db: str) -> tuple[str, str]:
    """A task that sleeps and one that is done."""

    async def make() -> tuple[str, str]:
        scope = {"DB": db}
        exec(BEFORE.replace("Onward()", "Onward(DB)"), scope)
        app: Onward = scope["app"]  # type: ignore[assignment]
        async with app, app.worker():
            done = await app.submit("work", 0)
            await done.result(timeout=60)
            asleep = await app.submit("work", 1)
            while (await asleep.get()).reason != "asleep":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return asleep.id, done.id

    return asyncio.run(make())


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_says_fine_or_would_park(onward: Run, db: str, two, shop):
    output = onward("check", shop(BEFORE), "--db", db)
    assert output.status == 0
    assert output.out.split() == ["TASK", "FINE", "WOULD", "PARK", "work", "1", "0", "all", "1", "0"]
    output = onward("check", shop(AFTER), "--db", db)
    assert output.status == 1
    assert f"{two[0]} work would park: the code asks for step 'x' where the journal has 'b'" in output.out
    assert output.out.splitlines()[-1].split() == ["all", "0", "1"]
    assert "hello" in output.err, "the output of a handler is not part of the JSON"


def test_check_as_json(onward: Run, db: str, two, shop):
    output = onward("check", shop(AFTER), "--db", db, "--json")
    assert output.status == 1
    assert output.json["fine"] is False
    assert output.json["counts"] == {"fine": 0, "parks": 1, "raises": 0, "hangs": 0, "unknown": 0}
    (task,) = output.json["tasks"]
    assert (task["task_id"], task["verdict"], task["state"], task["reason"]) == (two[0], "parks", "waiting", "asleep")
    fine = onward("check", shop(BEFORE), "--db", db, "--json")
    assert (fine.status, fine.json["fine"], fine.json["tasks"][0]["verdict"]) == (0, True, "fine")


def test_check_of_handlers_that_are_missing_or_hang(onward: Run, db: str, two, shop):
    output = onward("check", shop(BEFORE.replace("def work", "def other")), "--db", db)
    assert output.status == 0
    assert f"{two[0]} work unknown here: this app has no handler 'work'" in output.out
    hangs = shop(
        BEFORE.replace("    await ctx.step", "    import asyncio; await asyncio.sleep(99)\n    await ctx.step", 1)
    )
    output = onward("check", hangs, "--db", db, "--patience", "0.2")
    assert output.status == 1
    assert "would hang: the handler's own code was not through after 0.2 s" in output.out


def test_check_with_nothing_to_check(onward: Run, db: str, shop, tmp_path):
    output = onward("check", shop(BEFORE), "--db", db)
    assert (output.status, output.err.endswith("\nno unfinished tasks\n")) == (0, True)
    assert not (tmp_path / "onward.db").exists()
    assert onward("check", "nonsense", "--db", db).status == 2


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_replay_reports_whether_the_journal_matches(onward: Run, db: str, two, shop):
    output = onward("replay", two[1], shop(BEFORE), "--db", db)
    assert (output.status, output.out) == (
        0,
        f"✓ the code agrees with task {two[1]} (work): it returns the same result\n",
    )
    output = onward("replay", two[1][-8:], shop(AFTER), "--db", db)
    assert output.status == 1
    assert "does not agree" in output.out
    assert "the code asks for step 'x' where the journal has 'b'" in output.out
    answer = onward("replay", two[0], shop(BEFORE), "--db", db, "--json").json
    assert (answer["agrees"], answer["state"]) == (True, "waiting")
    assert onward("replay", "zzzz", shop(BEFORE), "--db", db).status == 4
    assert onward("replay", two[0], shop("from onward import Onward\napp = Onward()\n"), "--db", db).status == 4


# ── fork ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fork_lists_repeated_steps_and_needs_a_confirmation(onward: Run, db: str, two):
    output = onward("fork", two[1], "--at", "3", "--db", db)
    assert output.status == 2
    assert "after record 3 the task did this" in output.err
    assert output.err.splitlines()[1].split() == ["4", "step", "b"]
    assert "say --yes" in output.sentence
    output = onward("fork", two[1], "--at", "3", "--db", db, "--json")
    assert (output.status, output.json) == (
        2,
        {"forked": None, "at": 3, "again": [{"seq": 4, "kind": "step", "step": "b"}]},
    )
    assert len(onward("list", "--db", db, "--json").json["tasks"]) == 2, "no task was started"
    output = onward("fork", two[1], "--at", "3", "--yes", "--db", db)
    assert output.status == 0
    assert output.out.endswith(f"(work) goes on after record 3 of {two[1]}\n")
    shown = onward("show", output.out.split()[1], "--db", db)
    assert f"forked  all above from {two[1]}, records 1 to 3" in shown.out
    assert "broke off" not in shown.out


def test_fork_starts_at_once_when_no_step_is_repeated(onward: Run, db: str, two):
    output = onward("fork", two[0], "--at", "4", "--db", db, "--json")
    assert output.status == 0
    assert output.json["forked"] == {"from": two[0], "at": 4, "again": []}
    assert output.json["state"] == "pending"


def test_fork_with_another_input(onward: Run, db: str, two, shop):
    output = onward("fork", two[1], "--input", "5", "--yes", "--db", db, "--json")
    assert (output.json["input"], output.json["forked"]["at"]) == (5, 1)
    assert onward("fork", two[1], "--input", "{", "--yes", "--db", db).status == 2
    wrong = onward("fork", two[1], "--input", '"x"', "--yes", "--app", shop(BEFORE), "--db", db)
    assert wrong.status == 2
    assert "does not fit" in wrong.sentence


def test_fork_shows_the_possible_records(onward: Run, db: str, two):
    output = onward("fork", two[1], "--db", db)
    assert output.status == 2
    assert [line.split() for line in output.out.splitlines()] == [
        ["AT", "AFTER"],
        ["1", "task.submitted"],
        ["3", "step.completed", "a"],
        ["4", "step.completed", "b"],
    ]
    assert "with --at N" in output.sentence
    assert [place["at"] for place in onward("fork", two[1], "--db", db, "--json").json["places"]] == [1, 2, 3, 4]
    output = onward("fork", two[1], "--at", "5", "--db", db)
    assert output.status == 2
    assert "cannot be forked after record 5: it had ended; the nearest" in output.sentence
    assert onward("fork", "zzzz", "--at", "1", "--db", db).status == 4
    assert not controls(output.err)


@pytest.mark.slow
def test_as_a_process(db: str, two, shop, tmp_path):
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}
    done = process("check", shop(AFTER), "--db", db, env=env)
    assert done.status == 1
    assert "would park" in done.out
