"""Models that speak OpenAI's chat completions, through its official SDK: OpenAI itself, and every compatible server.

The SDK's own retries are off: attempts belong in the journal, where people see them and where they do not multiply. Compatible servers
differ in small things (the field for the limit of tokens, the numbers of the pieces of a call, missing fields). Only this module knows
these differences.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import openai
from openai.types.chat import ChatCompletionChunk

from onward.agent import http_limits
from onward.agent.model import (
    Emit,
    Message,
    ModelBusy,
    ModelRefused,
    ModelUnavailable,
    Reply,
    Request,
    ToolCall,
    Usage,
    seconds_to_wait,
)
from onward.agent.prices import Prices
from onward.core import mask
from onward.core.durations import Duration, seconds
from onward.errors import UsageError

CONNECT_TIMEOUT_S = 10.0
FIRST_WORD_TIMEOUT_S = 300.0
SILENCE_TIMEOUT_S = 120.0
"""For the connection, for the first word (a model may think before it), and between two words."""

REPLY_TIMEOUT_S = 3_600.0
MAX_REPLY_BYTES = 32 << 20
"""Of a whole reply. Most of the bytes are not text, but the JSON around each word."""

MAX_CALLS = 1_000
"""Calls of tools in one reply."""

MAX_ERROR_CHARS = 2_000
"""Characters that are kept of a provider's error message."""

BUSY_STATUSES = frozenset({402, 408, 409, 429, 503, 529})
"""Statuses with which a provider refuses for now."""

QUOTA_STATUSES = frozenset({402, 429})
"""Those of them that say that the quota is used up."""

QUOTA_CODES = frozenset({"insufficient_quota", "rate_limit_exceeded"})
"""Error codes that say the same, for replies that have already begun."""

_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""Errors of the SDK's own HTTP client when there was no connection."""

SENT_BACK = ("reasoning_details", "thinking_blocks", "provider_specific_fields", "extra_content")
"""Fields of messages and calls that providers want back as they are: of OpenRouter, LiteLLM and Gemini. (`reasoning_content` is not among them:
some providers want it back, and others refuse a request that has it.)"""

