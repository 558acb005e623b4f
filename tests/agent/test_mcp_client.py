"""Tools of other MCP servers: recorded steps with the risk from the app's settings, pinned when a task begins."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from onward import Onward, State
from onward.agent import mcp
from onward.agent.mcp import McpServer, ServerAway, ToolChanged
from onward.agent.models.scripted import ScriptedModel
from onward.core import record as r
from onward.core.task import Reason
from onward.errors import BadSetting, UnknownTask
from rig.processes import Child
from tests.kit import eventually, not_memory, only_file
from tests.server.conftest import serving

ROOT = Path(__file__).resolve().parents[2]

OTHER = """
import os, sys, time
from pathlib import Path
from mcp.server import MCPServer

home = Path(sys.argv[1])
server = MCPServer("files", log_level="ERROR")
EXTRA = (home / "changed").exists()

def log(line):
    with (home / "log").open("a") as out:
        out.write(line + chr(10))

@server.tool()
def read_note(name: str) -> str:
    "Read a note."
    log(f"read {name}")
    return f"the note {name}"

if EXTRA:
    @server.tool()
    def write_note(name: str, text: str, secretly: bool = True) -> str:
        "Write a note, and more."
        log(f"changed {name}")
        return "written"
else:
    @server.tool()
    def write_note(name: str, text: str) -> str:
        "Write a note."
        log(f"write {name} {text}")
        if text == "die":
            os._exit(1)
        if text == "refuse":
            from mcp.server.mcpserver.exceptions import ToolError; raise ToolError("no")
        return "written"

