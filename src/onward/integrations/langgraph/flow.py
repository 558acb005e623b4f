"""A graph of LangGraph as the handler of tasks: each node is a recorded step.

The handler runs LangGraph's own loop. A node that the journal has recorded returns its result at once, so after a crash the loop comes to
where it was, and no finished node runs again. The checkpoints of the loop are in memory: the journal takes their place. An interrupt is
recorded like a result. Then the task asks a person, without a slot, and the loop goes on with the answer.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD, PREVIOUS
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt, ParentCommand
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel, _algo
from langgraph.pregel._read import DEFAULT_BOUND, PregelNode
from langgraph.types import Command, Durability, Interrupt, interrupt
from pydantic_core import to_jsonable_python

from onward.core.durations import Duration, seconds
from onward.core.journal.turns import is_call
from onward.core.retry import Retry
from onward.engine.context.context import Context, current
from onward.engine.shift.scope import SCOPE
from onward.errors import Fatal, UsageError
from onward.integrations.langgraph.message_ids import with_stable_ids
from onward.integrations.langgraph.model_calls import ModelCalls
from onward.integrations.model_steps import in_handler, model_steps
from onward.integrations.outputs import as_json
from onward.integrations.tool_rules import EXTERNAL, Approvals, ToolRules

NODE_METADATA = "onward"
"""The key of a node's metadata with options of its step: `add_node("pay", pay, metadata={"onward": {"effect": "once"}})`. False runs the node
in the handler, where it may use `onward.current()`."""

SERDE = InMemorySaver().serde
"""LangGraph's own encoding, for values that JSON does not keep."""

MAX_RECORD_VALUES = 200
"""Values in the outcome of a node that the journal has in the record itself. A larger outcome is stored as contents, beside the journal."""

CHARACTERS_PER_VALUE = 100
"""A string counts as one value, and one more for so many characters."""

STEP_OPTIONS = frozenset({"effect", "retry", "timeout"})

MAX_SHOWN = 2_000
"""Characters of an interrupt that a person sees as a question."""

AT_EXIT: Durability = "exit"
"""When LangGraph makes a checkpoint in memory: at an interrupt, and not after each step. The journal has the steps."""

EACH_STEP: Durability = "async"

REVIEW = "action_requests"
"""The field of an interrupt that asks for the review of tool calls, as LangChain's middleware does."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """The run of a graph in the handler of a task."""

    retry: Retry | int | None
    """The retry rule of nodes."""
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    """The places of interrupts in the task, by their ids. The ids are others in each replay, and so is the order in which nodes interrupt."""

    def note(self, raised: GraphInterrupt, place: str) -> None:
        """Note that interrupts were raised in a place. Those of a graph inside of it are known already."""
        for each in raised.args[0]:
            self.places.setdefault(each.id, place)

    def ordered(self, interrupts: Sequence[Interrupt[Any]]) -> list[Interrupt[Any]]:
        """The interrupts in an order that is the same in every replay."""
        return sorted(interrupts, key=lambda each: self.places.get(each.id, ""))


RUN: ContextVar[_Run | None] = ContextVar("onward_langgraph", default=None)

TASKS: ContextVar[list[str]] = ContextVar("onward_langgraph_tasks")
"""The names of the tasks of LangGraph (`@task`) that the code of this step has called."""


def graph_handler(
    graph: StateGraph[Any, Any, Any, Any] | Pregel[Any, Any, Any, Any],
    *,
    config: RunnableConfig | None = None,
    node_retry: Retry | int | None = None,
    answer_timeout: Duration | None = None,
    approval_default: str = "deny",
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A handler whose input is the input of the graph, and whose result is its output, as JSON. Raises UsageError and
    BadSetting."""
    compiled = graph.compile() if isinstance(graph, StateGraph) else graph
    if not isinstance(compiled, Pregel):
        raise UsageError(f"app.langgraph takes a StateGraph or a compiled graph, not {type(graph).__name__}")
    if compiled.checkpointer not in {None, False}:
        raise UsageError("the graph has a checkpointer; leave it out: the journal of the task takes its place")
    _durable(compiled, node_retry)  # reports mistakes now, and not at the first task
    timeout = None if answer_timeout is None else seconds(answer_timeout, "answer_timeout")
    approvals = Approvals((), timeout, approval_default)

    async def handler(ctx: Context, input: Any = None) -> Any:  # noqa: A002 -- the name in every interface
        RUN.set(here := _Run(node_retry))
        durable = _durable(compiled, node_retry)
        durable.checkpointer = InMemorySaver()
        settings: RunnableConfig = {**(config or {})}
        settings["configurable"] = {**settings.get("configurable", {}), "thread_id": ctx.task_id}
        run = functools.partial(durable.ainvoke, config=settings, durability=AT_EXIT)
        state = await run(input)
        while interrupts := here.ordered(state.get("__interrupt__", ())) if isinstance(state, Mapping) else None:
            answers = await ctx.gather(*[_answer(ctx, each, timeout, approvals) for each in interrupts])
            resume = dict(zip([each.id for each in interrupts], answers, strict=True))
            state = await run(Command(resume=resume))
        return as_json(state)

    return handler


