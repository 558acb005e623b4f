"""How the operations of a Pydantic AI agent become steps of the task.

A model request is the step `model`. The call of a tool is a step with the name of the tool, in a branch of its own that the id of the call
names. Lists of tools, checks of arguments and operations of capabilities are steps that may be repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_ai import exceptions
from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    CapabilityOperationId,
    DurableOperation,
    DurableOperationBackend,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelCompactMessagesParams,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import DynamicToolset

from onward.agent.calls import SHOWN_BYTES
from onward.agent.conversation import excerpt, result_message
from onward.agent.model import Emit
from onward.agent.prices import Prices
from onward.agent.tools import READ
from onward.core import wire
from onward.core.retry import Retry
from onward.engine.context.context import current
from onward.errors import Fatal, StepFailed
from onward.integrations.model_steps import model_steps
from onward.integrations.pydantic_ai.messages import content, result_text
from onward.integrations.pydantic_ai.model import RESPONSE, RequestedModel
from onward.integrations.pydantic_ai.provider_retries import one_attempt
from onward.integrations.pydantic_ai.streaming import emitting
from onward.integrations.tool_rules import EXTERNAL, READ_RETRY, ToolRules

TOOL_METADATA = "onward"
"""The key of a tool's metadata with its risk: `metadata={"onward": {"risk": "external_action"}}`."""

MAX_RECORD_BYTES = 64_000
"""A larger result of an operation is stored as contents, beside the journal."""


class Backend(DurableOperationBackend[ToolRules]):
    """Runs the operations of one agent."""

    def __init__(self, model_retry: Retry, prices: Prices | None) -> None:
        self.model_retry, self.prices = model_retry, prices

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> BoundDurableOperation[Any, Any, Any]:
        """The operation as a step."""
        return _Bound(self, operation)

    def config_for_tool(
        self, operation: DurableOperation[Any, Any, Any], *, tool: Any, tool_name: str
    ) -> ToolRules | Literal[False]:
        """The rules of a tool. False, from `metadata={"onward": False}`, runs the tool in the handler, where it may use `onward.current()`."""
        metadata = None if tool is None else tool.tool_def.metadata
        if metadata is not None and metadata.get(TOOL_METADATA) is False:
            return False
        of_server = getattr(operation.operation_id, "toolset_kind", "") == "mcp"
        return ToolRules.of((metadata or {}).get(TOOL_METADATA), tool_name, EXTERNAL if of_server else READ)

    def registrations(self) -> Sequence[Callable[..., object]]:
        """None: steps need no registration."""
        return ()


