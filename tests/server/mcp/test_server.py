"""The MCP server: official clients of both eras, over a real socket, on every store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
from typing import Any

import httpx2
import mcp_types as t
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from onward import Onward
from onward.cli.args.parser import parse
from onward.core.caller import READ, SUBMIT, Caller
from onward.server.mcp.common import uri_of
from tests.docs.test_guides import GUIDES, code_of
from tests.kit import eventually
from tests.server.mcp.shop import shop


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    assert json.loads(result.content[0].text) == result.structured_content  # the same for clients that read only text
    return dict(result.structured_content)


async def read(client: Client, uri: str) -> dict[str, Any]:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, t.TextResourceContents)
    assert content.mime_type == "application/json"
    value: dict[str, Any] = json.loads(content.text)
    return value


async def test_the_state_of_an_agent_is_a_resource(client: Client, app: Onward) -> None:
    done = await call(client, "submit", task="devops", input="watch the disk", wait_s=30)
    assert (done["state"], done["result"]) == ("completed", "done")
    state = await read(client, done["resource"])
    assert (state["agent_id"], state["task_id"], state["task_state"]) == ("devops", done["task_id"], "completed")
    assert state["state"] == (await app.state(done["task_id"])).model_dump(mode="json")
    assert state["state"]["plan"] == ["look", "clean"]
    listed = (await client.list_resources()).resources
    assert [(resource.uri, resource.mime_type) for resource in listed] == [(done["resource"], "application/json")]
    templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == ["state://agents/{agent_id}/tasks/{task_id}"]


async def test_an_unknown_task_or_another_agent_name_is_not_found(client: Client, app: Onward) -> None:
    handle = await app.submit("wait")
    assert (await read(client, uri_of("wait", handle.id)))["state"] is None, "it has none, and is there"
    for uri in (uri_of("devops", handle.id), uri_of("wait", "nobody"), "state://agents/wait/tasks/..%2F", "state://x"):
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
        assert refused.value.code == t.INVALID_PARAMS
        assert refused.value.data == {"uri": uri}


async def test_the_verbs_are_tools_with_schemas_and_descriptions(client: Client, app: Onward) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["submit", "get", "cancel", "patch", "answer", "decide", "add", "careful", "fail"]
    assert tools["add"].input_schema["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert tools["get"].annotations is not None
    assert tools["get"].annotations.read_only_hint
    assert all(tool.description for tool in tools.values())
    assert (await client.call_tool("add", {"a": 2, "b": 3})).content[0].text == "5"
    for name, arguments, code in (
        ("submit", {"task": "nobody"}, "unknown_task"),
        ("submit", {"task": "add", "input": {"a": "x", "b": 1}}, "invalid_input"),
        ("add", {"a": 1}, "invalid_input"),
        ("get", {"task_id": "nobody"}, "task_not_found"),
        ("decide", {"approval_id": "x.1", "decision": "approve", "digest": "0" * 64}, "not_found"),
        ("patch", {"task_id": "nobody", "flag_risks": ["x"]}, "task_not_found"),
    ):
        result = await client.call_tool(name, arguments)
        assert result.is_error, (name, arguments)
        assert result.structured_content is not None
        assert result.structured_content["code"] == code
        assert result.content[0].text.startswith(f"{code}: ")
    failed = await client.call_tool("fail", {})
    assert failed.is_error
    assert "no such thing" in failed.content[0].text
    assert (await client.call_tool("get", {})).is_error, "the model gets the error about wrong arguments"


async def test_a_key_makes_two_calls_one_task(client: Client, app: Onward) -> None:
    first = await call(client, "submit", task="wait", key="once")
    assert (await call(client, "submit", task="wait", key="once"))["task_id"] == first["task_id"]
    ended = await call(client, "cancel", task_id=first["task_id"])
    assert ended["state"] == "cancelled"
    assert (await call(client, "cancel", task_id=first["task_id"]))["state"] == "cancelled"


async def test_people_are_asked_and_answer(client: Client, app: Onward) -> None:
    """A client that does not know MCP tasks gets the open approval instead of a result, and the result later."""
    waits = await call(client, "careful", what="paint it")
    (ask,) = waits["asks"]
    assert (ask["kind"], ask["text"]) == ("approval", "Really paint it?")
    digest = ask["digest"]
    done = await call(client, "decide", approval_id=ask["id"], decision="approve", digest=digest, reason="go on")
    assert done["digest"] == digest
    again = await client.call_tool("decide", {"approval_id": ask["id"], "decision": "deny", "digest": digest})
    assert again.structured_content is not None
    assert again.structured_content["code"] == "already_decided"

    async def question() -> Any:
        shown = await call(client, "get", task_id=waits["task_id"])
        return [ask for ask in shown.get("asks", []) if ask["kind"] == "question"]

    (ask,) = await eventually(question)
    assert (await client.call_tool("answer", {"question_id": ask["id"], "answer": "green"})).is_error
    await call(client, "answer", question_id=ask["id"], answer="blue")
    done = await call(client, "get", task_id=waits["task_id"], wait_s=30)
    assert done["result"] == "paint it in blue"


async def test_two_agents_change_one_state_at_once_without_lost_updates(served: str, app: Onward) -> None:
    app.task(name="research")(_research)
    async with Client(served) as modern, Client(served, mode="legacy") as legacy:
        task = await call(modern, "submit", task="research")
        uri = task["resource"]

        async def begun() -> bool:
            return (await read(modern, uri))["state"] is not None

        await eventually(begun)
        facts = [("one", modern, n) for n in range(15)] + [("other", legacy, n) for n in range(15)]
        await asyncio.gather(
            *[
                call(client, "patch", task_id=task["task_id"], append_facts=[{"key": "n", "value": f"{who} {n}"}])
                for who, client, n in facts
            ]
        )
        await call(modern, "patch", task_id=task["task_id"], append_facts=[{"key": "n", "value": "twice"}], id="p1")
        await call(legacy, "patch", task_id=task["task_id"], append_facts=[{"key": "n", "value": "twice"}], id="p1")
        known = (await read(legacy, uri))["state"]["known_facts"]
        assert sorted(fact["value"] for fact in known) == sorted([f"{who} {n}" for who, _, n in facts] + ["twice"])
        await app.signal(task["task_id"], "go")
        done = await call(modern, "get", task_id=task["task_id"], wait_s=30)
        assert done["result"] == [fact["value"] for fact in known], "the task saw them in the order in which they came"
        late = await modern.call_tool("patch", {"task_id": task["task_id"], "flag_risks": ["late"]})
        assert late.structured_content is not None
        assert late.structured_content["code"] == "state_conflict"


async def _research(ctx: Any) -> list[str]:
    from onward.core.state import AgentState

    await ctx.patch(AgentState(goal="find out"))
    await ctx.signal("go")
    return [str(fact.value) for fact in (await ctx.patch()).known_facts]


# ── listening ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_modern_client_gets_updates_of_a_resource(served: str, app: Onward) -> None:
    app.task(name="research")(_research)
    async with Client(served) as client:
        task = await call(client, "submit", task="research")
        other = await call(client, "submit", task="wait")
        uri = task["resource"]
        async with client.listen(resource_subscriptions=[uri]) as updates:
            await call(client, "patch", task_id=task["task_id"], flag_risks=["low disk"])
            event = await asyncio.wait_for(anext(aiter(updates)), 60)
            assert event.uri == uri

            async def flagged() -> bool:
                return ((await read(client, uri))["state"] or {}).get("risk_flags") == ["low disk"]

            await eventually(flagged)
            await app.cancel(other["task_id"])
            await app.signal(task["task_id"], "go")
            async with asyncio.timeout(60):
                while (await read(client, uri))["task_state"] != "completed":
                    assert (await anext(aiter(updates))).uri == uri


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
async def test_an_older_client_gets_updates_of_a_subscription(served: str, app: Onward) -> None:
    heard: list[str] = []

    async def hear(message: Any) -> None:
        if isinstance(message, t.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    app.task(name="research")(_research)
    async with Client(served, mode="legacy", message_handler=hear) as client:
        task = await call(client, "submit", task="research")
        uri = task["resource"]
        await client.subscribe_resource(uri)
        await call(client, "patch", task_id=task["task_id"], flag_risks=["low disk"])
        await eventually(lambda: _is(uri in heard))
        await client.unsubscribe_resource(uri)
        heard.clear()
        await app.signal(task["task_id"], "go")
        assert (await call(client, "get", task_id=task["task_id"], wait_s=30))["state"] == "completed"
        with pytest.raises(MCPError, match="there is no resource"):
            await client.subscribe_resource(uri_of("research", "nobody"))
        assert heard == []


async def _is(value: bool) -> bool:
    return value


async def test_a_caller_without_read_cannot_subscribe(served: str, app: Onward) -> None:
    async with Client(served) as client:
        with pytest.raises(MCPError, match="there is no resource"):
            async with client.listen(resource_subscriptions=[uri_of("devops", "nobody")]):
                raise AssertionError("it should not have been opened")


# ── callers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tools_beyond_the_scopes_of_a_caller_are_hidden_and_refused(app: Onward) -> None:
    shop(app)
    reader = app.mcp(local=Caller(scopes=frozenset({READ}), name="reader"))
    handle = await app.submit("wait")
    async with Client(reader) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["get"]
        assert (await call(client, "get", task_id=handle.id))["state"] == "pending"
        with pytest.raises(MCPError, match="lacks the scope 'submit'"):
            await client.call_tool("submit", {"task": "wait"})
    writer = app.mcp(local=Caller(scopes=frozenset({SUBMIT})))
    async with Client(writer) as client:
        with pytest.raises(MCPError, match="lacks the scope 'read'"):
            await client.read_resource(uri_of("wait", handle.id))
        with pytest.raises(MCPError, match="lacks the scope 'read'"):
            await client.list_resources()
        with pytest.raises(MCPError, match="lacks the scope 'read'"):
            async with client.listen(resource_subscriptions=[uri_of("wait", handle.id)]):
                raise AssertionError("it should not have been opened")
    async with Client(app.mcp(local=None)) as client:
        with pytest.raises(MCPError, match="needs a key"):
            await client.list_tools()


async def test_foreign_origins_and_hosts_are_refused(served: str, app: Onward) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"Accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient() as http:
        for headers, status in (
            ({"Origin": "https://evil.example"}, 403),
            ({"Authorization": "Bearer x"}, 401),
            ({}, 400),
        ):
            answer = await http.post(served, json=ping, headers={**accept, **headers})
            assert answer.status_code == status, answer.text
        unknown = {**accept, "mcp-session-id": "0" * 32}
        assert (await http.post(served, json=ping, headers=unknown)).status_code == 404, "a session is not guessed"


async def test_a_request_without_an_authenticated_caller_is_refused(app: Onward) -> None:
    """The server refuses a request over HTTP that has not passed authentication, in every mode."""
    server = app.mcp()
    transport = httpx2.ASGITransport(server.streamable_http_app(host="testserver"))
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": _modern()}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/list",
    }
    async with server.session_manager.run():
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as http:
            answer = await http.post("/mcp", json=body, headers=headers)
    assert "needs a key" in answer.json()["error"]["message"]


def _modern() -> dict[str, Any]:
    return {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }


@pytest.mark.slow
async def test_the_sdk_is_imported_on_first_use(app: Onward) -> None:
    import subprocess
    import sys

    code = "import sys, onward.app.application; a = onward.app.application.Onward('sqlite://:memory:'); a.asgi(); print('mcp' in sys.modules)"
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


async def test_a_server_leaves_the_logging_of_the_program_alone(app: Onward) -> None:
    import logging

    before = list(logging.getLogger().handlers)
    for handler in before:
        logging.getLogger().removeHandler(handler)
    with contextlib.ExitStack() as stack:
        for handler in before:
            stack.callback(logging.getLogger().addHandler, handler)
        app.mcp()
        assert logging.getLogger().handlers == []


# ── the guide ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_guide(app: Onward, monkeypatch: Any) -> None:
    """The code of mcp.md runs, and gives the results that the guide names."""
    names = code_of("mcp.md", "shop.py")
    async with Client(names["server"]) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert tools == ["submit", "get", "cancel", "patch", "answer", "decide", "deploy", "motto"]
        assert (await client.call_tool("motto", {})).content[0].text == "On and on."
    relay = code_of("mcp.md", "relay.py")
    app.handlers |= relay["app"].handlers
    app._handler_specs |= relay["app"]._handler_specs
    async with app.worker(), Client(app.mcp()) as client:
        handle = await app.submit("scout", "look around")
        (ask,) = await eventually(lambda: app.asks("question"))
        content = await relay["help_out"](client, handle.id)
        assert json.loads(content.text)["state"]["known_facts"][0]["value"] == "87 % full"
        await app.answer(ask.id, "yes")
        assert await handle.result(timeout=60) == "enough"
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    clerk = code_of("mcp.md", "clerk.py")
    assert "clerk" in clerk["app"].handlers


def test_the_commands_of_the_guide() -> None:
    text = (GUIDES / "mcp.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (onward .*)$", text, re.MULTILINE) + re.findall(r"`(onward mcp [^`]+)`", text)
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        assert parse(words).command == words[0]