def _durable(graph: Pregel[Any, Any, Any, Any], retry: Retry | int | None) -> Any:
    """A copy of a graph whose nodes are steps of the task."""
    if compiled_interrupts := [*_names(graph.interrupt_before_nodes), *_names(graph.interrupt_after_nodes)]:
        raise UsageError(
            f"the graph stops at {', '.join(compiled_interrupts)} by interrupt_before or interrupt_after, and asks no person: call interrupt(…) "
            "in a node instead"
        )
    clone: Any = copy.copy(graph)
    clone.onward_durable = True
    clone.channels = with_stable_ids(graph.channels)
    by_functions = (
        PREVIOUS in graph.channels
    )  # an `@entrypoint`: its function runs in the handler, and its tasks are steps
    clone.nodes = {
        name: node.copy({"bound": _in_branch(name, node.bound)}) if by_functions else _durable_node(name, node, retry)
        for name, node in graph.nodes.items()
    }
    return clone


def _durable_node(name: str, node: PregelNode, retry: Retry | int | None) -> PregelNode:
    if node.bound is DEFAULT_BOUND:
        return node
    given = (node.metadata or {}).get(NODE_METADATA)
    if isinstance(node.bound, Pregel):
        inner = _durable(node.bound, retry)
        return node.copy({"bound": _in_branch(name, inner), "subgraphs": [inner]})
    if given is False:
        return node.copy({"bound": _in_branch(name, node.bound)})
    options: dict[str, Any] = {"retry": retry} if retry is not None else {}
    return node.copy({"bound": _Step(name, node.bound, options | _options(name, given)).runnable()})


