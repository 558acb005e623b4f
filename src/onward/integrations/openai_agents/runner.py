"""The runner of the OpenAI Agents SDK, with model requests and tool calls as steps of the task in which it runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
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

    def run_streamed(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002 -- the signature of the SDK
        """Run an agent, and stream what happens. Calls that need an approval are asked for when the code has read the events before them;
        the events of the run that goes on follow."""
        result = super().run_streamed(starting_agent, input, **options)
        if self._asks and in_handler():
            events = result.stream_events

            async def stream_events() -> AsyncIterator[Any]:
                nonlocal events
                while True:
                    async with contextlib.aclosing(events()) as stream:
                        async for event in stream:
                            yield event
                    if not result.interruptions:
                        break
                    state = result.to_state()
                    await rules().decide(current(), state, result.interruptions)
                    resumed = super(OnwardRunner, self).run_streamed(starting_agent, state, **options)
                    events, resumed.stream_events = resumed.stream_events, stream_events
                    result.__dict__ = (
                        resumed.__dict__
                    )  # the code holds this result, and the SDK tells the other one how the run goes on
                await model_steps(current()).account.settle()

            result.stream_events = stream_events
        return result


def install() -> None:
    """Make this the default runner of the SDK, which also runs agents that are tools."""
    seams.install()
    tracing.install()
    set_default_agent_runner(OnwardRunner())
