"""The runner of the OpenAI Agents SDK, with model requests and tool calls as steps of the task in which it runs."""

from __future__ import annotations

from typing import Any

from agents.run import AgentRunner, set_default_agent_runner

from onward.engine.context.context import current
from onward.integrations.model_steps import in_handler, model_steps
from onward.integrations.openai_agents import seams, tracing
from onward.integrations.openai_agents.guardrails import GUARD, guarded
from onward.integrations.openai_agents.tools import rules


class OnwardRunner(AgentRunner):
    """Runs agents in the handler of a task so that they survive it. Elsewhere it runs them as the SDK does.

    With `asks=False` a run ends at calls that need an approval, and its result has `interruptions`, as in the SDK. The handler decides about
    them."""

    def __init__(self, *, asks: bool = True) -> None:
        self._asks = asks

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002 -- the signature of the SDK
        """Run an agent to its end. Calls that need an approval are asked for all at once, while nothing else is open."""
        if not in_handler():
            token = GUARD.set(None)
            try:
                return await super().run(starting_agent, input, **options)
            finally:
                GUARD.reset(token)
        task, config = current(), options.get("run_config")
        async with guarded(starting_agent, config):
            result = await super().run(starting_agent, input, **options)
        while self._asks and result.interruptions:
            state = result.to_state()
            await rules().decide(task, state, result.interruptions)
            async with guarded(starting_agent, config):
                result = await super().run(starting_agent, state, **options)
        await model_steps(task).account.settle()
        return result


def install() -> None:
    """Make this the default runner of the SDK, which also runs agents that are tools."""
    seams.install()
    tracing.install()
    set_default_agent_runner(OnwardRunner())
