"""A graph of LangGraph as the handler of tasks: each node is a recorded step.

The handler runs LangGraph's own loop. A node that the journal has recorded returns its result at once, so after a crash the loop comes to
where it was, and no finished node runs again. The checkpoints of the loop are in memory: the journal takes their place. An interrupt is
recorded like a result. Then the task asks a person, without a slot, and the loop goes on with the answer.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD
from langgraph._internal._runnable import RunnableCallable
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt, ParentCommand
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.pregel._read import DEFAULT_BOUND, PregelNode
from langgraph.types import Command, Durability, Interrupt, interrupt
from pydantic_core import to_jsonable_python

from onward.core.durations import Duration, seconds
from onward.core.journal.turns import is_call
from onward.core.retry import Retry
from onward.engine.context.context import Context, current
from onward.errors import UsageError
from onward.integrations.langgraph.message_ids import with_stable_ids
from onward.integrations.langgraph.model_calls import ModelCalls
from onward.integrations.model_steps import model_steps
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

REVIEW = "action_requests"
"""The field of an interrupt that asks for the review of tool calls, as LangChain's middleware does."""


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
        durable = _durable(compiled, node_retry)
        durable.checkpointer = InMemorySaver()
        settings: RunnableConfig = {**(config or {})}
        settings["configurable"] = {**settings.get("configurable", {}), "thread_id": ctx.task_id}
        run = functools.partial(durable.ainvoke, config=settings, durability=AT_EXIT)
        state = await run(input)
        while interrupts := state.get("__interrupt__") if isinstance(state, Mapping) else None:
            answers = await ctx.gather(*[_answer(ctx, each, timeout, approvals) for each in interrupts])
            resume = dict(zip([each.id for each in interrupts], answers, strict=True))
            state = await run(Command(resume=resume))
        return to_jsonable_python(state)

    return handler


def _durable(graph: Pregel[Any, Any, Any, Any], retry: Retry | int | None) -> Any:
    """A copy of a graph whose nodes are steps of the task."""
    clone: Any = copy.copy(graph)
    clone.channels = with_stable_ids(graph.channels)
    clone.nodes = {name: _durable_node(name, node, retry) for name, node in graph.nodes.items()}
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


def _in_branch(name: str, bound: Runnable[Any, Any]) -> RunnableCallable:
    """A node that is no step itself: a subgraph, whose nodes are, or a node that uses the context of the task."""

    async def run(value: Any, config: RunnableConfig) -> Any:
        async with current().branch(_key(name, config)):
            return await bound.ainvoke(value, config)

    return RunnableCallable(None, run, name=name, trace=False)


class _Step:
    """A node as a step of the task, in a branch of its own."""

    def __init__(self, name: str, bound: Runnable[Any, Any], options: Mapping[str, Any]) -> None:
        self._name, self._bound, self._options = name, bound, options

    def runnable(self) -> RunnableCallable:
        """The node as LangGraph calls it."""
        return RunnableCallable(None, self._run, name=self._name, trace=False)

    async def _run(self, value: Any, config: RunnableConfig) -> Any:
        ctx = current()
        live: list[Any] = []

        async def work() -> dict[str, Any]:
            record, outcome = await self._call(ctx, value, config)
            live[:] = [outcome]
            return record

        async with ctx.branch(_key(self._name, config)):
            record = await ctx.step(work, name=self._name, **self._options)
        if is_call(record):
            await model_steps(ctx).close_observed(record)
        outcome = live[0] if live else await _replayed(ctx, record)
        if isinstance(outcome, GraphInterrupt | ParentCommand):
            raise outcome
        return outcome

    async def _call(self, ctx: Context, value: Any, config: RunnableConfig) -> tuple[dict[str, Any], Any]:
        """Run the node: the record of its outcome, and the outcome."""
        scratchpad = config["configurable"][CONFIG_KEY_SCRATCHPAD]
        before = len(scratchpad.resume)
        kind, outcome = "result", None
        calls = ModelCalls(ctx)
        try:
            async with calls.seen(config) as observed:
                outcome = await self._bound.ainvoke(value, observed)
            data = outcome
        except GraphInterrupt as raised:
            kind, outcome, data = "interrupt", raised, [each.value for each in raised.args[0]]
        except ParentCommand as raised:
            kind, outcome, data = "command", raised, raised.args[0]
        answered = max(before, len(scratchpad.resume))
        return {"kind": kind, **_encode(ctx, data), "answered": answered, **calls.record()}, outcome


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
