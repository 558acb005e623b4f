"""submit: input, options, --wait and --follow, and error messages."""

from __future__ import annotations

import io
import json
import re

import pytest

from onward import Onward
from onward.core.task import Task
from onward.errors import StoreUnavailable
from tests.cli.conftest import Run, controls


def test_prints_the_id_and_nothing_else(onward: Run, crew: str):
    output = onward("submit", "greet", '"you"', "--db", crew)
    assert output.status == 0
    assert len(output.out.strip()) == 26
    assert output.err == ""


def test_json_is_the_task(onward: Run, crew: str):
    task = onward(
        "submit", "greet", '"you"', "--db", crew, "--json", "--priority", "-3", "--label", "a=b=c", "--delay", "1h",
        "--queue", "other", "--deadline", "90",
    ).json  # fmt: skip
    assert (task["task"], task["input"], task["priority"], task["queue"]) == ("greet", "you", -3, "other")
    assert (task["state"], task["reason"], task["labels"]) == ("pending", "delayed", {"a": "b=c"})
    assert task["created_at"].endswith("Z")


def test_wait_prints_the_result_alone(onward: Run, crew: str):
    output = onward("submit", "greet", '"you"', "--wait", "--db", crew)
    assert (output.status, output.out) == (0, '"hello you"\n')
    assert output.err.startswith("task ")


@pytest.mark.parametrize(
    "words",
    [
        ["--wait", "greet", '"you"'],
        ["greet", "--wait", '"you"'],
        ["greet", "--key", "anywhere", "--wait", '"you"', "--label", "a=b"],
        ["greet", '"you"', "--wait", "20"],
        ["greet", '"you"', "--wait=20s"],
        ["--wait", "20", "greet", '"you"'],
    ],
)
def test_wait_stands_anywhere(words, onward: Run, crew: str):
    assert onward("submit", *words, "--db", crew).out == '"hello you"\n'


def test_wait_with_json_is_the_task_in_any_state(onward: Run, crew: str):
    done = onward("submit", "greet", '"you"', "--wait", "--db", crew, "--json")
    assert (done.status, done.json["state"], done.json["result"]) == (0, "completed", "hello you")
    failed = onward("submit", "fails", "--wait", "--db", crew, "--json")
    assert (failed.status, failed.json["state"], failed.json["error"]["type"]) == (1, "failed", "Fatal")
    late = onward("submit", "slow", "--wait", "0.1", "--db", crew, "--json")
    assert late.status == 3
    assert late.json["state"] in {"pending", "running"}  # a busy worker may not have claimed it yet
    onward("cancel", late.json["task_id"], "--db", crew)


def test_a_failed_task_is_exit_status_1(onward: Run, crew: str):
    output = onward("submit", "fails", "--wait", "--db", crew)
    assert output.status == 1
    assert "(fails) failed: nothing to be done" in output.sentence


def test_too_late_is_exit_status_3_and_the_task_goes_on(onward: Run, crew: str):
    output = onward("submit", "slow", "--wait", "0.1", "--db", crew)
    assert output.status == 3
    assert "goes on" in output.sentence
    task_id = output.err.split()[1]
    assert onward("show", task_id, "--db", crew, "--json").json["state"] == "running"
    assert onward("cancel", task_id, "--db", crew).status == 0


def test_a_parked_task_is_exit_status_5(onward: Run, crew: str, tmp_path):
    output = onward("submit", "changed", json.dumps(str(tmp_path / "flag")), "--wait", "20", "--db", crew)
    assert output.status == 5
    assert "is parked and waits for a person" in output.sentence
    task_id = output.err.split()[1]
    again = onward("follow", task_id, "--db", crew)
    assert again.status == 5
    assert "parked" in again.out
    document = onward("follow", task_id, "--db", crew, "--json")
    assert (document.status, document.lines[-1]["reason"]) == (5, "parked")
    assert re.search(r"for a person \([^)]*1 parked\)", onward("doctor", "--db", crew).out)
    onward("cancel", task_id, "--db", crew)


def test_follow_prints_the_timeline_and_the_result(onward: Run, crew: str):
    output = onward("submit", "flaky", "--follow", "--db", crew)
    assert output.status == 0
    assert "call, attempt 1 failed  ConnectionError: the API is away; again in" in output.out
    assert "call failed after 2 attempts  ConnectionError: the API is away" in output.out
    assert output.out.endswith('"done without it"\n')


def test_follow_with_json_is_a_line_for_each_record_and_then_the_task(onward: Run, crew: str):
    *records, task = onward("submit", "greet", '"you"', "--follow", "--json", "--db", crew).lines
    assert [record["seq"] for record in records] == [1, 2, 3]
    assert [record["kind"] for record in records] == ["task.submitted", "shift.started", "task.completed"]
    assert task["result"] == "hello you"


def test_follow_with_a_limit(onward: Run, crew: str):
    output = onward("submit", "slow", "--follow", "--wait", "0.2", "--db", crew)
    assert output.status == 3
    onward("cancel", output.err.split()[1], "--db", crew)


