"""Models of the OpenAI Agents SDK whose requests are steps."""

from __future__ import annotations

import asyncio
import dataclasses
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import openai
from agents import Model, ModelResponse
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseUsage,
)
from pydantic import BaseModel, TypeAdapter, ValidationError

from onward.agent.model import Emit, ModelBusy, ModelUnavailable, Request, Usage, seconds_to_wait
from onward.core import wire
from onward.engine.background import start
from onward.engine.context.context import current
from onward.errors import StepFailed
from onward.integrations.model_steps import NativeReply, in_handler, model_steps
from onward.integrations.openai_agents.errors import decode_error, encode_error
from onward.integrations.openai_agents.guardrails import GUARD
from onward.integrations.openai_agents.messages import content, reply_text, tool_calls
from onward.integrations.provider_retries import without_retries

RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
COMPLETED = "response.completed"
LAST_EVENTS: dict[str, Any] = {
    COMPLETED: ResponseCompletedEvent,
    "response.incomplete": ResponseIncompleteEvent,
    "response.failed": ResponseFailedEvent,
    "response.error": ResponseErrorEvent,
    "error": ResponseErrorEvent,
}
"""The events that end a stream. A record has the last one, which holds the whole reply."""
NO_EVENT = b"null"
AS_SENT: Any = {"by_alias": True, "exclude_unset": True, "warnings": False}
"""A record has the fields that the provider sent. The SDK sends the items of a reply back, and the API refuses fields that it does not know."""
TRANSIENT_STATUS = 500
TOO_MANY_REQUESTS = 429

Ask = Callable[[int | None, Emit], Awaitable[NativeReply]]


class DurableModel(Model):
    """A model whose requests are steps, when they are made in the handler of a task."""

    def __init__(self, wrapped: Model) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    @property
    def name(self) -> str:
        """The name of the model."""
        return str(getattr(self.wrapped, "model", "") or type(self.wrapped).__name__)

    async def close(self) -> None:
        """Free the resources of the model."""
        await self.wrapped.close()

    def get_retry_advice(self, request: Any) -> Any:
        """The advice of the model for the SDK's own retries."""
        return self.wrapped.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.wrapped._cleanup_on_run_end(owner)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002 -- the signature of the SDK
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **more: Any,
    ) -> ModelResponse:
        """The reply of the model."""
        places = (tools, output_schema, handoffs, tracing)
        if not in_handler():
            return await self.wrapped.get_response(system_instructions, input, model_settings, *places, **more)

        async def ask(max_tokens: int | None, emit: Emit) -> NativeReply:
            settings = _limited(model_settings, max_tokens)
            response = await self.wrapped.get_response(system_instructions, input, settings, *places, **more)
            if text := reply_text(response.output):
                emit(text)
            return self._reply(response.output, _usage(response.usage), RESPONSE.dump_json(response, **AS_SENT))

        native = await self._step(ask, model_settings, content(system_instructions, input, tools))
        return _decode_response(native)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002 -- the signature of the SDK
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **more: Any,
    ) -> AsyncIterator[Any]:
        """The events of a reply as they come, and the last one when the reply is recorded. In a replay the last one comes alone."""
        places = (tools, output_schema, handoffs, tracing)
        if not in_handler():
            async for event in self.wrapped.stream_response(
                system_instructions, input, model_settings, *places, **more
            ):
                yield event
            return
        events: asyncio.Queue[Any] = asyncio.Queue()
        last: list[Any] = []

        async def ask(max_tokens: int | None, emit: Emit) -> NativeReply:
            last.clear()
            settings = _limited(model_settings, max_tokens)
            items: list[Any] = []
            stream: Any = self.wrapped.stream_response(system_instructions, input, settings, *places, **more)
            try:
                async for event in stream:
                    kind = getattr(event, "type", "")
                    if kind in LAST_EVENTS:
                        last.append(event)
                        if kind == COMPLETED:
                            continue
                        break  # the SDK reads no further
                    if kind == "response.output_text.delta":
                        emit(event.delta)
                    elif kind == "response.output_item.done":
                        items.append(event.item)
                    events.put_nowait(event)
            finally:
                if hasattr(stream, "aclose"):
                    await stream.aclose()
            response = getattr(last[0], "response", None) if last else None
            output = (None if response is None else response.output) or items
            native = _encode_event(_filled(last[0], output)) if last else NO_EVENT
            return self._reply(output, _stream_usage(getattr(response, "usage", None)), native)

        step = start(self._step(ask, model_settings, content(system_instructions, input, tools)), "onward-model-stream")

        def ended(step: asyncio.Task[bytes]) -> None:
            step.cancelled() or step.exception()  # read here, since a run that is cancelled awaits it no more
            events.put_nowait(None)

        step.add_done_callback(ended)
        try:
            while (event := await events.get()) is not None:
                yield event
            native = await step
        finally:
            if not step.done():
                step.cancel()
                await asyncio.wait([step])
        if last:
            for event in last:
                yield event
        elif native != NO_EVENT:
            yield _decode_event(native)

    async def _step(self, ask: Ask, settings: Any, conversation: Any) -> bytes:
        guard = GUARD.get()
        if guard is not None:
            await guard.before_request()
        base_url = getattr(getattr(self.wrapped, "_client", None), "base_url", "")
        requested = RequestedModel(self, str(base_url), ask, settings)
        try:
            return await model_steps(current()).ask(requested, conversation)
        except StepFailed as failed:
            if failed.kind not in {"ModelBusy", "ModelUnavailable"}:
                raise
            raise requested.last_error(failed.message) from failed

    def _reply(self, output: Sequence[Any], usage: Usage, native: bytes) -> NativeReply:
        calls = tool_calls(output)
        return NativeReply(
            reply_text(output), calls, usage, "tool_calls" if calls else "stop", self.name, native=native
        )


