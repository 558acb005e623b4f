"""queues, workers, stats, message, and more of `list` and `show`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward
from onward.agent.models.scripted import ScriptedModel
from onward.cli.commands import cluster
from onward.core.views import CodeVersion
from tests.cli.conftest import Run, controls, submitted


def test_a_queue_is_paused_also_before_anything_was_submitted(onward: Run, db: str) -> None:
    assert onward("queues", "--db", db).err.endswith("\nno unfinished tasks, and no queue is paused or has a limit\n")
    output = onward("queues", "pause", "mail", "--db", db)
    assert output.out == "queue mail is paused until: onward queues unpause mail\n"
    submitted(onward, db, "greet", '"you"', "--anyway", "--queue", "mail")
    header, row = onward("queues", "--db", db).out.splitlines()
    assert header.split() == ["QUEUE", "STATE", "WAITING", "RUNNING", "OLDEST"]
    assert row.split()[:4] == ["mail", "paused", "1", "0"]
    (document,) = onward("queues", "--db", db, "--json").json["queues"]
    assert (document["name"], document["paused"], document["reasons"]) == ("mail", True, {"queued": 1})
    doctor = onward("doctor", "--db", db)
    assert "paused, 1 task waiting: onward queues unpause mail" in doctor.out
    assert onward("queues", "unpause", "mail", "--db", db).out == "queue mail goes on; 1 task waiting\n"
    assert onward("queues", "unpause", "mail", "--db", db, "--json").json["paused"] is False


def test_names_of_queues_are_harmless(onward: Run, db: str) -> None:
    output = onward("queues", "pause", "a[bold]\u202e", "--db", db)
    assert output.status == 2, "a name is printable"
    assert controls(output.err.rstrip("\n")) == []
    assert "[bold]" in onward("queues", "pause", "a[bold]", "--db", db).out


def test_workers(onward: Run, crew: str, db: str) -> None:
    assert "start one with `onward worker MODULE:APP`" in onward("workers", "--db", db).err
    header, row = onward("workers", "--db", crew).out.splitlines()
    assert header.split()[:2] == ["ID", "HOST,"]
    assert "0 of 100" in row
    assert "left" in row
    assert "greet" in row
    (document,) = onward("workers", "--db", crew, "--json").json["workers"]
    assert document["alive"] is True
    assert "greet" in document["handlers"]


def test_stats(onward: Run, db: str) -> None:
    submitted(onward, db, "greet", '"you"', "--anyway")
    output = onward("stats", "--db", db)
    assert "pending    1" in output.out
    assert "0 tasks wait for a person" in output.out
    document = onward("stats", "--db", db, "--json").json
    assert (document["states"]["pending"], document["reasons"], document["exact"]) == (1, {"queued": 1}, True)


def test_list_searches(onward: Run, db: str) -> None:
    first = submitted(onward, db, "greet", "1", "--anyway", "--label", "env=prod", "--key", "k")
    submitted(onward, db, "greet", "2", "--anyway", "--label", "env=dev", "--delay", "1h")

    def listed(*words: str) -> list[Any]:
        return [task["input"] for task in onward("list", "--json", "--db", db, *words).json["tasks"]]

    assert listed("--label", "env=prod") == [1]
    assert listed("--label", "env=prod", "--label", "a=b") == []
    assert listed("--reason", "delayed") == [2]
    assert listed("--key", "k") == [1]
    assert listed("--after", "1h") == [2, 1]
    assert listed("--before", "1h") == []
    assert listed("--before", "2020-01-01T12:00") == []
    assert listed("--after", "2020-01-01") == [2, 1]
    assert listed("--parent", first) == []
    assert "--since is a time such as" in onward("list", "--after", "noon", "--db", db).sentence
    assert "one of queued, delayed" in onward("list", "--reason", "tired", "--db", db).sentence


@pytest.fixture
def talked(db: str) -> tuple[str, str, str]:
    """A database with an agent's task that has not begun, one that has ended, and their ids."""
    app = Onward(db)
    app.agent("helper", model=ScriptedModel(["done"]))

    async def make() -> tuple[str, str]:
        async with app, app.worker():
            ended = await app.submit("helper", "go")
            await ended.result(timeout=60)
        async with app:
            return (await app.submit("helper", "later")).id, ended.id

    return (db, *asyncio.run(make()))