def test_follow_ends_with_a_cancelled_task(onward: Run, crew: str):
    task_id = onward("submit", "slow", "--db", crew).out.strip()
    onward("cancel", task_id, "--db", crew)
    output = onward("follow", task_id, "--db", crew)
    assert output.status == 1
    assert "was cancelled" in output.sentence


def test_input_from_stdin_and_file(onward: Run, crew: str, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf"stdin"')))
    assert onward("submit", "greet", "-", "--wait", "--db", crew).out == '"hello stdin"\n'
    (tmp_path / "in.json").write_text('{"name": "file"}')
    assert onward("submit", "greet", f"@{tmp_path / 'in.json'}", "--wait", "--db", crew).out == '"hello file"\n'


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("world", ["the input 'world' is not JSON", """write '"world"'"""]),
        ("{a: 1}", ["is not JSON", "single quotes"]),
        ("", ["is not JSON"]),
        ("@/nowhere/at/all", ["'/nowhere/at/all' cannot be read (No such file or directory)"]),
        ("[" * 100_000, ["nested too deeply"]),
        ("NaN", ["cannot be kept as JSON"]),
        ("\x1b[31m", ["is not JSON"]),
    ],
)
def test_an_invalid_input(given, parts, onward: Run, crew: str):
    output = onward("submit", "greet", given, "--db", crew)
    assert output.status == 2
    assert all(part in output.sentence for part in parts), output.sentence
    assert not controls(output.err)
    assert output.out == ""


def test_stdin_that_is_not_utf8(onward: Run, crew: str, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'"\xff"')))
    assert "stdin is not UTF-8 (byte 1)" in onward("submit", "greet", "-", "--db", crew).sentence


@pytest.mark.slow
def test_an_unknown_name_is_refused_without_the_option(onward: Run, crew: str):
    output = onward("submit", "gret", '"you"', "--db", crew)
    assert output.status == 4
    assert "no task is named 'gret'" in output.sentence
    output = onward("submit", "gret", '"you"', "--db", crew, "--anyway", "--json")
    assert (output.status, output.json["state"]) == (0, "pending")
    onward("cancel", output.json["task_id"], "--db", crew)


def test_with_an_app_the_input_is_checked_at_once(onward: Run, crew: str):
    output = onward("submit", "greet", '{"nme": "you"}', "--db", crew, "--app", "tests.cli.shop:app")
    assert output.status == 2
    assert "the input for 'name' does not fit" in output.sentence
    output = onward("submit", "greet", '"you"', "--db", crew, "--app", "tests.cli.shop:app", "--wait")
    assert output.out == '"hello you"\n'


def test_the_same_key_is_the_same_task_and_another_input_a_conflict(onward: Run, crew: str):
    first, second = (onward("submit", "greet", '"you"', "--key", "k", "--db", crew).out for _ in range(2))
    assert first == second
    output = onward("submit", "greet", '"me"', "--key", "k", "--db", crew)
    assert output.status == 2
    assert "the key 'k' belongs to task" in output.sentence


def test_a_full_queue_is_exit_status_6(onward: Run, db: str, monkeypatch):
    monkeypatch.setenv("ONWARD_QUEUE_LIMIT", "1")
    assert onward("submit", "x", "--anyway", "--db", db).status == 0
    output = onward("submit", "x", "--anyway", "--db", db, "--json")
    assert output.status == 6
    assert "queue 'default' is full" in output.sentence
    assert (output.json["error"]["code"], output.json["error"]["retry_after"]) == ("queue_full", 30.0)


def test_a_wrong_duration_is_wrong_usage(onward: Run, db: str):
    assert onward("submit", "x", "--anyway", "--delay", "soon", "--db", db).status == 2
    assert "must be a duration" in onward("submit", "x", "--anyway", "--deadline", "x", "--db", db).sentence


def test_waiting_without_a_worker_prints_a_notice(onward: Run, db: str, monkeypatch):
    monkeypatch.setattr("onward.cli.commands.follow.NOTICE_S", 0.05)
    output = onward("submit", "x", "--anyway", "--wait", "0.4", "--db", db)
    assert output.status == 3
    assert "no worker is running that does 'x'" in output.err


def test_notices_continue_after_a_store_error(onward: Run, db: str, monkeypatch):
    monkeypatch.setattr("onward.cli.commands.follow.NOTICE_S", 0.05)
    looks = 0

    async def failing_twice(_app: Onward, _task: Task) -> bool:
        nonlocal looks
        looks += 1
        if looks <= 2:
            raise StoreUnavailable("the database cannot be reached: connection refused")
        return False

    monkeypatch.setattr("onward.cli.commands.follow._has_worker", failing_twice)
    output = onward("submit", "x", "--anyway", "--wait", "1", "--db", db)
    assert output.status == 3
    notices = [line for line in output.err.splitlines() if not line.startswith(("task ", "onward: "))]
    assert notices == [
        "no notices about this task for now: the database cannot be reached: connection refused",
        "the database answers again",
        "no worker is running that does 'x': start one with onward worker MODULE:APP",
    ]
