"""Queues, workers, stats, messages to tasks, and lists, over a real socket and on every store."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices
from onward.core.caller import ADMIN, READ, SCOPES, SUBMIT, Caller
from onward.errors import Forbidden
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from tests.kit import eventually
from tests.server.conftest import Ends

Client = httpx2.AsyncClient


async def test_a_queue_is_paused_and_unpaused(app: Onward, client: Client, ends: Ends) -> None:
    @app.task(queue="mail")
    async def work(ctx: Any) -> str:
        return "done"

    paused = await client.post("/api/queues/mail/pause")
    assert (paused.status_code, paused.json()["paused"]) == (200, True)
    task_id = (await client.post("/api/tasks", json={"task": "work"})).json()["task_id"]
    async with app.worker(slots=3):
        (queue,) = (await client.get("/api/queues")).json()["queues"]
        assert queue.pop("oldest_s") >= 0
        assert queue == {
            "name": "mail",
            "waiting": 1,
            "running": 0,
            "reasons": {"queued": 1},
            "paused": True,
            "limit": None,
            "rate": 0.0,
        }
        (worker,) = (await client.get("/api/workers")).json()["workers"]
        assert (worker["slots"], worker["running"], worker["handlers"], worker["alive"]) == (3, 0, ["work"], True)
        assert worker["lease_s"] <= 1.0
        stats = (await client.get("/api/stats")).json()
        assert (stats["states"]["pending"], stats["reasons"], stats["slots"], stats["exact"]) == (
            1,
            {"queued": 1},
            3,
            True,
        )
        assert (await client.post("/api/queues/mail/unpause")).json()["paused"] is False
        assert (await ends(task_id))["result"] == "done"
    assert (await client.get("/api/stats")).json()["states"]["completed"] == 1
    assert (await client.get("/api/queues")).json() == {"queues": [], "next": None}
    for broken in ("a%0Ab", "%01a%0A%40", "%0A"):
        for verb in ("pause", "unpause", "drain"):
            answer = await client.post(f"/api/queues/{broken}/{verb}")
            assert answer.json().get("code") != "no_such_path", (broken, verb, answer.text)
    strange = await client.post(f"/api/queues/{'x' * 513}/pause")
    assert (strange.status_code, strange.json()["code"]) == (400, "usage")


async def test_a_message_to_an_agent_and_its_usage(app: Onward, client: Client, ends: Ends) -> None:
    model = ScriptedModel(["done"])
    model.prices = Prices(1.0, 10.0)
    app.agent("helper", model=model)
    task_id = (await client.post("/api/tasks", json={"task": "helper", "input": "go"})).json()["task_id"]
    response = await client.post(f"/api/tasks/{task_id}/message", json={"text": "quickly", "id": "1"})
    assert (response.status_code, response.json()["state"]) == (200, "pending")
    assert (await client.post(f"/api/tasks/{task_id}/message", json={"text": "quickly", "id": "1"})).status_code == 200
    for wrong in ({"text": ""}, {"text": "  "}, {}, {"text": 7}, {"text": "x" * 64_001}):
        assert (await client.post(f"/api/tasks/{task_id}/message", json=wrong)).status_code == 422
    unknown = await client.post("/api/tasks/nothing/message", json={"text": "hi"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "task_not_found")
    assert (await client.get(f"/api/tasks/{task_id}")).json()["usage"]["calls"] == 0
    async with app.worker():
        held = await client.get(f"/api/tasks/{task_id}", headers={"Prefer": "wait=20"})
    assert (held.headers["preference-applied"], held.json()["state"]) == ("wait=20", "completed")
    assert [message["content"] for message in model.asked[0].conversation[1:]] == ["go", "quickly"]
    late = await client.post(f"/api/tasks/{task_id}/message", json={"text": "hi"})
    assert (late.status_code, late.json()["code"]) == (409, "state_conflict")
    assert "after=" in late.json()["detail"]
    usage = held.json()["usage"]
    assert usage.pop("with_children") == usage
    assert (usage["calls"], usage["cost_usd"] > 0) == (1, True)
    (listed,) = (await client.get("/api/tasks")).json()["tasks"]
    assert listed["usage"] == {**usage, "with_children": None}


async def test_filters_of_the_list(app: Onward, client: Client) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    first = (await client.post("/api/tasks", json={"task": "work", "input": 1, "labels": {"env": "prod"}})).json()
    second = (await client.post("/api/tasks", json={"task": "work", "input": 2, "delay_s": 999})).json()
    third = await client.post(
        "/api/tasks",
        json={"task": "work", "input": 3, "labels": {"env": "p:q"}},
        headers={"Idempotency-Key": "k"},
    )

    async def listed(**which: str) -> list[int]:
        answer = await client.get("/api/tasks", params=which)
        assert answer.status_code == 200, answer.text
        return [task["input"] for task in answer.json()["tasks"]]

    assert await listed(label="env:prod") == [1]
    assert await listed(label="env:p:q") == [3]
    assert await listed(label="env:") == []
    assert await listed(reason="delayed") == [2]
    assert await listed(reason="queued", state="pending") == [3, 1]
    assert await listed(reason="queued", state="completed") == []
    assert await listed(key="k") == [3]
    assert await listed(key="other") == []
    assert await listed(parent=first["task_id"]) == []
    assert await listed(created_before="2020-01-01T00:00:00Z") == []
    assert await listed(created_after="2020-01-01T00:00:00+02:00") == [3, 2, 1]
    made = (await client.get(f"/api/tasks/{second['task_id']}")).json()["created_at"]
    assert third.status_code == 202
    assert 1 not in (await listed(created_after=made))[:-1]
    for wrong in (
        {"label": "env"},
        {"reason": "tired"},
        {"created_after": "yesterday"},
        {"created_after": "0.5"},
        {"created_after": "2020-01-01T00:00:00"},
    ):
        assert (await client.get("/api/tasks", params=wrong)).status_code == 422


@pytest.mark.parametrize(
    ("scopes", "verbs"),
    [
        ({READ}, {"queues", "workers", "stats"}),
        ({ADMIN}, {"pause_queue", "unpause_queue"}),
        ({SUBMIT}, set()),
        (set(SCOPES), {"queues", "workers", "stats", "pause_queue", "unpause_queue"}),
    ],
)
async def test_scopes_for_queues_workers_and_stats(app: Onward, scopes: set[str], verbs: set[str]) -> None:
    async def may(door: AuthorizedService) -> set[str]:
        statuses = set()
        for name in ("queues", "workers", "stats", "pause_queue", "unpause_queue"):
            try:
                await getattr(door, name)(*(["mail"] if "_queue" in name else []))
                statuses.add(name)
            except Forbidden:
                pass
        return statuses

    assert await may(AuthorizedService(app.service, Caller(scopes=frozenset(scopes)))) == verbs
    assert await may(AuthorizedService(app.service, Caller(tenant="t", scopes=frozenset(scopes)))) == set(), (
        "a queue belongs to no tenant"
    )


# ── figures of a caller without a tenant ─────────────────────────────────────────────────────────────────────────────


def _caller(tenant: str | None, *scopes: str) -> Caller:
    return Caller(tenant, frozenset(scopes), "key", "key")


async def test_stats_and_queues_count_the_tasks_that_the_caller_sees(app: Onward) -> None:
    """As lists do: without a tenant and without the scope admin, a caller sees tasks without a tenant."""

    @app.task(retry=1)
    async def work(ctx: Any, end: str) -> None:
        if end == "fails":
            raise ValueError(end)

    for tenant, queue, count in (("acme", "secret-launch", 5), ("globex", "default", 3), (None, "mail", 2)):
        service = AuthorizedService(app.service, _caller(tenant, SUBMIT))
        await service.submit([SubmitRequest("work", "ok", queue=queue, delay="1h") for _ in range(count)])
        await service.submit([SubmitRequest("work", end, queue="now") for end in ("ok", "fails")])
    async with app.worker(queues=["now"]):
        await eventually(lambda: _ended(app, 6))
    reader, admin = [AuthorizedService(app.service, _caller(None, *scopes)) for scopes in ((READ,), (READ, ADMIN))]
    stats, whole = await reader.stats(), await admin.stats()
    assert (stats.states["pending"], stats.states["completed"], stats.states["failed"]) == (2, 1, 1)
    assert (whole.states["pending"], whole.states["completed"], whole.states["failed"]) == (10, 3, 3)
    assert (stats.reasons, stats.exact) == ({"delayed": 2}, True)
    assert {queue.name: queue.waiting for queue in await reader.queues()} == {"mail": 2}
    assert {queue.name for queue in await admin.queues()} == {"secret-launch", "default", "mail"}
    assert len((await reader.list())[0]) == 4, "the same tasks"


async def _ended(app: Onward, count: int) -> bool:
    stats = await app.stats()
    return stats.states["completed"] + stats.states["failed"] == count


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_schedules_come_in_pages(app: Onward, client: Client) -> None:
    @app.task
    async def work(ctx: Any, number: int) -> None: ...

    for n in range(5):
        app.schedule(f"s{n}", work, n, every="1h")
    await app.save_schedules()
    names, query = list[str](), {"limit": "2"}
    for expected in (2, 2, 1):
        page = (await client.get("/api/schedules", params=query)).json()
        assert len(page["schedules"]) == expected
        names += [schedule["name"] for schedule in page["schedules"]]
        query["cursor"] = page["next"]
    assert page["next"] is None
    assert names == [f"s{n}" for n in range(5)]
    assert [schedule.name for schedule in await app.schedules()] == names
    for query in ({"limit": "0"}, {"limit": "1001"}, {"cursor": ""}):
        assert (await client.get("/api/schedules", params=query)).status_code == 422


async def test_keys_come_in_pages(app: Onward, client: Client) -> None:
    made = [(await app.keys.create(f"k{n}", ["admin", "read"])) for n in range(5)]
    headers = {"Authorization": f"Bearer {made[0].token}"}
    names, query = list[str](), {"limit": "2"}
    for expected in (2, 2, 1):
        page = (await client.get("/api/keys", params=query, headers=headers)).json()
        assert len(page["keys"]) == expected
        names += [key["name"] for key in page["keys"]]
        query["cursor"] = page["next"]
    assert page["next"] is None
    assert sorted(names) == [f"k{n}" for n in range(5)]
    assert [key.name for key in await app.keys.list()] == names
    for cursor in ("k", "[]", '["a", "b"]', "[1.0, 5]", "[NaN, 5]", '[1e999, "abc"]'):
        answer = await client.get("/api/keys", params={"cursor": cursor}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_setting"), cursor