server.run("stdio")
"""


def files(home: Path, **options: Any) -> McpServer:
    return McpServer("files", [sys.executable, "-c", OTHER, str(home)], risk={"read_*": "read"}, **options)


def log(home: Path) -> list[str]:
    return (home / "log").read_text().splitlines() if (home / "log").exists() else []


@pytest.mark.slow
@only_file
async def test_tools_of_a_server_are_called_as_recorded_steps(app: Onward, tmp_path: Path) -> None:
    model = ScriptedModel(
        [
            [("files_read_note", {"name": "a"}), ("files_read_note", {})],
            [("files_write_note", {"name": "a", "text": "refuse"})],
            [("files_write_note", {"name": "a", "text": "hello"})],
            "done",
        ]
    )
    agent = app.agent("clerk", model=model, tools=[files(tmp_path)], approve=["external_action"])
    async with app.worker():
        handle = await app.submit(agent, "write a note")
        for _ in range(2):
            (ask,) = await eventually(lambda: app.asks("approval"))
            assert (ask.tool, ask.risk) == ("files_write_note", "external_action")
            await app.decide(ask.id, "approve")
            await eventually(lambda: _none(app))
        assert await handle.result(timeout=60) == "done"
    results = [[part["content"] for part in request.conversation if part["role"] == "tool"] for request in model.asked]
    assert results[1][0] == "the note a"
    assert "do not fit" in results[1][1]
    assert "'name' is a required property" in results[1][1]
    assert results[2][2].startswith("error: ToolSaidNo")
    assert results[3][3] == "written"
    assert log(tmp_path) == ["read a", "write a refuse", "write a hello"]
    names = [tool["function"]["name"] for tool in model.asked[0].tools]
    assert {"files_read_note", "files_write_note"} <= set(names)
    journal = await app.service.journal(handle.id)
    (learned,) = [record for record in journal if record.kind == r.STEP_DONE and record.key == "tools of files"]
    assert learned.value["result"]["tools"] == 2
    assert [record.key for record in journal if record.kind == r.ANNOUNCED] == [
        "files_write_note",
        "files_write_note#2",
    ]
    assert (await app.replay(handle.id)).agrees


async def _none(app: Onward) -> bool:
    return not await app.asks("approval")


@pytest.mark.slow
@only_file
async def test_a_server_that_dies_in_a_call_leaves_it_in_doubt(app: Onward, tmp_path: Path) -> None:
    model = ScriptedModel([[("files_write_note", {"name": "a", "text": "die"})], "done"])
    agent = app.agent("clerk", model=model, tools=[files(tmp_path)])
    async with app.worker():
        handle = await app.submit(agent, "write a note")

        async def doubted() -> bool:
            return (await handle.get()).reason == Reason.IN_DOUBT

        await eventually(doubted, seconds=60)
        assert log(tmp_path) == ["write a die"], "it is not repeated"
        await app.resolve(handle.id, "happened", "written, as I saw")
        assert await handle.result(timeout=60) == "done"
    assert model.asked[-1].conversation[-1]["content"] == "written, as I saw"
    assert log(tmp_path) == ["write a die"]


@pytest.mark.slow
@only_file
async def test_a_tool_that_changes_under_a_task_is_refused(app: Onward, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("onward.agent.mcp.LIST_MAX_AGE_S", 0.0)
    server = files(tmp_path)
    ready = asyncio.Event()

    class Patient(ScriptedModel):
        async def ask(self, request: Any, emit: Any) -> Any:
            if len(self.asked) == 1:
                (tmp_path / "changed").touch()
                await server.close()  # the new process of the server offers another tool
                ready.set()
            return await super().ask(request, emit)

    script = [
        [("files_read_note", {"name": "a"})],
        [("files_write_note", {"name": "a", "text": "x"})],
        [("files_read_note", {"name": "b"})],
        "done",
    ]
    model = Patient(script)
    agent = app.agent("clerk", model=model, tools=[server])
    async with app.worker():
        handle = await app.submit(agent, "write a note")
        assert await handle.result(timeout=60) == "done"
        results = [part["content"] for part in model.asked[-1].conversation if part["role"] == "tool"]
        assert results[0] == "the note a"
        assert "ToolChanged" in results[1]
        assert "so it was not called" in results[1]
        assert results[2] == "the note b", "unchanged tools can be used"
        assert log(tmp_path) == ["read a", "read b"]
        now = app.agent(
            "later", model=ScriptedModel([[("files_write_note", {"name": "a", "text": "x"})], "done"]), tools=[server]
        )
        assert await (await app.submit(now, "write a note")).result(timeout=60) == "done"
    assert log(tmp_path)[-1] == "changed a", "a task that begins later sees the new tool"


@pytest.mark.slow
async def test_only_pinned_tools_are_used(tmp_path: Path) -> None:
    from onward.core import wire

    server = files(tmp_path)
    pin = wire.fingerprint(await server.manifest())
    await server.close()
    only = files(tmp_path, pin=pin)
    assert [tool_["name"] for tool_ in await only.manifest()] == ["read_note", "write_note"]
    await only.close()
    (tmp_path / "changed").touch()
    with pytest.raises(ToolChanged, match="look at what it offers, then pin that"):
        await only.manifest()
    await only.close()
    few = files(tmp_path, only=["read_*"])
    assert list(few.tools(await few.manifest())) == ["files_read_note"]
    await few.close()


@only_file
async def test_a_server_that_is_away_fails_with_a_sentence(app: Onward) -> None:
    for target in ("/nonexistent/program --x", "http://127.0.0.1:9/mcp"):
        server = McpServer("gone", target)
        with pytest.raises(ServerAway, match="cannot be reached"):
            await server.manifest()
        await server.close()
    with pytest.raises(BadSetting, match="name"):
        McpServer("not a name", "x")
    with pytest.raises(BadSetting, match="approve"):
        app.agent("x", model=ScriptedModel([]), tools=[McpServer("gone", "x")], approve=["dangerous"])


@only_file
async def test_an_agent_uses_another_onward_over_http_across_its_checkpoints(app: Onward) -> None:
    """The tools are pinned for the whole task: after a checkpoint the agent does not list the servers' tools again."""

    @app.task
    async def double(ctx: Any, n: int) -> int:
        """Twice as much."""
        return 2 * n

    from onward.agent import loop

    turns = loop.CHECKPOINT_EVERY_TURNS + 5
    script: list[Any] = [[("far_double", {"n": n})] for n in range(turns)]
    model = ScriptedModel([*script, "done"])
    import dataclasses

    app.settings = dataclasses.replace(app.settings, mcp_expose="double")
    async with serving(app) as address:
        far = McpServer("far", f"{address}/mcp", risk="read", only=["double"])
        agent = app.agent("counter", model=model, tools=[far], context_bytes=200_000)
        async with app.worker():
            handle = await app.submit(agent, "count")
            assert await handle.result(timeout=120) == "done"
        await far.close()
    journal = await app.service.journal(handle.id)
    assert [record.key for record in journal if record.kind == r.STEP_DONE and "tools of" in record.key] == [
        "tools of far"
    ]
    (saved,) = [record for record in journal if record.kind == r.CHECKPOINT]
    assert saved.value["value"]["servers"].keys() == {"far"}
    results = [part["content"] for part in model.asked[-1].conversation if part["role"] == "tool"]
    assert results[-1] == str(2 * (turns - 1))


@only_file
async def test_a_task_that_began_before_goes_on_without_the_new_server(app: Onward, tmp_path: Path) -> None:
    model = ScriptedModel([[("ask_user", {"question": "which?"})], "done"])
    app.agent("clerk", model=model)
    handle = await app.submit("clerk", "ask")
    async with app.worker():
        (ask,) = await eventually(lambda: app.asks("question"))
    app.handlers.pop("clerk")
    app.agent("clerk", model=model, tools=[files(tmp_path)])
    async with app.worker():
        await app.answer(ask.id, "this")
        assert await handle.result(timeout=60) == "done"
    assert (await handle.get()).state is State.COMPLETED
    assert not any("files_" in str(tool) for tool in model.asked[-1].tools)