OPENAI = "https://api.openai.com/v1"
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class OpenAIModel:
    """The model of `openai:NAME`, or one of your own server: with a base URL any key will do, and without a key "none" is sent."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        prices: Prices | None = None,
        connect: Duration = CONNECT_TIMEOUT_S,
        first: Duration = FIRST_WORD_TIMEOUT_S,
        silence: Duration = SILENCE_TIMEOUT_S,
        temperature: float | None = None,
        reasoning_effort: str | None = None,
        headers: Mapping[str, str] | None = None,
        client: openai.AsyncOpenAI | None = None,
        max_tokens_as: str | None = None,
        send_back: Iterable[str] = SENT_BACK,
    ) -> None:
        """`temperature` and `reasoning_effort` (such as "low") are sent where the agent sets none. `headers` are sent with each request.
        `client` is a client of the SDK that you have made, such as `AsyncAzureOpenAI`: it has the address, the key, the headers and the
        limits of responses; its retries are switched off, and you close it.

        `send_back` names the fields of a reply that the next requests contain as they came, where OpenAI's API has no such fields: thoughts
        of the model and their signatures. `max_tokens_as` is the field for the most tokens of a reply, where the base URL does not determine it: OpenAI accepts only
        `max_completion_tokens`, most other servers only `max_tokens`."""
        self.name: str = name
        self.prices: Prices | None = prices
        self._send_back = frozenset(send_back)
        if client is not None and (base_url or api_key or headers):
            raise UsageError(f"the model {name!r} has a client: give base_url, api_key and headers to the client")
        self._given_client = client
        self._temperature, self._reasoning_effort = temperature, reasoning_effort
        self._headers = dict(headers or {})
        own_server = base_url if client is None else str(client.base_url)
        self._own_server = own_server or os.environ.get("OPENAI_BASE_URL") or None
        self.base_url: str = self._own_server or OPENAI
        self._key = api_key if client is None else client.api_key
        self._connect = seconds(connect, "connect")
        self._first, self._silence = seconds(first, "first"), seconds(silence, "silence")
        host = urllib.parse.urlsplit(self.base_url).hostname or ""
        is_openai = host.endswith((".openai.com", ".openai.azure.com"))
        self._max_tokens_field = max_tokens_as or ("max_completion_tokens" if is_openai else "max_tokens")
        self._always_reports_usage = host.endswith("mistral.ai")  # it refuses a request that asks for usage
        self._open_client: tuple[asyncio.AbstractEventLoop, openai.AsyncOpenAI] | None = None

    @property
    def quota(self) -> str:
        """The name of the quota: this model, at this address, with this key. It has six digits of the key's hash, which do not give it away."""
        where = urllib.parse.urlsplit(self.base_url)
        address = f"{where.hostname}{f':{where.port}' if where.port else ''}{where.path.rstrip('/')}"
        key_hash = hashlib.sha256((self._api_key() or "").encode()).hexdigest()[:6]
        return f"{self.name} at {address} (key #{key_hash})"

    async def ask(self, request: Request, emit: Emit) -> Reply:
        """The reply, put together from the provider's stream."""
        try:
            return await self._stream_reply(request, emit)
        except ModelUnavailable as error:
            error.began = _may_cost(error.__cause__)
            raise

    async def _stream_reply(self, request: Request, emit: Emit) -> Reply:
        try:
            async with asyncio.timeout(self._first):
                stream = await self._client().chat.completions.create(**self._parameters(request))
            async with stream, asyncio.timeout(REPLY_TIMEOUT_S):
                return await self._gather(self._chunks(stream), emit)
        except openai.APIStatusError as error:
            raise self._status_error(error) from error
        except openai.APIError as error:  # no connection, silence, a stream that was cut or ends in an error
            if error.code in QUOTA_CODES:
                raise ModelBusy(self.name, mask.cut(error.message, MAX_ERROR_CHARS), quota=True) from error
            raise ModelUnavailable(self.name, mask.cut(str(error), MAX_ERROR_CHARS) or type(error).__name__) from error
        except TimeoutError as error:
            raise self._silence_error(self._first) from error
        except http_limits.Oversized as error:
            raise ModelUnavailable(self.name, str(error)) from error
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            why = f"its answer makes no sense ({type(error).__name__}: {error})"
            raise ModelUnavailable(self.name, mask.cut(why, MAX_ERROR_CHARS)) from error

    async def close(self) -> None:
        """Close its connections. A later call opens new ones."""
        if self._open_client is not None:
            (loop, client), self._open_client = self._open_client, None
            if loop is asyncio.get_running_loop():
                await client.close()

    def _api_key(self) -> str | None:
        return self._key or os.environ.get("OPENAI_API_KEY") or ("none" if self._own_server else None)

    def _client(self) -> openai.AsyncOpenAI:
        """One client for all tasks, and a new one in another event loop: connections belong to their loop."""
        if self._given_client is not None:
            timeout = openai.Timeout(max(self._first, self._silence), connect=self._connect)
            return self._given_client.with_options(max_retries=0, timeout=timeout)
        loop = asyncio.get_running_loop()
        if self._open_client is None or self._open_client[0] is not loop:
            key = self._api_key()
            if key is None:
                why = "there is no key: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own"
                raise ModelRefused(self.name, why)
            timeout = openai.Timeout(max(self._first, self._silence), connect=self._connect)
            # with the SDK's own defaults, and limits for responses
            http = openai.DefaultAsyncHttpxClient(
                base_url=self.base_url, timeout=timeout, event_hooks=http_limits.hooks(MAX_REPLY_BYTES)
            )
            client = openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=key,
                max_retries=0,
                timeout=timeout,
                http_client=http,
                default_headers={**self._headers, **http_limits.HEADERS},
            )
            self._open_client = loop, client
        return self._open_client[1]

    # ── the request ──────────────────────────────────────────────────────────────────────────────────────────────

    def _parameters(self, request: Request) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "model": self.name,
            "messages": [_repair(message) for message in request.messages],
            "stream": True,
        }
        if not self._always_reports_usage:
            parameters["stream_options"] = {"include_usage": True}
        if request.tools:
            parameters["tools"] = list(request.tools)
        if request.max_tokens is not None:
            parameters[self._max_tokens_field] = request.max_tokens
        temperature = self._temperature if request.temperature is None else request.temperature
        if temperature is not None:
            parameters["temperature"] = temperature
        if self._reasoning_effort is not None:
            parameters["reasoning_effort"] = self._reasoning_effort
        if request.result is not None:
            schema = {"name": request.result.__name__, "schema": request.result.model_json_schema()}
            parameters["response_format"] = {"type": "json_schema", "json_schema": schema}
        return parameters

    # ── the reply ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _chunks(self, stream: AsyncIterator[ChatCompletionChunk]) -> AsyncIterator[ChatCompletionChunk]:
        """The chunks of a stream, each within its timeout. A server that keeps the connection open and sends nothing is silent too."""
        timeout_s = self._first
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise self._silence_error(timeout_s) from error
            yield chunk
            timeout_s = self._silence

    async def _gather(self, chunks: AsyncIterator[ChatCompletionChunk], emit: Emit) -> Reply:
        text: list[str] = []
        refusal: list[str] = []
        calls: list[_PartialCall] = []
        latest: dict[int | None, _PartialCall] = {}
        extra: dict[str, Any] = {}
        usage, finish, model = Usage(), "", ""
        async for chunk in chunks:
            model = chunk.model or model
            if chunk.usage is not None:
                usage = _parse_usage(chunk.usage)
            for choice in (chunk.choices or ())[:1]:
                finish = choice.finish_reason or finish
                delta: Any = choice.delta  # the SDK does not check what a server sent
                if delta is None:
                    continue
                if delta.content:
                    text.append(delta.content)
                    emit(delta.content)
                if delta.refusal:
                    refusal.append(delta.refusal)
                self._add_extra(extra, delta)
                self._add_pieces(calls, latest, delta.tool_calls or ())
        if not finish:
            raise ModelUnavailable(self.name, "its answer broke off")
        if refusal and not text:
            text, finish = refusal, "refusal"
        return Reply("".join(text), _tool_calls(calls), usage, finish, model, extra)

    def _add_extra(self, extra: dict[str, Any], piece: Any) -> None:
        """Add the fields of a piece that are sent back, as far as the SDK does not know them."""
        for name, value in (getattr(piece, "model_extra", None) or {}).items():
            if name in self._send_back and value is not None:
                extra[name] = _join(extra[name], value) if name in extra else value

    def _add_pieces(
        self, calls: list[_PartialCall], latest: dict[int | None, _PartialCall], deltas: Iterable[Any]
    ) -> None:
        """Add pieces to their calls, by the number in each piece. Some servers send no numbers, or always 0: there, another id begins
        another call. `latest` has the last call of each number."""
        for delta in deltas:
            index, id_ = getattr(delta, "index", None), delta.id or ""
            call = latest.get(index)
            if call is None or (id_ and call.id and id_ != call.id):
                latest[index] = call = _PartialCall(index, id_)
                calls.append(call)
                if len(calls) > MAX_CALLS:
                    raise http_limits.Oversized(f"its answer has more than {MAX_CALLS:,} calls of tools")
            call.id = call.id or id_
            self._add_extra(call.extra, delta)
            if delta.function is not None:
                call.names.append(delta.function.name or "")
                call.arguments.append(delta.function.arguments or "")

    def _silence_error(self, timeout_s: float) -> ModelUnavailable:
        return ModelUnavailable(self.name, f"it was silent for {timeout_s:g} s")

    def _status_error(self, error: openai.APIStatusError) -> Exception:
        status, why = error.status_code, mask.cut(f"{error.status_code} {error.message}", MAX_ERROR_CHARS)
        if status in BUSY_STATUSES:
            retry_after = seconds_to_wait(error.response.headers)
            return ModelBusy(self.name, why, retry_after, quota=status in QUOTA_STATUSES or error.code in QUOTA_CODES)
        if status >= 500:
            return ModelUnavailable(self.name, why)
        return ModelRefused(self.name, why)


