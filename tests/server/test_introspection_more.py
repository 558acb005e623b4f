"""Children, previews of forks, usage, schedules, drains and the system as a whole, over a real socket."""

from __future__ import annotations

import datetime
import platform
from typing import Any

import httpx2
import pytest

from onward import Onward, tool
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices
from onward.app.application import VERSION
from onward.server.schema import shapes
from tests.kit import eventually, only_memory
from tests.server.conftest import Ends

Client = httpx2.AsyncClient


async def test_children_have_pages_and_say_why(app: Onward, client: Client) -> None:
    @app.task
    async def below(ctx: Any, n: int) -> None:
        if n:
            await ctx.signal("go")

    @app.task
    async def above(ctx: Any) -> None:
        for n in range(3):
            await ctx.submit("below", n)
        await ctx.signal("go")

    async with app.worker():
        task = await app.submit(above)

        async def settled() -> bool:
            children = (await app.list(parent=task.id))[0]
            return [child.reason for child in children] == ["signal", "signal", None]

        await eventually(settled, 60)
        first = (await client.get(f"/api/tasks/{task.id}/children", params={"limit": 2})).json()
        more = {"limit": 2, "cursor": first["next"]}
        rest = (await client.get(f"/api/tasks/{task.id}/children", params=more)).json()
    assert [child["why"]["text"] for child in first["tasks"]] == ["waits for signal go"] * 2
    assert [(child["state"], child["input"]) for child in rest["tasks"]] == [("completed", 0)]
    assert rest["next"] is None
    assert (await client.get("/api/tasks/nobody/children")).status_code == 404


async def test_the_approval_that_expires_first_comes_first(app: Onward, client: Client) -> None:
    @app.task
    async def asks(ctx: Any, timeout: str | None) -> None:
        await ctx.approve("go on?", risk="write_local", timeout=timeout)

    async with app.worker():
        for count, timeout in enumerate((None, "2h", "1h"), 1):
            await app.submit(asks, timeout)

            async def open_(wanted: int = count) -> bool:
                return len(await app.asks()) == wanted

            await eventually(open_, 60)
    approvals = (await client.get("/api/approvals")).json()["approvals"]
    tasks = {task["task_id"]: task["input"] for task in (await client.get("/api/tasks")).json()["tasks"]}
    assert [tasks[approval["task_id"]] for approval in approvals] == ["1h", "2h", None]
    assert {approval["risk"] for approval in approvals} == {"write_local"}


async def test_the_preview_of_a_fork(app: Onward, client: Client, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def work(ctx: Any) -> str:
        await ctx.step(lambda: 1, name="read")
        await ctx.step(lambda: 2, name="charge", effect="once")
        return "done"

    task = await app.submit(work)
    async with app.worker():
        await ends(task.id)
    before = len((await app.list())[0])
    answer = await client.post(f"/api/tasks/{task.id}/fork", json={"at": 3, "preview": True})
    assert answer.json() == {
        "would_repeat": [{"seq": 4, "name": "charge", "kind": "step", "effect": True}],
        "more": 0,
        "keeps": 3,
        "asks_again": [],
    }
    again = (await client.post(f"/api/tasks/{task.id}/fork", json={"at": 1, "preview": True})).json()
    assert [(step["name"], step["effect"]) for step in again["would_repeat"]] == [("read", False), ("charge", True)]
    monkeypatch.setattr(shapes, "MAX_REPEATED", 1)
    first = (await client.post(f"/api/tasks/{task.id}/fork", json={"at": 1, "preview": True})).json()
    assert (first["would_repeat"], first["more"]) == (again["would_repeat"][1:], 1), "effects come before others"
    wrong = await client.post(f"/api/tasks/{task.id}/fork", json={"at": 99, "preview": True})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "cannot_fork")
    assert len((await app.list())[0]) == before
    assert await app.audit() == []


async def test_usage_by_agent_model_key_and_day(app: Onward, client: Client, ends: Ends) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "x"

    dear = ScriptedModel([[("look", {})], "done"], name="dear")
    dear.prices = Prices(1_000_000.0, 2_000_000.0)
    app.agent("fixer", model=dear, tools=[look])
    app.agent("helper", model=ScriptedModel(["done"], name="free"))
    made = await app.keys.create("ada", ["read", "submit"])
    client.headers["Authorization"] = f"Bearer {made.token}"
    async with app.worker():
        for agent in ("fixer", "fixer", "helper"):
            task = (await client.post("/api/tasks", json={"task": agent, "input": {"goal": "go"}})).json()["task_id"]
            await ends(task)
    rows = {by: (await client.get("/api/usage", params={"by": by})).json() for by in ("agent", "model", "key", "day")}
    assert all(figures["complete"] for figures in rows.values())
    assert [(row["group"], row["tasks"], row["calls"]) for row in rows["agent"]["rows"]] == [
        ("fixer", 2, 4),
        ("helper", 1, 1),
    ]
    assert [(row["group"], row["tasks"], row["calls"]) for row in rows["model"]["rows"]] == [
        ("dear", 2, 4),
        ("free", 1, 1),
    ]
    fixer, helper = rows["agent"]["rows"]
    assert fixer["usd"] == fixer["tokens_in"] + 2 * fixer["tokens_out"]
    assert (fixer["unknown"], helper["unknown"], helper["usd"]) == (0, 1, 0.0)
    (key,), (day,) = rows["key"]["rows"], rows["day"]["rows"]
    assert (key["group"], key["tasks"], key["calls"], key["unknown"]) == ("ada", 3, 5, 1)
    today = {
        (datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=back)).date().isoformat() for back in (0, 1)
    }
    assert day["group"] in today
    long_ago = {"by": "agent", "until": "2020-01-01T00:00:00Z"}
    assert (await client.get("/api/usage", params=long_ago)).json()["rows"] == []
    assert (await client.get("/api/usage", params={"by": "mood"})).status_code == 422


