"""The places in the OpenAI Agents SDK where a run asks a model, calls a tool, runs a guardrail, and reads or writes a session.

The SDK has no public way to put code there for all agents of a run: agents that it hands over to, agents that are tools, tools of MCP
servers, and tools that hooks add. Copies of agents would not do, since hooks and results compare agents by identity. So `install` puts
functions of this package in the place of functions of the SDK, whose version `onward.integrations.openai_agents` checks. Outside of a
handler they call the functions of the SDK.
"""

from __future__ import annotations

from typing import Any

import agents.run
from agents import Model, OutputGuardrailResult
from agents.run_internal import guardrails, run_loop, session_persistence, tool_execution, turn_resolution

from onward.engine.context.context import CURRENT, current
from onward.engine.shift.scope import SCOPE
from onward.integrations.model_steps import in_handler
from onward.integrations.openai_agents.guardrails import GUARD, guarded, record_input_verdict, record_verdict
from onward.integrations.openai_agents.model import durable
from onward.integrations.openai_agents.session_steps import METHODS, call_session
from onward.integrations.openai_agents.tools import ToolStep, rules

_get_model = run_loop.get_model
_invoke = tool_execution._invoke_function_tool_with_metadata
_needs_approval = tool_execution.function_needs_approval
_call_session = session_persistence._call_session_method
_start_streaming = agents.run.start_streaming
_run_input_guardrail = guardrails.run_single_input_guardrail
_run_output_guardrail = guardrails.run_single_output_guardrail


def install() -> None:
    """Put the functions of this module in the place of those of the SDK."""
    run_loop.get_model = get_model
    tool_execution._invoke_function_tool_with_metadata = invoke_tool
    tool_execution.function_needs_approval = needs_approval
    turn_resolution.function_needs_approval = needs_approval
    session_persistence._call_session_method = call_session_method
    agents.run.start_streaming = start_streaming
    guardrails.run_single_input_guardrail = run_input_guardrail
    guardrails.run_single_output_guardrail = run_output_guardrail


def get_model(agent: Any, run_config: Any) -> Model:
    """The model of an agent."""
    model = _get_model(agent, run_config)
    return durable(model) if in_handler() else model


async def invoke_tool(*, function_tool: Any, context: Any, arguments: str) -> Any:
    """The output of a tool. The calls of a turn run at once, so each has a branch."""
    if not in_handler():
        return await _invoke(function_tool=function_tool, context=context, arguments=arguments)
    async with current().branch(context.tool_call_id):
        if function_tool._is_agent_tool:  # the requests and calls of that agent are steps of their own
            return await _invoke(function_tool=function_tool, context=context, arguments=arguments)
        return await ToolStep(function_tool, context, arguments, _invoke).run()


async def needs_approval(function_tool: Any, context_wrapper: Any, tool_call: Any) -> Any:
    """Whether a person has to approve a call: by the rules of the tool, or by the tool itself."""
    evaluation = await _needs_approval(function_tool, context_wrapper, tool_call)
    if in_handler() and rules().approvals.needs(rules().of(function_tool.name)):
        evaluation.outcome, evaluation.prepared = "require_approval", None
    return evaluation


async def call_session_method(method: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The result of a method of a session."""
    if getattr(method, "__name__", "") in METHODS and in_handler():
        return await call_session(_call_session, method, *args, **kwargs)
    return await _call_session(method, *args, **kwargs)


async def start_streaming(*, starting_agent: Any, run_config: Any, **options: Any) -> None:
    """The run behind a stream, in an asyncio task of its own."""
    if not in_handler():
        GUARD.set(None)
        await _start_streaming(starting_agent=starting_agent, run_config=run_config, **options)
        return
    async with guarded(starting_agent, run_config):
        await _start_streaming(starting_agent=starting_agent, run_config=run_config, **options)


async def run_input_guardrail(agent: Any, guardrail: Any, input: Any, context: Any) -> Any:  # noqa: A002 -- the signature of the SDK
    """The result of a guardrail, in an asyncio task of its own."""
    guard = GUARD.get()
    if CURRENT.get() is not None and guard is not None:
        SCOPE.set(guard.outer)
    if not in_handler():
        return await _run_input_guardrail(agent, guardrail, input, context)

    async def judge() -> Any:
        return await _run_input_guardrail(agent, guardrail, input, context)

    return await record_input_verdict(guard, guardrail, judge)


async def run_output_guardrail(guardrail: Any, agent: Any, agent_output: Any, context: Any) -> Any:
    """The result of a guardrail, in an asyncio task of its own."""
    if not in_handler():
        return await _run_output_guardrail(guardrail, agent, agent_output, context)

    async def judge() -> Any:
        return await _run_output_guardrail(guardrail, agent, agent_output, context)

    return await record_verdict(guardrail, OutputGuardrailResult, judge, agent=agent, agent_output=agent_output)
