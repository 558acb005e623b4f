"""A state with several writers: patches from outside apply at once, each once, and survive every crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward, State
from onward.agent.model import Request
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import record as r
from onward.core.state import AgentState, Fact, StatePatch
from onward.errors import InvalidInput, NoState, StateConflict, TaskNotFound
from onward.testing import crashes, drain, memory_app
from tests.kit import Gate


def fact(key: str, value: Any) -> StatePatch:
    return StatePatch(append_facts=(Fact(key=key, value=value, source="another agent"),))


def noted(state: AgentState) -> list[Any]:
    return [fact.value for fact in state.known_facts if fact.key == "n"]


async def test_patches_that_are_sent_at_once_all_land_in_one_order(app: Onward) -> None:
    gate = Gate()

    class Patient(ScriptedModel):
        async def ask(self, request: Request, emit: Any) -> Any:
            await gate()
            return await super().ask(request, emit)

    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    model = Patient([[("look", {})], "done"])
    agent = app.agent("devops", model=model, tools=[look])
    async with app.worker():
        handle = await app.submit(agent, "watch the disk")
        await asyncio.wait_for(gate.reached.wait(), 60)
        await asyncio.gather(*[app.patch(handle.id, fact("n", n), by=f"agent {n % 2}") for n in range(40)])
        seen = await app.state(handle.id)
        assert sorted(noted(seen)) == list(range(40)), "an accepted patch counts before the task has read it"
        gate.opened.set()
        assert await handle.result(timeout=60) == "done"
    state = await app.state(handle.id)
    assert noted(state) == noted(seen)
    system = model.asked[-1].messages[-1]["content"]
    assert system.count("another agent") == 40
    records = [
        record for record in await app.service.journal(handle.id) if record.kind == r.PATCHED and "n" in record.value
    ]
    assert [record.value["n"] for record in records] == sorted(record.value["n"] for record in records)
    assert {record.value["by"] for record in records} == {"agent 0", "agent 1"}
    assert (await app.replay(handle.id)).agrees


async def test_killed_anywhere_a_patch_lands_once() -> None:
    points = 0
    async for app in crashes():
        sent: list[str] = []

        @tool
        async def call_in(n: int) -> str:
            """Patch the state while the tool runs; the same patch again changes nothing."""
            await app.service.agent_states.patch(sent[0], fact("n", n), id=f"patch {n}")
            return "told"

        model = ScriptedModel([[("call_in", {"n": 1})], [("call_in", {"n": 2}), ("call_in", {"n": 3})], "done"])
        handle = await app.submit(app.agent("devops", model=model, tools=[call_in]), "go on")
        sent.append(handle.id)
        await drain(app)
        assert await handle.result(timeout=1) == "done", app.killed_at
        assert sorted(noted(await app.state(handle.id))) == [1, 2, 3], app.killed_at
        records = [record for record in await app.service.journal(handle.id) if record.kind == r.PATCHED]
        assert len([record for record in records if "n" in record.value]) == 3, app.killed_at
        assert app.killed_at or (await app.replay(handle.id)).agrees
        points += 1
    assert points > 10


async def test_a_handler_takes_patches_where_it_patches() -> None:
    app = memory_app()

    @app.task
    async def research(ctx: Any) -> list[Any]:
        await ctx.patch(AgentState(goal="find it"))
        await ctx.signal("go")
        await ctx.patch(StatePatch(append_facts=(Fact(key="n", value="mine", source="me"),)))
        return noted(await ctx.patch())

    @app.task
    async def plain(ctx: Any) -> str:
        await ctx.step(lambda: 1, name="work")
        return str(await ctx.signal("go"))

    async with app:
        handle, other = await app.submit("research"), await app.submit("plain")
        await app.patch(handle.id, fact("n", "before it began"))
        await drain(app)
        await app.patch(handle.id, {"append_facts": [{"key": "n", "value": "theirs", "source": "them"}]})
        assert noted(await app.state(handle.id)) == ["before it began", "theirs"]
        with pytest.raises(NoState):
            await app.patch(other.id, fact("n", 1))
        await app.signal(handle.id, "go")
        await drain(app)
        assert (await handle.get()).state is State.COMPLETED
        assert noted(await app.state(handle.id)) == ["before it began", "theirs", "mine"]


async def test_a_refused_patch_names_the_reason(app: Onward) -> None:
    handle = await app.submit(app.agent("devops", model=ScriptedModel(["done", "done"])), "x")
    with pytest.raises(TaskNotFound):
        await app.patch("nobody", fact("n", 1))
    with pytest.raises(InvalidInput, match="no patch of a state: replace_plan"):
        await app.patch(handle.id, {"replace_plan": 5})
    await app.patch(handle.id, {})
    await app.patch(handle.id, fact("n", 1))
    async with app.worker():
        await handle.result(timeout=60)
    with pytest.raises(StateConflict, match="goes on `after` it"):
        await app.patch(handle.id, fact("n", 2))
    assert noted(await app.state(handle.id)) == [1]
    later = await app.submit("devops", "y", after=handle.id)
    async with app.worker():
        await later.result(timeout=60)
    assert noted(await app.state(later.id)) == [1]
