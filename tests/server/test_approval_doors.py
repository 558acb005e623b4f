"""Approval rules over HTTP, WebSocket, MCP and the command line: all of them refuse and count alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from onward import ApprovalRule, Client, Context, Onward
from onward.cli.args.actor import actor
from onward.core.caller import SCOPES
from onward.engine.worker.worker import Worker
from onward.errors import NotApprover
from tests.cli.conftest import Output, process
from tests.kit import eventually
from tests.server.conftest import serving
from tests.server.mcp.test_tasks import Rpc

ALL = list(SCOPES)


class Door:
    """A server with keys of three approvers and of the asker, and a worker that asks."""

    def __init__(self, app: Onward, worker: Worker, address: str, keys: dict[str, Any]) -> None:
        self.app, self.worker, self.address, self.keys = app, worker, address, keys
        self.http = httpx2.AsyncClient(base_url=address, timeout=60)

    def headers(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[who].token}"}

    async def open_approval(self, who: str = "asker") -> dict[str, Any]:
        """An open approval of a task that this caller submitted, as `GET /api/approvals` shows it."""
        response = await self.http.post("/api/tasks", json={"task": "send"}, headers=self.headers(who))
        task_id = response.json()["task_id"]
        return await self.open(task_id)

    async def open(self, task_id: str) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            asks = (await self.http.get("/api/approvals", headers=self.headers("ada"))).json()["approvals"]
            return next((ask for ask in asks if ask["task_id"] == task_id), None)

        ask: dict[str, Any] = await eventually(there)
        return ask

    async def decide(self, ask: dict[str, Any], who: str, decision: str = "approve", **more: Any) -> httpx2.Response:
        body = {"decision": decision, "digest": ask["digest"], **more}
        return await self.http.post(f"/api/approvals/{ask['id']}", json=body, headers=self.headers(who))


@pytest.fixture
async def door(app: Onward) -> AsyncIterator[Door]:
    keys = {name: await app.keys.create(name, ALL) for name in ("asker", "ada", "bo", "kim", "eve")}
    three = [f"key:{keys[name].key.id}" for name in ("ada", "bo", "kim", "asker")]
    app.approval_rules = (ApprovalRule(approvers=three, votes=2),)

    @app.task(retry=1)
    async def send(ctx: Context) -> str:
        return str((await ctx.approve("send it", risk="external_action"))["by"])

    async with serving(app) as address, app.worker() as worker:
        door = Door(app, worker, address, keys)
        async with door.http:
            yield door


async def test_over_http_two_of_three_decide_and_the_asker_does_not(door: Door) -> None:
    ask = await door.open_approval()
    assert (ask["rule"]["votes"], ask["votes"]) == (2, [])
    for who, why in (("asker", "asked for it"), ("eve", "is not among those who may decide")):
        for decision in ("approve", "deny"):
            refused = await door.decide(ask, who, decision)
            assert (refused.status_code, refused.json()["code"]) == (403, "not_approver")
            assert why in refused.json()["detail"]
            assert f"2 votes of key:{door.keys['ada'].key.id}" in refused.json()["detail"], "it says who may"
    first = (await door.decide(ask, "ada")).json()
    assert first == {"id": ask["id"], "task_id": ask["task_id"], "decided": False, "votes": 1, "needed": 2}
    assert (await door.decide(ask, "ada")).json() == first, "the same vote again"
    (vote,) = (await door.open(ask["task_id"]))["votes"]
    assert (vote["voter"], vote["by"], vote["decision"]) == (f"key:{door.keys['ada'].key.id}", "ada", "approve")
    assert (await door.decide(ask, "bo")).json()["decided"] is True
    late = await door.decide(ask, "kim")
    assert (late.status_code, late.json()["code"]) == (409, "already_decided")
    assert (await door.app.service.wait(ask["task_id"], 60)).result == "ada, bo"


async def test_over_the_python_client(door: Door) -> None:
    ask = await door.open_approval()
    async with (
        Client(door.address, door.keys["ada"].token) as ada,
        Client(door.address, door.keys["bo"].token) as bo,
        Client(door.address, door.keys["asker"].token) as asker,
    ):
        with pytest.raises(NotApprover):
            await asker.decide(ask["id"], "approve")
        assert await ada.decide(ask["id"], "approve") is False
        seen = await ada.approval(ask["id"])
        assert seen.rule is not None
        assert (seen.rule.votes, [vote.by for vote in seen.votes]) == (2, ["ada"])
        assert await bo.decide(ask["id"], "deny", reason="no") is True


async def test_over_a_websocket(door: Door) -> None:
    ask = await door.open_approval()
    address = f"ws{door.address.removeprefix('http')}/api/tasks/{ask['task_id']}/ws"

    async def say(who: str, kind: str) -> dict[str, Any]:
        async with connect(address, additional_headers=door.headers(who)) as socket:
            await socket.send(json.dumps({"type": kind, "approval_id": ask["id"], "digest": ask["digest"]}))
            while True:
                answer: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 60))
                if answer["type"] in {"ack", "error"}:
                    return answer

    assert (await say("asker", "approve"))["code"] == "not_approver"
    assert (await say("eve", "deny"))["code"] == "not_approver"
    assert (await say("ada", "approve")) == {
        "type": "ack", "for": "approve", "decided": False, "votes": 1, "needed": 2,
    }  # fmt: skip
    assert (await say("kim", "approve"))["decided"] is True


async def test_over_mcp(door: Door) -> None:
    ask = await door.open_approval()
    rpcs = {who: Rpc(f"{door.address}/mcp", key=made.token) for who, made in door.keys.items()}
    named = {"approval_id": ask["id"], "decision": "approve", "digest": ask["digest"]}
    refused = await rpcs["asker"]("tools/call", "decide", name="decide", arguments=named)
    assert refused["error"]["data"]["code"] == "not_approver"
    first = (await rpcs["ada"].call("decide", **named))["structuredContent"]
    assert (first["decided"], first["votes"], first["needed"]) == (False, 1, 2)
    (shown,) = (await rpcs["ada"].call("get", task_id=ask["task_id"]))["structuredContent"]["asks"]
    assert [vote["by"] for vote in shown["votes"]] == ["ada"]
    task_id, yes = ask["task_id"], {"action": "accept", "content": {"confirm": True}}
    responses = {f"{ask['id']}#{ask['digest']}": yes}
    refused = await rpcs["asker"]("tasks/update", task_id, taskId=task_id, inputResponses=responses)
    assert refused["error"]["data"]["code"] == "not_approver"
    requests = (await rpcs["bo"].get(task_id))["inputRequests"]
    assert "1 of 2 votes so far" in requests[f"{ask['id']}#{ask['digest']}"]["params"]["message"]
    assert "result" in await rpcs["bo"]("tasks/update", task_id, taskId=task_id, inputResponses=responses)
    assert (await door.app.service.wait(task_id, 60)).result == "ada, bo"


async def test_at_the_command_line(door: Door, url: str, kind: str) -> None:
    if kind == "sqlite memory":
        pytest.skip("a command cannot reach a database in memory")

    async def onward(*words: str) -> Output:
        return await asyncio.to_thread(process, *words, "--db", url)

    ask = await door.open_approval()
    refused = await onward("approve", ask["id"])
    assert (refused.status, f"{actor()} is not among those who may decide" in refused.err) == (2, True)
    door.worker.approval_rules = (ApprovalRule(approvers=[actor(), f"key:{door.keys['ada'].key.id}"], votes=2),)
    ask = await door.open_approval()
    voted = await onward("approve", ask["id"])
    assert (voted.status, "voted, 1 of 2" in voted.out) == (0, True)
    shown = await onward("approvals", ask["id"])
    assert (f"1 of 2 ({actor()})" in shown.out, f"2 votes of {actor()}, key:" in shown.out) == (True, True)
    assert (await door.decide(ask, "ada")).json()["decided"] is True
    own = await door.open((await onward("submit", "send")).out.strip())
    refused = await onward("deny", own["id"])
    assert (refused.status, "asked for it" in refused.err) == (2, True)
    await onward("cancel", own["task_id"])
    entries = await door.app.audit(limit=1000)
    assert [(entry.action, entry.subject) for entry in entries if entry.name == actor()] == [
        ("approve", ask["id"]),
        ("cancel", own["task_id"]),
    ]
