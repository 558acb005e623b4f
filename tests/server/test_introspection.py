"""Calls that describe the server and its tasks, over a real socket and on every store."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import httpx2
import pytest

from onward import Budget, Onward, Retry
from onward.agent.models.scripted import ScriptedModel
from onward.core.journal.explain import QueueFacts, why
from onward.service import listing as lists
from onward.service.serialize import why_json
from onward.service.submission import SubmitRequest
from tests.kit import eventually

Client = httpx2.AsyncClient


# ── the caller, and the handlers ─────────────────────────────────────────────────────────────────────────────────────


async def test_whoami(app: Onward, client: Client) -> None:
    anybody = (await client.get("/api/whoami")).json()
    assert anybody["scopes"] == ["admin", "decide", "read", "submit"]
    assert (anybody["name"], anybody["key"], anybody["tenant"]) == ("", None, None)
    made = await app.keys.create("ada", ["decide"], tenant="acme", agent="fixer")
    who = (await client.get("/api/whoami", headers={"Authorization": f"Bearer {made.token}"})).json()
    version = who.pop("version")
    assert who.pop("environment") == ""
    assert version == (await client.get("/openapi.json")).json()["info"]["version"]
    assert who == {
        "name": "ada",
        "key": made.key.id,
        "scopes": ["decide"],
        "tenant": "acme",
        "agent": "fixer",
        "person": None,
        "roles": [],
        "session": None,
    }


async def test_handlers_of_this_process_and_of_others(app: Onward, client: Client) -> None:
    @app.task(queue="mail")
    async def send(ctx: Any, to: str, copies: int = 1) -> None:
        """Send a letter."""

    app.agent("fixer", model=ScriptedModel([]), instructions="You fix.", description="Fixes things.")
    far = b'{"queue": "far", "deadline": null, "input": {"type": "object", "description": "Far away."}}'
    await app.store.handlers.register([("distant", far)])
    distant, fixer, sends = (await client.get("/api/handlers")).json()["handlers"]
    assert (distant["name"], distant["doc"], distant["here"], distant["queue"]) == (
        "distant",
        "Far away.",
        False,
        "far",
    )
    assert (fixer["kind"], fixer["doc"], fixer["here"], fixer["workers"]) == ("agent", "Fixes things.", True, 0)
    assert (sends["kind"], sends["doc"], sends["queue"], sends["version"]) == ("task", "Send a letter.", "mail", None)
    assert sends["schema"]["properties"] == {"to": {"type": "string"}, "copies": {"type": "integer"}}
    assert sends["schema"]["required"] == ["to"]
    async with app.worker():
        again = (await client.get("/api/handlers")).json()["handlers"]
    assert [(handler["name"], handler["workers"]) for handler in again] == [("distant", 0), ("fixer", 1), ("send", 1)]
    assert again[1]["doc"] == "Fixes things."
    assert again[2]["version"]


# ── lists ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def listed(client: Client, **params: Any) -> set[str]:
    """The inputs of the tasks that are found."""
    answer = await client.get("/api/tasks", params=params)
    assert answer.status_code == 200, answer.text
    return {task["input"]["n"] for task in answer.json()["tasks"]}


@pytest.mark.usefixtures("plain_payloads")
async def test_filters_hold_together(app: Onward, client: Client) -> None:
    @app.task(retry=1)
    async def mail(ctx: Any, n: str, **more: Any) -> None:
        if n == "b":
            raise ValueError("no")

    @app.task(queue="far")
    async def ship(ctx: Any, n: str, **more: Any) -> None: ...

    sent = {
        "a": await app.submit(mail, {"n": "a", "to": "Ünal@example.com"}, labels={"team": "red", "env": "prod"}),
        "b": await app.submit(mail, {"n": "b", "say": 'a "quoted" \\ 100%_~word'}, key="Order-77"),
    }
    async with app.worker():
        for task in sent.values():
            await app.service.wait(task.id, 20)
    sent["c"] = await app.submit(mail, {"n": "c"}, labels={"team": "blue", "env": "prod"})
    sent["d"] = await app.submit(
        ship, {"n": "d", "camelCase": "x" * 300 + "toofar"}, labels={"team": "red", "env": "test"}
    )
    assert await listed(client) == {"a", "b", "c", "d"}
    assert await listed(client, state=["completed", "failed"]) == {"a", "b"}
    assert await listed(client, state=["failed", "pending"]) == {"b", "c", "d"}
    assert await listed(client, state=["completed", "failed", "pending"], name="mail", q="PROD") == {"a", "c"}
    assert await listed(client, state="pending", queue=["far", "nowhere"]) == {"d"}
    assert await listed(client, name=["mail", "ship"], queue="far") == {"d"}
    assert await listed(client, task="mail", reason="queued") == {"c"}
    assert await listed(client, state="completed", reason="queued") == set()
    assert await listed(client, label="team:red") == {"a", "d"}
    assert await listed(client, label=["team:red", "team:blue"]) == {"a", "c", "d"}
    assert await listed(client, label=["team:red", "env:prod"]) == {"a"}
    assert await listed(client, label=["team:red", "env:nowhere"]) == set()
    for text, expected in {
        "UNAL": set[str](),
        "ünal@EXAMPLE": {"a"},
        "ÜNAL": {"a"},
        "SHIP": {"d"},
        "order-77": {"b"},
        "team:RED": {"a", "d"},
        "blue": {"c"},
        "camelcase": {"d"},
        "toofar": set(),
        '"QUOTED"': {"b"},
        "\\ 100%_~W": {"b"},
        "100__~": set(),
        "deadline": set(),
        "  ": {"a", "b", "c", "d"},
        sent["c"].id[-6:]: {"c"},
        sent["c"].id.upper(): {"c"},
    }.items():
        assert await listed(client, q=text) == expected, text
    assert await listed(client, q="prod", state="pending", label="team:blue", name="mail", queue="default") == {"c"}
    middle = (await client.get(f"/api/tasks/{sent['b'].id}")).json()["finished_at"]
    assert await listed(client, since=middle) == {"c", "d"}
    assert await listed(client, until=middle, state="failed") == {"b"}
    first = (await client.get("/api/tasks", params={"q": "mail", "limit": 2})).json()
    rest = (await client.get("/api/tasks", params={"q": "mail", "limit": 2, "cursor": first["next"]})).json()
    assert [task["input"]["n"] for task in first["tasks"] + rest["tasks"]] == ["c", "b", "a"]
    assert rest["next"] is None
    for wrong in ({"state": "nice"}, {"q": "x" * 201}, {"label": "none"}, {"since": "yesterday"}, {"limit": 0}):
        assert (await client.get("/api/tasks", params=wrong)).status_code == 422, wrong


async def test_a_caller_without_a_tenant_may_filter_by_tenant(app: Onward, client: Client) -> None:
    @app.task
    async def work(ctx: Any, n: str) -> None: ...

    for tenant in ("acme", "globex", None):
        await app.service.submit([SubmitRequest("work", {"n": str(tenant)}, tenant=tenant)])
    assert await listed(client, tenant="acme") == {"acme"}
    assert await listed(client, tenant="") == {"None"}
    assert await listed(client) == {"acme", "globex", "None"}
    token = (await app.keys.create("ada", ["read"], tenant="acme")).token
    client.headers["Authorization"] = f"Bearer {token}"
    assert await listed(client, tenant="acme", q="work") == {"acme"}
    refused = await client.get("/api/tasks", params={"tenant": "globex"})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_for_tenants")


async def test_why(app: Onward, client: Client) -> None:
    @app.task(retry=1)
    async def asks(ctx: Any, what: str) -> Any:
        match what:
            case "approval":
                return await ctx.approve("wipe the disk?", timeout="1h")
            case "question":
                return await ctx.ask("how?", choices=["fast", "slow"])
            case "signal":
                return await ctx.signal("go")
            case "sleep":
                return await ctx.sleep("1h")
            case "child":
                return await (await ctx.submit("asks", "signal")).result()
            case _:
                raise ValueError("no such thing")

    @app.task(retry=Retry(attempts=5, first=3600, cap=3600))
    async def shaky(ctx: Any) -> None:
        raise OSError("down")

    @app.task(queue="slow")
    async def queued(ctx: Any) -> None: ...

    wanted = {
        "approval": "waits for approval: wipe the disk?",
        "question": "asks: how? (fast, slow)",
        "signal": "waits for signal go",
        "sleep": "asleep",
        "child": "waits for child asks",
        "wrong": "ValueError: no such thing",
    }
    tasks = {what: (await app.submit(asks, what)).id for what in wanted}
    tasks["retry"] = (await app.submit(shaky)).id
    wanted["retry"] = "retry 1 of 4: OSError: down"

    async def settled() -> bool:
        current = [await app.get(task_id) for task_id in tasks.values()]
        return not any(task.reason in {"queued", "running"} for task in current)

    async with app.worker(queues=["default"]):
        await eventually(settled, 60)
        first, second = [(await app.submit(queued)).id for _ in range(2)]
        page = {task["task_id"]: task["why"] for task in (await client.get("/api/tasks")).json()["tasks"]}
        assert {what: page[task_id]["text"] for what, task_id in tasks.items()} == wanted
        assert page[first]["text"] == "no worker does queued in queue slow"
        assert (page[first]["behind"], page[second]["behind"]) == (0, 1)
        for what in ("sleep", "approval"):
            since, until = (datetime.datetime.fromisoformat(page[tasks[what]][name]) for name in ("since", "until"))
            assert until > since + datetime.timedelta(seconds=3000)
        assert page[tasks["signal"]]["until"] is None
        await app.pause_queue("slow")
        assert (await client.get(f"/api/tasks/{second}")).json()["why"]["text"] == "queue slow is paused"
        await app.unpause_queue("slow")
    await app.store.handlers.register([])
    async with app.worker(queues=["other", "slow"], slots=1):
        await app.service.wait(second, 20)
    third, fourth = [(await app.submit(asks, "sleep")).id for _ in range(2)]
    assert (await client.get(f"/api/tasks/{fourth}")).json()["why"]["behind"] == 1
    assert (await client.get(f"/api/tasks/{third}")).json()["why"]["behind"] == 0


async def test_why_in_parts(app: Onward, client: Client) -> None:
    """A program needs no sentence of the server: the step, the tool or the signal, and the rest, are fields of their own."""
    going = asyncio.Event()

    async def charge() -> None:
        raise OSError("no network")

    async def pack() -> None:
        await going.wait()

    @app.task(retry=1)
    async def order(ctx: Any, what: str) -> Any:
        match what:
            case "step":
                return await ctx.step(charge, retry=1)
            case "step retry":
                return await ctx.step(charge, retry=Retry(attempts=3, first=3600, cap=3600))
            case "running":
                return await ctx.step(pack, effect="once")
            case "approval":
                return await ctx.approve("wipe the disk?")
            case "question":
                return await ctx.ask("how?", choices=["fast", "slow"])
            case "signals":
                return await ctx.gather(ctx.signal("go"), ctx.signal("stop"))
            case "child":
                return await (await ctx.submit("order", "signals")).result()
            case "sleep":
                return await ctx.sleep("1h")
        raise ValueError("no such thing")

    @app.task(retry=Retry(attempts=5, first=3600, cap=3600))
    async def shaky(ctx: Any) -> None:
        await ctx.step(charge, retry=1)

    @app.task(queue="slow")
    async def queued(ctx: Any) -> None: ...

    app.agent("spender", model=ScriptedModel([[("nothing", {})]]), instructions="Spend.", budget=Budget(max_steps=1))
    wanted: dict[str, tuple[str | None, str | None, int]] = {
        "step": ("charge", "OSError: no network", 0),
        "step retry": ("charge", "retry 1: OSError: no network", 0),
        "running": ("pack", None, 0),
        "approval": (None, "wipe the disk?", 0),
        "question": (None, "how? (fast, slow)", 0),
        "signals": ("go", None, 1),
        "child": ("order", None, 0),
        "sleep": (None, None, 0),
        "wrong": (None, "ValueError: no such thing", 0),
    }
    tasks = {what: (await app.submit(order, what)).id for what in wanted}
    wanted["retry"] = ("charge", "retry 1 of 4: OSError: no network", 0)
    tasks["retry"] = (await app.submit(shaky)).id
    wanted["budget"] = ("steps", "it needs 1, and 0 of 1 are left", 0)
    tasks["budget"] = (await app.submit("spender", "Spend all of it.")).id

    async def settled() -> bool:
        states = {what: (await app.get(task_id)).reason for what, task_id in tasks.items()}
        return states.pop("running") == "running" and not any(
            state in {"queued", "running"} for state in states.values()
        )

    def parts(explanation: dict[str, Any]) -> tuple[Any, ...]:
        return explanation["subject"], explanation["detail"], explanation["more"]

    async with app.worker(queues=["default"]):
        await eventually(settled, 60)
        waits = [(await app.submit(queued)).id for _ in range(2)]
        page = {listed["task_id"]: listed["why"] for listed in (await client.get("/api/tasks")).json()["tasks"]}
        assert {what: parts(page[task_id]) for what, task_id in tasks.items()} == wanted
        assert parts(page[waits[0]]) == (None, "no worker does queued in queue slow", 0)
        assert page[tasks["signals"]]["text"] == "waits for signal go (and 1 more wait)"
        failed = (await client.get(f"/api/tasks/{tasks['step']}")).json()["error"]
        assert (failed["step"], failed["cause"]) == ("charge", {"type": "OSError", "message": "no network"})
        going.set()
    task = await app.get(waits[0])
    explanations = [why_json(why(task, (), QueueFacts(behind=behind))) for behind in (0, 3)]
    assert [parts(explained) for explained in explanations] == [(None, "next in its queue", 0), (None, None, 0)]
    assert (explanations[1]["behind"], explanations[1]["text"]) == (3, "behind 3 others")


# ── large values ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_brief_list_leaves_out_large_values(app: Onward, client: Client) -> None:
    @app.task(retry=1)
    async def work(ctx: Any, n: int, text: str) -> str:
        if n < 0:
            raise LookupError(text)
        return "y" * n

    async with app.worker():
        for n, text in ((10, "short"), (10_000, "short"), (10, "x" * 10_000), (-1, "x" * 10_000)):
            await app.service.wait((await app.submit(work, {"n": n, "text": text})).id, 60)
    whole = (await client.get("/api/tasks")).json()["tasks"]
    assert [task.get("left_out") for task in whole] == [None] * 4
    brief = (await client.get("/api/tasks", params={"brief": "true"})).json()["tasks"]
    assert [task.get("left_out") for task in brief] == [["input", "error"], ["input"], ["result"], None]
    for brief_task, whole_task in zip(brief, whole, strict=True):
        gone = dict.fromkeys(brief_task.pop("left_out", []))
        assert {**brief_task, "why": None} == {**whole_task, **gone, "why": None}


# ── pruning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_ended_task_is_pruned(app: Onward, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    ids = [task.id for task in await app.submit_many(work, list(range(4)))]
    running = await client.delete(f"/api/tasks/{ids[0]}")
    assert (running.status_code, running.json()["code"]) == (409, "state_conflict")
    for task_id in ids[:3]:
        await app.cancel(task_id)
    young = await client.delete(f"/api/tasks/{ids[0]}")
    assert (young.status_code, "try again in a minute" in young.json()["detail"]) == (409, True)
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)
    assert (await client.delete(f"/api/tasks/{ids[0]}")).json() == {"pruned": 1}
    for path in ("", "/events", "/timeline", "/records/1", "/artifacts", "/result"):
        assert (await client.get(f"/api/tasks/{ids[0]}{path}")).status_code == 404, path
    assert (await client.delete(f"/api/tasks/{ids[0]}")).status_code == 404
    body = {"action": "prune", "filter": {"name": ["work"]}, "count": 3}
    response = (await client.post("/api/tasks/actions", json=body)).json()
    assert (response["matched"], response["done"], [refusal["task_id"] for refusal in response["refused"]]) == (
        3,
        2,
        [ids[3]],
    )
    assert [task.task_id for task in (await app.list())[0]] == [ids[3]]
    done = [(entry.action, entry.subject) for entry in await app.audit()]
    assert done[-2:] == [("prune", ids[0]), ("prune_many", "tasks")]


# ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_actions_on_all_matching_tasks(app: Onward, client: Client) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    ids = [task.id for task in await app.submit_many(work, list(range(30)), labels={"team": "red", "env": "prod"})]
    await app.submit_many(work, list(range(5)), labels={"team": "blue", "env": "prod"})
    await app.cancel(ids[0])
    red = {"label": ["team:red", "env:prod"], "name": ["work"]}
    assert (await client.get("/api/tasks/count", params=red)).json() == {"count": 30, "capped": False}
    assert (await client.get("/api/tasks/count", params={"q": "blue"})).json() == {"count": 5, "capped": False}
    refused = await client.post("/api/tasks/actions", json={"action": "cancel", "filter": red, "count": 10})
    assert (refused.status_code, refused.json()["code"]) == (409, "more_match")
    assert "nothing was done" in refused.json()["detail"]
    assert (await app.service.count(state="cancelled"))[0] == 1
    body = {"action": "pause", "filter": {**red, "state": ["pending"]}, "count": 28}
    assert (await client.post("/api/tasks/actions", json=body)).json() == {"matched": 29, "done": 29, "refused": []}
    assert (await app.service.count(reason="paused"))[0] == 29
    resumed = (await client.post("/api/tasks/actions", json={"action": "resume", "filter": red, "count": 30})).json()
    assert (resumed["matched"], resumed["done"]) == (30, 29)
    assert [(refusal["task_id"], refusal["code"]) for refusal in resumed["refused"]] == [(ids[0], "state_conflict")]
    for wrong in ({}, {"state": [], "q": " "}, {"tenant": ""}):
        empty = await client.post("/api/tasks/actions", json={"action": "cancel", "filter": wrong, "count": 99})
        assert (empty.status_code, empty.json()["code"]) == (400, "usage"), wrong
    none = await client.post("/api/tasks/actions", json={"action": "cancel", "filter": {"q": "zebra"}, "count": 0})
    assert none.json() == {"matched": 0, "done": 0, "refused": []}
    bare = await client.post("/api/tasks/actions", json={"action": "priority", "filter": red, "count": 30})
    assert (bare.status_code, bare.json()["code"]) == (400, "bad_setting")
    assert [(entry.action, entry.subject) for entry in await app.audit()] == [
        ("pause_many", "tasks"),
        ("resume_many", "tasks"),
    ]


async def test_a_count_stops(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    await app.submit_many(work, list(range(30)), labels={"team": "red"})
    assert await app.service.count(most=10) == (10, True)
    assert await app.service.count(most=30, labels={"team": ["red", "blue"]}) == (30, False)
    monkeypatch.setattr(lists, "MAX_SCAN_TASKS", 4)
    assert await app.service.count(text="work") == (25, True), (
        "five queries, each of four tasks and the one at which it stops"
    )
    assert await app.service.count(text="zebra") == (0, True)
    page, cursor = await app.list(text="work", limit=100)
    assert (len(page), cursor is not None) == (5, True)
