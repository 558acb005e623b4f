"""Access over MCP: requests without a key, with a wrong or revoked key, with a key of another tenant or without the scope are
refused, and show nothing."""

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
from tests.server.tenants import GHOST, TenantResources, all_rows, make_tenants

Way = tuple[str, str, dict[str, Any]]


def ways(of: TenantResources) -> list[Way]:
    """All requests that name a resource of a tenant."""
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


def without_names(answer: Any, of: TenantResources) -> str:
    """An answer without the ids of the resources that the request named."""
    rest = {part: value for part, value in answer.items() if part != "id"}
    text = json.dumps(rest, sort_keys=True)
    for name in sorted(of.names, key=len, reverse=True):
        text = text.replace(name, "…")
    return text


@pytest.mark.slow
async def test_a_task_of_another_tenant_is_answered_like_an_unknown_task(app: Onward, door: str) -> None:
    people = await make_tenants(app)
    keys = {
        tenant: (await app.keys.create(f"all of {tenant}", ["read", "submit", "decide"], tenant=tenant)).token
        for tenant in ("acme", "globex")
    }
    before = await all_rows(app)
    for way, ghostly in zip(ways(people["acme"]), ways(GHOST), strict=True):
        foreign = await ask(door, keys["globex"], way)
        nowhere = await ask(door, keys["globex"], ghostly)
        assert without_names(foreign, people["acme"]) == without_names(nowhere, GHOST), way
        assert "error" in foreign or foreign["result"]["isError"], way
    listed = await ask(door, keys["globex"], ("resources/list", "", {}))
    shown = {resource["uri"] for resource in listed["result"]["resources"]}
    assert uri_of("fixer", people["globex"].fixer) in shown
    assert not any(name in json.dumps(listed) for name in people["acme"].names)
    assert await all_rows(app) == before, "the refused calls changed no row"
    for way in ways(people["globex"])[:1] + ways(people["globex"])[6:7] + ways(people["globex"])[8:9]:
        assert "error" not in await ask(door, keys["globex"], way), "the tenant sees its own"


@pytest.mark.slow
async def test_requests_without_a_valid_key_are_refused(app: Onward, door: str) -> None:
    people = await make_tenants(app)
    made = await app.keys.create("gone", ["read", "submit", "decide"])
    short = await app.keys.create("short", ["read"], expires=0.001)
    await app.keys.revoke(made.key.id)
    await asyncio.sleep(0.01)
    before = await all_rows(app)
    for token in (None, "onw_nonsense", made.token[:-1] + "x", made.token, short.token):
        for way in [*ways(people["acme"]), ("tools/list", "", {}), ("server/discover", "", {})]:
            answer = await ask(door, token, way)
            assert answer["code"] == "unauthorized", (token, way)
    assert await all_rows(app) == before


@pytest.mark.slow
async def test_each_scope_allows_only_its_own_calls(app: Onward, door: str) -> None:
    people = await make_tenants(app)
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
        before = await all_rows(app)
        for way in ways(people["acme"]):
            what = way[1] if way[0] == "tools/call" else way[0]
            if needed[what] != scope:
                answer = await ask(door, token, way)
                assert answer["error"]["data"]["code"] == "forbidden", (scope, way, answer)
        assert await all_rows(app) == before, scope
        tools = (await ask(door, token, ("tools/list", "", {})))["result"]["tools"]
        assert {tool["name"] for tool in tools} == {
            name for name, scopes in needed.items() if scopes == scope and "/" not in name
        }


async def test_a_key_with_only_submit_gets_only_the_task_id(app: Onward, door: str) -> None:
    people = await make_tenants(app)
    token = (await app.keys.create("writer", ["submit"], tenant="acme")).token
    call = ("tools/call", "submit", {"name": "submit", "arguments": {"task": "quick", "input": "x", "wait_s": 5}})
    answer = await Rpc(door, key=token, tasks=False)(call[0], call[1], **call[2])
    assert answer["result"]["structuredContent"].keys() == {"task_id", "state"}
    patch = ways(people["acme"])[2]
    assert (await ask(door, token, patch))["result"]["structuredContent"]["state"] is None


async def test_an_agent_does_not_decide_on_its_own_calls(app: Onward, door: str) -> None:
    people = await make_tenants(app)
    token = (await app.keys.create("fixer itself", ["read", "submit", "decide"], tenant="acme", agent="fixer")).token
    named = {way[1] if way[0] == "tools/call" else way[0]: way for way in ways(people["acme"])}
    refused = await ask(door, token, named["decide"])
    assert (
        refused.get("error", {}).get("data", refused.get("result", {}).get("structuredContent"))["code"] == "own_call"
    )
    refused = await ask(door, token, named["tasks/update"])
    assert refused["error"]["data"]["code"] == "own_call"
    assert people["acme"].approval in [open_ask.id for open_ask in await app.asks("approval")]


async def test_a_session_works_only_with_the_key_that_began_it(app: Onward, door: str) -> None:
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
        assert (await http.get(door, headers=shown)).status_code == 404, "the stream is refused to other keys"
        assert (await http.delete(door, headers=shown)).status_code == 404
        assert (await post(tokens[0], {"id": 5, "method": "tools/list"}, **session)).status_code == 200


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_revoking_a_key_ends_its_open_streams(app: Onward, door: str, era: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("onward.server.mcp.http.RECHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr("onward.server.access.auth.CACHE_TTL_S", 0.05)
    people = await make_tenants(app)
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
