"""Long calls as MCP tasks: they are stored, people answer them, and they survive their server."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Onward, State
from rig.processes import Child
from tests.kit import eventually, not_memory

VERSION = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
ROOT = Path(__file__).resolve().parents[3]
PATH = os.pathsep.join([str(ROOT), str(ROOT / "src")])
_ids = itertools.count(1)


class Rpc:
    """A modern client, written by hand: it sends requests and returns the bodies of the responses as they are."""

    def __init__(self, url: str, *, tasks: bool = True, elicits: bool = True, key: str | None = None) -> None:
        self.url = url
        self._shown = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._capabilities: dict[str, Any] = {"extensions": {EXTENSION: {}}} if tasks else {}
        self._capabilities |= {"elicitation": {}} if elicits else {}

    def message(self, method: str, name: str | None, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Body and headers of a request."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": self._capabilities,
        }
        body = {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": {**params, "_meta": meta}}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
            **self._shown,
            **({"Mcp-Name": str(name)} if name is not None else {}),
        }
        return body, headers

    async def __call__(self, method: str, name: str | None = None, /, **params: Any) -> dict[str, Any]:
        body, headers = self.message(method, name, params)
        async with httpx2.AsyncClient(timeout=60) as http:
            answer = await http.post(self.url, json=body, headers=headers)
        response: dict[str, Any] = answer.json()
        return response

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self("tools/call", tool, name=tool, arguments=arguments)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def get(self, task_id: str) -> dict[str, Any]:
        answer = await self("tasks/get", task_id, taskId=task_id)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        async def there() -> Any:
            task = await self.get(task_id)
            return task if task["status"] in statuses else None

        return dict(await eventually(there))


@pytest.mark.slow
async def test_a_call_is_a_task_of_the_store_that_people_answer(served: str, app: Onward) -> None:
    rpc = Rpc(served)
    handle = await rpc.call("careful", what="paint it")
    assert handle["resultType"] == "task"
    task = await app.get(handle["taskId"])
    assert (task.task, task.input) == ("careful", {"what": "paint it"}), "it is there when the handle is"
    waits = await rpc.until(task.task_id, "input_required")
    ((key, request),) = waits["inputRequests"].items()
    assert request["method"] == "elicitation/create"
    assert request["params"]["requestedSchema"]["properties"].keys() == {"confirm", "reason"}
    assert "Really paint it?" in request["params"]["message"]
    blind = await Rpc(served, elicits=False).get(task.task_id)
    assert (blind["status"], "inputRequests" in blind) == ("working", False), (
        "a client without elicitation gets no request"
    )

    wrong = await rpc("tasks/update", task.task_id, taskId=task.task_id, inputResponses={key: {"action": "accept"}})
    assert wrong["error"]["code"] == -32602
    for answers in ({"nobody.1": {"action": "accept"}}, {key: {"action": "cancel"}}):
        done = await rpc("tasks/update", task.task_id, taskId=task.task_id, inputResponses=answers)
        assert done["result"]["resultType"] == "complete"
    assert (await rpc.get(task.task_id))["inputRequests"].keys() == {key}
    yes = {key: {"action": "accept", "content": {"confirm": True, "reason": "fine"}}}
    for _ in range(2):  # a second answer changes nothing
        await rpc("tasks/update", task.task_id, taskId=task.task_id, inputResponses=yes)

    async def question() -> Any:
        requests = (await rpc.get(task.task_id)).get("inputRequests", {})
        return next((ask for ask in requests if ask != key), None)

    ask = await eventually(question)
    shown = (await rpc.get(task.task_id))["inputRequests"]
    assert shown[ask]["params"]["requestedSchema"]["properties"]["answer"]["enum"] == ["red", "blue"]
    blue = {ask: {"action": "accept", "content": {"answer": "blue"}}}
    await rpc("tasks/update", task.task_id, taskId=task.task_id, inputResponses=blue)
    done = await rpc.until(task.task_id, "completed")
    assert done["result"]["content"][0]["text"] == "paint it in blue"
    assert "isError" not in done["result"] or done["result"]["isError"] is False


async def test_a_denial_and_a_failure_are_results(served: str, app: Onward) -> None:
    rpc = Rpc(served)
    handle = await rpc.call("careful", what="paint it")
    waits = await rpc.until(handle["taskId"], "input_required")
    no = {key: {"action": "decline"} for key in waits["inputRequests"]}
    await rpc("tasks/update", handle["taskId"], taskId=handle["taskId"], inputResponses=no)
    done = await rpc.until(handle["taskId"], "completed", "failed")
    assert (done["status"], done["result"]["isError"]) == ("completed", True)
    failed = await rpc.until((await rpc.call("fail"))["taskId"], "completed", "failed")
    assert (failed["status"], failed["result"]["isError"]) == ("completed", True)
    assert "no such thing" in failed["result"]["content"][0]["text"]


async def test_a_refused_call_submits_no_task(served: str, app: Onward) -> None:
    rpc = Rpc(served)
    refused = await rpc.call("add", a=1)
    assert (refused["resultType"], refused["isError"]) == ("complete", True)
    refused = await rpc.call("submit", task="nobody")
    assert (refused["resultType"], refused["structuredContent"]["code"]) == ("complete", "unknown_task")
    assert await app.list() == ([], None)
    for method in ("tasks/get", "tasks/cancel"):
        unknown = await rpc(method, "nobody", taskId="nobody")
        assert unknown["error"]["code"] == -32602


async def test_a_task_submitted_elsewhere_is_an_mcp_task_and_can_be_cancelled(served: str, app: Onward) -> None:
    """A task that was submitted by another API has the same id here."""
    rpc = Rpc(served)
    there = await app.submit("wait")
    assert (await rpc.get(there.id))["status"] == "working"
    handle = await rpc.call("submit", task="wait", key="k")
    assert (await rpc.call("submit", task="wait", key="k"))["taskId"] == handle["taskId"]
    for task_id in (there.id, handle["taskId"]):
        for _ in range(2):
            answer = await rpc("tasks/cancel", task_id, taskId=task_id)
            assert answer["result"]["resultType"] == "complete"
        assert (await rpc.get(task_id))["status"] == "cancelled"
    assert (await there.get()).state is State.CANCELLED


async def test_the_question_of_a_child_is_shown_by_its_parent(served: str, app: Onward) -> None:
    @app.task
    async def boss(ctx: Any) -> str:
        """Have it done by another."""
        return str(await (await ctx.submit("careful", {"what": "dig"})))

    rpc = Rpc(served)
    handle = await rpc.call("submit", task="boss")
    waits = await rpc.until(handle["taskId"], "input_required")
    (key,) = waits["inputRequests"]
    assert not key.startswith(handle["taskId"])
    yes = {key: {"action": "accept", "content": {"confirm": True}}}
    await rpc("tasks/update", handle["taskId"], taskId=handle["taskId"], inputResponses=yes)

    async def question() -> Any:
        return next((ask for ask in (await rpc.get(handle["taskId"])).get("inputRequests", {}) if ask != key), None)

    ask = await eventually(question)
    red = {ask: {"action": "accept", "content": {"answer": "red"}}}
    await rpc("tasks/update", handle["taskId"], taskId=handle["taskId"], inputResponses=red)
    assert (await rpc.until(handle["taskId"], "completed"))["result"]["content"][0]["text"] == "dig in red"


# ── servers that die ─────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def server(db: str, cwd: Path) -> Iterator[tuple[Child, str]]:
    env = {"ONWARD_DB": db, "PYTHONPATH": PATH}
    child = Child.module("onward", "serve", "tests.server.mcp.shop:app", "--port", "0", env=env, cwd=cwd)
    with child:
        line = child.wait_for("ready: ", timeout=60)
        yield child, line.split("ready: ")[1].split()[0] + "/mcp"


@pytest.mark.slow
@not_memory
async def test_a_handle_outlives_its_server_and_is_known_to_every_other(url: str, tmp_path: Path) -> None:
    with server(url, tmp_path) as (first, first_url):
        working = await Rpc(first_url).call("wait")
        asking = await Rpc(first_url).call("careful", what="dig")
        await Rpc(first_url).until(asking["taskId"], "input_required")
        first.kill9()
    with server(url, tmp_path) as (_, two), server(url, tmp_path) as (_, three):
        assert (await Rpc(two).get(working["taskId"]))["status"] == "working"
        waits = await Rpc(three).until(asking["taskId"], "input_required")
        (key,) = waits["inputRequests"]
        yes = {key: {"action": "accept", "content": {"confirm": True}}}
        await Rpc(two)("tasks/update", asking["taskId"], taskId=asking["taskId"], inputResponses=yes)

        async def question() -> Any:
            requests = (await Rpc(three).get(asking["taskId"])).get("inputRequests", {})
            return next((ask for ask in requests if ask != key), None)

        blue = {await eventually(question): {"action": "accept", "content": {"answer": "blue"}}}
        await Rpc(three)("tasks/update", asking["taskId"], taskId=asking["taskId"], inputResponses=blue)
        done = await Rpc(two).until(asking["taskId"], "completed")
        assert done["result"]["content"][0]["text"] == "dig in blue"
        async with Onward(url) as app:
            await app.signal(working["taskId"], "go", "went")
        done = await Rpc(three).until(working["taskId"], "completed")
        assert done["result"]["content"][0]["text"] == "went"


SECOND = """
import asyncio, json, sys
from mcp import Client
from onward import Onward
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool

url, uri, mode = sys.argv[1:4]
app = Onward("sqlite://:memory:")

@tool(risk="external_action")
async def take_over() -> str:
    "Read what the first agent knows, and tell it that somebody else goes on."
    async with Client(url, mode=mode) as client:
        (content,) = (await client.read_resource(uri)).contents
        known = json.loads(content.text)
        facts = [{"key": "taken over by", "value": "builder"}]
        await client.call_tool("patch", {"task_id": known["task_id"], "append_facts": facts})
    return ", ".join(known["state"]["plan"][1:])

def goes_on(request):
    return "I go on with: " + request.conversation[-1]["content"]

builder = app.agent("builder", model=ScriptedModel([[("take_over", {})], goes_on]), tools=[take_over])

async def main():
    async with app, app.worker():
        handle = await app.submit(builder, "go on from the scout")
        print(await handle.result(timeout=60))

asyncio.run(main())
"""


@pytest.mark.slow
@not_memory
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_second_agent_in_another_process_reads_the_state_of_the_first_and_continues(
    url: str, tmp_path: Path, mode: str
) -> None:
    async with Onward(url) as app:
        with server(url, tmp_path) as (_, door):
            handle = await app.submit("scout")

            async def planned() -> bool:
                return bool((await app.get(handle.id)).reason == "signal")

            await eventually(planned)
            uri = f"state://agents/scout/tasks/{handle.id}"
            env = {"PYTHONPATH": PATH}
            with Child.code(SECOND, door, uri, mode, env=env, cwd=tmp_path) as second:
                assert second.line(timeout=90) == "I go on with: clean /var/log, report"
            assert (await app.state(handle.id)).fact("taken over by") == "builder"
            assert [ref.summary for ref in (await app.state(handle.id)).artifacts] == ["what is large"]
            await app.signal(handle.id, "taken over")
            assert await handle.result(timeout=60) == "builder"
