"""schedules: the list, pause, unpause, remove, trigger."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward
from tests.cli import shop
from tests.cli.conftest import Run, controls


@pytest.fixture
def three(db: str) -> str:
    """A database with three schedules and no worker; its URL."""
    app = Onward(db)

    @app.task
    async def report(ctx: Any, value: Any = None) -> None: ...

    app.schedule("nightly", report, {"n": 1}, cron="0 3 * * *", timezone="Europe/Berlin", missed="once", deadline="1h")
    app.schedule("often", report, every="90m", queue="slow", priority=2, labels={"a": "b"})
    app.schedule("odd [red]", report, every="90s")

    async def save() -> None:
        async with app:
            await app.save_schedules()

    asyncio.run(save())
    return db


def test_the_list_is_a_table(onward: Run, three: str) -> None:
    header, *rows = onward("schedules", "--db", three).out.splitlines()
    assert header.split() == ["NAME", "TASK", "RHYTHM", "LAST", "NEXT"]
    assert [row.split()[0] for row in rows] == ["nightly", "odd", "often"]
    assert "0 3 * * * Europe/Berlin" in rows[0]
    assert "03:00:00" in rows[0] or "(in " in rows[0]
    assert "every 90s" in rows[1]
    assert "every 90m" in rows[2]
    assert controls("".join(rows)) == []
    assert "[red]" in rows[1]


def test_the_list_as_json(onward: Run, three: str) -> None:
    nightly, _, often = onward("schedules", "--db", three, "--json").json["schedules"]
    assert nightly["next_at"].endswith(":00:00.000Z")
    ticks = [nightly.pop("upcoming"), often.pop("upcoming")]
    assert [(len(times), times == sorted(times), times[0]) for times in ticks] == [
        (3, True, nightly["next_at"]),
        (3, True, often["next_at"]),
    ]
    del nightly["next_at"], often["next_at"]
    assert nightly == {
        "name": "nightly",
        "task": "report",
        "input": {"n": 1},
        "cron": "0 3 * * *",
        "every": None,
        "timezone": "Europe/Berlin",
        "missed": "once",
        "queue": "default",
        "priority": 0,
        "deadline": 3600.0,
        "labels": {},
        "last_at": None,
        "paused": False,
    }
    assert (often["every"], often["queue"], often["priority"], often["labels"]) == (5400.0, "slow", 2, {"a": "b"})


def test_no_schedules_and_what_to_do_about_it(onward: Run, db: str, tmp_path: Any) -> None:
    output = onward("schedules", "--db", db)
    assert (output.status, output.out) == (0, "")
    assert "app.schedule(" in output.err
    assert "onward worker MODULE:APP" in output.err
    assert onward("schedules", "--db", db, "--json").json == {"schedules": []}
    assert list(tmp_path.iterdir()) == [], "looking does not make a database"


def test_pause_and_unpause(onward: Run, three: str) -> None:
    output = onward("schedules", "pause", "nightly", "--db", three)
    assert output.out == "schedule nightly (report) is paused; `onward schedules unpause nightly` lets it go on\n"
    assert "paused" in onward("schedules", "--db", three).out.splitlines()[1]
    assert onward("schedules", "pause", "nightly", "--db", three, "--json").json["next_at"] is None
    assert onward("--db", three, "schedules", "unpause", "nightly").out.startswith(
        "schedule nightly (report) ticks next at "
    )
    assert onward("schedules", "--json", "unpause", "nightly", "--db", three).json["paused"] is False


def test_remove(onward: Run, three: str) -> None:
    assert "is removed" in onward("schedules", "remove", "often", "--db", three).out
    assert onward("schedules", "remove", "nightly", "--db", three, "--json").json == {
        "name": "nightly",
        "removed": True,
    }
    assert len(onward("schedules", "--db", three, "--json").json["schedules"]) == 1


def test_trigger(onward: Run, three: str) -> None:
    task_id = onward("schedules", "trigger", "often", "--db", three).out.strip()
    task = onward("show", task_id, "--db", three, "--json").json
    assert (task["task"], task["state"], task["queue"]) == ("report", "pending", "slow")
    assert task["labels"] == {"a": "b", "schedule": "often"}
    assert onward("schedules", "trigger", "often", "--db", three, "--json").json["task_id"] != task_id


@pytest.mark.parametrize("verb", ["pause", "unpause", "remove", "trigger"])
def test_an_unknown_name(onward: Run, three: str, verb: str) -> None:
    output = onward("schedules", verb, "weekly", "--db", three)
    assert output.status == 4
    assert "there is no schedule 'weekly' (there are: nightly, " in output.sentence
    assert output.sentence.endswith("`onward schedules` lists them")
    assert onward("schedules", verb, "weekly", "--db", three, "--json").json["error"]["code"] == "schedule_not_found"


def test_wrong_usage_names_the_help(onward: Run, db: str) -> None:
    for words, says in ((["pause"], "NAME"), (["stop", "x"], "'stop'"), (["pause", "a", "b"], "b")):
        output = onward("schedules", *words, "--db", db)
        assert output.status == 2
        assert says in output.sentence
        assert "--help`" in output.sentence


def test_each_verb_has_help_that_fits_80_columns(onward: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for verb in ("pause", "unpause", "remove", "trigger"):
        output = onward("schedules", verb, "--help")
        assert output.status == 0
        assert "NAME" in output.out
        assert max(map(len, output.out.splitlines())) <= 80


def test_a_worker_saves_the_schedules_of_its_app(onward: Run, crew: str) -> None:
    (yearly,) = onward("schedules", "--db", crew, "--json").json["schedules"]
    assert (yearly["name"], yearly["task"]) == ("yearly", shop.greet.__name__)
    assert yearly["next_at"].endswith("-12-31T23:00:00.000Z"), "midnight in Berlin"
    task_id = onward("schedules", "trigger", "yearly", "--db", crew).out.strip()
    assert onward("follow", task_id, "--db", crew).status == 0
    assert onward("show", task_id, "--db", crew, "--json").json["result"] == "hello new year"