def _options(name: str, given: Any) -> dict[str, Any]:
    """The options of a node's step. Raises UsageError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given.keys() <= STEP_OPTIONS:
        raise UsageError(
            f"the node {name!r} has metadata {{'onward': {given!r}}}; it takes effect, retry and timeout of its step, or False"
        )
    return dict(given)


def _names(nodes: str | Sequence[str]) -> list[str]:
    return [nodes] if isinstance(nodes, str) else list(nodes)


def _in_branch(name: str, bound: Runnable[Any, Any]) -> RunnableCallable:
    """A node that is no step itself: a subgraph, whose nodes are, or a node that uses the context of the task."""

    async def run(value: Any, config: RunnableConfig) -> Any:
        return await _run_in_branch(name, bound, value, config)

    return RunnableCallable(None, run, name=name, trace=False)


async def _run_in_branch(name: str, bound: Runnable[Any, Any], value: Any, config: RunnableConfig) -> Any:
    async with current().branch(_key(name, config)):
        try:
            return await bound.ainvoke(value, config)
        except GraphInterrupt as raised:
            _run().note(raised, SCOPE.get().path)
            raise


def _run() -> _Run:
    return RUN.get() or _Run(None)


# ── graphs that the code of a node calls ─────────────────────────────────────────────────────────────────────────────

_astream, _stream = Pregel.astream, Pregel.stream


def _astream_in_task(graph: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
    """Run a graph. One that a node in the handler calls is durable like the graph around it."""
    run = RUN.get()
    if run is None or getattr(graph, "onward_durable", False):
        return _astream(graph, *args, **options)
    if in_handler():
        return _astream_durable(graph, run, args, options)
    return _astream_in_step(graph, args, options)


async def _astream_durable(graph: Any, run: _Run, args: Any, options: Any) -> AsyncIterator[Any]:
    async with current().branch(f"graph {graph.get_name()}"):
        # With checkpoints at interrupts alone, LangGraph would forget that a graph has ended before another one of the node asks.
        async for chunk in _astream(_durable(graph, run.retry), *args, **{**options, "durability": EACH_STEP}):
            yield chunk


async def _astream_in_step(graph: Any, args: Any, options: Any) -> AsyncIterator[Any]:
    """Run a graph as a part of the step that a node is. The record of the node has nothing of such a graph, which would begin anew with each
    answer, and ask again."""
    try:
        async for chunk in _astream(graph, *args, **options):
            yield chunk
    except GraphInterrupt:
        raise Fatal(
            f"the graph {graph.get_name()!r} asks a person in the middle of a step; add it as a node of the graph around it, or give the node or "
            'the tool that calls it metadata={"onward": False}'
        ) from None


def _stream_in_task(graph: Any, *args: Any, **options: Any) -> Any:
    """Run a graph in a thread."""
    if RUN.get() is not None and in_handler():
        raise UsageError(
            f"the graph {graph.get_name()!r} is called in the handler of a task, so it needs `await graph.ainvoke(…)`"
        )
    return _stream(graph, *args, **options)


_runnable_for_task: Callable[..., Any] = _algo.get_runnable_for_task  # type: ignore[attr-defined]


def _runnable_for_task_in_task(function: Callable[..., Any]) -> Runnable[Any, Any]:
    """A `@task` of LangGraph. One that the handler calls is a step; the writes behind it are made in each replay."""
    sequence: Any = _runnable_for_task(function)
    done: Runnable[Any, Any] = sequence
    run = RUN.get()
    if run is not None and in_handler():
        options: dict[str, Any] = {} if run.retry is None else {"retry": run.retry}
        first, *others = sequence.steps
        done = RunnableSeq(_Step(sequence.name, first, options).runnable(), *others, name=sequence.name)
    elif run is not None:
        TASKS.get([]).append(sequence.name)
    return done


_algo.get_runnable_for_task = _runnable_for_task_in_task  # type: ignore[attr-defined,assignment]
Pregel.astream = _astream_in_task  # type: ignore[assignment,method-assign]
Pregel.stream = _stream_in_task  # type: ignore[assignment,method-assign]


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Step:
    """A node as a step of the task, in a branch of its own."""

    def __init__(self, name: str, bound: Runnable[Any, Any], options: Mapping[str, Any]) -> None:
        self._name, self._bound, self._options = name, bound, options

    def runnable(self) -> RunnableCallable:
        """The node as LangGraph calls it."""
        return RunnableCallable(None, self._run, name=self._name, trace=False)

    async def _run(self, value: Any, config: RunnableConfig) -> Any:
        if _calls_handler_tools(self._bound, value):
            return await _run_in_branch(self._name, self._bound, value, config)
        ctx = current()
        live: list[Any] = []

        async def work() -> dict[str, Any]:
            record, outcome = await self._call(ctx, value, config)
            live[:] = [outcome]
            return record

        async with ctx.branch(_key(self._name, config)):
            place = SCOPE.get().path
            record = await ctx.step(work, name=self._name, **self._options)
        if is_call(record):
            await model_steps(ctx).close_observed(record)
        outcome = live[0] if live else await _replayed(ctx, record)
        if isinstance(outcome, GraphInterrupt):
            _run().note(outcome, place)
        if isinstance(outcome, GraphInterrupt | ParentCommand):
            raise outcome
        return outcome

    async def _call(self, ctx: Context, value: Any, config: RunnableConfig) -> tuple[dict[str, Any], Any]:
        """Run the node: the record of its outcome, and the outcome."""
        scratchpad = config["configurable"][CONFIG_KEY_SCRATCHPAD]
        before = len(scratchpad.resume)
        kind, outcome = "result", None
        calls = ModelCalls(ctx)
        tasks: list[str] = []
        TASKS.set(tasks)
        try:
            async with calls.seen(config) as observed:
                outcome = await self._bound.ainvoke(value, observed)
            data = outcome
        except GraphInterrupt as raised:
            if tasks:
                raise Fatal(
                    f"the node {self._name!r} asks a person after it has called {', '.join(tasks)}, which would run again with the answer; give "
                    'the node metadata={"onward": False}: then its tasks are steps'
                ) from None
            kind, outcome, data = "interrupt", raised, [each.value for each in raised.args[0]]
        except ParentCommand as raised:
            kind, outcome, data = "command", raised, raised.args[0]
        answered = max(before, len(scratchpad.resume))
        return {"kind": kind, **_encode(ctx, data), "answered": answered, **calls.record()}, outcome


def _calls_handler_tools(bound: Any, value: Any) -> bool:
    """Whether a node with tools gets one call, of a tool that runs in the handler: its metadata says so, or it runs an agent of deepagents."""
    tools = getattr(bound, "tools_by_name", None)
    if not tools:
        return False
    if isinstance(value, Mapping) and isinstance(call := value.get("tool_call"), Mapping):
        calls: Sequence[Any] = [call]
    elif isinstance(value, list) and all(isinstance(item, Mapping) and "args" in item for item in value):
        calls = value
    else:
        return False
    tool = tools.get(calls[0]["name"]) if len(calls) == 1 else None
    if tool is None:
        return False
    code = getattr(tool, "coroutine", None)
    return (tool.metadata or {}).get(NODE_METADATA) is False or (
        tool.name == "task" and getattr(code, "__module__", "").startswith("deepagents.")
    )


def _encode(ctx: Context, data: Any) -> dict[str, Any]:
    """The fields of a record with this value: a small one that is JSON as it is, any other as LangGraph encodes it, beside the journal."""
    if _is_json(data, MAX_RECORD_VALUES) >= 0:
        return {"output": data}
    type_, encoded = SERDE.dumps_typed(data)
    return {"type": type_, "kept": ctx.keep(encoded)}


async def _decode(ctx: Context, record: Mapping[str, Any]) -> Any:
    """The value of which `_encode` made these fields."""
    if "output" in record:
        return record["output"]
    (encoded,) = await ctx.kept(record["kept"])
    return SERDE.loads_typed((record["type"], encoded))


def _is_json(value: Any, room: int) -> int:
    """Whether JSON keeps a value as it is, and the value is small: how much room for other values it leaves, or -1."""
    kind = type(value)
    if kind is str:
        return room - 1 - len(value) // CHARACTERS_PER_VALUE
    if value is None or kind is bool or kind is int or (kind is float and math.isfinite(value)):
        return room - 1
    if kind is list:
        items = value
    elif kind is dict and all(type(name) is str for name in value):
        items = value.values()
    else:
        return -1
    room -= 1
    for item in items:
        if room < 0:
            return -1
        room = _is_json(item, room)
    return room


async def _replayed(ctx: Context, record: Any) -> Any:
    """The outcome of a node that the journal has recorded, or that a person gave for a node in doubt."""
    if not isinstance(record, Mapping) or "answered" not in record:
        return record
    data = await _decode(ctx, record)
    for _ in range(record["answered"]):
        interrupt(None)  # returns an answer that the node has got, and notes for the next run that it has
    if record["kind"] == "command":
        return ParentCommand(data)
    if record["kind"] == "interrupt":
        try:
            interrupt(data[0])
        except GraphInterrupt as raised:
            return raised
    return data


def _key(name: str, config: RunnableConfig) -> str:
    """The name of the branch of a node: the same in every replay. (The ids of LangGraph's tasks are not.)"""
    metadata = config.get("metadata", {})
    numbers = [str(part) for part in metadata.get("langgraph_path", ()) if isinstance(part, int) and part is not True]
    return ".".join([f"{name}@{metadata.get('langgraph_step', 0)}", *numbers])


async def _answer(ctx: Context, interrupted: Interrupt[Any], timeout: float | None, approvals: Approvals) -> Any:
    """Ask a person about an interrupt."""
    value = interrupted.value
    if isinstance(value, Mapping) and value.get(REVIEW):
        return {"decisions": [await _reviewed(ctx, call, approvals) for call in value[REVIEW]]}
    text = value if isinstance(value, str) else json.dumps(to_jsonable_python(value), ensure_ascii=False)
    return await ctx.ask(text[:MAX_SHOWN], timeout=timeout)


async def _reviewed(ctx: Context, call: Mapping[str, Any], approvals: Approvals) -> dict[str, Any]:
    """Ask a person to approve a tool call: the decision in the form of LangChain's middleware."""
    name, arguments = call["name"], to_jsonable_python(call.get("args") or call.get("arguments") or {})
    if name in model_steps(ctx).always_allowed:
        return {"type": "approve"}
    description, rules = call.get("description"), ToolRules(risk=EXTERNAL)
    decision = await approvals.ask(
        ctx,
        name,
        str(call.get("id", "")),
        arguments,
        rules,
        description=description if isinstance(description, str) else None,
    )
    if not decision.approved:
        return {"type": "reject", "message": decision.message}
    if decision.arguments is not None:
        return {"type": "edit", "edited_action": {"name": name, "args": decision.arguments}}
    return {"type": "approve"}
