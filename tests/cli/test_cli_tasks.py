"""list, show, follow, cancel, resume, prioritize; shortened ids; hostile text."""

from __future__ import annotations

import re

import pytest

from tests.cli import shop
from tests.cli.conftest import Run, controls, submitted
from tests.kit import not_memory


@pytest.fixture
def three(onward: Run, db: str) -> list[str]:
    """Three tasks without a worker, oldest first."""
    return [submitted(onward, db, "x", str(number), "--anyway", "--queue", f"q{number}") for number in range(3)]


# ── list ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_is_a_table_newest_first(onward: Run, db: str, three):
    header, *rows = onward("list", "--db", db).out.splitlines()
    assert header.split() == ["ID", "STATE", "TASK", "QUEUE", "AGE"]
    assert [row.split()[0] for row in rows] == three[::-1]
    assert rows[0].split()[1:4] == ["pending", "x", "q2"]
    assert rows[0].endswith("no worker does x in queue q2"), "why it waits, not that it does"


def test_list_continues_from_a_cursor(onward: Run, db: str, three):
    first = onward("list", "--limit", "2", "--db", db, "--json").json
    assert [task["task_id"] for task in first["tasks"]] == three[:0:-1]
    second = onward("list", "--cursor", first["next"], "--db", db, "--json").json
    assert [task["task_id"] for task in second["tasks"]] == three[:1]
    assert second["next"] is None
    assert f"onward list --cursor {first['next']}" in onward("list", "--limit", "2", "--db", db).err


def test_list_filters(onward: Run, db: str, three):
    def ids(*words: str) -> list[str]:
        return [task["task_id"] for task in onward("list", *words, "--db", db, "--json").json["tasks"]]

    onward("cancel", three[0], "--db", db)
    assert ids("--state", "cancelled") == [three[0]]
    assert ids("--queue", "q1") == [three[1]]
    assert ids("--task", "y") == []
    output = onward("list", "--state", "asleep", "--db", db)
    assert output.status == 2
    assert output.sentence.startswith("onward: state is 'asleep', but must be one of pending, running")


def test_reading_does_not_create_a_database(onward: Run, db: str, tmp_path):
    first, second = onward("list", "--db", db).err.splitlines()
    assert re.fullmatch(r"onward: there is no SQLite file .*onward\.db yet, so there are no tasks; .*", first)
    assert second == "no tasks"
    assert onward("show", "abc", "--db", db).status == 4
    assert onward("doctor", "--db", db).status == 0
    assert list(tmp_path.iterdir()) == []


# ── show ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_show_prints_facts_and_timeline(onward: Run, crew: str):
    task_id = submitted(onward, crew, "greet", '"you"', "--label", "team=a", "--key", "shown", "--wait")
    task_id = onward("list", "--task", "greet", "--limit", "1", "--json", "--db", crew).json["tasks"][0]["task_id"]
    out = onward("show", task_id, "--db", crew).out
    assert out.startswith("greet  completed · took ")
    for part in (task_id, '"you"', '"hello you"', "team=a", "shown", "priority 0", "✓  completed  after"):
        assert part in out
    document = onward("show", task_id, "--db", crew, "--json").json
    assert document["result"] == "hello you"
    assert [record["kind"] for record in document["journal"]][-1] == "task.completed"


def test_show_of_a_failed_task_is_still_exit_status_0(onward: Run, crew: str):
    onward("submit", "fails", "--wait", "--db", crew)
    (task,) = onward("list", "--state", "failed", "--task", "fails", "--limit", "1", "--json", "--db", crew).json[
        "tasks"
    ]
    output = onward("show", task["task_id"], "--db", crew)
    assert output.status == 0
    assert "✗  failed  Fatal: nothing to be done" in output.out


def test_hostile_text_is_escaped(onward: Run, crew: str):
    output = onward("submit", "hostile", "--follow", "--db", crew)
    assert output.status == 0
    task_id = output.err.split()[1]
    answers = [output, onward("list", "--limit", "3", "--db", crew), onward("show", task_id, "--db", crew)]
    answers += [onward(*words, "--json", "--db", crew) for words in (["list"], ["show", task_id], ["follow", task_id])]
    for answer in answers:
        assert answer.status == 0
        assert not controls(answer.out + answer.err)
    assert "\\u001b[31mred" in answers[2].out
    assert "[bold]x[/bold]" in answers[2].out
    assert "a\\u202estep" in answers[2].out
    assert answers[4].json["result"] == shop.HOSTILE