def test_a_message_to_an_agent(onward: Run, talked: tuple[str, str, str]) -> None:
    db, pending, ended = talked
    output = onward("message", pending[-8:], "Leave the database alone.", "--db", db)
    assert output.out.startswith("sent: the agent reads it before its next turn  task ")
    assert onward("message", pending, "again", "--key", "k", "--json", "--db", db).json["task_id"] == pending
    late = onward("message", ended, "hello", "--db", db)
    assert (late.status, "goes on where it ended" in late.sentence) == (2, True)
    assert onward("message", "nobody00", "hello", "--db", db).status == 4
    assert "a string that is not blank" in onward("message", pending, " ", "--db", db).sentence


def test_a_message_to_any_other_task(onward: Run, db: str) -> None:
    task_id = submitted(onward, db, "greet", '"you"', "--anyway")
    assert "as the signal 'message', if it waits for that" in onward("message", task_id, "hello", "--db", db).out


def test_usage_is_shown(onward: Run, talked: tuple[str, str, str]) -> None:
    db, pending, ended = talked
    shown = onward("show", ended, "--db", db).out
    assert "usage" in shown
    assert "1 call, " in shown
    assert "price unknown" in shown
    usage = onward("show", ended, "--json", "--db", db).json["usage"]
    assert (usage["calls"], usage["cost_usd"]) == (1, None)
    assert onward("show", pending, "--json", "--db", db).json["usage"]["calls"] == 0


def test_a_message_is_in_the_timeline(onward: Run, talked: tuple[str, str, str]) -> None:
    db, pending, _ = talked
    onward("message", pending, "Mind \x1b[31mthe gap.", "--db", db)
    app = Onward(db)
    app.agent("helper", model=ScriptedModel(["done"]))

    async def work() -> None:
        async with app, app.worker():
            await app.service.wait(pending, 10)

    asyncio.run(work())
    shown = onward("show", pending, "--db", db).out
    assert "received message" in shown
    assert "message.read" not in shown
    assert controls(shown.replace("\n", "")) == []


def test_versions_say_what_their_tasks_need() -> None:
    gone, busy = CodeVersion("old", 0, 0, 3, 0), CodeVersion("busy", 2, 1, 4, 0, 100.0)
    idle, parked = CodeVersion("idle", 1, 0, 0, 0, 50.0), CodeVersion("lost", 0, 0, 0, 2)
    assert "no worker lives" in cluster._advice(gone, [gone]).plain
    assert "other code goes on" in cluster._advice(gone, [gone, busy]).plain
    assert cluster._advice(busy, [gone, busy]).plain == ""
    assert cluster._advice(idle, [idle, busy]).plain == "no task that has begun needs it"
    assert "onward check" in cluster._advice(busy, [idle, busy]).plain
    assert "onward resume" in cluster._advice(parked, [parked, busy]).plain


def test_versions_name_the_newest_and_call_no_version_unneeded_that_was_just_deployed() -> None:
    old, new = CodeVersion("1.0", 4, 2, 9, 0, 100.0), CodeVersion("1.1", 1, 0, 0, 0, 200.0)
    assert cluster._advice(new, [old, new]).plain == "newest: its workers started last; no task that has begun needs it"
    assert cluster._advice(old, [old, new]).plain.startswith("onward check with the other code")
    before = [CodeVersion("1.0", 4, 0, 0, 0), CodeVersion("1.1", 1, 0, 0, 0)]  # of a server that does not know the time
    assert {cluster._advice(view, before).plain for view in before} == {"no task that has begun needs it"}
