"""Guardrails of the OpenAI Agents SDK: their verdicts are steps.

The SDK runs the guardrails of an input beside the first turn of the agent. So each has a branch, and so has the run itself where it has
such guardrails. An agent that runs in a guardrail is durable as anywhere else. In a replay the recorded verdict takes the place of the
guardrail. It runs again only where it had steps of its own, whose results are recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

from agents import GuardrailFunctionOutput, InputGuardrailResult, InputGuardrailTripwireTriggered
from pydantic_core import to_jsonable_python

from onward.engine.context.context import Context, current
from onward.engine.shift.scope import SCOPE, Scope
from onward.integrations.openai_agents.errors import run_step

MAX_HOLD_S = 0.5
"""Seconds for which a tripped guardrail waits in a replay, until the run has come to the records that it had when the guardrail tripped."""
HOLD_POLL_S = 0.005


class Guard:
    """The guardrails of the input of one run."""

    def __init__(self, outer: Scope) -> None:
        self.outer = outer
        """The line of the handler around the run, which guardrails have their branches in."""
        self.run_path = ""
        self.tripped: Any = None
        """The result of the guardrail that tripped."""
        self._requests = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def judging(self) -> Iterator[None]:
        """A guardrail runs in this block."""
        self._open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def before_request(self) -> None:
        """Wait for the verdicts before the second request of the run: what a run has done when a guardrail trips does not depend on time
        beyond the first turn. Raises InputGuardrailTripwireTriggered."""
        self._requests += 1
        if self._requests > 1:
            await self._idle.wait()
            if self.tripped is not None:
                raise InputGuardrailTripwireTriggered(self.tripped)

    async def let_the_run_catch_up(self, task: Context) -> None:
        """In a replay, wait until the run has come to its records."""
        for _ in range(int(MAX_HOLD_S / HOLD_POLL_S)):
            if not task.host.unread_in(self.run_path):
                return
            await asyncio.sleep(HOLD_POLL_S)


GUARD: ContextVar[Guard | None] = ContextVar("onward_guard", default=None)
"""The guardrails of the run in which this code runs."""


@contextlib.asynccontextmanager
async def guarded(agent: Any, run_config: Any) -> AsyncIterator[None]:
    """A run of this agent: a branch, if guardrails run beside it."""
    config = run_config.get("input_guardrails") if isinstance(run_config, dict) else run_config
    more = getattr(config, "input_guardrails", config)
    guard = Guard(SCOPE.get()) if agent.input_guardrails or more else None
    token = GUARD.set(guard)
    try:
        async with contextlib.nullcontext() if guard is None else current().branch("run"):
            if guard is not None:
                guard.run_path = SCOPE.get().path
            yield
    finally:
        GUARD.reset(token)


async def record_verdict(guardrail: Any, result_type: Any, judge: Callable[[], Awaitable[Any]], **more: Any) -> Any:
    """The result of a guardrail, from the journal or of a call that is made now."""
    task, judged = current(), []
    async with task.branch(f"guardrail {guardrail.get_name()}"):
        if task.host.next_recorded() != f"{SCOPE.get().prefix}verdict":
            judged.append(await judge())

        async def verdict() -> dict[str, Any]:
            output = judged[0].output
            info = to_jsonable_python(output.output_info, fallback=str)
            return {"tripped": bool(output.tripwire_triggered), "info": info}

        recorded = await run_step(verdict, "verdict")
    if judged:
        return judged[0]
    output = GuardrailFunctionOutput(output_info=recorded["info"], tripwire_triggered=recorded["tripped"])
    return result_type(guardrail=guardrail, output=output, **more)


async def record_input_verdict(guard: Guard | None, guardrail: Any, judge: Callable[[], Awaitable[Any]]) -> Any:
    """The same for a guardrail of an input, which runs beside the run."""
    if guard is None:
        return await record_verdict(guardrail, InputGuardrailResult, judge)
    with guard.judging():
        result = await record_verdict(guardrail, InputGuardrailResult, judge)
        if result.output.tripwire_triggered:
            guard.tripped = guard.tripped or result
            await guard.let_the_run_catch_up(current())
        return result
