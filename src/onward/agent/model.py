"""A model: one question, one answer. Small, so that another provider is one file.

Messages have the form of OpenAI's chat completions, because everybody speaks it and it is plain JSON. What a provider does
wrong (no answer, a cut stream, a refusal) is raised here in our words, and the step's policy decides what to do about it.
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
LONGEST_TIME = 64
"""Characters of a header that tells a time: what is longer tells none, and would be looked at for long."""
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s|$)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0, "ms": 0.001}

Emit = Callable[[str], None]
"""Told each piece of text as it comes. Nothing depends on it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a model is asked."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    result: type[BaseModel] | None = None
    """The form that a final answer has to have, where one was promised."""


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called. `arguments` is what it wrote, and may be anything."""

    id: str
    name: str
    arguments: str


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counts them; None where it does not say."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None

    @property
    def total(self) -> int | None:
        """All of them, where both are known."""
        return None if self.input is None or self.output is None else self.input + self.output


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What it answered: text, or calls, or both. `finish` is the provider's word for why it stopped: "stop", "tool_calls",
    "length" (there was no room: the text, or the arguments of the last call, may be cut off), "content_filter", or "refusal"
    (the text says why)."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: str = "stop"
    model: str = ""

    def __post_init__(self) -> None:
        """Results are matched by the ids of calls: one that is empty, or was there before, becomes another."""
        if len({one.id for one in self.calls} - {""}) < len(self.calls):
            apart: dict[str, ToolCall] = {}
            for number, one in enumerate(self.calls):
                own = one.id or f"call_{number}"
                while own in apart:
                    own = f"{own}_{number}"
                apart[own] = dataclasses.replace(one, id=own)
            object.__setattr__(self, "calls", tuple(apart.values()))

    @property
    def message(self) -> dict[str, Any]:
        """As it goes back into the conversation."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            said["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in self.calls
            ]
        return said


class Model(Protocol):
    """Something that answers. It may also have `prices`, `max_tokens` (the most tokens of one answer), a `quota` (the name of what it uses up, where that is more than its
    own; see `quota_of`) and an async `close`, which is awaited when the app closes."""

    name: str

    async def ask(self, request: Request, emit: Emit) -> Reply:
        """Its answer. Raises ModelBusy, ModelUnavailable or ModelRefused."""
        ...


def quota_of(model: Model) -> str:
    """The name of the quota that the model uses up: tasks that share it wait for it together."""
    return str(getattr(model, "quota", "") or model.name)


# ── what providers do wrong ──────────────────────────────────────────────────────────────────────────────────────────


class ModelError(OnwardError):
    """A model did not answer."""

    code = "model_error"
    status = 502
    began = False
    """Whether it may have worked all the same, and be paid for that: a budget counts such a call like the one after it."""


class ModelBusy(ModelError):
    """Not now: too many requests, or overloaded. With `retry_after` (seconds, where the provider said when to come back) all
    tasks that need this model wait until then. With `quota` they wait too, longer each time, as long as it says so: it is used
    up, and nobody said until when. With neither, only this task comes back, by its policy."""

    code = "model_busy"
    status = 503

    def __init__(self, model: str, why: str, retry_after: float | None = None, *, quota: bool = False) -> None:
        self.why, self.retry_after, self.quota = why, retry_after, quota
        when = "" if retry_after is None else f"; it says to come back in {retry_after:g} s"
        super().__init__(f"the model {model} is busy: {why}{when}")


class ModelUnavailable(ModelError):
    """It could not be reached, broke off, or kept silent. Another attempt may go through."""

    code = "model_unavailable"

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"the model {model} gave no whole answer: {why}")


class ModelRefused(ModelError, Fatal):
    """It will not answer this, ever: a wrong key, an unknown model, a request that it does not take."""

    code = "model_refused"

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"the model {model} refused: {why}; check the key, the model's name and the request")


def seconds_to_wait(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """When to come back: from `retry-after-ms`, `Retry-After` in either of its forms, or the reset of a limit of which nothing
    remains (`x-ratelimit-reset-tokens: 6m0s`); None when nothing is said."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()[:LONGEST_TIME]
        if text.isascii() and text.replace(".", "", 1).isdigit():
            return float(text) * scale
    at = _date(headers.get("retry-after", ""))
    if at is not None:
        return max(0.0, at.timestamp() - now())
    kinds = [name.removeprefix(_REMAINING) for name in headers if name.startswith(_REMAINING)]
    spent = [kind for kind in kinds if headers[_REMAINING + kind].strip() == "0"]
    resets = [_span(headers.get(f"x-ratelimit-reset-{kind}", "")) for kind in spent]
    return max((reset for reset in resets if reset is not None), default=None)


def _span(text: str) -> float | None:
    """`6m0s`, `1h2m3.5s`, `20ms`, or plain seconds."""
    text = text.strip()
    parts = _SPAN.findall(text) if len(text) <= LONGEST_TIME else []
    whole = bool(parts) and "".join(number + unit for number, unit in parts) == text
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if whole else None


def _date(text: str) -> datetime.datetime | None:
    try:
        at = email.utils.parsedate_to_datetime(text[:LONGEST_TIME])
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
