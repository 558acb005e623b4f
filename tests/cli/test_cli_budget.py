"""budget: what was spent, and a new limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onward import Budget, Onward
from onward.agent.models.scripted import ScriptedModel
from tests.cli.conftest import Run
from tests.kit import eventually


def look() -> str:
    """Look around."""
    return "nothing"


def family(url: str) -> Onward:
    app = Onward(url)
    app.agent("worker", model=ScriptedModel([[("look", {})], "done"]), tools=[look])

    @app.task
    async def boss(ctx):  # type: ignore[no-untyped-def]
        return await (await ctx.submit("worker", "x"))

    return app


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[str, str, str]:
    """A database, a task with a budget, and its child, which has used it up."""
    url = f"sqlite:///{tmp_path / 'onward.db'}"

    async def work() -> tuple[str, str]:
        app = family(url)
        async with app.worker():
            boss = await app.submit("boss", budget=Budget(max_steps=1, max_cost_usd=None))

            async def stuck() -> str:
                tasks = (await app.list(task="worker"))[0]
                return tasks[0].task_id if tasks and tasks[0].reason == "budget" else ""

            return boss.id, await eventually(stuck)

    return url, *asyncio.run(work())


def test_a_spent_budget_names_the_next_command(onward: Run, waiting: tuple[str, str, str]) -> None:
    url, boss, worker = waiting
    output = onward("budget", worker, "--db", url)
    assert output.status == 0
    assert f"spends from the budget of task {boss}" in output.out
    assert "100%" in output.out
    document = onward("budget", boss, "--json", "--db", url).json
    assert document["budget"]["steps"] == {"spent": 1, "reserved": 0, "limit": 1}
    assert document["waiting"] == [worker]
    shown = onward("show", worker, "--db", url)
    assert "waits for budget" in shown.out
    assert f"onward budget {boss[-8:]} --steps 2" in shown.out, "whose budget it is, and which limit is enough"


def test_a_raise(onward: Run, waiting: tuple[str, str, str]) -> None:
    url, boss, _ = waiting
    output = onward("budget", boss, "--steps", "9", "--time", "1h", "--db", url)
    assert output.status == 0
    assert "raised; 1 task waited for it" in output.out
    assert "it was so already; 0 tasks" in onward("budget", boss, "--steps", "9", "--db", url).out
    assert "lowered; 0 tasks" in onward("budget", boss, "--tokens", "500", "--db", url).out
    assert "raised; 0 tasks" in onward("budget", boss, "--tokens", "500000", "--db", url).out
    document = onward("budget", boss, "--json", "--db", url).json
    assert (document["budget"]["steps"]["limit"], document["budget"]["wall_time"]["limit"], document["waiting"]) == (
        9,
        3600,
        [],
    )

    async def go_on() -> object:
        app = family(url)
        async with app.worker():
            return await app.handle(boss).result(timeout=60)

    assert asyncio.run(go_on()) == "done"


def test_wrong_usage(onward: Run, waiting: tuple[str, str, str]) -> None:
    url, boss, _ = waiting
    assert onward("budget", boss, "--time", "soon", "--db", url).status == 2
    assert onward("budget", boss, "--steps", "0", "--db", url).status == 2
    assert onward("budget", "nobody", "--db", url).status == 4


def test_a_budget_of_its_own(onward: Run, waiting: tuple[str, str, str]) -> None:
    url, _, _ = waiting
    output = onward(
        "submit", "worker", '"y"', "--budget", '{"max_steps": 1, "when_spent": "finish"}', "--json", "--db", url
    )

    async def go_on() -> str:
        app = family(url)
        async with app.worker():
            return str(await app.handle(output.json["task_id"]).result(timeout=60))

    assert "This is not finished" in asyncio.run(go_on())
    wrong = onward("submit", "worker", '"y"', "--budget", '{"steps": 1}', "--db", url)
    assert wrong.status == 2
    assert "--budget is a JSON object of max_steps, max_wall_time" in wrong.sentence