async def test_schedules_and_drains(app: Onward, client: Client) -> None:
    @app.task(queue="mail")
    async def work(ctx: Any) -> None:
        await ctx.signal("go")

    app.schedule("nightly", work, cron="0 3 * * *")
    app.limit_queue("mail", concurrency=7)
    await app.save_schedules()
    paused = (await client.post("/api/schedules/nightly/pause")).json()
    assert (paused["paused"], paused["next_at"]) == (True, None)
    gone = (await client.post("/api/schedules/nightly/unpause")).json()
    assert (gone["paused"], gone["next_at"] is None) == (False, False)
    done = await client.post("/api/schedules/nightly/trigger")
    assert (done.status_code, (await app.get(done.json()["task_id"])).task) == (202, "work")
    for verb in ("pause", "unpause", "trigger"):
        missing = await client.post(f"/api/schedules/nobody/{verb}")
        assert (missing.status_code, missing.json()["code"]) == (404, "schedule_not_found")
    async with app.worker():

        async def asleep() -> bool:
            return (await app.get(done.json()["task_id"])).reason == "signal"

        await eventually(asleep, 60)
        drained = (await client.post("/api/queues/mail/drain")).json()
    assert (drained["paused"], drained["running"], drained["limit"]) == (True, 0, 7)
    assert [entry.action for entry in await app.audit()] == [
        "pause_schedule",
        "unpause_schedule",
        "trigger",
        "pause_schedule",
        "unpause_schedule",
        "trigger",
        "pause_queue",
    ]


async def test_the_system_as_a_whole(app: Onward, client: Client, kind: str) -> None:
    @app.task
    async def work(ctx: Any) -> None: ...

    await app.submit(work)
    system = (await client.get("/api/system")).json()
    assert system["store"] == ("postgres" if kind == "postgres" else "sqlite")
    assert system["tables"] == system["tables_wanted"] > 0
    assert (system["version"], system["python"]) == (VERSION, platform.python_version())
    assert abs(system["skew_s"]) < 2
    assert system["bytes"] > 0
    assert system["stats"]["states"]["pending"] == 1
    checks = {check["name"]: check for check in system["checks"]}
    assert checks["workers"]["fine"] is False
    assert not system["fine"]
    assert {"tables", "clock", "tasks", "people", "queue default"} <= set(checks)
    assert system["settings"]["slots"] == app.settings.slots
    assert system["settings"]["db"] == app.store.where


@only_memory
async def test_no_secret_of_a_setting_is_shown(app: Onward) -> None:
    from onward.config import Settings, to_display

    shown = to_display(Settings(db="postgresql://me:hunter2@db/x", webhook_secret="whsec_hunter2"), "db/x")
    assert "hunter2" not in repr(shown)
    assert (shown["db"], shown["webhook_secret"]) == ("db/x", "***")
    assert to_display(Settings(), "x")["webhook_secret"] == ""
    assert app.settings.webhook_secret == ""


async def test_turns_over_http(app: Onward, client: Client, ends: Ends) -> None:
    @tool
    def look(where: str) -> str:
        """Look."""
        return f"nothing in {where}"

    app.agent("fixer", model=ScriptedModel([[("look", {"where": "/tmp"})], "all is well"]), tools=[look])
    task = await app.submit("fixer", {"goal": "look around"})
    async with app.worker():
        await ends(task.id)
    page = (await client.get(f"/api/tasks/{task.id}/turns")).json()
    assert [(turn["turn"], turn["tools"], turn["text"]) for turn in page["turns"]] == [
        (1, ["look"], ""),
        (2, [], "all is well"),
    ]
    assert page["next"] is None
    rest = (await client.get(f"/api/tasks/{task.id}/turns", params={"after": 1, "limit": 1})).json()
    assert [(turn["turn"]) for turn in rest["turns"]] == [2]
    second = (await client.get(f"/api/tasks/{task.id}/turns/2")).json()
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool", "system"]
    assert second["messages"][-2]["content"] == "nothing in /tmp"
    assert second["messages"][-1]["content"].endswith("Goal: look around"), "the state"
    assert second["reply"]["content"] == "all is well"
    missing = await client.get(f"/api/tasks/{task.id}/turns/9")
    assert (missing.status_code, missing.json()["detail"]) == (404, f"task {task.id} has 2 turns; there is no turn 9")
    assert (await client.get(f"/api/tasks/{task.id}/turns/x")).status_code == 404
    timeline = (await client.get(f"/api/tasks/{task.id}/timeline")).json()
    (bar,) = [bar for bar in timeline["bars"] if bar["kind"] == "tool"]
    assert (bar["name"], bar["state"]) == ("look", "ok")
    record = (await client.get(f"/api/tasks/{task.id}/records/{bar['last']}")).json()
    assert (record["input"], record["output"]) == ({"where": "/tmp"}, "nothing in /tmp")
    assert record["effect_key"] == f"{task.id}:look"
    assert (await client.get(f"/api/tasks/{task.id}/records/999")).status_code == 404
