"""Who may do what over MCP: no key, a wrong one, one of another tenant, one that lacks a scope, one that was revoked: no leaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.server.mcp.common import uri_of
from tests.server.conftest import serving
from tests.server.mcp.test_tasks import Rpc
from tests.server.tenants import GHOST, Belongings, everything, town

Way = tuple[str, str, dict[str, Any]]


def ways(of: Belongings) -> list[Way]:
    """Everything that names something of somebody."""
    uri = uri_of("fixer", of.fixer)
    yes = {f"{of.approval}#{'0' * 64}": {"action": "accept", "content": {"confirm": True}}}
    tools: dict[str, dict[str, Any]] = {
        "get": {"task_id": of.fixer},
        "cancel": {"task_id": of.fixer},
        "patch": {"task_id": of.fixer, "flag_risks": ["taken over"]},
        "answer": {"question_id": of.question, "answer": "so"},
        "decide": {"approval_id": of.approval, "decision": "approve", "digest": "0" * 64},
        "submit": {"task": "quick", "input": "go on", "after": of.done},
    }
    return [
        *[("tools/call", name, {"name": name, "arguments": arguments}) for name, arguments in tools.items()],
        ("resources/read", uri, {"uri": uri}),
        ("subscriptions/listen", "", {"notifications": {"resourceSubscriptions": [uri]}}),
        ("tasks/get", of.fixer, {"taskId": of.fixer}),
        ("tasks/update", of.fixer, {"taskId": of.fixer, "inputResponses": yes}),
        ("tasks/cancel", of.fixer, {"taskId": of.fixer}),
    ]


@pytest.fixture
async def door(app: Onward) -> AsyncIterator[str]:
    async with serving(app) as address:
        yield f"{address}/mcp"


async def ask(door: str, key: str | None, way: Way) -> Any:
    method, name, params = way
    return await Rpc(door, key=key)(method, name or None, **params)


def without_names(answer: Any, of: Belongings) -> str:
    """An answer with nothing in it that depends on whose things were named."""
    said = {part: value for part, value in answer.items() if part != "id"}
    text = json.dumps(said, sort_keys=True)
    for name in sorted(of.names, key=len, reverse=True):
        text = text.replace(name, "…")
    return text


@pytest.mark.slow
async def test_what_belongs_to_another_tenant_is_as_unknown_as_what_is_not_there(app: Onward, door: str) -> None:
    people = await town(app)
    keys = {
        tenant: (await app.keys.create(f"all of {tenant}", ["read", "submit", "decide"], tenant=tenant)).token
        for tenant in ("acme", "globex")
    }
    before = await everything(app)
    for way, ghostly in zip(ways(people["acme"]), ways(GHOST), strict=True):
        foreign = await ask(door, keys["globex"], way)
        nowhere = await ask(door, keys["globex"], ghostly)
        assert without_names(foreign, people["acme"]) == without_names(nowhere, GHOST), way
        assert "error" in foreign or foreign["result"]["isError"], way
    listed = await ask(door, keys["globex"], ("resources/list", "", {}))
    shown = {resource["uri"] for resource in listed["result"]["resources"]}
    assert uri_of("fixer", people["globex"].fixer) in shown
    assert not any(name in json.dumps(listed) for name in people["acme"].names)
    assert await everything(app) == before, "nothing was written"
    for way in ways(people["globex"])[:1] + ways(people["globex"])[6:7] + ways(people["globex"])[8:9]:
        assert "error" not in await ask(door, keys["globex"], way), "one's own can be seen"


@pytest.mark.slow
async def test_without_a_valid_key_there_is_nothing(app: Onward, door: str) -> None:
    people = await town(app)
    made = await app.keys.create("gone", ["read", "submit", "decide"])
    short = await app.keys.create("short", ["read"], expires=0.001)
    await app.keys.revoke(made.key.id)
    await asyncio.sleep(0.01)
    before = await everything(app)
    for token in (None, "onw_nonsense", made.token[:-1] + "x", made.token, short.token):
        for way in [*ways(people["acme"]), ("tools/list", "", {}), ("server/discover", "", {})]:
            answer = await ask(door, token, way)
            assert answer["code"] == "unauthorized", (token, way)
    assert await everything(app) == before


@pytest.mark.slow
async def test_each_scope_opens_its_own_and_nothing_else(app: Onward, door: str) -> None:
    people = await town(app)
    needed = {
        "get": "read",
        "cancel": "submit",
        "patch": "submit",
        "answer": "decide",
        "decide": "decide",
        "submit": "submit",
        "resources/read": "read",
        "subscriptions/listen": "read",
        "tasks/get": "read",
        "tasks/update": "decide",
        "tasks/cancel": "submit",
    }
    for scope in ("read", "submit", "decide", "admin"):
        token = (await app.keys.create(scope, [scope], tenant="acme")).token
        before = await everything(app)
        for way in ways(people["acme"]):
            what = way[1] if way[0] == "tools/call" else way[0]
            if needed[what] != scope:
                answer = await ask(door, token, way)
                assert answer["error"]["data"]["code"] == "forbidden", (scope, way, answer)
        assert await everything(app) == before, scope
        tools = (await ask(door, token, ("tools/list", "", {})))["result"]["tools"]
        assert {tool["name"] for tool in tools} == {
            name for name, scopes in needed.items() if scopes == scope and "/" not in name
        }


async def test_a_key_to_submit_learns_nothing_but_the_id(app: Onward, door: str) -> None:
    people = await town(app)
    token = (await app.keys.create("writer", ["submit"], tenant="acme")).token
    asked = ("tools/call", "submit", {"name": "submit", "arguments": {"task": "quick", "input": "x", "wait_s": 5}})
    answer = await Rpc(door, key=token, tasks=False)(asked[0], asked[1], **asked[2])
    assert answer["result"]["structuredContent"].keys() == {"task_id", "state"}
    patch = ways(people["acme"])[2]
    assert (await ask(door, token, patch))["result"]["structuredContent"]["state"] is None


async def test_an_agent_does_not_decide_on_its_own_calls(app: Onward, door: str) -> None:
    people = await town(app)
    token = (await app.keys.create("fixer itself", ["read", "submit", "decide"], tenant="acme", agent="fixer")).token
    named = {way[1] if way[0] == "tools/call" else way[0]: way for way in ways(people["acme"])}
    refused = await ask(door, token, named["decide"])
    assert (
        refused.get("error", {}).get("data", refused.get("result", {}).get("structuredContent"))["code"] == "own_call"
    )
    refused = await ask(door, token, named["tasks/update"])
    assert refused["error"]["data"]["code"] == "own_call"
    assert people["acme"].approval in [one.id for one in await app.asks("approval")]


async def test_a_session_belongs_to_the_key_that_began_it(app: Onward, door: str) -> None:
    tokens = [(await app.keys.create(name, ["read"], tenant="acme")).token for name in ("one", "two")]
    begin = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    headers = {"Accept": "application/json, text/event-stream"}

    async def post(token: str | None, body: dict[str, Any], **more: str) -> httpx2.Response:
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await http.post(door, json={"jsonrpc": "2.0", **body}, headers={**headers, **shown, **more})

    async with httpx2.AsyncClient(timeout=60) as http:
        first = await post(tokens[0], {"id": 1, "method": "initialize", "params": begin})
        session = {"mcp-session-id": first.headers["mcp-session-id"]}
        assert len(session["mcp-session-id"]) >= 32
        await post(tokens[0], {"method": "notifications/initialized"}, **session)
        assert (await post(tokens[0], {"id": 2, "method": "tools/list"}, **session)).status_code == 200
        assert (await post(tokens[1], {"id": 3, "method": "tools/list"}, **session)).status_code == 404
        assert (await post(None, {"id": 4, "method": "tools/list"}, **session)).status_code == 401
        shown = {"Authorization": f"Bearer {tokens[1]}", **headers, **session}
        assert (await http.get(door, headers=shown)).status_code == 404, "nor is its stream there for others"
        assert (await http.delete(door, headers=shown)).status_code == 404
        assert (await post(tokens[0], {"id": 5, "method": "tools/list"}, **session)).status_code == 200


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_key_that_is_revoked_ends_what_is_open(app: Onward, door: str, era: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("onward.server.mcp.http.RECHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr("onward.server.access.auth.CACHE_TTL_S", 0.05)
    people = await town(app)
    made = await app.keys.create("soon gone", ["read"], tenant="acme")
    headers = {"Authorization": f"Bearer {made.token}", "Accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        if era == "modern":
            wanted = {"notifications": {"resourceSubscriptions": [uri_of("fixer", people["acme"].fixer)]}}
            body, more = Rpc(door).message("subscriptions/listen", None, wanted)
            opened = http.stream("POST", door, json=body, headers=more)
        else:
            begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
            first = await http.post(door, json=body)
            opened = http.stream("GET", door, headers={"mcp-session-id": first.headers["mcp-session-id"]})
        async with opened as stream:
            assert stream.status_code == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
            await app.keys.revoke(made.key.id)
            async with asyncio.timeout(60):
                with contextlib.suppress(httpx2.HTTPError):  # cut off in the middle
                    async for _ in stream.aiter_bytes():
                        pass
        assert (await http.post(door, json=body)).status_code == 401
