"""approvals, approve, deny, questions, answer, signal, resolve: with a worker."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
from typing import Any

import pytest

from tests.cli import shop
from tests.cli.conftest import Output, Run, Waiting, controls, journal


def result(onward: Run, url: str, task_id: str) -> Any:
    output = onward("follow", task_id, "--json", "--db", url)
    assert output.status == 0, output
    return output.lines[-1]["result"]


def asks(output: Output, task_id: str) -> list[dict[str, Any]]:
    listed, _ = output.json.values()
    return [ask for ask in listed if ask["task_id"] == task_id]


# ── approvals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_approval_is_listed_and_approved(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "ship", '"bread"')
    (ask,) = asks(onward("approvals", "--json", "--db", crew), task_id)
    assert ask | {"asked_at": None} == {
        "id": f"{task_id}.3", "kind": "approval", "task_id": task_id, "task": "ship", "text": "Ship bread?",
        "risk": "external_action", "data": {"to": "eu"}, "choices": [], "asked_at": None, "expires_at": None,
        "default": None, "tool": None, "arguments": None, "hash": ask["hash"], "digest": ask["digest"],
        "rule": None, "votes": [], "description": None, "effect": None, "left_out": [],
    }  # fmt: skip
    listed = onward("approvals", "--db", crew)
    (shown,) = [text for text in listed.out.split("\n\n") if task_id in text]
    assert shown.splitlines()[0] == "Ship bread?"
    assert dict(line.split(None, 1) for line in shown.splitlines()[1:]) == {
        "id": f"{task_id}.3", "task": "ship", "asked": "0 s ago", "risk": "external_action", "data": '{"to": "eu"}',
        "hash": ask["hash"], "digest": ask["digest"],
    } | ({"asked": "1 s ago"} if "1 s ago" in shown else {})  # fmt: skip
    assert "onward approve ID" in listed.err
    assert not asks(onward("questions", "--json", "--db", crew), task_id)

    output = onward("approve", f"{task_id}.3", "--reason", "it is fresh", "--db", crew)
    assert (output.status, output.out) == (0, f"approved: Ship bread?  task {task_id} (ship)\n")
    decided = result(onward, crew, task_id)
    assert (decided["decision"], decided["reason"]) == ("approve", "it is fresh")
    assert not asks(onward("approvals", "--json", "--db", crew), task_id)


def test_a_large_approval_is_listed_without_its_data_and_shown_in_full_by_its_id(
    onward: Run, crew: str, waiting: Waiting
):
    task_id = waiting("approval", "print_book", "5000000")
    (ask,) = asks(onward("approvals", "--json", "--db", crew), task_id)
    assert (ask["text"], ask["data"], ask["digest"]) == ("Print it?", None, None)
    (shown,) = [text for text in onward("approvals", "--db", crew).out.split("\n\n") if task_id in text]
    assert f"`onward approvals {task_id}.3` shows all" in shown
    assert "digest " not in shown
    whole = onward("approvals", f"{task_id}.3", "--json", "--db", crew).json
    assert (len(whole["data"]), whole["left_out"]) == (5_000_000, [])
    output = onward("approve", f"{task_id}.3", "--digest", whole["digest"], "--db", crew)
    assert (output.status, output.out) == (0, f"approved: Print it?  task {task_id} (print_book)\n")


def test_approvals_are_listed_page_by_page(onward: Run, crew: str, waiting: Waiting):
    ids = [waiting("approval", "ship", '"bread"') for _ in range(3)]
    seen, cursor = list[str](), []
    while True:
        page = onward("approvals", "--limit", "2", *cursor, "--json", "--db", crew).json
        assert len(page["approvals"]) <= 2
        seen += [ask["task_id"] for ask in page["approvals"]]
        if page["next"] is None:
            break
        cursor = ["--cursor", page["next"]]
    assert [task_id for task_id in seen if task_id in ids] == ids
    first = onward("approvals", "--limit", "1", "--db", crew)
    assert f"more: onward approvals --cursor {seen[0]}.3" in first.err
    assert onward("approvals", "--cursor", "nonsense", "--db", crew).status == 2
    for task_id in ids:
        assert onward("deny", f"{task_id}.3", "--db", crew).status == 0


def test_deny_with_a_reason(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "ship", '"bread"')
    output = onward("deny", f"{task_id}.3", "--reason", "too old", "--json", "--db", crew)
    assert output.status == 0
    assert (output.json["decision"], output.json["reason"], output.json["id"]) == ("deny", "too old", f"{task_id}.3")
    ended = onward("follow", task_id, "--db", crew)
    assert ended.status == 1
    assert "denied: Ship bread? (too old)" in ended.sentence


@pytest.mark.slow
def test_the_id_of_an_approval_may_be_shortened(onward: Run, crew: str, waiting: Waiting):
    for shorten in (
        lambda i: f"{i[-8:]}.3",
        lambda i: f"{i[-8:].upper()}.3",
        lambda i: i[-8:],
        lambda i: f"{i[:-1]}.3",
    ):
        task_id = waiting("approval", "ship", '"bread"')
        assert onward("approve", shorten(task_id), "--db", crew).status == 0
        assert result(onward, crew, task_id)["decision"] == "approve"


def test_the_only_one_is_approved_without_an_id_after_it_was_shown(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "ship", '"bread"')
    assert len(onward("approvals", "--json", "--db", crew).json["approvals"]) == 1
    output = onward("approve", "--db", crew)
    assert output.status == 0
    shown, _, done = output.out.rpartition("approved: ")
    assert shown.startswith("Ship bread?\n")
    assert all(part in shown for part in (f"{task_id}.3", "external_action", '{"to": "eu"}'))
    assert done == f"Ship bread?  task {task_id} (ship)\n"
    assert result(onward, crew, task_id)["decision"] == "approve"


def test_an_unknown_id_is_answered_with_the_list_of_approvals(onward: Run, crew: str):
    for unknown in ("nothing", "nothing.3"):
        output = onward("approve", unknown, "--db", crew)
        assert output.status == 4
        assert f"there is no approval {unknown!r}" in output.sentence
        assert "`onward approvals` lists" in output.sentence


def test_without_an_id_none_of_several_is_chosen(onward: Run, crew: str, waiting: Waiting):
    output = onward("approve", "--db", crew)
    assert output.status == 4
    assert "no approval is open; `onward approvals`" in output.sentence
    ids = [waiting("approval", "ship", f'"{what}"') for what in ("bread", "wine")]
    for command in ("approve", "deny"):
        output = onward(command, "--db", crew)
        assert output.status == 2
        assert "2 approvals are open, say which" in output.sentence
        assert f"onward {command} {ids[1][-8:]}.3 (Ship wine?)" in output.sentence
    assert onward("deny", "--json", "--db", crew).json["error"]["code"] == "usage"
    for task_id in ids:
        onward("cancel", task_id, "--db", crew)


def test_a_second_decision_is_refused_with_the_first_one(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "ship", '"bread"')
    assert onward("approve", f"{task_id}.3", "--db", crew).status == 0
    for command in ("deny", "approve"):
        output = onward(command, f"{task_id}.3", "--db", crew)
        assert output.status == 2
        assert f"approval {task_id}.3 is decided already: approve" in output.sentence
    assert onward("deny", f"{task_id}.3", "--json", "--db", crew).json["error"]["code"] == "already_decided"
    assert result(onward, crew, task_id)["decision"] == "approve"


def test_an_approval_of_a_task_that_has_ended(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "ship", '"bread"')
    onward("cancel", task_id, "--db", crew)
    output = onward("approve", f"{task_id}.3", "--db", crew)
    assert output.status == 2
    assert "is cancelled and cannot be told anything" in output.sentence
    assert onward("approve", task_id, "--db", crew).status == 4


# ── the tool calls of an agent ───────────────────────────────────────────────────────────────────────────────────────


def test_a_tool_call_is_shown_whole_and_approved_with_other_arguments(onward: Run, crew: str, waiting: Waiting):
    path = "/srv/" + "x" * 500
    task_id = waiting("approval", "janitor", json.dumps(path))
    (ask,) = asks(onward("approvals", "--json", "--db", crew), task_id)
    assert (ask["tool"], ask["arguments"], ask["risk"], ask["default"]) == (
        "erase",
        {"path": path},
        "write_local",
        "deny",
    )
    shown = onward("approvals", "--db", crew).out
    parts = (
        json.dumps({"path": path}),
        "erase",
        "Erase a file.",
        "it must not happen twice",
        "denied then",
        ask["hash"],
    )
    for part in parts:
        assert part in shown

    output = onward("approve", ask["id"], "--arguments", '["/tmp"]', "--db", crew)
    assert (output.status, "--arguments is a JSON object" in output.sentence) == (2, True)
    output = onward("approve", ask["id"], "--arguments", '{"path": 7}', "--app", "tests.cli.shop:app", "--db", crew)
    assert (output.status, "tool 'erase': the input for 'path' does not fit" in output.sentence) == (2, True), output
    whole = onward("approvals", ask["id"], "--db", crew).out
    assert all(part in whole for part in (json.dumps({"path": path}), ask["digest"]))
    assert onward("approvals", ask["id"], "--json", "--db", crew).json == ask | {"turn": 1, "reason": ""}
    for option, wrong in (("--hash", "0" * 24), ("--digest", "0" * 64), ("--digest", ask["hash"])):
        output = onward("approve", ask["id"], option, wrong, "--json", "--db", crew)
        assert (output.status, output.json["error"]["code"]) == (2, "stale_decision")
    assert [listed["id"] for listed in asks(onward("approvals", "--json", "--db", crew), task_id)] == [ask["id"]]
    output = onward(
        "approve",
        ask["id"],
        "--arguments",
        '{"path": "/tmp"}',
        "--digest",
        ask["digest"],
        "--reason",
        "less",
        "--db",
        crew,
    )
    assert (output.status, output.out) == (0, f'approved: erase with {{"path": "/tmp"}}  task {task_id} (janitor)\n')
    note = '(a person approved this with other arguments, {"path": "/tmp"}, because: less)'
    assert result(onward, crew, task_id) == f"{note}\n/tmp is gone"
    assert 'with {"path": "/tmp"}, less' in onward("show", task_id, "--db", crew).out


def test_a_decision_is_recorded_under_the_account_and_not_under_a_variable(
    onward: Run, crew: str, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "the-boss")
    task_id = waiting("approval", "ship", '"bread"')
    (ask,) = asks(onward("approvals", "--json", "--db", crew), task_id)
    assert onward("deny", ask["id"], "--digest", ask["digest"], "--db", crew).status == 0
    entry = onward("audit", "--limit", "1", "--db", crew, "--json").json["entries"][0]
    account = f"cli:{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"
    assert (entry["name"], entry["key"], entry["action"], entry["subject"]) == (account, None, "deny", ask["id"])
    assert (entry["data"]["digest"], entry["data"]["named"]) == (ask["digest"], True)
    records = json.dumps(onward("show", task_id, "--json", "--db", crew).json)
    assert "the-boss" not in records


def test_doctor_counts_open_approvals(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "janitor", '"/a"')
    output = onward("doctor", "--db", crew)
    assert (output.status, bool(re.search(r"waits? for a person \(\d+ approval", output.out))) == (0, True), output.out
    assert onward("cancel", task_id, "--db", crew).status == 0


def test_always_decides_all_open_calls_of_the_tool(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "janitor", '"/a|/b|/c"')
    first, second, third = asks(onward("approvals", "--json", "--db", crew), task_id)
    assert onward("deny", second["id"], "--reason", "not b", "--db", crew).status == 0
    output = onward("approve", first["id"], "--always", "--db", crew)
    assert (output.status, "and erase always in this task" in output.out) == (0, True)
    assert result(onward, crew, task_id) == "/a is gone; denied: not b; /c is gone"
    output = onward("deny", third["id"], "--db", crew)
    assert (output.status, "is decided already: approve" in output.sentence) == (2, True)


def test_hostile_arguments_are_escaped(onward: Run, crew: str, waiting: Waiting):
    path = f"{shop.HOSTILE}\nid  nobody.1"
    task_id = waiting("approval", "janitor", json.dumps(path))
    (ask,) = asks(onward("approvals", "--json", "--db", crew), task_id)
    assert ask["arguments"] == {"path": path}, "JSON has the exact text"
    changed = ("approve", "--arguments", json.dumps({"path": path + "!"}))
    for words in (["approvals"], ["approvals", "--json"], changed, ["show", task_id]):
        output = onward(*words, "--db", crew)
        assert output.status == 0, output
        assert not controls(output.out + output.err), words
        assert "\nid  nobody.1" not in output.out, "no line of it looks like ours"
    assert "nobody.1" in result(onward, crew, task_id)


# ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["eu-west"], "eu-west"),
        (["42"], "42"),
        (["--value", "42"], 42),
        (["--value", '{"to": ["eu"]}'], {"to": ["eu"]}),
    ],
)
def test_a_question_is_listed_and_answered(onward: Run, crew: str, waiting: Waiting, words, value):
    task_id = waiting("question", "choose")
    (ask,) = asks(onward("questions", "--json", "--db", crew), task_id)
    assert (ask["text"], ask["kind"], ask["id"]) == ("Which region?", "question", f"{task_id}.3")
    output = onward("answer", ask["id"], *words, "--db", crew)
    assert output.status == 0
    assert output.out == f"answered: Which region? {json.dumps(value)}  task {task_id} (choose)\n"
    assert result(onward, crew, task_id) == value
    again = onward("answer", ask["id"], "mars", "--db", crew)
    assert again.status == 2
    assert "is decided already" in again.sentence


def test_choices_are_listed_and_held_to(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("question", "choose", '{"choices": ["eu", "us"]}')
    assert "Which region? (eu, us)" in onward("questions", "--db", crew).out
    output = onward("answer", task_id, "mars", "--db", crew)
    assert output.status == 2
    assert "takes one of eu, us, and not 'mars'" in output.sentence
    document = onward("answer", task_id[-8:], "us", "--json", "--db", crew).json
    assert (document["answer"], document["choices"]) == ("us", ["eu", "us"])
    assert result(onward, crew, task_id) == "us"


def test_an_option_may_stand_before_the_last_word(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("question", "choose")
    assert onward("answer", task_id, "--db", crew, "eu").status == 0
    assert result(onward, crew, task_id) == "eu"


def test_an_approval_is_no_question(onward: Run, crew: str, waiting: Waiting):
    choosing, shipping = waiting("question", "choose"), waiting("approval", "ship", '"bread"')
    output = onward("approve", f"{choosing}.3", "--db", crew)
    assert output.status == 2
    assert f"{choosing}.3 is a question; `onward answer`" in output.sentence
    output = onward("answer", f"{shipping}.3", "yes", "--db", crew)
    assert output.status == 2
    assert f"{shipping}.3 is an approval; `onward approve`" in output.sentence
    for task_id in (choosing, shipping):
        onward("cancel", task_id, "--db", crew)


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_signal_wakes_the_task_that_waits_for_it(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("signal", "listen")
    output = onward("signal", task_id[-8:], "go", '{"to": "eu"}', "--db", crew)
    assert (output.status, output.out) == (0, f"sent: signal go  task {task_id} (listen)\n")
    assert result(onward, crew, task_id) == {"to": "eu"}


def test_a_signal_without_a_value_and_with_a_key(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("signal", "listen")
    for _ in range(2):
        document = onward("signal", task_id, "other", "--key", "k1", "--json", "--db", crew).json
        assert (document["task_id"], document["signal"], document["value"]) == (task_id, "other", None)
    onward("signal", task_id, "go", "--key", "k2", "--db", crew)
    assert result(onward, crew, task_id) is None
    received = [r for r in journal(onward, crew, task_id) if r["kind"] == "message.received"]
    assert [r["data"]["name"] for r in received] == ["other", "go"], "the same key is the same signal"


def test_a_signal_to_a_task_that_has_ended(onward: Run, crew: str):
    task_id = onward("submit", "greet", '"you"', "--wait", "--json", "--db", crew).json["task_id"]
    output = onward("signal", task_id, "go", "--db", crew)
    assert output.status == 2
    assert "is completed and cannot be told anything" in output.sentence
    assert onward("signal", task_id, "go", "nonsense", "--db", crew).status == 2


# ── effects in doubt ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_resolve_without_a_verdict_lists_the_effects_and_the_words(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("in_doubt", "charge")
    output = onward("resolve", task_id, "--db", crew)
    assert output.status == 0
    assert "pay  TimeoutError: no answer from the bank" in output.out
    for verdict in ("happened", "not_happened", "nothing_happened", "undo"):
        assert f"onward resolve {task_id[-8:]} {verdict} " in output.out
    document = onward("resolve", task_id, "--json", "--db", crew).json
    assert [(doubt["step"], doubt["reason"]) for doubt in document["doubts"]] == [
        ("pay", "TimeoutError: no answer from the bank")
    ]
    assert [*document["verdicts"]] == ["happened", "not_happened", "nothing_happened", "undo"]
    onward("cancel", task_id, "--db", crew)
    over = onward("resolve", task_id, "--db", crew)
    assert "onward resolve" not in over.out
    assert "is cancelled, so its effects cannot be resolved" in over.err


def test_resolve_as_happened(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("in_doubt", "charge")
    output = onward("resolve", task_id[-8:], "happened", "--result", '"receipt 7"', "--db", crew)
    assert (output.status, output.out) == (0, f"happened: pay  task {task_id} (charge)\n")
    assert result(onward, crew, task_id) == "receipt 7"


def test_resolve_as_not_happened_repeats_the_step(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("in_doubt", "charge")
    document = onward("resolve", task_id, "not-happened", "--json", "--db", crew).json
    assert (document["verdict"], document["step"], document["task_id"]) == ("not_happened", "pay", task_id)
    output = onward("follow", task_id, "--db", crew)
    assert output.status == 5
    assert output.out.count("in doubt: did pay happen?") == 2, "the bank is still away"
    assert "a person says of pay: not_happened" in output.out
    onward("cancel", task_id, "--db", crew)


def test_resolve_as_undone(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("in_doubt", "charge")
    assert onward("resolve", task_id, "undo", "--step", "pay", "--db", crew).status == 0
    output = onward("follow", task_id, "--db", crew)
    assert output.status == 1
    assert "a person had it undone" in output.sentence


def test_an_effect_in_a_branch_is_named_with_or_without_it(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("in_doubt", "charge", "true")
    output = onward("resolve", task_id, "happened", "--step", "nothing", "--db", crew)
    assert output.status == 2
    assert "no effect 'nothing' of task" in output.sentence
    assert "--step '[gather." in output.sentence
    (doubt,) = onward("resolve", task_id, "--json", "--db", crew).json["doubts"]
    short = doubt["step"].replace("gather.", "").replace("]", "] ")
    assert onward("resolve", task_id, "happened", "--step", short, "--db", crew).status == 0
    onward("cancel", task_id, "--db", crew)


def test_nothing_is_in_doubt(onward: Run, crew: str):
    task_id = onward("submit", "greet", '"you"', "--wait", "--json", "--db", crew).json["task_id"]
    listed = onward("resolve", task_id, "--db", crew)
    assert (listed.status, listed.out) == (0, "")
    assert "no effect of task" in listed.err
    output = onward("resolve", task_id, "happened", "--db", crew)
    assert output.status == 2
    assert "no effect of it is in doubt" in output.sentence


# ── wrong use ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_open(onward: Run, db: str, tmp_path):
    assert onward("approvals", "--db", db).err.endswith("\nno approvals are open\n")
    assert onward("questions", "--db", db).err.endswith("\nno questions are open\n")
    assert onward("approvals", "--json", "--db", db).json == {"approvals": [], "next": None}
    assert onward("questions", "--json", "--db", db).json == {"questions": [], "next": None}
    assert list(tmp_path.iterdir()) == [], "looking does not make a database"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["answer", "x"], "give the answer as TEXT, or as JSON with --value"),
        (["answer", "x", "eu", "--value", "1"], "and not both"),
        (["answer", "x", "--value", "{"], "is not JSON"),
        (["signal", "x", "go", "nonsense"], "is not JSON"),
        (["resolve", "x", "perhaps"], "'perhaps' is no verdict: say happened, not_happened, nothing_happened or undo"),
        (["resolve", "x", "undo", "--result", "1"], "--result is the result of an effect that happened"),
        (["resolve", "x", "--result", "1"], "--result is the result of an effect that happened"),
        (["signal", "x"], "the following arguments are required: NAME"),
        (["answer"], "the following arguments are required: QUESTION"),
        (["resolve"], "the following arguments are required: ID"),
        (["approve", "x", "y"], "unrecognized arguments: y"),
    ],
)
def test_wrong_usage_is_one_sentence(words, part, onward: Run, db: str):
    output = onward(*words, "--db", db)
    assert output.status == 2
    assert part in output.sentence


@pytest.mark.parametrize(
    "words", [["approve"], ["deny"], ["answer", "eu"], ["signal", "go"], ["resolve"], ["resolve", "happened"]]
)
@pytest.mark.parametrize("given", ["0" * 26, f"{'0' * 26}.3", "zzzz.3", "zzzz", "zz-z.x", "é", ""])
def test_an_unknown_id_is_exit_status_4(words, given, onward: Run, crew: str):
    command, *more = words
    output = onward(command, given, *more, "--db", crew)
    assert output.status == 4
    assert "`onward " in output.sentence, "the error names the command that lists the ids"
    assert onward(command, given, *more, "--json", "--db", crew).json["error"]["code"] in {
        "not_found",
        "task_not_found",
    }


@pytest.mark.parametrize("number", ["1", "99", "x", ""])
def test_a_record_that_is_no_approval(onward: Run, crew: str, number):
    task_id = onward("submit", "greet", '"you"', "--wait", "--json", "--db", crew).json["task_id"]
    output = onward("approve", f"{task_id}.{number}", "--db", crew)
    assert output.status == 4
    assert "there is no question or approval" in output.sentence


def test_hostile_text_is_escaped(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "ship", json.dumps(shop.HOSTILE))
    for words in (["approvals"], ["list"], ["show", task_id], ["follow", task_id], ["approve"]):
        output = onward(*words, "--db", crew)
        assert not controls(output.out + output.err)
        assert "\\x1b[31mred" in output.out
