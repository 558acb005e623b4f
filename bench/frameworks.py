"""The overhead of a recorded step of an agent framework, beside a plain `ctx.step`.

    python -m bench frameworks
    python -m bench frameworks --rounds 7 --only langgraph

The overhead is what Onward adds, so each framework runs the same agent three times: without Onward; in a plain handler, where the model and
the tool call `ctx.step` themselves; and through the integration, where each model request, tool call or node is a step. The model and the
tool note when they are called. The time from the model to the tool holds the record of the model request, and the time from the tool to the
next model request holds the record of the tool call. Each turn counts with its fastest round, because other programs only ever make it slower,
and the framework's own work in a long conversation is several times that of a step. The overhead of a step is the mean of
these times over the turns, less that without Onward.
The figure is the overhead through the integration in overheads of a plain step. The framework's own work is the same in all three. It takes
longer after a wait for a commit than without one, because the caches of the processor are cold: for that reason the plain steps are
in the framework too, and not in a handler of their own. Payloads are of about the same size. All are measured in turns, one task at a time, on a
SQLite file. The aim is 1.3 times a plain step at most.

`growth` compares the overhead in the last fifth of the turns with that in the first: a step must not cost more because the history is long.
`cpu` is the same ratio of processor time, of all threads. It is less disturbed by other programs.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import TypedDict

from onward import Context, Onward
from onward.engine.context.context import CURRENT
from rig import openai_agents as openai_agents_rig
from rig.server import Unavailable

AIM = 1.3
TURNS = 15
"""Turns of the agent: each asks the model once and calls a tool once. A run is short, so that the three of a round meet the same machine."""
STEPS = 2 * TURNS + 1
TIMEOUT_S = 300.0
REPLY = {"text": "", "call": {"name": "look", "arguments": {"place": "hall"}}, "usage": {"input": 10, "output": 5}}

Measured = tuple[Callable[[], Awaitable[Any]], str]
"""Runs the agent without Onward; the name of the handler that runs it durably."""

CALLS: list[tuple[str, float]] = []
"""The calls of models and tools in this run: the kind, and when."""


BY_HAND: ContextVar[Context | None] = ContextVar("bench_by_hand", default=None)
"""The context whose plain steps models and tools are, where no integration makes steps of them."""


async def call(kind: str) -> None:
    """A model or a tool is called now."""
    CALLS.append((kind, time.perf_counter()))
    if (ctx := BY_HAND.get()) is not None:
        await ctx.step(_ask if kind == "model" else _look)


async def _ask() -> dict[str, Any]:
    return REPLY


async def _look() -> str:
    return "nothing in the hall"


@dataclasses.dataclass
class Run:
    """One run of an agent."""

    calls: list[tuple[str, float]]
    cpu_s: float

    def gaps(self, kind: str) -> list[float]:
        """The seconds from each call of this kind to the next call."""
        pairs = zip(self.calls, self.calls[1:], strict=False)
        return [next_at - at for (called, at), (_, next_at) in pairs if called == kind]


@dataclasses.dataclass
class Runs:
    """The runs of one agent, in all rounds."""

    runs: list[Run] = dataclasses.field(default_factory=list)

    def gap(self, kinds: Iterable[str], part: slice = slice(None)) -> float:
        """The mean over the kinds and the turns of the seconds after a call, in the fastest round of each turn."""
        turns = (zip(*(run.gaps(kind)[part] for run in self.runs), strict=True) for kind in kinds)
        return statistics.mean(statistics.mean(min(rounds) for rounds in of_kind) for of_kind in turns)

    @property
    def cpu_s(self) -> float:
        return min(run.cpu_s / len(run.calls) for run in self.runs)


@dataclasses.dataclass
class Compared:
    """The runs of a framework without Onward, with plain steps, and through the integration."""

    bare: Runs = dataclasses.field(default_factory=Runs)
    by_hand: Runs = dataclasses.field(default_factory=Runs)
    durable: Runs = dataclasses.field(default_factory=Runs)

    def ratio(self, *kinds: str) -> float:
        """The overhead of a step of these kinds, in overheads of a plain step."""
        return self.overhead_s(self.durable, *kinds) / self.overhead_s(self.by_hand, *kinds)

    def overhead_s(self, runs: Runs, *kinds: str, part: slice = slice(None)) -> float:
        return runs.gap(kinds, part) - self.bare.gap(kinds, part)

    @property
    def cpu_ratio(self) -> float:
        return (self.durable.cpu_s - self.bare.cpu_s) / (self.by_hand.cpu_s - self.bare.cpu_s)

    def growth(self, *kinds: str) -> float:
        """The overhead in the last fifth of the turns, in overheads in the first."""
        first, last = slice(1, TURNS // 5), slice(-TURNS // 5, None)
        return self.overhead_s(self.durable, *kinds, part=last) / self.overhead_s(self.durable, *kinds, part=first)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench frameworks", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="the fastest of so many rounds counts, for each turn")
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
        for name, (bare, _) in measured.items():
            _add_by_hand(app, name, bare)
        async with app.worker(slots=4):
            for name, (bare, durable) in measured.items():
                missed += _report(name, await _compare(app, rounds, bare, name, durable)) > AIM
    return 1 if missed else 0


def _add_by_hand(app: Onward, name: str, bare: Callable[[], Awaitable[Any]]) -> None:
    """Register a handler that runs the agent without the integration."""

    @app.task(name=name)
    async def by_hand(ctx: Context, prompt: Any) -> None:
        BY_HAND.set(ctx)
        CURRENT.set(None)  # no integration finds the task
        await bare()


async def _compare(
    app: Onward, rounds: int, bare: Callable[[], Awaitable[Any]], by_hand: str, durable: str
) -> Compared:
    compared = Compared()
    for number in range(rounds + 1):
        runs = [
            (compared.bare, await _timed(bare)),
            (compared.by_hand, await _timed(lambda: _task(app, by_hand))),
            (compared.durable, await _timed(lambda: _task(app, durable))),
        ]
        for side, made in runs if number else ():  # the first round warms up
            side.runs.append(made)
    return compared


def _report(name: str, compared: Compared) -> float:
    kinds = sorted({kind for kind, _ in compared.bare.runs[0].calls})
    ratio, plain_us = compared.ratio(*kinds), compared.overhead_s(compared.by_hand, *kinds) * 1e6
    by_kind = " · ".join(f"{kind} {compared.ratio(kind):.2f}" for kind in kinds)
    print(
        f"{name:14} a step {ratio * plain_us:6.0f} µs · a plain step {plain_us:6.0f} µs · {ratio:.2f} (aim {AIM}) · {by_kind} · "
        f"cpu {compared.cpu_ratio:.2f} · growth {compared.growth(*kinds):.2f}",
        flush=True,
    )
    return ratio


async def _task(app: Onward, name: str) -> None:
    """Run a task to its end. Does not poll meanwhile: the reads would be measured too."""
    ended = asyncio.Event()
    stop_listening = app.store.listen("ended", ended.set)
    try:
        task = await app.submit(name, GOALS.get(name, "Go."))
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)
        await task.result(timeout=TIMEOUT_S)
    finally:
        stop_listening()


async def _timed(work: Callable[[], Awaitable[Any]]) -> Run:
    CALLS.clear()
    cpu_s = time.process_time()
    await work()
    return Run(CALLS.copy(), time.process_time() - cpu_s)


GOALS: dict[str, Any] = {"graph": {"turns": 0, "notes": []}}


def _pydantic_ai(app: Onward) -> Measured:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.usage import UsageLimits

    async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        await call("model")
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn < TURNS:
            return ModelResponse(parts=[ToolCallPart("look", {"place": "hall"}, tool_call_id=f"look {turn}")])
        return ModelResponse(parts=[TextPart("done")])

    async def look(place: str) -> str:
        """Look at a place."""
        await call("tool")
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
            await call("model")
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
        await call("tool")
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
        await call("model")
        return {"turns": 1}

    async def look(state: State) -> dict[str, Any]:
        await call("tool")
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