def _may_cost(cause: BaseException | None) -> bool:
    """Whether the provider may bill a failed request: it was sent, and not answered with an error status."""
    if isinstance(cause, openai.APIStatusError):
        return False
    return cause is None or type(cause.__cause__).__name__ not in _NOT_SENT


def _repair(message: Message) -> dict[str, Any]:
    """The message with valid names of tools, and JSON objects as arguments: servers check the earlier calls of a model, and refuse the
    whole history for one invalid call."""
    if not message.get("tool_calls"):
        return dict(message)
    return {
        **message,
        "tool_calls": [{**call, "function": _repair_function(call["function"])} for call in message["tool_calls"]],
    }


def _repair_function(function: Mapping[str, str]) -> dict[str, str]:
    name = _NOT_IN_A_NAME.sub("_", function["name"])[:64] or "_"
    return {"name": name, "arguments": _repair_arguments(function["arguments"])}


def _repair_arguments(arguments: str) -> str:
    try:
        fits = isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        fits = False
    return (arguments or "{}") if fits else json.dumps({"not_a_json_object": arguments})


def _parse_usage(usage: Any) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens, None if details is None else details.cached_tokens)


# ── calls, which come in pieces ──────────────────────────────────────────────────────────────────────────────────────


class _PartialCall:
    """The pieces of a call that have come so far."""

    def __init__(self, index: int | None, id_: str) -> None:
        self.index, self.id = index, id_
        self.names: list[str] = []
        self.arguments: list[str] = []
        self.extra: dict[str, Any] = {}


def _join(before: Any, piece: Any) -> Any:
    """The value of a field that comes in pieces."""
    if isinstance(before, str) and isinstance(piece, str):
        return before + piece
    if isinstance(before, list) and isinstance(piece, list):
        return before + piece
    if isinstance(before, dict) and isinstance(piece, dict):
        return {
            **before,
            **{name: _join(before[name], value) if name in before else value for name, value in piece.items()},
        }
    return piece


def _tool_calls(calls: list[_PartialCall]) -> tuple[ToolCall, ...]:
    """The calls in the order of their numbers."""
    return tuple(
        ToolCall(call.id, "".join(call.names), "".join(call.arguments), call.extra)
        for call in sorted(calls, key=lambda call: call.index or 0)
    )
