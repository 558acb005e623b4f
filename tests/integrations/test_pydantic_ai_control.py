"""Tasks with an agent of Pydantic AI that are cancelled, paused, stopped, checked and forked while the agent works."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, Tool

import onward
from onward import Budget, Onward, State
from onward.integrations.pydantic_ai import OnwardDurability
from onward.testing import memory_app
from tests.integrations.test_pydantic_ai import LOOKS, World, call, scripted, steps_of
from tests.kit import drain, eventually, only_memory


@pytest.fixture
def world() -> World:
    return World()


def slow_agent(world: World, go: asyncio.Event) -> Agent[None, str]:
    """An agent whose tools take until `go` is set."""

    async def look(place: str) -> str:
        world.done.append(place)
        await go.wait()
        return place

    return Agent(scripted(world, LOOKS, "done"), name="clerk", tools=[look])


@only_memory
async def test_a_cancelled_task_ends_in_the_middle_of_its_tools(app: Onward, world: World) -> None:
    app.pydantic_ai(slow_agent(world, asyncio.Event()))
    async with app.worker():
        task = await app.submit("clerk", "Go.")
        await eventually(lambda: _done(world, 3))
        await app.cancel(task.id)
        ended = await eventually(lambda: _ended(app, task.id))
    assert ended.state is State.CANCELLED
    assert world.asked == [0]


@only_memory
async def test_a_paused_task_goes_on(app: Onward, world: World) -> None:
    go = asyncio.Event()
    app.pydantic_ai(slow_agent(world, go))
    async with app.worker():
        task = await app.submit("clerk", "Go.")
        await eventually(lambda: _done(world, 3))
        await app.pause(task.id)
        go.set()
        await eventually(lambda: _is(app, task.id, "paused"))
        await app.resume(task.id)
        assert await task.result(timeout=60) == "done"
    assert sorted(world.done) == ["hall", "roof", "yard"], "a step that runs is not stopped by a pause"
    assert world.asked == [0, 1]


@only_memory
async def test_a_worker_that_stops_hands_the_task_over(app: Onward, world: World) -> None:
    go = asyncio.Event()
    app.pydantic_ai(slow_agent(world, go))
    async with app.worker():
        task = await app.submit("clerk", "Go.")
        await eventually(lambda: _done(world, 3))
        asyncio.get_running_loop().call_later(0.1, go.set)  # while the worker stops
    async with app.worker():
        assert await task.result(timeout=60) == "done"
    assert world.asked == [0, 1]
    assert sorted(set(world.done)) == ["hall", "roof", "yard"]


@only_memory
async def test_a_deadline_ends_the_run(app: Onward, world: World) -> None:
    app.pydantic_ai(slow_agent(world, asyncio.Event()), deadline=1, retry=1)
    async with app.worker():
        task = await app.submit("clerk", "Go.")
        ended = await eventually(lambda: _ended(app, task.id))
    assert ended.state is State.FAILED
    assert "deadline" in str(ended.error).lower()


async def test_agents_in_parallel_tools_wait_for_a_budget_together(world: World) -> None:
    inner = Agent(scripted(World(), "inner"), name="inner", capabilities=[OnwardDurability()])

    async def delegate(who: str) -> str:
        return (await inner.run(who)).output

    calls = [call("delegate", who, who=who) for who in ("a", "b", "c")]
    agent = Agent(scripted(world, calls, "done"), name="clerk", tools=[Tool(delegate, metadata={"onward": False})])
    app = memory_app()
    app.pydantic_ai(agent, budget=Budget(max_steps=2))
    async with app:
        task = await app.submit("clerk", "Go.")
        (left,) = await drain(app)
        assert left.reason == "budget"
        await app.raise_budget(task.id, max_steps=5)
        assert await drain(app) == []
        assert await task.result() == "done"
        views = await app.service.timelines.turns(task.id)
        assert sorted(view.turn for view in views) == [1, 2, 3, 4, 5]
    assert world.asked == [0, 1]


async def test_a_fork_asks_for_approval_again(world: World) -> None:
    agent = Agent(scripted(world, [call("pay", "1", cents=1)], "done"), name="clerk", tools=world.tools())
    app = memory_app()
    app.pydantic_ai(agent, approve=["external_action"])
    async with app:
        task = await app.submit("clerk", "Go.")
        await drain(app)
        (ask,) = await app.asks()
        await app.decide(ask.id, "approve")
        assert await drain(app) == []
        records = await app.service.journal(task.id)
        first = next(record.seq for record in records if record.key == "model")
        fork = await app.fork(task.id, first)
        await drain(app)
        (ask,) = await app.asks()
        assert (ask.task_id, ask.tool) == (fork.id, "pay")
        await app.decide(ask.id, "deny")
        assert await drain(app) == []
        assert await fork.result() == "done"
    assert world.done == [1]
    assert world.asked == [0, 1, 1], "the fork inherits the first reply"


async def test_the_deploy_check_replays_an_agent(world: World) -> None:
    agent = Agent(scripted(world, [call("pay", "1", cents=1)], "done"), name="clerk", tools=world.tools())
    app = memory_app()
    app.pydantic_ai(agent, approve=["external_action"])
    async with app:
        task = await app.submit("clerk", "Go.")
        await drain(app)
        (finding,) = await app.check()
        assert (finding.task_id, finding.verdict) == (task.id, "fine")
    assert world.asked == [0]


async def test_plain_functions_as_tools_run_in_threads_and_know_their_task(world: World) -> None:
    def look(place: str) -> str:
        world.done.append(onward.current().key)
        return place

    agent = Agent(scripted(world, LOOKS, "done"), name="clerk", tools=[look])
    app = memory_app()
    app.pydantic_ai(agent)
    async with app:
        task = await app.submit("clerk", "Go.")
        assert await drain(app) == []
        assert await task.result() == "done"
        assert "[branch.look hall]look" in await steps_of(app, task.id)
    assert sorted(world.done) == sorted(f"{task.id}:[branch.look {place}]look" for place in ("hall", "yard", "roof"))


async def _done(world: World, count: int) -> bool:
    return len(world.done) >= count


async def _ended(app: Onward, task_id: str) -> Any:
    task = await app.get(task_id)
    return task if task.ended else None


async def _is(app: Onward, task_id: str, state: str) -> bool:
    task = await app.get(task_id)
    return state in {task.state, task.reason}
