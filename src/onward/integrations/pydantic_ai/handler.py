"""A Pydantic AI agent as the handler of tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import UsageLimits

from onward.core.budget import Budget
from onward.core.durations import Duration
from onward.engine.context.context import Context
from onward.errors import BadSetting, InvalidInput, UsageError
from onward.integrations.model_steps import begin
from onward.integrations.outputs import as_result
from onward.integrations.pydantic_ai.backend import TOOL_METADATA
from onward.integrations.pydantic_ai.durability import OnwardDurability, message_text
from onward.integrations.tool_rules import ToolRules


def agent_handler(
    agent: AbstractAgent[Any, Any],
    *,
    budget: Budget | None,
    max_tokens: int | None,
    approve: Iterable[str],
    approval_timeout: Duration | None,
    approval_default: str,
    deps: Callable[[Context], Any] | None,
    usage_limits: UsageLimits | None,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A handler whose input is the prompt of the agent, and whose result is its output."""
    if budget is not None and not isinstance(budget, Budget):
        raise BadSetting("budget", budget, "a Budget, such as Budget(max_steps=20)")
    own = OnwardDurability.from_agent(agent)
    if own is not None and (approve or approval_timeout is not None):
        raise UsageError(
            f"the agent {agent.name!r} has an OnwardDurability of its own: give `approve` and `approval_timeout` to that"
        )
    options = {"approve": approve, "approval_timeout": approval_timeout, "approval_default": approval_default}
    capabilities = [] if own is not None else [OnwardDurability[Any](**options)]  # type: ignore[arg-type]
    check_agent(agent, capabilities)

    async def handler(ctx: Context, prompt: str) -> Any:
        begin(ctx, budget, max_tokens).reads_messages = True
        run = functools.partial(
            agent.run, deps=None if deps is None else deps(ctx), usage_limits=usage_limits, capabilities=capabilities
        )
        result = await run(prompt)
        while messages := await ctx.messages(last=True):
            result = await run([message_text(text) for text in messages], message_history=result.all_messages())
        return as_result(result.output)

    return handler


def tool_checks(agent: AbstractAgent[Any, Any]) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Functions that check the arguments of the agent's own tools, for a person who approves a call with other arguments."""
    tools = (
        tool for toolset in agent.toolsets if isinstance(toolset, FunctionToolset) for tool in toolset.tools.items()
    )
    return {name: functools.partial(_check, name, tool.function_schema.validator) for name, tool in tools}


def _check(name: str, validator: Any, arguments: dict[str, Any]) -> None:
    try:
        validator.validate_python(arguments)
    except ValidationError as error:
        raise InvalidInput(f"the arguments do not fit the tool {name!r}: {error}") from None


def check_agent(agent: AbstractAgent[Any, Any], capabilities: Iterable[OnwardDurability[Any]]) -> None:
    """Report mistakes when the agent is registered, and not at its first task: no name, a toolset without an id, wrong rules of a tool."""
    if not agent.name:
        raise UsageError("the agent has no name, under which its tasks are submitted: Agent(…, name='clerk')")
    for capability in capabilities:
        capability.for_agent(agent)
    for toolset in agent.toolsets:
        if isinstance(toolset, FunctionToolset):
            for tool in toolset.tools.values():
                ToolRules.of((tool.metadata or {}).get(TOOL_METADATA), tool.name)
