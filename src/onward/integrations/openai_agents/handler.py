"""An agent of the OpenAI Agents SDK as the handler of tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from agents import Agent, FunctionTool, RunConfig, Runner

from onward.agent.schemas import schema_errors
from onward.core.budget import Budget
from onward.engine.context.context import Context
from onward.errors import BadSetting, InvalidInput
from onward.integrations.model_steps import begin
from onward.integrations.openai_agents.tools import RULES, RunRules
from onward.integrations.outputs import as_result
from onward.integrations.tool_rules import Approvals, ToolRules


def agent_handler(
    agent: Agent[Any],
    *,
    budget: Budget | None,
    max_tokens: int | None,
    approvals: Approvals,
    tools: Mapping[str, Any],
    context: Callable[[Context], Any] | None,
    run_config: RunConfig | None,
    max_turns: int,
    live: bool,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A handler whose input is that of the agent, and whose result is the agent's final output."""
    if budget is not None and not isinstance(budget, Budget):
        raise BadSetting("budget", budget, "a Budget, such as Budget(max_steps=20)")
    rules = RunRules({name: ToolRules.of(given, name) for name, given in tools.items()}, approvals)

    async def handler(ctx: Context, prompt: str) -> Any:
        begin(ctx, budget, max_tokens)
        RULES.set(rules)
        options = {
            "context": None if context is None else context(ctx),
            "run_config": run_config,
            "max_turns": max_turns,
        }
        run = _run_live if live else Runner.run
        result = await run(agent, prompt, **options)
        while messages := await ctx.messages(last=True):
            items = [*result.to_input_list(), *({"role": "user", "content": str(text)} for text in messages)]
            result = await run(result.last_agent, items, **options)
        return as_result(result.final_output)

    return handler


def tool_checks(agent: Agent[Any]) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Functions that check the arguments of the agent's own tools, for a person who approves a call with other arguments."""
    tools = (tool for tool in agent.tools if isinstance(tool, FunctionTool))
    return {tool.name: functools.partial(_check, tool.name, tool.params_json_schema) for tool in tools}


def _check(name: str, schema: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    if errors := schema_errors(schema, arguments):
        raise InvalidInput(f"the arguments do not fit the tool {name!r}: {errors}")


async def _run_live(agent: Agent[Any], items: Any, **options: Any) -> Any:
    """A run whose requests are streamed: the text of each reply is live."""
    result = Runner.run_streamed(agent, items, **options)
    async for _ in result.stream_events():
        pass
    return result
