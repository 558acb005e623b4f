"""`OnwardDurability`: the capability that makes a Pydantic AI agent durable inside a task.

    agent = Agent("openai:gpt-5", name="clerk", capabilities=[OnwardDurability()])

    @app.task
    async def answer(ctx, question: str) -> str:
        return (await agent.run(question)).output

Outside of a task, and inside a step, the agent runs as it does without this capability.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_ai.agent import Agent, EventStreamHandler
from pydantic_ai.capabilities.abstract import WrapRunHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    ModelRequestParams,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import ModelRetry, UserError
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelResponse,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDefinition,
    ToolDenied,
)
from pydantic_ai.toolsets import AbstractToolset

from onward.agent.loop import MODEL_RETRY
from onward.agent.prices import Prices
from onward.core import wire
from onward.core.durations import Duration
from onward.core.retry import Retry, as_retry
from onward.engine.context.context import Context, current
from onward.engine.shift.scope import SCOPE
from onward.errors import Fatal
from onward.integrations.model_steps import in_handler, model_steps
from onward.integrations.pydantic_ai.backend import TOOL_METADATA, Backend
from onward.integrations.pydantic_ai.provider_retries import switch_off
from onward.integrations.pydantic_ai.streaming import can_stream, with_live_text
from onward.integrations.tool_rules import Approvals, ToolRules

EXTERNAL_CALL = "tool call {id}"
"""The signal that brings the result of a call that another program does."""


class OnwardDurability(BaseDurabilityCapability[AgentDepsT]):
    """Records the model requests and tool calls of an agent as steps of the task in which it runs, and maps deferred tools to approvals and
    signals of that task."""

    engine_spec = DurabilityEngineSpec(
        engine_name="Onward",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        serialization_failure=lambda error: Fatal(f"a result of the agent cannot be recorded: {error}"),
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-in-durable-unit",
        },
        tool_config_key=TOOL_METADATA,
    )

    def __init__(
        self,
        *,
        approve: Iterable[str] = (),
        approval_timeout: Duration | None = None,
        approval_default: str = "deny",
        retry: Retry | int = MODEL_RETRY,
        prices: Prices | None = None,
        live: bool = True,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        """Tools whose risk is one of `approve` wait for a person, for at most `approval_timeout`; without a decision by then,
        `approval_default` ("deny" or "approve") decides. `retry` is for model requests. `prices` are those of the agent's model, where the
        list of the package genai-prices has others or none. With `live`, requests are streamed, so that people see the text of a reply as it
        comes. `models`, `event_stream_handler` and `name` are as for the durability capabilities of Pydantic AI. The handler of events is not
        called for what a replay returns from the journal."""
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._approvals = Approvals(approve, approval_timeout, approval_default)
        self._live = live
        self._backend = Backend(as_retry(retry), prices)

    def get_durable_operation_backend(self) -> Backend:
        """The backend of this agent."""
        return self._backend

    # ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_durable_context(self) -> bool:
        """Whether this code runs in the handler of a task, and not in one of its steps."""
        return in_handler()

    def get_default_run_id(self) -> str | None:
        """The same id in every replay."""
        if not self.in_durable_context:
            return None
        ctx, scope = current(), SCOPE.get()
        return f"{ctx.task_id}:{scope.prefix}{model_steps(ctx).next_run(scope.path)}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The same id in every replay."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """The time at which the run first began, for the `timeout` of the run."""
        return datetime.fromtimestamp(await current().now(), UTC) if self.in_durable_context else None

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Run the agent with pauses that free the slot, and results of parallel tools in the order of their calls."""
        agent = self._agent
        if not self.in_durable_context or agent is None:
            return await handler()
        task = current()
        with (
            agent.parallel_tool_call_execution_mode("parallel_ordered_events"),
            Agent.using_sleep(task.sleep),
        ):
            result = await handler()
        await model_steps(task).account.settle()
        return result

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Add the messages of people to the request."""
        if self.in_durable_context and model_steps(task := current()).reads_messages:
            for text in await task.messages():
                ctx.enqueue(message_text(text))
        return await super().before_model_request(ctx, request_context)

    # ── model requests ───────────────────────────────────────────────────────────────────────────────────────────

    async def _model_request_operation(self, params: ModelRequestParams) -> ModelResponse:
        if self._live and can_stream(params.run_context.model):
            return await self._model_request_stream_operation(params)
        return await super()._model_request_operation(params)

    async def _resolve_model_for_request(self, model_id: str | None, run_context: RunContext[AgentDepsT]) -> Model:
        model = await super()._resolve_model_for_request(model_id, run_context)
        switch_off(model)
        return model

    def _model_stream_event_handler(self) -> EventStreamHandler[AgentDepsT] | None:
        return with_live_text(self._effective_event_stream_handler())

    async def _dispatch_event_stream_event(self, ctx: RunContext[AgentDepsT], event: AgentStreamEvent) -> None:
        """Events are not recorded: while a replay returns recorded results, an earlier shift has passed them on already."""
        if not current().replaying and (handler := self._effective_event_stream_handler()) is not None:
            await handler(ctx, self._single_event_stream(event))

    # ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────

    def get_wrapper_toolset(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT] | None:
        """The toolsets of a run, with steps for their calls: also those that the run adds."""
        if not self.in_durable_context:
            return super().get_wrapper_toolset(toolset)
        return toolset.visit_and_replace(self._wrap_for_run)

    def _wrap_for_run(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
        registered = self._toolsets_by_id.get(toolset.id or "")
        if registered is not None and registered.wrapped is toolset:
            return registered
        wrapped = self._wrap_leaf_toolset(toolset)
        if wrapped is None:
            return toolset
        if toolset._explicit_id is None or registered is not None:
            raise UserError(
                f"a toolset that is added to a run in a task needs an `id` of its own, and {toolset.id!r} "
                f"{'is that of another one' if registered is not None else 'is none'}: FunctionToolset(…, id='orders')"
            )
        return wrapped

    async def prepare_tools(self, ctx: RunContext[AgentDepsT], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Make tools deferred whose calls a person has to approve."""
        if not self.in_durable_context:
            return tool_defs
        allowed = model_steps(current()).always_allowed
        return [
            self._with_kind(tool, allowed) if tool.kind in {"function", "unapproved"} else tool for tool in tool_defs
        ]

    def _with_kind(self, tool: ToolDefinition, allowed: set[str]) -> ToolDefinition:
        kind: Literal["unapproved", "function"] = "unapproved" if self._needs_approval(tool, allowed) else "function"
        return tool if tool.kind == kind else dataclasses.replace(tool, kind=kind)

    def _needs_approval(self, tool: ToolDefinition, allowed: set[str]) -> bool:
        if tool.name in allowed:
            return False
        return self._approvals.needs(_rules(tool)) or tool.kind == "unapproved"

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run a call in a branch that its id names: the calls of one turn run beside each other."""
        if not self.in_durable_context:
            return await handler(args)
        async with current().branch(call.tool_call_id):
            return await handler(args)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask people for all approvals of the turn at once, and wait for the signals with the results of external calls."""
        if not self.in_durable_context:
            return None
        task, tools = current(), {} if ctx.tool_manager is None else ctx.tool_manager.tools or {}
        waits: list[Awaitable[Any]] = []
        for call in requests.approvals:
            tool = tools.get(call.tool_name)
            rules = ToolRules() if tool is None else _rules(tool.tool_def)
            description = None if tool is None else tool.tool_def.description
            waits.append(self._ask_approval(task, call, rules, requests.metadata.get(call.tool_call_id), description))
        waits += [_await_result(task, call) for call in requests.calls]
        results = await task.gather(*waits) if len(waits) > 1 else [await wait for wait in waits]
        approved = {call.tool_call_id: result for call, result in zip(requests.approvals, results, strict=False)}
        done = results[len(requests.approvals) :]
        calls = {call.tool_call_id: result for call, result in zip(requests.calls, done, strict=True)}
        return DeferredToolResults(approvals=approved, calls=calls)

    async def _ask_approval(
        self,
        task: Context,
        call: ToolCallPart,
        rules: ToolRules,
        metadata: Mapping[str, Any] | None,
        description: str | None,
    ) -> ToolApproved | ToolDenied:
        more = {"metadata": dict(metadata)} if metadata else {}
        decision = await self._approvals.ask(
            task, call.tool_name, call.tool_call_id, call.args_as_dict(), rules, description=description, **more
        )
        return ToolApproved(override_args=decision.arguments) if decision.approved else ToolDenied(decision.message)


def message_text(message: Any) -> str:
    """A message of a person as a prompt."""
    return message if isinstance(message, str) else wire.encode(message).decode()


def _rules(tool: ToolDefinition) -> ToolRules:
    return ToolRules.of((tool.metadata or {}).get(TOOL_METADATA), tool.name)


async def _await_result(task: Context, call: ToolCallPart) -> Any:
    """The result of a call that another program does: it finds the call in the progress of the task, and sends the result as a signal."""
    name = EXTERNAL_CALL.format(id=call.tool_call_id)
    if not task.replaying:
        external = {"call": call.tool_call_id, "arguments": call.args_as_dict(), "signal": name}
        task.progress(f"{call.tool_name} waits for its result", tools=[call.tool_name], external=external)
    value = await task.signal(name)
    if isinstance(value, dict) and value.keys() == {"retry"}:
        return ModelRetry(str(value["retry"]))
    return value