def test_hostile_names_and_labels(onward: Run, db: str):
    output = onward("submit", "x", "--anyway", "--db", db, "--label", f"k={shop.HOSTILE}")
    shown = onward("show", output.out.strip(), "--db", db)
    assert "\\x1b[31mred" in shown.out
    assert not controls(shown.out)
    assert onward("submit", shop.HOSTILE, "--anyway", "--db", db).status == 2
    unknown = onward("show", shop.HOSTILE, "--db", db)
    assert unknown.status == 4
    assert not controls(unknown.err)


# ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_cancel(onward: Run, db: str, three):
    output = onward("cancel", three[0], "--db", db)
    assert (output.status, output.out) == (0, f"task {three[0]} (x) is cancelled\n")
    assert onward("cancel", three[0], "--db", db, "--json").json["state"] == "cancelled"


def test_a_verb_that_the_state_forbids_is_wrong_usage(onward: Run, crew: str):
    task_id = onward("submit", "greet", '"you"', "--wait", "--json", "--db", crew).json["task_id"]
    output = onward("cancel", task_id, "--db", crew)
    assert output.status == 2
    assert "is completed and cannot be cancelled" in output.sentence
    assert onward("prioritize", task_id, "1", "--db", crew).status == 2
    assert onward("resume", task_id, "--db", crew).out == f"task {task_id} (greet) is completed\n"


def test_resume_continues_a_failed_task(onward: Run, crew: str):
    task_id = onward("submit", "fails", "--wait", "--json", "--db", crew).json["task_id"]
    assert onward("resume", task_id, "--db", crew).out == f"task {task_id} (fails) goes on\n"
    assert onward("follow", task_id, "--db", crew).status == 1
    kinds = [record["kind"] for record in onward("show", task_id, "--db", crew, "--json").json["journal"]]
    assert kinds.count("task.failed") == 2
    assert "task.resumed" in kinds


def test_resume_of_a_task_that_waits_is_refused(onward: Run, db: str, three):
    output = onward("resume", three[0], "--db", db)
    assert output.status == 2
    assert "it goes on by itself" in output.sentence


def test_pause_and_resume(onward: Run, db: str, three):
    output = onward("pause", three[0], "--db", db)
    assert (output.status, output.out) == (0, f"task {three[0]} (x) is paused until: onward resume {three[0][-8:]}\n")
    task = onward("show", three[0], "--db", db, "--json").json
    assert (task["state"], task["reason"]) == ("waiting", "paused")
    assert onward("resume", three[0], "--db", db).out == f"task {three[0]} (x) goes on\n"
    assert onward("show", three[0], "--db", db, "--json").json["state"] == "pending"
    onward("cancel", three[0], "--db", db)
    output = onward("pause", three[0], "--db", db)
    assert output.status == 2
    assert "cannot be paused" in output.sentence


def test_prioritize(onward: Run, db: str, three):
    assert onward("prioritize", three[0], "-7", "--db", db).out == f"task {three[0]} (x) has priority -7\n"
    assert onward("prioritize", three[0], "8", "--db", db, "--json").json["priority"] == 8
    assert onward("prioritize", three[0], "10000000", "--db", db).status == 2


@pytest.mark.parametrize("words", [["show"], ["follow"], ["cancel"], ["pause"], ["resume"], ["prioritize", "1"]])
@pytest.mark.parametrize("given", ["0" * 26, "zzzz", "no-such-id", "é", ""])
def test_an_unknown_id_is_exit_status_4(words, given, onward: Run, db: str, three):
    command, *more = words
    output = onward(command, given, *more, "--db", db)
    assert output.status == 4
    assert "`onward list` shows the ids" in output.sentence
    error = onward(command, given, *more, "--db", db, "--json").json["error"]
    assert error["code"] == "task_not_found"


# ── shortened ids ────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
def test_an_id_may_be_shortened_at_both_ends(onward: Run, url: str):
    ids = [submitted(onward, url, "x", "--anyway") for _ in range(3)]
    shown = onward("show", ids[1], "--db", url, "--json").json
    for given in (ids[1][-8:], ids[1][-8:].upper(), ids[1][:-1], f" {ids[1]} "):
        assert onward("show", given, "--db", url, "--json").json == shown
    common = ids[0][:4]
    output = onward("cancel", common, "--db", url)
    assert output.status == 2
    assert f"{common!r} fits more than one task" in output.sentence
