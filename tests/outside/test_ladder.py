"""The last part of an agent's time from outside: tools of every length, and the partial result at every door."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onward import Client, Onward, State, tool
from onward.agent.model import Reply, Request, ToolCall
from onward.errors import TaskFailed
from rig.processes import Child
from tests.kit import not_memory

DEADLINE_S = 3.0
"""The deadline of the agents."""

SLACK_S = 20.0
"""The time that a busy machine may add before the test fails."""


class Worker:
    """A model that calls one tool again and again, and answers when it has no tools any more."""

    name = "worker"

    def __init__(self, called: str) -> None:
        self.called = called
        self.prompts: list[str] = []

    async def ask(self, request: Request, emit: Any) -> Reply:
        """One answer."""
        self.prompts.append(request.state)
        turn = sum(message["role"] == "assistant" for message in request.messages)
        if not request.tools:
            return Reply(f"answer after {turn} turns")
        return Reply(f"so far {turn}", (ToolCall(f"c{turn}", self.called, "{}"),), finish="tool_calls")


def tools_of(part: float) -> list[Any]:
    """Tools that may be repeated, one of them a plain function, and one that may not: each takes this part of the time."""

    async def linger() -> str:
        """Take a while."""
        await asyncio.sleep(DEADLINE_S * part)
        return "lingered"

    def block() -> str:
        """Take a while in a thread."""
        time.sleep(min(DEADLINE_S * part, 2 * DEADLINE_S))
        return "blocked"

    @tool(risk="external_action")
    async def send() -> str:
        """Take a while, once."""
        await asyncio.sleep(DEADLINE_S * part)
        return "sent"

    return [linger, block, send]


@not_memory
@pytest.mark.slow
@pytest.mark.parametrize("part", [0.3, 0.95, 2.0, 1_000.0])
async def test_tools_of_every_length(url: str, part: float) -> None:
    app = Onward(url, lease_s=5.0, heartbeat_s=0.5, poll_s=0.05, slots=10)
    models = {name: Worker(name) for name in ("linger", "block", "send")}
    for name, model in models.items():
        app.agent(name, model=model, tools=tools_of(part), deadline=DEADLINE_S)
    async with app.worker():
        handles = {name: await app.submit(name, "go") for name in models}
        for name, handle in handles.items():
            answer = await handle.result(timeout=DEADLINE_S + SLACK_S, partial=True)
            task = await app.get(handle.id)
            assert task.finished_at is not None
            assert task.finished_at - task.created_at < DEADLINE_S + SLACK_S
            if task.state is State.COMPLETED:
                assert answer.startswith("answer after "), (name, answer)
                assert "This is the last question" in models[name].prompts[-1]
            else:  # an effect that must not happen twice was running, or the machine was too busy
                assert (task.error or {})["type"] == "DeadlineExceeded"
                assert answer == task.partial
                assert answer.startswith("so far ")
                with pytest.raises(TaskFailed) as failed:
                    await handle.result()
                assert failed.value.partial == answer
            assert name != "linger" or part < 1 or task.state is State.COMPLETED, "a tool that is cut off leaves time"
            assert name != "send" or part < 1 or task.state is State.FAILED


@not_memory
async def test_the_partial_result_is_shown_at_every_door(url: str, tmp_path: Path) -> None:
    app = Onward(url, lease_s=5.0, heartbeat_s=0.5, poll_s=0.05, slots=10)
    app.agent("sender", model=Worker("send"), tools=tools_of(1_000.0), deadline=1.0)

    @app.task(retry=1)
    async def boss(ctx: Any) -> Any:
        child = await ctx.submit("sender", "go")
        return await child.result(partial=True)

    async with app.worker():
        handle = await app.submit("sender", "go")
        parent = await app.submit(boss)
        assert await handle.result(timeout=60, partial=True) == "so far 0"
        assert await parent.result(timeout=60) == "so far 0", "the parent reads it too"
        shown = await asyncio.to_thread(_shown, url, handle.id)
        assert "unfinished" in shown
        assert "so far 0" in shown
        with Child("-m", "onward", "serve", "--no-worker", "--port", "0", "--db", url, cwd=tmp_path) as server:
            line = await asyncio.to_thread(server.wait_for, "http://")
            address = next(word for word in line.split() if word.startswith("http://")).rstrip("/,.")
            async with Client(address) as client:
                assert (await client.get(handle.id)).partial == "so far 0"
                assert await client.result(handle.id, partial=True) == "so far 0"
                with pytest.raises(TaskFailed) as failed:
                    await client.result(handle.id)
                assert failed.value.partial == "so far 0"


def _shown(url: str, task_id: str) -> str:
    command = [sys.executable, "-m", "onward", "show", task_id, "--db", url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