class _Bound(BoundDurableOperation[Any, Any, Any]):
    """One operation of an agent. Calling it runs a step."""

    def __init__(self, backend: Backend, operation: DurableOperation[Any, Any, Any]) -> None:
        self._backend, self._operation = backend, operation

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        return self._operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        match self._operation.operation_id:
            case ModelRequestId():
                return await self._request_model(params, params, "model")
            case ModelCompactMessagesId():
                return await self._request_model(params, params.request_context, "compact")
            case ToolsetCallToolId(toolset_kind=kind):
                rules = config if isinstance(config, ToolRules) else ToolRules(EXTERNAL if kind == "mcp" else READ)
                return await self._run(params.name, params, rules.options, params.ctx.tool_call_id)
            case ToolsetGetToolsId(toolset_kind="mcp") as operation_id:
                tools = await self._run(_name(operation_id, params), params, {"effect": "read", "retry": READ_RETRY})
                return {name: _with_risk(tool) for name, tool in tools.items()}
            case operation_id:
                return await self._run(_name(operation_id, params), params, {"effect": "read", "retry": READ_RETRY})

    async def _request_model(
        self,
        params: ModelRequestParams | ModelCompactMessagesParams,
        request: ModelRequestParams | ModelRequestContext,
        name: str,
    ) -> Any:
        """Request a reply, or a summary of the conversation, from the model."""
        backend, ctx = self._backend, current()

        async def send(max_tokens: int | None, emit: Emit) -> ModelResponse:
            limited = params
            if max_tokens is not None and isinstance(params, ModelRequestParams):
                limited = dataclasses.replace(
                    params, model_settings={**(params.model_settings or {}), "max_tokens": max_tokens}
                )
            with durable_unit_scope(), emitting(emit), one_attempt():
                response: ModelResponse = await self._operation.handler(limited)
                return response

        own_limit = (request.model_settings or {}).get("max_tokens")
        requested = RequestedModel(self._model_name(), params.run_context.model, send, backend.prices, own_limit)
        try:
            native = await model_steps(ctx).ask(
                requested,
                content(request.messages, request.model_request_parameters),
                backend.model_retry,
                name,
            )
        except StepFailed as failed:
            if failed.kind not in {"ModelBusy", "ModelUnavailable"}:
                raise
            raise exceptions.ModelUnavailableError(requested.name, failed.message) from failed
        return self._load(RESPONSE.validate_json, native)

    def _model_name(self) -> str:
        return str(getattr(self._operation.operation_id, "model_name", ""))

    async def _run(self, name: str, params: Any, options: dict[str, Any], call_id: str | None = None) -> Any:
        """Run the operation in a step. The record of a tool call also has the result as a message of the conversation."""
        ctx = current()

        async def work() -> Any:
            with durable_unit_scope(), _keeping_toolsets(params):
                result = self._operation.result_codec.dump(await self._operation.handler(params))
            data = wire.encode(result, f"the result of {name}")
            value = {"native": ctx.keep(data)} if len(data) > MAX_RECORD_BYTES else {"output": result}
            if call_id is None:
                return value
            message = wire.encode(result_message(call_id, excerpt(result_text(result), SHOWN_BYTES)))
            return {"id": ctx.keep(message), "bytes": len(message), **value}

        recorded = await ctx.step(work, name=name, **options)
        if not isinstance(recorded, dict) or len(recorded.keys() & {"native", "output"}) != 1:
            recorded = {"output": _resolution(recorded)}
        if "native" in recorded:
            (data,) = await ctx.kept(recorded["native"])
            recorded = {"output": wire.decode(data)}
        return self._load(self._operation.result_codec.load, recorded["output"])

    def _load(self, load: Callable[[Any], Any], payload: Any) -> Any:
        """Decode a recorded result. A ValidationError would be taken for wrong arguments, and the model would call the tool again."""
        try:
            return load(payload)
        except ValidationError as error:
            raise Fatal(
                f"the recorded result of {self._operation.operation_id} cannot be read with the installed pydantic-ai: {error}"
            ) from None


@contextlib.contextmanager
def _keeping_toolsets(params: Any) -> Iterator[None]:
    """Give toolsets that are made for each run their tools back when a connection fails. The framework lets go of the tools before it
    connects, so the next attempt of the step would find a toolset without tools, and record that."""
    held: Mapping[str, Any] = getattr(getattr(params, "ctx", None), "_run_held_toolsets", None) or {}
    made = [each.toolset for each in held.values() if isinstance(each.toolset, DynamicToolset)]
    before = [toolset._toolset for toolset in made]
    try:
        yield
    except BaseException:
        for toolset, inner in zip(made, before, strict=True):
            if toolset._toolset is None:
                toolset._toolset = inner
        raise


def _with_risk(tool: ToolDefinition) -> ToolDefinition:
    """A tool of an MCP server with a risk: where its metadata has none, the dangerous one."""
    metadata = tool.metadata or {}
    given = metadata.get(TOOL_METADATA)
    if given is False or (isinstance(given, dict) and "risk" in given):
        return tool
    return dataclasses.replace(tool, metadata={**metadata, TOOL_METADATA: {"risk": EXTERNAL, **(given or {})}})


def _resolution(value: Any) -> dict[str, Any]:
    """The result that a person gave for a call in doubt, as the record of a tool's result."""
    return {"kind": "tool_return", "result": "it happened; its result is not known" if value is None else value}


def _name(operation_id: object, params: Any) -> str:
    """The name of a step. Journals have it, so it must not change."""
    match operation_id:
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"tools of {toolset}"
        case ToolsetGetInstructionsId(toolset_id=toolset):
            return f"instructions of {toolset}"
        case ToolsetValidateToolArgumentsId():
            return f"check {params.name}"
        case CapabilityOperationId(capability_id=capability, operation=operation):
            return f"{capability}.{operation}"
        case ModelCancelSuspendedResponseId():
            return "cancel the reply"
    return type(operation_id).__name__.removesuffix("Id")
