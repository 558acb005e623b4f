"""A model: one request, one reply. The interface is small, so that another provider is one file.

Messages have the form of OpenAI's chat completions, because most providers accept it and it is plain JSON. A model raises the errors
of this module when a provider fails (no answer, a cut stream, a refusal), and the retry policy of the step decides what to do.
"""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from onward.errors import Fatal, OnwardError

Message = Mapping[str, Any]
"""{"role": "system" | "user" | "assistant" | "tool", "content": …, "tool_calls": […], "tool_call_id": …}"""

_REMAINING = "x-ratelimit-remaining-"
MAX_TIME_CHARS = 64
"""At most so many characters of a header with a time are parsed: parsing more would take long."""
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s|$)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0, "ms": 0.001}

Emit = Callable[[str], None]
"""A model calls it with each piece of text as it comes. Nothing depends on it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request to a model."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    result: type[BaseModel] | None = None
    """The form that a final answer must have, where the agent has a `result`."""
    state: str = ""
    """The state of the task, with which the last message ends. An agent shows it with every request. It stands last because it changes:
    a provider charges less for messages that are the same as in the request before."""

    @property
    def conversation(self) -> Sequence[Message]:
        """The messages without the state: the instructions, and the turns so far."""
        if not self.state:
            return self.messages
        last = self.messages[-1]
        return [*self.messages[:-1], {**last, "content": str(last["content"]).removesuffix(self.state)}]

    @classmethod
    def with_state(cls, messages: Sequence[Message], state: str, **options: Any) -> Request:
        """A request whose last message ends with the state. A message of its own would be refused by some providers after the result of a
        tool, and others would take it for a new question and forget what the model thought before."""
        *before, last = messages
        return cls([*before, {**last, "content": f"{last['content']}{state}"}], state=state, **options)


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model asks for. `arguments` is the string that the model wrote, and may be anything."""

    id: str
    name: str
    arguments: str
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the call that the provider wants back as they are, such as a signature of its thoughts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counts them; None where it does not report them."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None

    @property
    def total(self) -> int | None:
        """The sum of input and output, where both are known."""
        return None if self.input is None or self.output is None else self.input + self.output


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model: text, or calls, or both. `finish` is the provider's word for why it stopped: "stop", "tool_calls",
    "length" (there was no room: the text, or the arguments of the last call, may be cut off), "content_filter", or "refusal"
    (the text says why)."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: str = "stop"
    model: str = ""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the message that the provider wants back as they are: thoughts and their signatures. The agent keeps them with the message,
    and sends them with every later request."""

    def __post_init__(self) -> None:
        """Replace empty and repeated ids of calls: results are matched to calls by their ids."""
        if len({call.id for call in self.calls} - {""}) < len(self.calls):
            by_id: dict[str, ToolCall] = {}
            for number, call in enumerate(self.calls):
                unique = call.id or f"call_{number}"
                while unique in by_id:
                    unique = f"{unique}_{number}"
                by_id[unique] = dataclasses.replace(call, id=unique)
            object.__setattr__(self, "calls", tuple(by_id.values()))

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation."""
        message: dict[str, Any] = {**self.extra, "role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {
                    **call.extra,
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return message


class Model(Protocol):
    """A model. It may also have `prices`, `max_tokens` (the most tokens of one reply), a `quota` (the name of the quota that it shares with
    other models; see `quota_of`) and an async `close`, which the app awaits when it closes."""

    name: str

    async def ask(self, request: Request, emit: Emit) -> Reply:
        """The reply to a request. Raises ModelBusy, ModelUnavailable or ModelRefused."""
        ...


def quota_of(model: Model) -> str:
    """The name of the quota that the model uses up: tasks that share it wait for it together."""
    return str(getattr(model, "quota", "") or model.name)


# ── errors of providers ──────────────────────────────────────────────────────────────────────────────────────────────


class ModelError(OnwardError):
    """A model did not answer."""

    code = "model_error"
    status = 502
    began = False
    """Whether the provider may have begun a reply, and may bill it: a budget counts such a call like the one that takes its place."""


class ModelBusy(ModelError):
    """The provider refuses for now: too many requests, or overloaded. With `retry_after` (the seconds that the provider names) all tasks
    that need this model wait until then. With `quota` the quota is used up until an unknown time: they wait too, longer each time, as
    long as the provider says so. With neither, only this task tries again, by its retry policy."""

    code = "model_busy"
    status = 503

    def __init__(self, model: str, why: str, retry_after: float | None = None, *, quota: bool = False) -> None:
        self.why: str = why
        self.retry_after: float | None = retry_after
        self.quota: bool = quota
        when = "" if retry_after is None else f"; it says to come back in {retry_after:g} s"
        super().__init__(f"the model {model} is busy: {why}{when}")


class ModelUnavailable(ModelError):
    """The provider could not be reached, broke off, or sent nothing. Another attempt may succeed."""

    code = "model_unavailable"

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"the model {model} gave no whole answer: {why}")


class ModelRefused(ModelError, Fatal):
    """The provider will never answer this: a wrong key, an unknown model, a request that it does not accept."""

    code = "model_refused"

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"the model {model} refused: {why}; check the key, the model's name and the request")


def seconds_to_wait(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """The seconds until the next attempt makes sense: from `retry-after-ms`, `Retry-After` in either of its forms, or the reset of a limit
    of which nothing remains (`x-ratelimit-reset-tokens: 6m0s`); None when the headers do not say."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()[:MAX_TIME_CHARS]
        if text.isascii() and text.replace(".", "", 1).isdigit():
            return float(text) * scale
    at = _parse_date(headers.get("retry-after", ""))
    if at is not None:
        return max(0.0, at.timestamp() - now())
    kinds = [name.removeprefix(_REMAINING) for name in headers if name.startswith(_REMAINING)]
    spent = [kind for kind in kinds if headers[_REMAINING + kind].strip() == "0"]
    resets = [_parse_duration(headers.get(f"x-ratelimit-reset-{kind}", "")) for kind in spent]
    return max((reset for reset in resets if reset is not None), default=None)


def _parse_duration(text: str) -> float | None:
    """`6m0s`, `1h2m3.5s`, `20ms`, or plain seconds."""
    text = text.strip()
    parts = _DURATION.findall(text) if len(text) <= MAX_TIME_CHARS else []
    whole = bool(parts) and "".join(number + unit for number, unit in parts) == text
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if whole else None


def _parse_date(text: str) -> datetime.datetime | None:
    try:
        at = email.utils.parsedate_to_datetime(text[:MAX_TIME_CHARS])
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
