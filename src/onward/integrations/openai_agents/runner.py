"""The runner of the OpenAI Agents SDK, with model requests and tool calls as steps of the task in which it runs."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from agents import Agent, FunctionTool, Handoff, Model, RunConfig
from agents.run import AgentRunner, set_default_agent_runner
from pydantic_core import to_jsonable_python

from onward.agent.calls import SHOWN_BYTES
from onward.agent.conversation import excerpt, result_message
from onward.core import wire
from onward.engine.context.context import Context, current
from onward.integrations.model_steps import in_handler, model_steps
from onward.integrations.openai_agents.model import DurableProvider, durable
from onward.integrations.tool_rules import Approvals, Decision, ToolRules

MAX_RECORD_BYTES = 64_000
"""A larger output of a tool is stored as contents, beside the journal."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunRules:
    """The rules of the tools of a run, by their names, and the approvals that they need."""

    tools: Mapping[str, ToolRules]
    approvals: Approvals


RULES: ContextVar[RunRules | None] = ContextVar("onward_openai_agents", default=None)
"""The rules of the handler that runs now."""


def _rules() -> RunRules:
    return RULES.get() or RunRules({}, Approvals((), None, "deny"))


class OnwardRunner(AgentRunner):
    """Runs agents in the handler of a task so that they survive it. Elsewhere it runs them as the SDK does."""

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002 -- the signature of the SDK
        """Run an agent to its end. Calls that need an approval are asked for all at once, while nothing else is open."""
        if not in_handler():
            return await super().run(starting_agent, input, **options)
        task, copies = current(), Copies(_rules())
        options["run_config"] = _durable_config(options.get("run_config"))
        agent = copies.of(starting_agent)
        result = await super().run(agent, input, **options)
        while result.interruptions:
            state = result.to_state()
            await copies.decide(task, state, result.interruptions)
            result = await super().run(agent, state, **options)
        await model_steps(task).account.settle()
        result._last_agent = copies.original(result.last_agent)
        return result

    def run_streamed(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002 -- the signature of the SDK
        """Run an agent whose replies come as one event each."""
        if in_handler():
            options["run_config"] = _durable_config(options.get("run_config"))
            starting_agent = Copies(_rules()).of(starting_agent)
        return super().run_streamed(starting_agent, input, **options)


def install() -> None:
    """Make this the default runner of the SDK, which also runs agents that are tools."""
    set_default_agent_runner(OnwardRunner())


def _durable_config(config: RunConfig | None) -> RunConfig:
    config = config or RunConfig()
    model = durable(config.model) if isinstance(config.model, Model) else config.model
    return dataclasses.replace(config, model=model, model_provider=DurableProvider(config.model_provider))


class Copies:
    """Copies of the agents of a run, whose models and tools are durable. The agents themselves stay as they are."""

    def __init__(self, rules: RunRules) -> None:
        self._rules = rules
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._changed: dict[str, str] = {}
        """The arguments of calls that a person approved with other arguments, by the ids of the calls."""

    def of(self, agent: Any) -> Any:
        """The copy of an agent, with copies of all agents that it hands over to."""
        if id(agent) in self._copies:
            return self._copies[id(agent)][1]
        made = copy.copy(agent)
        self._copies[id(agent)] = (agent, made)
        self._copies[id(made)] = (agent, made)
        made.model = durable(agent.model) if isinstance(agent.model, Model) else agent.model
        made.tools = [self._tool(tool) for tool in agent.tools]
        made.handoffs = [self._handoff(item) for item in agent.handoffs]
        return made

    def original(self, agent: Any) -> Any:
        """The agent of which this is the copy."""
        return self._copies.get(id(agent), (agent, agent))[0]

    def _handoff(self, item: Any) -> Any:
        if isinstance(item, Agent):
            return self.of(item)
        if not isinstance(item, Handoff):
            return item
        invoke = item.on_invoke_handoff

        async def hand_over(ctx: Any, arguments: str) -> Any:
            return self.of(await invoke(ctx, arguments))

        return dataclasses.replace(item, on_invoke_handoff=hand_over)

    def rules_of(self, name: str) -> ToolRules:
        """The rules of a tool."""
        return self._rules.tools.get(name) or ToolRules()

    def _tool(self, tool: Any) -> Any:
        if not isinstance(tool, FunctionTool):
            return tool
        rules, invoke = self.rules_of(tool.name), tool.on_invoke_tool

        async def call(ctx: Any, arguments: str) -> Any:
            if not in_handler():
                return await invoke(ctx, arguments)
            async with current().branch(ctx.tool_call_id):
                if tool._is_agent_tool:  # the requests and calls of that agent are steps of their own
                    return await invoke(ctx, arguments)
                changed = self._changed.get(ctx.tool_call_id)
                output = await _run_step(current(), tool.name, rules, invoke, ctx, changed or arguments)
                return (
                    output if changed is None else f"(a person approved this with other arguments, {changed})\n{output}"
                )

        made = copy.copy(tool)
        made.on_invoke_tool = call
        if self._rules.approvals.needs(rules):
            made.needs_approval = self._needs_approval
        return made

    async def _needs_approval(self, ctx: Any, arguments: Any, call_id: str) -> bool:
        return True

    async def decide(self, task: Context, state: Any, items: list[Any]) -> None:
        """Ask people to approve the open calls, and tell the state of the run."""

        async def ask(item: Any) -> Decision:
            raw, name = item.raw_item, str(item.tool_name)
            if name in model_steps(task).always_allowed:
                return Decision(approved=True)
            arguments = json.loads(raw.arguments or "{}")
            return await self._rules.approvals.ask(task, name, raw.call_id, arguments, self.rules_of(name))

        requests = [ask(item) for item in items]
        decisions = await task.gather(*requests) if len(requests) > 1 else [await request for request in requests]
        for item, decision in zip(items, decisions, strict=True):
            if not decision.approved:
                state.reject(item, rejection_message=decision.message)
                continue
            state.approve(item)
            if decision.arguments is not None:
                self._changed[item.raw_item.call_id] = json.dumps(decision.arguments)


async def _run_step(ctx: Context, name: str, rules: ToolRules, invoke: Any, tool_context: Any, arguments: str) -> Any:
    """Call the tool in a step. Its output is JSON, in the first run and in every replay."""

    async def work() -> dict[str, Any]:
        output = to_jsonable_python(await invoke(tool_context, arguments), fallback=str)
        data = wire.encode(output, f"the result of {name}")
        text = output if isinstance(output, str) else data.decode()
        message = wire.encode(result_message(tool_context.tool_call_id, excerpt(text, SHOWN_BYTES)))
        value = {"native": ctx.keep(data)} if len(data) > MAX_RECORD_BYTES else {"output": output}
        return {"id": ctx.keep(message), "bytes": len(message), **value}

    recorded = await ctx.step(work, name=name, **rules.options)
    if not isinstance(recorded, dict) or len(recorded.keys() & {"native", "output"}) != 1:
        return "it happened; its result is not known" if recorded is None else recorded
    if "native" in recorded:
        (data,) = await ctx.kept(recorded["native"])
        return wire.decode(data)
    return recorded["output"]
