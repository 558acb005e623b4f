"""Budgets from outside: a call reserves about as much as it will take, and a waiting task names the missing amount."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward import Budget, Client, Onward, State
from onward.agent.model import Reply, Request, ToolCall, Usage
from rig.processes import Child
from tests.kit import eventually, not_memory

ROOT = Path(__file__).parents[2]
TASKS = 16


class Honest:
    """A model that counts a token for every four bytes, as most tokenizers do of English, and obeys `max_tokens`."""

    name = "honest"

    def __init__(self, turns: int) -> None:
        self.turns, self.taken = turns, 0
        self.allowed: list[int | None] = []

    async def ask(self, request: Request, emit: Any) -> Reply:
        """One answer."""
        input_tokens = len(json.dumps([list(request.messages), list(request.tools)])) // 4
        turn = sum(message["role"] == "assistant" for message in request.messages)
        usage = Usage(input_tokens, min(20, request.max_tokens or 20))
        self.taken += input_tokens + (usage.output or 0)
        self.allowed.append(request.max_tokens)
        if turn + 1 < self.turns:
            return Reply("", (ToolCall(f"c{turn}", "look", "{}"),), usage, "tool_calls")
        return Reply("done", usage=usage)


async def look() -> str:
    """Look around."""
    return "nothing new"


@not_memory
async def test_sixteen_tasks_use_up_a_budget_and_then_name_the_missing_amount(url: str) -> None:
    model = Honest(3)
    app = Onward(url, lease_s=5.0, heartbeat_s=0.5, poll_s=0.05, slots=TASKS)
    app.agent("worker", model=model, tools=[look])

    @app.task
    async def boss(ctx: Any) -> Any:
        return await ctx.gather(*[await ctx.submit("worker", f"goal {number}") for number in range(TASKS)])

    limit = 12_000
    async with app.worker():
        handle = await app.submit(boss, budget=Budget(max_llm_tokens=limit))
        waiting = await eventually(lambda: _all_wait(app))
        spent = await app.budget(handle.id)
        meter = spent.meters["llm_tokens"]
        assert meter["spent"] == model.taken <= limit, "never over the budget"
        assert meter["reserved"] == 0
        assert meter["spent"] >= 0.9 * limit, "and hardly anything of it lies idle"
        assert set(spent.needs) == waiting
        left = limit - model.taken
        assert all(need["llm_tokens"] > left for need in spent.needs.values())
        for task_id in list(waiting)[:3]:
            (wait,) = [record for record in await app.service.journal(task_id) if record.kind == "step.waits"][-1:]
            why = wait.value["why"]
            needs = spent.needs[task_id]["llm_tokens"]
            assert f"it needs {needs:,}, and " in why, why
            assert f"of {limit:,} are left" in why, why
        # The named limit is enough for the call that waits.
        first = min(waiting)
        enough = limit - left + spent.needs[first]["llm_tokens"]
        await app.raise_budget(handle.id, max_llm_tokens=enough)
        before = len(model.allowed)
        await eventually(lambda: _asked_more(model, before))
        await app.raise_budget(handle.id, max_llm_tokens=10_000_000)
        assert await handle.result(timeout=60) == ["done"] * TASKS


@not_memory
async def test_a_hundred_tokens_say_how_many_are_needed_at_every_door(url: str, tmp_path: Path) -> None:
    model = Honest(1)
    app = Onward(url, lease_s=5.0, heartbeat_s=0.5, poll_s=0.05)
    app.agent("worker", model=model, tools=[look])
    async with app.worker():
        handle = await app.submit("worker", "go", budget=Budget(max_llm_tokens=100))
        await eventually(lambda: _all_wait(app, 1))
        needs = (await app.budget(handle.id)).needs[handle.id]["llm_tokens"]
        assert 100 < needs < 1500, "about its real cost, and not thousands more"
        sentence = f"has not enough tokens for the next call: it needs {needs:,}, and 100 of 100 are left"
        shown = await asyncio.to_thread(_onward, url, "show", handle.id)
        flat = re.sub(r"\s+", " ", shown)
        assert f"it needs {needs:,}, and 100 of 100 are left" in flat, shown
        assert f"--tokens {needs}" in flat, "and how to raise it"
        listed = await asyncio.to_thread(_onward, url, "--json", "list")
        assert sentence in listed
        metered = await asyncio.to_thread(_onward, url, "budget", handle.id)
        assert f"the next call needs {needs:,} tokens, and 100 are left" in re.sub(r"\s+", " ", metered)
        with Child("-m", "onward", "serve", "--no-worker", "--port", "0", "--db", url, cwd=tmp_path) as server:
            line = await asyncio.to_thread(server.wait_for, "http://")
            address = next(word for word in line.split() if word.startswith("http://")).rstrip("/,.")
            async with Client(address) as client:
                assert (await client.budget(handle.id)).needs[handle.id]["llm_tokens"] == needs
        await app.raise_budget(handle.id, max_llm_tokens=needs)
        assert await handle.result(timeout=60) == "done", "exactly so much was missing"
        assert (await app.get(handle.id)).state is State.COMPLETED
    assert model.taken <= needs
    assert model.allowed[-1] is not None
    assert model.allowed[-1] < 4096, "the answer was bounded by the rest of the budget"


@not_memory
async def test_an_estimate_that_was_too_low_is_reported(url: str) -> None:
    class Dense(Honest):
        async def ask(self, request: Request, emit: Any) -> Reply:
            reply = await super().ask(request, emit)
            size = len(json.dumps([list(request.messages), list(request.tools)]))
            return Reply(reply.text, reply.calls, Usage(size, 20), reply.finish)

    app = Onward(url, lease_s=5.0, heartbeat_s=0.5, poll_s=0.05)
    app.agent("worker", model=Dense(3), tools=[look])
    async with app.worker():
        handle = await app.submit("worker", "go", budget=Budget(max_llm_tokens=1500))
        await eventually(lambda: _all_wait(app, 1))
        spent = await app.budget(handle.id)
    assert spent.meters["llm_tokens"]["spent"] > 1500, "a byte was a token here"
    assert spent.ledger.exceeded["llm_tokens"] > 0
    assert spent.ledger.spent.steps == 1, "and no further call was made"


@pytest.mark.parametrize("kind", ["sqlite file"], indirect=True)
async def test_the_error_of_a_spent_budget_names_it(url: str) -> None:
    app = Onward(url, lease_s=5.0, heartbeat_s=0.5, poll_s=0.05)
    app.agent("worker", model=Honest(3), tools=[look])
    async with app.worker():
        handle = await app.submit("worker", "go", budget=Budget(max_llm_tokens=100, when_spent="finish"))
        result = await handle.result(timeout=60)
    assert re.search(r"it needs [\d,]+, and 100 of 100 are left; `onward budget \w+ --tokens \d+` raises it", result)


async def _all_wait(app: Onward, count: int = TASKS) -> set[str] | None:
    tasks = (await app.list(task="worker"))[0]
    left = {task.task_id for task in tasks if not task.ended}
    waits = all(task.reason == "budget" for task in tasks if not task.ended)
    return left if len(tasks) == count and left and waits else None


async def _asked_more(model: Honest, before: int) -> bool:
    return len(model.allowed) > before


def _onward(url: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "onward", *arguments, "--db", url],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"COLUMNS": "400", "PATH": "/usr/bin:/bin", "NO_COLOR": "1", "HOME": "/tmp"},
    )
    return done.stdout + done.stderr