_durable: weakref.WeakValueDictionary[int, DurableModel] = weakref.WeakValueDictionary()
"""By the ids of the models that they wrap, and which they keep alive. The SDK knows the models of a run by identity."""


def durable(model: Model) -> Model:
    """The model, with requests that are steps."""
    if isinstance(model, DurableModel):
        return model
    made = _durable.get(id(model))
    if made is None:
        made = _durable[id(model)] = DurableModel(model)
    return made


class RequestedModel:
    """The model of one request, as Onward's account and quotas see it."""

    def __init__(self, model: DurableModel, base_url: str, ask: Ask, settings: Any) -> None:
        self.name, self.base_url, self.max_tokens = model.name, base_url, settings.max_tokens
        self._model, self._ask = model, ask
        self._retried_by_sdk = settings.retry is not None
        self._error: Exception | None = None
        """The last error of this shift, which has more than its record."""

    async def ask(self, request: Request, emit: Emit) -> NativeReply:
        """The reply of the model. Raises ModelBusy and ModelUnavailable, for which the step waits, and the errors of the SDK. With retries
        of the SDK's own (`ModelSettings.retry`) each attempt is a step, and the SDK decides about its error."""
        try:
            with without_retries(getattr(self._model.wrapped, "_client", None)):
                return await self._ask(request.max_tokens, emit)
        except Exception as error:
            self._error = error
            if not self._retried_by_sdk and (transient := self._transient(error)) is not None:
                raise transient from error
            raise

    def _transient(self, error: Exception) -> Exception | None:
        if isinstance(error, openai.APIConnectionError):
            return ModelUnavailable(self.name, str(error)[:500])
        if not isinstance(error, openai.APIStatusError):
            return None
        if error.status_code == TOO_MANY_REQUESTS:
            after = seconds_to_wait(error.response.headers)
            return ModelBusy(self.name, str(error)[:500], after, quota=after is None)
        return ModelUnavailable(self.name, str(error)[:500]) if error.status_code >= TRANSIENT_STATUS else None

    def last_error(self, message: str) -> BaseException:
        """The error with which the last attempt failed."""
        if self._error is not None:
            return self._error
        return decode_error({"module": "openai", "kind": "APIConnectionError", "message": message})

    def encode_error(self, error: Exception) -> Any:
        """An error of the model that no other attempt of the step follows."""
        return encode_error(error) if error is self._error else None

    def decode_error(self, recorded: Any) -> Exception:
        """The same error."""
        error = self._error or decode_error(recorded)
        return error if isinstance(error, Exception) else RuntimeError(str(error))


def _limited(settings: Any, max_tokens: int | None) -> Any:
    return settings if max_tokens is None else dataclasses.replace(settings, max_tokens=max_tokens)


def _usage(usage: Any) -> Usage:
    if not usage.total_tokens:
        return Usage()
    return Usage(usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens)


def _stream_usage(usage: ResponseUsage | None) -> Usage:
    return Usage() if usage is None else _usage(usage)


def _decode_response(native: bytes) -> ModelResponse:
    try:
        return RESPONSE.validate_json(native)
    except (
        ValidationError
    ):  # a provider that differs from the API of OpenAI: its items are read as the client of OpenAI reads them
        fields = wire.decode(native)
        response = RESPONSE.validate_python(fields | {"output": []})
        response.output = Response.construct(output=fields["output"]).output
        return response


def _encode_event(event: Any) -> bytes:
    return event.model_dump_json(**AS_SENT).encode() if isinstance(event, BaseModel) else NO_EVENT


def _decode_event(native: bytes) -> Any:
    fields = wire.decode(native)
    kind = LAST_EVENTS[fields["type"]]
    try:
        return kind.model_validate(fields)
    except ValidationError:  # a provider that differs from the API of OpenAI
        return kind.construct(**fields)


def _filled(event: Any, output: list[Any]) -> Any:
    """The last event with the output of the reply, which some providers send in the events before it only."""
    response = getattr(event, "response", None)
    if response is None or response.output:
        return event
    return event.model_copy(update={"response": response.model_copy(update={"output": output})})
