"""What a recorded step of an agent framework costs, beside a plain `ctx.step`.

    python -m bench frameworks
    python -m bench frameworks --rounds 7 --only langgraph

Each framework runs the same agent twice: without Onward (the framework's own cost), and as a task, where each model request, tool call or
node is a step. The difference, divided by the number of steps, is the cost of a step
through the integration. Beside it stands a plain handler with as many steps, with payloads of about the same size. All are measured in
turns, one task at a time, on a SQLite file. The aim is 1.3 times a plain step at most.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import TypedDict

from onward import Context, Onward
from rig import openai_agents as openai_agents_rig
from rig.server import Unavailable

AIM = 1.3
TURNS = 50
"""Turns of the agent: each asks the model once and calls a tool once."""
STEPS = 2 * TURNS + 1
TIMEOUT_S = 300.0
REPLY = {"text": "", "call": {"name": "look", "arguments": {"place": "hall"}}, "usage": {"input": 10, "output": 5}}

Measured = tuple[Callable[[], Awaitable[Any]], str]
"""Runs the agent without Onward; the name of the handler that runs it durably."""


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench frameworks", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="the figures are medians of so many rounds")
    parser.add_argument("--only", nargs="+", choices=sorted(FRAMEWORKS), default=sorted(FRAMEWORKS))
    return parser.parse_args(words)


def run(options: argparse.Namespace) -> int:
    """Measure; 1 when the aim is missed."""
    return asyncio.run(_measure(options.only, options.rounds))


async def _measure(names: list[str], rounds: int) -> int:
    missed = 0
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        app = Onward(f"sqlite:///{folder}/onward.db")
        measured: dict[str, Measured] = {}
        for name in names:
            try:
                measured[name] = FRAMEWORKS[name](app)
            except (ImportError, Unavailable) as missing:
                print(f"{name}: not measured: {missing}", file=sys.stderr)
        _add_plain(app)
        async with app.worker(slots=4):
            for name, (bare, durable) in measured.items():
                figures: list[tuple[float, float, float]] = []
                for number in range(rounds + 1):
                    plain = await _timed(app, "plain")
                    within = await _timed_call(bare)
                    whole = await _timed(app, durable)
                    if number:  # the first round warms up
                        figures.append((plain / STEPS, (whole - within) / STEPS, whole))
                plain_s = statistics.median(plain for plain, _, _ in figures)
                step_s = statistics.median(step for _, step, _ in figures)
                ratio = statistics.median(step / plain for plain, step, _ in figures)
                missed += ratio > AIM
                print(
                    f"{name:14} a step {step_s * 1e6:6.0f} µs · a plain step {plain_s * 1e6:6.0f} µs · {ratio:.2f} (aim {AIM})",
                    flush=True,
                )
    return 1 if missed else 0


async def _timed(app: Onward, name: str) -> float:
    task = await app.submit(name, GOALS.get(name, "Go."))
    begun = time.perf_counter()
    await task.result(timeout=TIMEOUT_S)
    return time.perf_counter() - begun


async def _timed_call(call: Callable[[], Awaitable[Any]]) -> float:
    begun = time.perf_counter()
    await call()
    return time.perf_counter() - begun


GOALS: dict[str, Any] = {"plain": None, "graph": {"turns": 0, "notes": []}}


def _add_plain(app: Onward) -> None:
    async def ask() -> dict[str, Any]:
        return REPLY

    async def look() -> str:
        return "nothing in the hall"

    @app.task
    async def plain(ctx: Context) -> None:
        for _ in range(TURNS):
            await ctx.step(ask)
            await ctx.step(look)
        await ctx.step(ask)


def _pydantic_ai(app: Onward) -> Measured:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.usage import UsageLimits

    async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn < TURNS:
            return ModelResponse(parts=[ToolCallPart("look", {"place": "hall"}, tool_call_id=f"look {turn}")])
        return ModelResponse(parts=[TextPart("done")])

    async def look(place: str) -> str:
        """Look at a place."""
        return f"nothing in the {place}"

    agent = Agent(FunctionModel(answer), name="pydantic", tools=[look])
    app.pydantic_ai(agent, usage_limits=UsageLimits(request_limit=None))
    return lambda: agent.run("Go.", usage_limits=UsageLimits(request_limit=None)), "pydantic"


def _openai_agents(app: Onward) -> Measured:
    openai_agents_rig.obtain()
    from agents import Agent, Model, Runner, function_tool, set_tracing_disabled
    from agents.items import ModelResponse
    from agents.usage import Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    set_tracing_disabled(True)

    class Scripted(Model):
        model = "scripted"

        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:  # noqa: A002
            items = [] if isinstance(input, str) else input
            turn = sum(item.get("type") == "function_call_output" for item in items)
            output: list[Any] = [
                ResponseFunctionToolCall(
                    type="function_call", name="look", call_id=f"look {turn}", arguments='{"place": "hall"}'
                )
            ]
            if turn >= TURNS:
                text = ResponseOutputText(type="output_text", text="done", annotations=[])
                output = [
                    ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
                ]
            usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
            return ModelResponse(output=output, usage=usage, response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    @function_tool
    async def look(place: str) -> str:
        """Look at a place."""
        return f"nothing in the {place}"

    agent = Agent(name="openai", model=Scripted(), tools=[look])
    app.openai_agent(agent, max_turns=2 * TURNS)
    return lambda: Runner.run(agent, "Go.", max_turns=2 * TURNS), "openai"


class State(TypedDict):
    """The state of the graph."""

    turns: Annotated[int, operator.add]
    notes: Annotated[list[str], operator.add]


def _langgraph(app: Onward) -> Measured:
    from langgraph.graph import END, START, StateGraph

    async def ask(state: State) -> dict[str, Any]:
        return {"turns": 1}

    async def look(state: State) -> dict[str, Any]:
        return {"notes": ["nothing in the hall"]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_node("look", look)
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", lambda state: "look" if state["turns"] <= TURNS else END)
    builder.add_edge("look", "ask")
    app.langgraph("graph", builder, config={"recursion_limit": 10 * TURNS})
    graph = builder.compile()
    return lambda: graph.ainvoke({"turns": 0, "notes": []}, {"recursion_limit": 10 * TURNS}), "graph"


FRAMEWORKS: dict[str, Callable[[Onward], Measured]] = {
    "pydantic-ai": _pydantic_ai,
    "openai-agents": _openai_agents,
    "langgraph": _langgraph,
}
