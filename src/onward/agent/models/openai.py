"""Models that speak OpenAI's chat completions, through its official SDK: OpenAI itself, and every compatible server.

The SDK's own retries are off: attempts belong in the journal, where people see them and where they do not multiply.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from typing import Any

import openai
from openai.types.chat import ChatCompletionChunk

from onward.agent.model import (
    Emit,
    ModelBusy,
    ModelRefused,
    ModelUnavailable,
    Reply,
    Request,
    ToolCall,
    Usage,
    seconds_to_wait,
)

SILENCE = 120.0
"""Seconds without a word from the provider after which it is given up."""

BUSY = frozenset({408, 409, 429, 503, 529})
"""Answers that mean: not now."""


class OpenAIModel:
    """`openai:NAME`. With a base URL any key will do, and none is sent as "none"."""

    def __init__(
        self, name: str, *, base_url: str | None = None, api_key: str | None = None, silence: float = SILENCE
    ) -> None:
        self.name = name
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        api_key = api_key or os.environ.get("OPENAI_API_KEY") or ("none" if base_url else None)
        if api_key is None:
            raise ModelRefused(name, "there is no key: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own")
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=silence)

    async def ask(self, request: Request, emit: Emit) -> Reply:
        """The answer, put together from its stream."""
        try:
            stream = await self._client.chat.completions.create(**_asked(self.name, request))
            return await _gathered(stream, emit, self.name)
        except openai.APIStatusError as error:
            raise self._in_our_words(error) from error
        except openai.APIError as error:  # no connection, silence, a stream that was cut or made no sense
            raise ModelUnavailable(self.name, str(error) or type(error).__name__) from error

    def _in_our_words(self, error: openai.APIStatusError) -> Exception:
        why = f"{error.status_code} {error.message}"
        if error.status_code in BUSY:
            return ModelBusy(self.name, why, seconds_to_wait(error.response.headers))
        if error.status_code >= 500:
            return ModelUnavailable(self.name, why)
        return ModelRefused(self.name, why)


def _asked(name: str, request: Request) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": name,
        "messages": [dict(message) for message in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        asked["tools"] = list(request.tools)
    if request.max_tokens is not None:
        asked["max_completion_tokens"] = request.max_tokens
    if request.temperature is not None:
        asked["temperature"] = request.temperature
    if request.result is not None:
        schema = {"name": request.result.__name__, "schema": request.result.model_json_schema()}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked


async def _gathered(stream: AsyncIterator[ChatCompletionChunk], emit: Emit, name: str) -> Reply:
    text: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    usage, finish, model = Usage(), "", ""
    async for chunk in stream:
        model = chunk.model or model
        if chunk.usage is not None:
            cached = chunk.usage.prompt_tokens_details
            usage = Usage(
                chunk.usage.prompt_tokens,
                chunk.usage.completion_tokens,
                None if cached is None else cached.cached_tokens,
            )
        for choice in chunk.choices[:1]:
            finish = choice.finish_reason or finish
            if choice.delta.content:
                text.append(choice.delta.content)
                emit(choice.delta.content)
            _merge(calls, choice.delta.tool_calls or ())
    if not finish:
        raise ModelUnavailable(name, "its answer broke off")
    return Reply("".join(text), _calls(calls), usage, finish, model)


def _merge(calls: dict[int, dict[str, str]], deltas: Iterable[Any]) -> None:
    """Pieces of calls, each with the number of its call."""
    for delta in deltas:
        call = calls.setdefault(delta.index, {"id": "", "name": "", "arguments": ""})
        call["id"] = delta.id or call["id"]
        if delta.function is not None:
            call["name"] += delta.function.name or ""
            call["arguments"] += delta.function.arguments or ""


def _calls(calls: dict[int, dict[str, str]]) -> tuple[ToolCall, ...]:
    """In order. A call without an id, or with one that was there before, gets one: answers are matched by it."""
    found: dict[str, ToolCall] = {}
    for number in sorted(calls):
        call = calls[number]
        own = call["id"] if call["id"] and call["id"] not in found else f"call_{number}_{len(found)}"
        found[own] = ToolCall(own, call["name"], call["arguments"])
    return tuple(found.values())
