"""The traces of the OpenAI Agents SDK: each span of a task reaches the processors once, also when the task is replayed."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterator
from typing import Any

import pytest

from onward import Onward
from onward.testing import crashes, memory_app
from rig import openai_agents
from rig.server import Unavailable
from tests.integrations.test_pydantic_ai import World

try:
    openai_agents.obtain()
except Unavailable as missing:
    pytest.skip(f"the OpenAI Agents SDK cannot be installed here: {missing}", allow_module_level=True)

from agents import Agent, Runner, set_trace_processors
from agents import set_tracing_disabled as disable_tracing
from agents.tracing import Span, Trace, TracingProcessor, custom_span
from agents.tracing import trace as new_trace
from agents.tracing.provider import DefaultTraceProvider

from onward.integrations.openai_agents import tracing
from tests.integrations.test_openai_agents import LOOKS, PAY, PAYS, Scripted, settle, tools


class Collector(TracingProcessor):
    """Keeps all that it gets, as a processor of a user."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[Span[Any]] = []
        self.traces: list[str] = []

    def on_trace_start(self, trace: Trace) -> None:
        self.traces.append(trace.trace_id)

    def on_trace_end(self, trace: Trace) -> None:
        pass

    def on_span_start(self, span: Span[Any]) -> None:
        assert span.parent_id is None or span.parent_id in self.begun, "a span begins inside of one that has begun"
        self.begun.append(span.span_id)

    def on_span_end(self, span: Span[Any]) -> None:
        self.ended.append(span)

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass

    def kinds(self) -> dict[str, int]:
        return dict(collections.Counter(f"{s.span_data.type} {getattr(s.span_data, 'name', '')}" for s in self.ended))

    def ids(self) -> list[str]:
        return [span.span_id for span in self.ended]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    set_trace_processors([collector])
    disable_tracing(False)
    yield collector
    disable_tracing(True)
    set_trace_processors([])


def clerk(world: World) -> Agent[Any]:
    return Agent(name="clerk", model=Scripted(world, LOOKS, PAY, "done"), tools=tools(world))


async def test_a_task_that_waited_has_the_spans_of_one_run(collector: Collector) -> None:
    world = World()
    agent = clerk(world)
    agent.tools[1].needs_approval = True  # type: ignore[union-attr]
    result = await Runner.run(agent, "Go.")
    state = result.to_state()
    state.approve(result.interruptions[0])
    assert (await Runner.run(agent, state)).final_output == "done"
    expected, collector.ended = collector.kinds(), []
    assert expected["function look"] == 3

    await run_with_approval(world)
    assert len(collector.ids()) == len(set(collector.ids()))
    assert collector.kinds() == expected, "those of the SDK alone"
    around = {span.parent_id for span in collector.ended if span.parent_id is not None}
    assert around <= set(collector.ids()), "a span has the same id in every shift"


async def run_with_approval(world: World) -> None:
    asks = Onward("sqlite://:memory:")
    asks.openai_agent(clerk(world), tools=PAYS, approve=["external_action"])
    world.clear()
    async with memory_app(asks) as app:
        task = await app.submit("clerk", "Go.")
        await settle(app, world)
        assert await task.result() == "done"


async def test_with_the_functions_of_the_sdk_spans_are_doubled(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the test above sees it."""
    monkeypatch.setattr(DefaultTraceProvider, "create_span", tracing._create_span)
    monkeypatch.setattr(DefaultTraceProvider, "create_trace", tracing._create_trace)
    await run_with_approval(World())
    assert collector.kinds()["function look"] > 3


@pytest.mark.slow
async def test_a_span_ends_at_most_once_wherever_the_worker_is_killed(collector: Collector) -> None:
    """A span whose worker is killed right before its end is lost, as are spans that the processor has not sent yet."""
    world = World()
    base = Onward("sqlite://:memory:")
    base.openai_agent(clerk(world), tools=PAYS, approve=["external_action"])
    repeated = exact = 0
    async for killed in crashes(base):
        world.clear()
        collector.ended = []
        task = await killed.submit("clerk", "Go.")
        await settle(killed, world)
        assert await task.result() == "done", killed.killed_at
        ids = collector.ids()
        if killed.killed_at != "save.before":  # then the last record is lost, and with it that these spans had ended
            assert len(ids) == len(set(ids)), (killed.killed_at, killed.killed_in)
            exact += 1
        repeated += len(world.asked) > 3
    assert repeated, "VOID: no call was made again"
    assert exact > 10


async def test_spans_of_a_step_and_of_a_program_without_tasks(collector: Collector) -> None:
    """A step passes its spans on, also while other branches are replayed; without a task nothing changes."""
    base = Onward("sqlite://:memory:")

    @base.task
    async def work(ctx: Any) -> str:
        async def step() -> str:
            with custom_span("inside"):
                await asyncio.sleep(0)
            return "done"

        result = await Runner.run(Agent(name="a", model=Scripted(World(), "done")), "Go.")
        await ctx.sleep("1h")
        with new_trace("mine"):
            await ctx.step(step)
        return str(result.final_output)

    async with memory_app(base) as app:
        task = await app.submit(work)
        await settle(app, World())
        assert await task.result() == "done"
    assert collector.kinds()["custom inside"] == 1
    assert collector.kinds()["agent a"] == 1
    collector.ended = []
    await Runner.run(Agent(name="b", model=Scripted(World(), "done")), "Go.")
    await Runner.run(Agent(name="b", model=Scripted(World(), "done")), "Go.")
    assert collector.kinds()["agent b"] == 2
