"""Models of the OpenAI Agents SDK whose requests are steps of a task."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import openai
from agents import Model, ModelProvider
from agents.items import ModelResponse
from openai.types.responses import Response, ResponseCompletedEvent
from pydantic import TypeAdapter

from onward.agent.model import Emit, ModelBusy, ModelUnavailable, Request, Usage, seconds_to_wait
from onward.agent.models.openai import OPENAI
from onward.engine.context.context import current
from onward.errors import StepFailed
from onward.integrations.model_steps import NativeReply, in_handler, model_steps
from onward.integrations.openai_agents.messages import content, reply_text, tool_calls
from onward.integrations.provider_retries import without_retries

RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
TRANSIENT_STATUS = 500
TOO_MANY_REQUESTS = 429


class DurableModel(Model):
    """A model whose requests are steps, when they are made in the handler of a task."""

    def __init__(self, wrapped: Model) -> None:
        self.wrapped = wrapped

    @property
    def name(self) -> str:
        """The name of the model."""
        return str(getattr(self.wrapped, "model", "") or type(self.wrapped).__name__)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **more: Any,
    ) -> ModelResponse:
        """The reply of the model."""

        async def send(max_tokens: int | None) -> ModelResponse:
            settings = (
                model_settings if max_tokens is None else dataclasses.replace(model_settings, max_tokens=max_tokens)
            )
            with without_retries(getattr(self.wrapped, "_client", None)):
                return await self.wrapped.get_response(
                    system_instructions, input, settings, tools, output_schema, handoffs, tracing, **more
                )

        if not in_handler():
            return await send(None)
        requested = RequestedModel(self.name, str(_base_url(self.wrapped)), send, model_settings.max_tokens)
        try:
            native = await model_steps(current()).ask(requested, content(system_instructions, input, tools))
        except StepFailed as failed:
            if failed.kind not in {"ModelBusy", "ModelUnavailable"}:
                raise
            request = httpx2.Request("POST", requested.base_url or OPENAI)
            raise openai.APIConnectionError(message=failed.message, request=request) from failed
        return RESPONSE.validate_json(native)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """The reply as one event: a step records whole replies."""
        if not in_handler():
            async for event in self.wrapped.stream_response(*args, **kwargs):
                yield event
            return
        reply = await self.get_response(*args, **kwargs)
        response = Response(
            id=reply.response_id or "recorded",
            created_at=current().host.now(),
            model=self.name,
            object="response",
            output=reply.output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


class DurableProvider(ModelProvider):
    """A provider of such models."""

    def __init__(self, wrapped: ModelProvider) -> None:
        self._wrapped = wrapped

    def get_model(self, model_name: str | None) -> Model:
        """The model of this name."""
        return durable(self._wrapped.get_model(model_name))


def durable(model: Model) -> Model:
    """The model, with requests that are steps."""
    return model if isinstance(model, DurableModel) else DurableModel(model)


class RequestedModel:
    """The model of one request, as Onward's account and quotas see it."""

    def __init__(
        self, name: str, base_url: str, send: Callable[[int | None], Awaitable[ModelResponse]], max_tokens: int | None
    ) -> None:
        self.name, self.base_url, self.max_tokens = name, base_url, max_tokens
        self._send = send

    async def ask(self, request: Request, emit: Emit) -> NativeReply:
        """The reply of the model. Raises ModelBusy and ModelUnavailable, for which the step waits, and the errors of the SDK."""
        try:
            response = await self._send(request.max_tokens)
        except openai.APIStatusError as error:
            if error.status_code == TOO_MANY_REQUESTS:
                after = seconds_to_wait(error.response.headers)
                raise ModelBusy(self.name, str(error)[:500], after, quota=after is None) from error
            if error.status_code >= TRANSIENT_STATUS:
                raise ModelUnavailable(self.name, str(error)[:500]) from error
            raise
        except openai.APIConnectionError as error:
            raise ModelUnavailable(self.name, str(error)[:500]) from error
        if reply_text(response.output):
            emit(reply_text(response.output))
        calls, usage = tool_calls(response.output), response.usage
        tokens = Usage(usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens)
        return NativeReply(
            reply_text(response.output),
            calls,
            tokens if usage.total_tokens else Usage(),
            "tool_calls" if calls else "stop",
            self.name,
            native=RESPONSE.dump_json(response),
        )

    def encode_error(self, error: Exception) -> Any:
        """A final error of the API."""
        if not isinstance(error, openai.APIStatusError):
            return None
        return {"status": error.status_code, "message": str(error)[:500], "body": error.body}

    def decode_error(self, recorded: Any) -> Exception:
        """The same error. Its kind follows from the status, as in the SDK."""
        request = httpx2.Request("POST", self.base_url or OPENAI)
        response = httpx2.Response(recorded["status"], request=request)
        kind = _KINDS.get(recorded["status"], openai.APIStatusError)
        return kind(recorded["message"], response=response, body=recorded.get("body"))


_KINDS: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
}


def _base_url(model: Any) -> Any:
    return getattr(getattr(model, "_client", None), "base_url", "")
