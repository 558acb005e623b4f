"""Commands with --all: filters and confirmation; and fork, drain, patch."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from tests.cli.conftest import Run, Waiting, submitted
from tests.cli.terminal import terminal

# ── which tasks ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def many(onward: Run, db: str) -> dict[str, str]:
    """Tasks without a worker, by a short name."""

    def submit(*words: str) -> str:
        return submitted(onward, db, *words, "--anyway", "--priority", "1")

    return {
        "eu": submit("deploy", '{"to": "EU-west"}', "--label", "team=web", "--queue", "fast"),
        "us": submit("deploy", '{"to": "us"}', "--label", "team=api"),
        "mail": submit("mail", '"hello"', "--label", "team=web", "--key", "letter-1"),
        "gone": submit("mail", '"bye"'),
    }


def matching(onward: Run, db: str, many: dict[str, str], *words: str) -> set[str]:
    ids = {task["task_id"] for task in onward("list", *words, "--db", db, "--json").json["tasks"]}
    return {name for name, task_id in many.items() if task_id in ids}


def test_different_filters_are_anded_and_repeated_ones_ored(onward: Run, db: str, many: dict[str, str]):
    onward("cancel", many["gone"], "--db", db)
    for words, names in {
        ("--name", "deploy"): {"eu", "us"},
        ("--name", "deploy", "--name", "mail", "--state", "pending"): {"eu", "us", "mail"},
        ("--state", "cancelled", "--state", "failed"): {"gone"},
        ("--label", "team=web"): {"eu", "mail"},
        ("--label", "team=web", "--label", "team=api"): {"eu", "us", "mail"},
        ("--label", "team=web", "--name", "mail"): {"mail"},
        ("--queue", "fast"): {"eu"},
        ("--text", "eu-WEST"): {"eu"},
        ("--text", "letter"): {"mail"},
        ("--text", many["us"][-8:]): {"us"},
        ("--text", "nothing like it"): set(),
        ("--since", "1h", "--until", "2h"): set(),
        ("--key", "letter-1"): {"mail"},
    }.items():
        assert matching(onward, db, many, *words) == names, words


def test_each_task_has_its_reason(onward: Run, db: str, many: dict[str, str]):
    document = onward("list", "--name", "deploy", "--db", db, "--json").json["tasks"]
    assert {task["why"]["text"] for task in document} == {
        "no worker does deploy in queue fast", "no worker does deploy in queue default"
    }  # fmt: skip


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_changes_before_the_confirmation(onward: Run, db: str, many: dict[str, str]):
    output = onward("cancel", "--all", "--state", "pending", "--name", "deploy", "--db", db)
    assert output.status == 2
    assert "2 tasks would be cancelled" in output.sentence
    assert "--yes" in output.sentence
    output = onward("cancel", "--all", "--name", "deploy", "--db", db, "--json")
    assert (output.status, output.json["matched"], output.json["done"]) == (2, 2, 0)
    assert matching(onward, db, many, "--state", "cancelled") == set()


def test_only_matching_tasks_are_changed(onward: Run, db: str, many: dict[str, str]):
    document = onward("prioritize", "--all", "--label", "team=web", "7", "--yes", "--db", db, "--json").json
    assert (document["matched"], document["done"], document["refused"]) == (2, 2, [])
    tasks = onward("list", "--db", db, "--json").json["tasks"]
    assert {task["task_id"] for task in tasks if task["priority"] == 7} == {many["eu"], many["mail"]}
    output = onward("cancel", "--all", "--yes", "--name", "deploy", "--db", db)
    assert "cancelled: 2 tasks" in output.out
    assert matching(onward, db, many, "--state", "cancelled") == {"eu", "us"}
    assert "paused: 2 tasks" in onward("pause", "--all", "--name", "mail", "--yes", "--db", db).out
    assert "resumed: 2 tasks" in onward("resume", "--all", "--reason", "paused", "--yes", "--db", db).out
    none = onward("cancel", "--all", "--name", "nobody", "--yes", "--db", db)
    assert (none.status, none.out) == (0, "")
    assert "no task matches" in none.err


def test_refused_tasks_are_named_and_the_others_are_changed(onward: Run, db: str, many: dict[str, str]):
    onward("cancel", many["eu"], "--db", db)
    document = onward("pause", "--all", "--name", "deploy", "--yes", "--db", db, "--json").json
    assert (document["matched"], document["done"]) == (2, 1)
    (refused,) = document["refused"]
    assert refused["task_id"] == many["eu"]
    assert refused["code"] == "state_conflict"


def test_ended_tasks_are_pruned_and_the_others_are_refused(onward: Run, db: str, many: dict[str, str]):
    for name in ("eu", "us"):
        onward("cancel", many[name], "--db", db)
    young = onward("prune", many["eu"], "--db", db)
    assert (young.status, "try again in a minute" in young.sentence) == (2, True)
    with closing(sqlite3.connect(db.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE onward_outcomes SET finished_at = finished_at - 100")
    assert "2 tasks would be pruned" in onward("prune", "--all", "--name", "deploy", "--db", db).sentence
    output = onward("prune", "--all", "--label", "team=web", "--yes", "--db", db)
    assert "pruned: 1 task of 2" in output.out
    assert "is not ended and cannot be pruned; cancel it first" in output.err
    assert onward("prune", many["us"], "--db", db, "--json").json == {"task_id": many["us"], "pruned": 1}
    assert onward("show", many["us"], "--db", db).status == 4
    assert matching(onward, db, many, "--name", "deploy") == set()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["cancel", "--all", "--yes"], "needs a filter"),
        (["cancel", "abcd", "--state", "failed"], "--state goes with --all, not with an id"),
        (["cancel"], "the following arguments are required: ID"),
        (["cancel", "--all", "--state", "asleep", "--yes"], "one of pending"),
    ],
)
def test_incomplete_options_are_refused(words, part, onward: Run, db: str, many: dict[str, str]):
    output = onward(*words, "--db", db)
    assert output.status == 2
    assert part in output.sentence
    assert matching(onward, db, many, "--state", "pending") == set(many)


def test_the_confirmation_shows_the_count(onward: Run, db: str, many: dict[str, str]):
    for answer, cancelled in (("n", set()), ("y", {"eu", "us"})):
        with terminal("cancel", "--all", "--name", "deploy", "--db", db) as screen:
            screen.look(lambda page: "cancel 2 tasks? [y/N]" in page)
            screen.type(f"{answer}\n")
            assert screen.status() == (0 if answer == "y" else 2)
        assert matching(onward, db, many, "--state", "cancelled") == cancelled


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_id_that_fits_several_lists_them(onward: Run, db: str, many: dict[str, str]):
    common = many["eu"][:4]
    output = onward("show", common, "--db", db)
    assert output.status == 2
    assert all(f"{many[name]} (" in output.sentence for name in many)
    assert f"{many['eu']} (deploy, pending)" in output.sentence
    document = onward("show", common, "--db", db, "--json").json["error"]
    assert document["code"] == "ambiguous"
    assert set(document["candidates"]) == set(many.values())
    assert onward("show", many["eu"][-6:].upper(), "--db", db, "--json").json["task_id"] == many["eu"]


def test_keys_are_shortened_too(onward: Run, db: str):
    ids = [
        onward("keys", "create", "--name", name, "--scope", "read", "--db", db, "--json").json["id"]
        for name in ("ada", "bob", "bob")
    ]
    assert "is revoked" in onward("keys", "revoke", ids[0][-5:], "--db", db).out
    output = onward("keys", "revoke", "bob", "--db", db)
    assert "fits more than one key" in output.sentence
    assert f"{ids[1]} (bob)" in output.sentence


# ── looking first ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fork_has_a_preview(onward: Run, crew: str):
    task_id = onward("submit", "flaky", "--wait", "--json", "--db", crew).json["task_id"]
    before = len(onward("list", "--name", "flaky", "--limit", "1000", "--json", "--db", crew).json["tasks"])
    document = onward("fork", task_id, "--at", "1", "--preview", "--json", "--db", crew).json
    assert (document["forked"], document["at"], document["keeps"]) == (None, 1, 1)
    output = onward("fork", task_id, "--at", "1", "--preview", "--db", crew)
    assert f"onward fork {task_id[-8:]} --at 1 --yes" in output.err
    assert len(onward("list", "--name", "flaky", "--limit", "1000", "--json", "--db", crew).json["tasks"]) == before


def test_one_record_in_full(onward: Run, crew: str):
    task_id = onward("submit", "greet", '"you"', "--wait", "--json", "--db", crew).json["task_id"]
    document = onward("show", task_id, "--record", "1", "--json", "--db", crew).json
    assert (document["seq"], document["kind"], document["input"], document["truncated"]) == (
        1,
        "task.submitted",
        "you",
        False,
    )
    assert "record 1  task.submitted" in onward("show", task_id, "--record", "1", "--db", crew).out
    assert onward("show", task_id, "--record", "99", "--db", crew).status == 4


def test_one_handler_in_full(onward: Run, crew: str):
    document = onward("handlers", "greet", "--json", "--db", crew).json
    assert (document["name"], document["kind"], document["workers"]) == ("greet", "task", 1)
    assert "name" in json.dumps(document["schema"])
    assert "1 worker has it" in onward("handlers", "greet", "--db", crew).out
    unknown = onward("handlers", "gret", "--db", crew)
    assert unknown.status == 4
    assert "greet" in unknown.sentence


def test_a_patch_reaches_the_state(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("approval", "janitor", '"/tmp/a"')
    fact = {"append_facts": [{"key": "region", "value": "eu", "source": "me"}]}
    document = onward("patch", task_id[-8:], json.dumps(fact), "--json", "--db", crew).json
    assert [known["key"] for known in document["known_facts"]] == ["region"]
    assert "region" in onward("state", task_id, "--db", crew).out
    assert onward("patch", task_id, "[1]", "--db", crew).status == 2
    onward("cancel", task_id, "--db", crew)


def test_drain_waits_until_nothing_runs(onward: Run, crew: str, waiting: Waiting):
    task_id = waiting("running", "slow", "60", "--queue", "drained")
    late = onward("queues", "drain", "drained", "--wait", "0.3", "--db", crew)
    assert late.status == 3
    assert "1 task of it still runs" in late.out
    onward("cancel", task_id, "--db", crew)
    done = onward("queues", "drain", "drained", "--wait", "20s", "--json", "--db", crew)
    assert (done.status, done.json["paused"], done.json["running"]) == (0, True, 0)
    onward("queues", "unpause", "drained", "--db", crew)
