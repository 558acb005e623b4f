"""Every call over a real socket, on every store."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.cli.commands.serve import _bound
from onward.core import key as keys
from tests.kit import eventually, only_memory
from tests.server.conftest import Ends, serving
from tests.server.sse import served

Client = httpx2.AsyncClient


async def test_a_task_from_submit_to_result(app: Onward, client: Client, ends: Ends) -> None:
    @app.task
    async def greet(ctx: Any, name: str) -> str:
        return await ctx.step(lambda: f"hello {name}", name="say")

    async with app.worker():
        answer = await client.post(
            "/api/tasks", json={"task": "greet", "input": "you", "priority": 3, "labels": {"a": "b"}}
        )
        assert answer.status_code == 202, answer.text
        task_id = answer.json()["task_id"]
        assert answer.headers["location"] == f"/api/tasks/{task_id}"
        task = await ends(task_id)
    assert (task["state"], task["result"], task["priority"], task["labels"]) == (
        "completed",
        "hello you",
        3,
        {"a": "b"},
    )
    assert task["finished_at"].endswith("Z")
    by_get = (await client.get(f"/api/tasks/{task_id}")).json()
    assert by_get.pop("why")["since"].endswith("Z")
    assert by_get == task
    records = (await client.get(f"/api/tasks/{task_id}/events")).json()
    assert [record["seq"] for record in records["records"]] == list(range(1, len(records["records"]) + 1))
    assert records["records"][-1]["kind"] == "task.completed"
    assert records["next"] is None
    page = (await client.get(f"/api/tasks/{task_id}/events", params={"after": 1, "limit": 1})).json()
    assert ([record["seq"] for record in page["records"]], page["next"]) == ([2], 2)


async def test_one_key_is_one_task_also_at_the_same_instant(app: Onward, client: Client) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    body = {"task": "work", "input": 1}
    answers = await asyncio.gather(
        *(client.post("/api/tasks", json=body, headers={"Idempotency-Key": '"k-1"'}) for _ in range(100))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["task_id"] for answer in answers}) == 1
    assert (await client.post("/api/tasks", json=body, headers={"Idempotency-Key": "k-1"})).status_code == 202
    other = await client.post("/api/tasks", json={"task": "work", "input": 2}, headers={"Idempotency-Key": "k-1"})
    assert (other.status_code, other.json()["code"]) == (422, "key_conflict")
    assert len((await client.get("/api/tasks")).json()["tasks"]) == 1


async def test_prefer_wait_holds_the_answer_back(app: Onward, client: Client) -> None:
    @app.task
    async def quick(ctx: Any) -> str:
        return "done"

    @app.task
    async def slow(ctx: Any) -> str:
        return str(await ctx.signal("go"))

    async with app.worker():
        ended = await client.post("/api/tasks", json={"task": "quick"}, headers={"Prefer": "wait=10"})
        assert (ended.status_code, ended.json()["result"]) == (200, "done")
        assert ended.headers["preference-applied"] == "wait=10"
        waits = await client.post("/api/tasks", json={"task": "slow"}, headers={"Prefer": "respond-async, wait=0"})
        assert (waits.status_code, set(waits.json())) == (202, {"task_id", "state"})
        task_id = waits.json()["task_id"]
        assert (await client.get(f"/api/tasks/{task_id}/result")).status_code == 202
        sent = await client.post(f"/api/tasks/{task_id}/signals/go", json={"value": 7, "id": "s1"})
        assert sent.status_code == 200, sent.text
        result = await client.get(f"/api/tasks/{task_id}/result", params={"timeout_s": 10})
        assert (result.status_code, result.json()["result"]) == (200, "7")


async def test_problems_say_what_happened_and_what_to_do(app: Onward, client: Client) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    async def problem(method: str, path: str, **more: Any) -> tuple[int, str]:
        answer = await client.request(method, path, **more)
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        problem = answer.json()
        assert problem["status"] == answer.status_code
        assert problem["detail"]
        return answer.status_code, problem["code"]

    assert await problem("GET", "/api/tasks/nothing") == (404, "task_not_found")
    assert await problem("GET", "/api/tasks/nothing/events", params={"after": 3}) == (404, "task_not_found")
    assert await problem("POST", "/api/tasks", json={"task": "nothing"}) == (404, "unknown_task")
    assert await problem("POST", "/api/tasks", json={"task": "work", "input": "x"}) == (422, "invalid_input")
    assert await problem("POST", "/api/tasks", json={"task": "work", "in": 1}) == (422, "invalid_request")
    assert await problem("POST", "/api/tasks", content=b"{", headers={"Content-Type": "application/json"}) == (
        400,
        "bad_json",
    )
    assert await problem("POST", "/api/tasks", content=b"{}", headers={"Content-Type": "text/plain"}) == (
        415,
        "not_json",
    )
    assert await problem("DELETE", "/api/tasks") == (405, "wrong_method")
    assert await problem("GET", "/api/elsewhere") == (404, "no_such_path")
    assert await problem("GET", "/api/tasks", params={"limit": 0}) == (422, "invalid_request")
    assert await problem("POST", "/api/approvals/x.1", json={"decision": "approve"}) == (404, "not_found")
    assert (await client.get("/api/tasks")).json() == {"tasks": [], "next": None}


async def test_a_full_queue_says_when_to_come_back(url: str) -> None:
    app = Onward(url, queue_limit=2)

    @app.task
    async def work(ctx: Any) -> None: ...

    async with app, serving(app) as address, Client(base_url=address) as client:
        for _ in range(2):
            assert (await client.post("/api/tasks", json={"task": "work"})).status_code == 202
        full = await client.post("/api/tasks", json={"task": "work"})
    assert (full.status_code, full.json()["code"], full.json()["retryable"]) == (429, "queue_full", True)
    assert int(full.headers["retry-after"]) >= 1


async def test_cancel_and_priority(app: Onward, client: Client, ends: Ends) -> None:
    @app.task
    async def work(ctx: Any) -> str:
        await ctx.signal("never")
        return "no"

    first = (await client.post("/api/tasks", json={"task": "work"})).json()["task_id"]
    assert (await client.post(f"/api/tasks/{first}/priority", json={"priority": 9})).json()["priority"] == 9
    assert (await client.post(f"/api/tasks/{first}/pause")).json()["reason"] == "paused"
    assert (await client.post(f"/api/tasks/{first}/resume")).json()["state"] == "pending"
    assert (await client.post(f"/api/tasks/{first}/cancel")).json()["state"] == "cancelled"
    late = await client.post(f"/api/tasks/{first}/priority", json={"priority": 9})
    assert (late.status_code, late.json()["code"]) == (409, "state_conflict")
    assert (await client.post(f"/api/tasks/{first}/cancel")).status_code == 200
    forked = (await client.post(f"/api/tasks/{first}/fork", json={"at": 1})).json()
    assert forked["task_id"] != first
    assert forked["state"] == "pending"


async def test_people_decide_once(app: Onward, client: Client, ends: Ends) -> None:
    @app.task
    async def work(ctx: Any) -> str:
        await ctx.approve("go on?", risk="external_action")
        return str(await ctx.ask("how?", choices=["fast", "slow"]))

    async def opened(path: str) -> dict[str, Any]:
        for _ in range(500):
            if open_asks := (await client.get(f"/api/{path}")).json()[path]:
                ask: dict[str, Any] = open_asks[0]
                return ask
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {path}")

    async with app.worker():
        task_id = (await client.post("/api/tasks", json={"task": "work"})).json()["task_id"]
        approval = await opened("approvals")
        stale = await client.post(f"/api/approvals/{approval['id']}", json={"decision": "approve", "hash": "other"})
        assert (stale.status_code, stale.json()["code"]) == (409, "stale_decision")
        yes = {"decision": "approve", "hash": approval["hash"]}
        answers = await asyncio.gather(*(client.post(f"/api/approvals/{approval['id']}", json=yes) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
        question = await opened("questions")
        assert (await client.post(f"/api/questions/{question['id']}", json={"answer": "how"})).status_code == 422
        assert (await client.post(f"/api/questions/{question['id']}", json={"answer": "slow"})).json()[
            "decided"
        ] is True
        assert (await ends(task_id))["result"] == "slow"


async def test_pages_of_tasks(app: Onward, client: Client) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    ids = [task.id for task in await app.submit_many(work, list(range(7)))]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = (await client.get("/api/tasks", params={"limit": 3, **({"cursor": cursor} if cursor else {})})).json()
        seen += [task["task_id"] for task in page["tasks"]]
        if (cursor := page["next"]) is None:
            break
    assert seen == sorted(ids, reverse=True)


async def test_requests_of_foreign_pages_are_refused(app: Onward) -> None:
    @app.task
    async def work(ctx: Any) -> None: ...

    hosts = {"127.0.0.1", "localhost"}
    async with serving(app, hosts=hosts) as address, Client(base_url=address) as client:
        rebound = await client.post("/api/tasks", json={"task": "work"}, headers={"Host": "evil.example"})
        assert (rebound.status_code, rebound.json()["code"]) == (421, "wrong_host")
        forged = await client.post("/api/tasks", json={"task": "work"}, headers={"Origin": "https://evil.example"})
        assert (forged.status_code, forged.json()["code"]) == (403, "foreign_origin")
        own = await client.post("/api/tasks", json={"task": "work"}, headers={"Origin": address})
        assert own.status_code == 202
    tasks, _ = await app.list()
    assert len(tasks) == 1


async def test_health_reports_whether_the_database_answers(client: Client) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ok"}


async def test_answers_are_sent_without_delay() -> None:
    """asyncio turns off Nagle's algorithm only where a socket names its protocol; with it every answer took 40 ms longer."""
    seen: list[int] = []

    async def connected(_reader: Any, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with _bound("127.0.0.1", 0) as bound:
        async with await asyncio.start_server(connected, sock=bound) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            writer.close()
    assert seen
    assert all(seen)


@only_memory
async def test_a_client_that_waits_for_a_result_is_answered_when_the_server_stops(app: Onward) -> None:
    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    async with served(app) as (client, _, server), app.worker():
        task = await app.submit("waits")
        held = [
            asyncio.create_task(client.get(f"/api/tasks/{task.id}/result", params={"timeout_s": 60})),
            asyncio.create_task(client.get(f"/api/tasks/{task.id}", headers={"Prefer": "wait=60"})),
            asyncio.create_task(client.post("/api/tasks", json={"task": "waits"}, headers={"Prefer": "wait=60"})),
        ]
        await eventually(lambda: _held(app, 3), 60)
        server.stop_gracefully()
        answers = await asyncio.gather(*held)
        assert [answer.status_code for answer in answers] == [202, 200, 202]


@only_memory
async def test_a_wait_ends_when_its_client_has_left(app: Onward) -> None:
    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    async with served(app) as (client, _, _):
        task = await app.submit("waits")
        held = asyncio.create_task(client.get(f"/api/tasks/{task.id}/result", params={"timeout_s": 60}))
        await eventually(lambda: _held(app, 1), 60)
        held.cancel()
        await eventually(lambda: _held(app, 0), 60)
        assert (await client.get("/healthz")).status_code == 200


@only_memory
async def test_a_key_that_is_revoked_while_it_waits_gets_no_result(app: Onward) -> None:
    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    made = await app.keys.create("ada", ["read"])
    async with served(app) as (client, edge, _), app.worker():
        task = await app.submit("waits")
        mine = {"Authorization": f"Bearer {made.token}"}
        held = asyncio.create_task(client.get(f"/api/tasks/{task.id}/result", params={"timeout_s": 60}, headers=mine))
        await eventually(lambda: _held(app, 1), 60)
        await app.keys.revoke(made.key.id)
        edge.authenticator.keys._valid.clear()  # as it is two seconds later
        await app.signal(task.id, "go", "what only keys that are good are told")
        assert (await held).status_code == 401


async def _held(app: Onward, wanted: int) -> bool:
    """Whether so many wait for the end of a task, and have looked at it."""
    hub: Any = app.store._nudges.hub  # type: ignore[attr-defined]
    return len([listener for listener in hub._listeners.get("ended", ()) if "Event.set" in repr(listener)]) == wanted


async def test_the_address_of_the_database_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """A caller without a key, or with a wrong one, can send requests while the database is unreachable."""
    app = Onward("postgresql://ada:secret@127.0.0.1:1/hidden")
    async with serving(app) as address, Client(base_url=address) as client:
        for path, headers in (("/readyz", {}), ("/api/tasks", {"Authorization": f"Bearer {keys.new().text}"})):
            answer = await client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
            assert "hidden" not in answer.text
            assert "127.0.0.1" not in answer.text
    assert "127.0.0.1:1/hidden" in caplog.text