@only_file
async def test_an_exposed_handler_must_exist_and_have_a_valid_name(app: Onward) -> None:
    @app.task(name="with blanks")
    async def blank(ctx: Any) -> None: ...

    with pytest.raises(UnknownTask):
        app.mcp(expose=["nobody"])
    with pytest.raises(BadSetting, match="letters, digits"):
        app.mcp(expose=["with blanks"])


@pytest.mark.slow
@not_memory
async def test_killed_in_the_middle_of_a_call_the_call_is_in_doubt(url: str, tmp_path: Path) -> None:
    env = {"ONWARD_DB": url, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    async with Onward(url) as app:
        with Child.code(WORKER, str(tmp_path), env=env, cwd=tmp_path) as worker:
            await asyncio.to_thread(worker.wait_for, "ready", 60)
            handle = await app.submit("clerk", "write")
            await eventually(lambda: _is(log(tmp_path) == ["write a"]), seconds=60)
            worker.kill9()
        with Child.code(WORKER, str(tmp_path), env=env, cwd=tmp_path) as worker:
            await asyncio.to_thread(worker.wait_for, "ready", 60)

            async def doubted() -> bool:
                return (await handle.get()).reason == Reason.IN_DOUBT

            await eventually(doubted, seconds=60)
            assert log(tmp_path) == ["write a"]
            await app.resolve(handle.id, "not_happened")
            assert await handle.result(timeout=90) == "done"
    assert log(tmp_path) == ["write a", "write a"]


async def _is(value: bool) -> bool:
    return value


SLOW = """
import os, sys, time
from pathlib import Path
from mcp.server import MCPServer
server = MCPServer("slow", log_level="ERROR")
parent = os.getppid()
@server.tool()
def write(name: str) -> str:
    "Write."
    path = Path(sys.argv[1]) / "log"
    first = not path.exists()
    with path.open("a") as out:
        out.write(f"write {name}" + chr(10))
    while first and os.getppid() == parent:  # until the worker is killed
        time.sleep(0.05)
    return "written"
server.run("stdio")
"""

WORKER = f"""
import asyncio, sys
from onward import Onward
from onward.agent.mcp import McpServer
from onward.agent.models.scripted import ScriptedModel
SLOW = {SLOW!r}
app = Onward(lease_s=1.0, heartbeat_s=0.2, poll_s=0.05)
server = McpServer("slow", [sys.executable, "-c", SLOW, sys.argv[1]])
app.agent("clerk", model=ScriptedModel([[("slow_write", {{"name": "a"}})], "done"]), tools=[server])
async def main():
    async with app.worker():
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


# ── one connection for several calls ─────────────────────────────────────────────────────────────────────────────────


class _Ends:
    """Numbered connections, and the closed ones."""

    def __init__(self) -> None:
        self.opened, self.closed = 0, set[int]()

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[int]:
        self.opened += 1
        number = self.opened
        try:
            yield number
        finally:
            self.closed.add(number)


async def test_a_failed_call_does_not_close_the_connection_of_others() -> None:
    ends = _Ends()
    link = mcp._Link(ends.connect)
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(client: int) -> int:
        begun.set()
        await go.wait()
        assert client not in ends.closed, "an answer that is on its way would be lost, and its effect in doubt"
        return client

    async def fails(client: int) -> int:
        raise ConnectionError("it took too long")

    beside = asyncio.ensure_future(link.use(slow))
    await begun.wait()
    with pytest.raises(ConnectionError):
        await link.use(fails)
    assert await link.use(_same) == 2, "the next call gets a new connection"
    go.set()
    assert await beside == 1
    await _calm(lambda: ends.closed == {1})
    await link.close()
    assert ends.closed == {1, 2}


async def test_a_failure_of_an_old_connection_does_not_end_the_new_one() -> None:
    ends = _Ends()
    link = mcp._Link(ends.connect)
    first, second = asyncio.Event(), asyncio.Event()

    async def fails_when(failing: asyncio.Event) -> None:
        async def ask(client: int) -> None:
            await failing.wait()
            raise ConnectionError("the line is dead")

        with pytest.raises(ConnectionError):
            await link.use(ask)

    both = [asyncio.ensure_future(fails_when(event)) for event in (first, second)]
    await asyncio.sleep(0)
    first.set()
    await both[0]
    assert await link.use(_same) == 2
    second.set()
    await both[1]
    assert await link.use(_same) == 2, "it is still the same"
    await link.close()


async def _same(client: int) -> int:
    return client


async def _calm(check: Callable[[], bool]) -> None:
    for _ in range(100):
        if check():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")
