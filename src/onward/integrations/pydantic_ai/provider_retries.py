"""Switches off the retries of a provider's SDK while a step makes a request: the journal has the attempts, and tasks wait for a quota together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from pydantic_ai.models.wrapper import WrapperModel

_OPEN: ContextVar[contextlib.ExitStack | None] = ContextVar("onward_provider_retries", default=None)


@contextlib.contextmanager
def one_attempt() -> Iterator[None]:
    """In this block, the clients of the models that are passed to `switch_off` make one attempt."""
    with contextlib.ExitStack() as stack:
        token = _OPEN.set(stack)
        try:
            yield
        finally:
            _OPEN.reset(token)


def switch_off(model: object) -> None:
    """Switch off the retries of the model's client until the block ends. The SDKs of OpenAI, Anthropic and others read this attribute
    when a request begins, so a restored value does not change one that is under way."""
    if (stack := _OPEN.get()) is None:
        return
    while isinstance(model, WrapperModel):
        model = model.wrapped
    for part in getattr(model, "models", None) or [model]:  # those of a fallback
        client = getattr(part, "client", None)
        if isinstance(retries := getattr(client, "max_retries", None), int) and retries:
            stack.callback(_set, client, retries)
            _set(client, 0)


def _set(client: Any, retries: int) -> None:
    client.max_retries = retries
