"""Models that speak OpenAI's chat completions, through its official SDK: OpenAI itself, and every compatible server.

The SDK's own retries are off: attempts belong in the journal, where people see them and where they do not multiply. Servers
that say "compatible" differ in small things (where the limit of tokens goes, how pieces of calls are numbered, what they leave
out); what is known of that is here and nowhere else.
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

from onward.agent import http_limits as bounded
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
from onward.core.durations import Duration, seconds

CONNECT = 10.0
FIRST = 300.0
SILENCE = 120.0
"""Seconds until a connection, until the first word (a model may think before it), and between two words: then it is given up."""

LONGEST, MOST, CALLS = 3_600.0, 32 << 20, 1_000
"""Seconds and bytes of a whole answer (most of it is not text, but what each word is wrapped in), and calls of tools in it."""

BUSY = frozenset({402, 408, 409, 429, 503, 529})
"""Answers that mean: not now."""

SAID = 2_000
"""Characters of what a provider says no with."""

QUOTA = frozenset({402, 429})
"""Those of them that mean: you have had yours."""

QUOTA_CODES = frozenset({"insufficient_quota", "rate_limit_exceeded"})
"""The same in words, for answers that have already begun."""

_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""What the SDK's own HTTP client raises when there was no connection."""

OPENAI = "https://api.openai.com/v1"
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class OpenAIModel:
    """`openai:NAME`, or a server of your own: with a base URL any key will do, and none is sent as "none"."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        prices: Prices | None = None,
        connect: Duration = CONNECT,
        first: Duration = FIRST,
        silence: Duration = SILENCE,
        max_tokens_as: str | None = None,
    ) -> None:
        """`max_tokens_as` is the field for the most tokens of an answer, where it cannot be told from the base URL: OpenAI takes
        `max_completion_tokens` and nothing else, most others know `max_tokens` alone."""
        self.name, self.prices = name, prices
        self._own_server = base_url or os.environ.get("OPENAI_BASE_URL") or None
        self.base_url = self._own_server or OPENAI
        self._key = api_key
        self._connect = seconds(connect, "connect")
        self._first, self._silence = seconds(first, "first"), seconds(silence, "silence")
        host = urllib.parse.urlsplit(self.base_url).hostname or ""
        theirs = host.endswith((".openai.com", ".openai.azure.com"))
        self._most = max_tokens_as or ("max_completion_tokens" if theirs else "max_tokens")
        self._tells_usage = host.endswith("mistral.ai")  # unasked; and it refuses to be asked
        self._opened: tuple[asyncio.AbstractEventLoop, openai.AsyncOpenAI] | None = None

    @property
    def quota(self) -> str:
        """What shares one quota: this model, there, with this key. (Of the key only a mark, which leads nowhere.)"""
        where = urllib.parse.urlsplit(self.base_url)
        address = f"{where.hostname}{f':{where.port}' if where.port else ''}{where.path.rstrip('/')}"
        mark = hashlib.sha256((self._api_key() or "").encode()).hexdigest()[:6]
        return f"{self.name} at {address} (key #{mark})"

    async def ask(self, request: Request, emit: Emit) -> Reply:
        """The answer, put together from its stream."""
        try:
            return await self._answered(request, emit)
        except ModelUnavailable as error:
            error.began = _may_cost(error.__cause__)
            raise

    async def _answered(self, request: Request, emit: Emit) -> Reply:
        try:
            async with asyncio.timeout(self._first):
                stream = await self._client().chat.completions.create(**self._asked(request))
            async with stream, asyncio.timeout(LONGEST):
                return await self._gathered(self._chunks(stream), emit)
        except openai.APIStatusError as error:
            raise self._in_our_words(error) from error
        except openai.APIError as error:  # no connection, silence, a stream that was cut or ends in an error
            if error.code in QUOTA_CODES:
                raise ModelBusy(self.name, error.message[:SAID], quota=True) from error
            raise ModelUnavailable(self.name, str(error)[:SAID] or type(error).__name__) from error
        except TimeoutError as error:
            raise self._silent(self._first) from error
        except bounded.Oversized as error:
            raise ModelUnavailable(self.name, str(error)) from error
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ModelUnavailable(
                self.name, f"its answer makes no sense ({type(error).__name__}: {error})"[:SAID]
            ) from error

    async def close(self) -> None:
        """Let go of its connections. Asked again, it opens new ones."""
        if self._opened is not None:
            (loop, client), self._opened = self._opened, None
            if loop is asyncio.get_running_loop():
                await client.close()

    def _api_key(self) -> str | None:
        return self._key or os.environ.get("OPENAI_API_KEY") or ("none" if self._own_server else None)

    def _client(self) -> openai.AsyncOpenAI:
        """One for all tasks, and a new one in another loop: connections belong to theirs."""
        loop = asyncio.get_running_loop()
        if self._opened is None or self._opened[0] is not loop:
            key = self._api_key()
            if key is None:
                why = "there is no key: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own"
                raise ModelRefused(self.name, why)
            patience = openai.Timeout(max(self._first, self._silence), connect=self._connect)
            # with the SDK's own defaults, and bounds on what is read
            http = openai.DefaultAsyncHttpxClient(
                base_url=self.base_url, timeout=patience, event_hooks=bounded.hooks(MOST)
            )
            client = openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=key,
                max_retries=0,
                timeout=patience,
                http_client=http,
                default_headers=bounded.HEADERS,
            )
            self._opened = loop, client
        return self._opened[1]

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _asked(self, request: Request) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "model": self.name,
            "messages": [_readable(message) for message in request.messages],
            "stream": True,
        }
        if not self._tells_usage:
            asked["stream_options"] = {"include_usage": True}
        if request.tools:
            asked["tools"] = list(request.tools)
        if request.max_tokens is not None:
            asked[self._most] = request.max_tokens
        if request.temperature is not None:
            asked["temperature"] = request.temperature
        if request.result is not None:
            schema = {"name": request.result.__name__, "schema": request.result.model_json_schema()}
            asked["response_format"] = {"type": "json_schema", "json_schema": schema}
        return asked

    # ── the answer ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _chunks(self, stream: AsyncIterator[ChatCompletionChunk]) -> AsyncIterator[ChatCompletionChunk]:
        """Each in its time. A server that keeps the line open and says nothing is silent too."""
        patience = self._first
        while True:
            try:
                async with asyncio.timeout(patience):
                    chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise self._silent(patience) from error
            yield chunk
            patience = self._silence

    async def _gathered(self, chunks: AsyncIterator[ChatCompletionChunk], emit: Emit) -> Reply:
        text: list[str] = []
        refusal: list[str] = []
        calls: list[_Piece] = []
        latest: dict[int | None, _Piece] = {}
        usage, finish, model = Usage(), "", ""
        async for chunk in chunks:
            model = chunk.model or model
            if chunk.usage is not None:
                usage = _usage(chunk.usage)
            for choice in (chunk.choices or ())[:1]:
                finish = choice.finish_reason or finish
                delta: Any = choice.delta  # whatever was sent: the SDK does not check it
                if delta is None:
                    continue
                if delta.content:
                    text.append(delta.content)
                    emit(delta.content)
                if delta.refusal:
                    refusal.append(delta.refusal)
                _merge(calls, latest, delta.tool_calls or ())
        if not finish:
            raise ModelUnavailable(self.name, "its answer broke off")
        if refusal and not text:
            text, finish = refusal, "refusal"
        return Reply("".join(text), _calls(calls), usage, finish, model)

    def _silent(self, patience: float) -> ModelUnavailable:
        return ModelUnavailable(self.name, f"it was silent for {patience:g} s")

    def _in_our_words(self, error: openai.APIStatusError) -> Exception:
        status, why = error.status_code, f"{error.status_code} {error.message}"[:SAID]
        if status in BUSY:
            after = seconds_to_wait(error.response.headers)
            return ModelBusy(self.name, why, after, quota=status in QUOTA or error.code in QUOTA_CODES)
        if status >= 500:
            return ModelUnavailable(self.name, why)
        return ModelRefused(self.name, why)


def _may_cost(cause: BaseException | None) -> bool:
    """Whether something was begun that has no end: all that was sent, unless it was answered with a no."""
    if isinstance(cause, openai.APIStatusError):
        return False
    return cause is None or type(cause.__cause__).__name__ not in _NOT_SENT


def _readable(message: Message) -> dict[str, Any]:
    """The message, with names that are names and arguments that are JSON: servers check what a model wrote earlier, and refuse
    the whole history when it once wrote nonsense."""
    if not message.get("tool_calls"):
        return dict(message)
    return {
        **message,
        "tool_calls": [{**call, "function": _function(call["function"])} for call in message["tool_calls"]],
    }


def _function(wanted: Mapping[str, str]) -> dict[str, str]:
    return {"name": _NO_NAME.sub("_", wanted["name"])[:64] or "_", "arguments": _object(wanted["arguments"])}


def _object(arguments: str) -> str:
    try:
        fits = isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        fits = False
    return (arguments or "{}") if fits else json.dumps({"not_a_json_object": arguments})


def _usage(told: Any) -> Usage:
    details = told.prompt_tokens_details
    return Usage(told.prompt_tokens, told.completion_tokens, None if details is None else details.cached_tokens)


# ── calls, which come in pieces ──────────────────────────────────────────────────────────────────────────────────────


class _Piece:
    """A call as far as it has come."""

    def __init__(self, index: int | None, id_: str) -> None:
        self.index, self.id = index, id_
        self.names: list[str] = []
        self.arguments: list[str] = []


def _merge(calls: list[_Piece], latest: dict[int | None, _Piece], deltas: Iterable[Any]) -> None:
    """Pieces of calls, each with the number of its call. Some servers number none, or number all of them 0: another id is
    another call. `latest` has the last call of each number."""
    for delta in deltas:
        index, id_ = getattr(delta, "index", None), delta.id or ""
        call = latest.get(index)
        if call is None or (id_ and call.id and id_ != call.id):
            latest[index] = call = _Piece(index, id_)
            calls.append(call)
            if len(calls) > CALLS:
                raise bounded.Oversized(f"its answer has more than {CALLS:,} calls of tools")
        call.id = call.id or id_
        if delta.function is not None:
            call.names.append(delta.function.name or "")
            call.arguments.append(delta.function.arguments or "")


def _calls(calls: list[_Piece]) -> tuple[ToolCall, ...]:
    """In order."""
    return tuple(
        ToolCall(one.id, "".join(one.names), "".join(one.arguments))
        for one in sorted(calls, key=lambda one: one.index or 0)
    )
