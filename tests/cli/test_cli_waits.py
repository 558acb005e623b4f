"""list, show, follow and cancel of tasks that wait, that were undone, that have branches and children."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from onward import Onward
from onward.core import record as r
from onward.store.port.core import Batch
from tests.cli.conftest import Run, Waiting, journal, submitted
from tests.kit import begun, entry

WAITS = [
    ("approval", ["ship", '"bread"'], "approval: Ship bread?", "onward approve {short}.3"),
    ("question", ["choose"], "question: Which region?", "onward answer {short}.3 TEXT"),
    ("signal", ["listen"], "signal go", "onward signal {short} go"),
    ("in_doubt", ["charge"], "in doubt whether pay happened (TimeoutError: no", "onward resolve {short}"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("reason", "words", "text", "command"), WAITS, ids=lambda value: str(value)[:8])
def test_the_wait_of_a_task_and_its_command_are_shown(
    onward: Run, crew: str, waiting: Waiting, reason, words, text, command
):
    task_id = waiting(reason, *words)
    command = command.format(short=task_id[-8:])
    (row,) = [row for row in onward("list", "--db", crew).out.splitlines() if row.startswith(task_id)]
    assert text in row
    assert row.endswith(f"· {command}")
    (listed,) = [task for task in onward("list", "--json", "--db", crew).json["tasks"] if task["task_id"] == task_id]
    shown = onward("show", task_id, "--json", "--db", crew).json
    assert listed["waits_for"] == shown["waits_for"]
    (wait,) = shown["waits_for"]
    assert (wait["reason"], wait["command"]) == (reason, command)
    out = onward("show", task_id, "--db", crew).out
    assert re.search(rf"^  waits for  {re.escape(text)}.*  {re.escape(command)}$", out, re.MULTILINE)
    assert f"→ {command}" in out.splitlines()[-1], "the timeline ends with it"
    onward("cancel", task_id, "--db", crew)
    assert "waits for  " not in onward("show", task_id, "--db", crew).out.split("\n\n")[0]


def test_a_wait_for_a_child_names_it(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("child", "household", '"listen"')
    shown = onward("show", task_id, "--json", "--db", crew).json
    (wait,) = shown["waits_for"]
    child = onward("show", wait["child"], "--json", "--db", crew).json
    assert (child["task"], child["parent"]) == ("listen", task_id)
    (row,) = [row for row in onward("list", "--db", crew).out.splitlines() if row.startswith(task_id)]
    assert row.endswith(f"child listen {wait['child']} · onward show {wait['child'][-8:]}")
    assert f"waits for child listen  {wait['child']}" in onward("show", task_id, "--db", crew).out
    assert re.search(rf"^  parent +{task_id}$", onward("show", wait["child"], "--db", crew).out, re.MULTILINE)
    output = onward("cancel", task_id, "--db", crew)
    assert output.out == f"task {task_id} (household) is cancelled\n"
    assert onward("show", wait["child"], "--json", "--db", crew).json["state"] == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "words", "text", "command"),
    [wait for wait in WAITS if wait[0] != "signal"],  # any caller may send it: the task does not wait for a person
    ids=lambda value: str(value)[:8],
)
@pytest.mark.parametrize("way", ["follow", "submit --wait", "submit --follow"])
def test_waiting_for_a_person_is_exit_status_5(
    onward: Run, crew: str, waiting: Waiting, way, reason, words, text, command
):
    if way == "follow":
        task_id = waiting(reason, *words)
        output = onward("follow", task_id, "--db", crew)
    else:
        output = onward("submit", *words, way.split()[1], "--db", crew)
        task_id = output.err.split()[1]
    assert output.status == 5
    assert f"task {task_id} ({words[0]}) waits for a person: {text}" in output.sentence
    assert f"`{command.format(short=task_id[-8:])}`" in output.sentence
    last = onward("follow", task_id, "--json", "--db", crew)
    assert last.status == 5
    assert last.lines[-1]["waits_for"][0]["reason"] == reason
    onward("cancel", task_id, "--db", crew)


def test_follow_continues_after_an_answer(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "ship", '"bread"')
    assert onward("follow", task_id, "--db", crew).status == 5
    onward("approve", task_id, "--db", crew)
    output = onward("follow", task_id, "--db", crew)
    assert output.status == 0
    for part in ("!  asks for approval: Ship bread?  external_action", "·  approved by ", "✓  decided", "✓  completed"):
        assert part in output.out
    assert "broke off" not in output.out


def test_follow_does_not_stop_at_a_timer_or_a_signal(onward: Run, crew: str):
    output = onward("submit", "listen", "0.3", "--follow", "--db", crew)
    assert output.status == 0
    assert re.search(
        r"☾  waits for signal go  until \d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)  → onward signal \w{8} go", output.out
    )
    assert "↻  no signal go came in time" in output.out
    assert '"nobody"' in output.out


# ── sagas and branches ───────────────────────────────────────────────────────────────────────────────────────────────


def test_an_undone_saga_is_shown_step_by_step(onward: Run, crew: str):
    task_id = submitted(onward, crew, "trip")
    assert onward("follow", task_id, "--db", crew).status == 1
    out = onward("show", task_id, "--db", crew).out
    facts, story = out.split("\n\n")
    assert "undone      [0] car, flight" in facts
    assert "not undone  hotel" in facts
    lines = [re.sub(r" {2,}\d+\.\d\d s.*", "", line[13:]) for line in story.splitlines()]
    assert lines[:1] == ["·  submitted"]
    assert sorted(lines[2:8]) == sorted(
        [
            "·  trip begun",
            "✓    flight",
            "✓    hotel",
            "✓      [0] car",
            "✓      [1] boat",
            "·    version insured marked",
        ]
    )
    assert lines[8:] == [
        "✓    insure",
        "✗  trip given up  Fatal: no visa",
        "✓      undo car",
        "✗      undo hotel failed  Fatal: the hotel keeps the money",
        "✓      undo flight",
        "✗  trip not wholly undone  undone: [0] car, flight; NOT undone: hotel",
        "✗  failed  Fatal: no visa",
    ]
    shown = onward("show", task_id, "--json", "--db", crew).json
    assert shown["undone"] == shown["error"]["undone"] == ["[trip/gather.0]car", "[trip]flight"]
    assert shown["not_undone"] == ["[trip]hotel"]
    assert shown["in_doubt"] == []


def test_a_cancelled_saga_is_undone_first(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("signal", "trip", '"waits"')
    output = onward("cancel", task_id, "--db", crew)
    assert output.status == 0
    assert f"task {task_id} (trip) is " in output.out
    ended = onward("follow", task_id, "--db", crew)
    assert ended.status == 1
    assert "cancel requested  what it did is undone first" in ended.out
    assert "cancelled  undone: [0] car, flight; NOT undone: hotel" in ended.out
    assert "broke off" not in ended.out
    shown = onward("show", task_id, "--json", "--db", crew).json
    assert (shown["undone"], shown["not_undone"]) == (["[trip/gather.0]car", "[trip]flight"], ["[trip]hotel"])
    assert "not undone  hotel" in onward("show", task_id, "--db", crew).out


def test_an_effect_in_doubt_is_shown_at_the_end(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("in_doubt", "charge")
    onward("cancel", task_id, "--db", crew)
    assert "in doubt  pay (unknown)" in onward("show", task_id, "--db", crew).out
    assert onward("show", task_id, "--json", "--db", crew).json["in_doubt"] == ["pay"]


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_cancel_names_unfinished_steps(onward: Run, crew: str):
    task_id = submitted(onward, crew, "slow")
    wait_for_step(onward, crew, task_id)
    output = onward("cancel", task_id, "--json", "--db", crew).json
    assert (output["state"], output["in_flight"]) == ("cancelled", 1)
    again = submitted(onward, crew, "slow")
    wait_for_step(onward, crew, again)
    assert onward("cancel", again, "--db", crew).out == (
        f"task {again} (slow) is cancelled (1 task of its tree was in the middle of a step)\n"
    )


def wait_for_step(onward: Run, url: str, task_id: str) -> None:
    end = time.monotonic() + 15
    while "step.completed" not in [record["kind"] for record in journal(onward, url, task_id)]:
        assert time.monotonic() < end


def test_a_task_that_undoes_is_cancelling(onward: Run, db: str):
    """Without a worker to undo it, the output says so."""

    async def plant() -> str:
        async with Onward(db) as app:
            task = await begun(app.store)
            await app.store.save("w1", Batch([entry(task, kind=r.SAGA, key="saga", data=b"{}")]))
            return task.id

    task_id = asyncio.run(plant())
    output = onward("cancel", task_id, "--db", db)
    assert output.out.startswith(f"task {task_id} (work) is being cancelled; its steps are undone first: onward follow")
    assert output.out.endswith("(1 task of its tree was in the middle of a step)\n")
    (task,) = onward("list", "--state", "pending", "--json", "--db", db).json["tasks"]
    assert (task["task_id"], task["reason"]) == (task_id, "cancelling")
    assert "cancelling: what it did is being undone" in onward("list", "--db", db).out


@pytest.mark.slow
def test_follow_shows_the_question_of_a_child(onward: Run, crew: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onward.cli.commands.follow.NOTICE_S", 0.05)
    for way in (["--wait", "2"], ["--follow", "--wait", "2"]):
        output = onward("submit", "household", '"choose"', *way, "--db", crew)
        assert output.status == 3, "the task itself waits for its child, and may go on any time"
        assert re.search(
            r"\(choose\) waits for a person: question: Which region\?: `onward answer \w{8}\.\d+ TEXT`", output.err
        )
        assert output.err.count("Which region?") == 1, "once"
        onward(
            "cancel",
            onward("list", "--task", "household", "--limit", "1", "--json", "--db", crew).json["tasks"][0]["task_id"],
            "--db",
            crew,
        )
