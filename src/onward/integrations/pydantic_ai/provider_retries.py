"""Switches off the retries of the SDK of a model that the framework resolves inside of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from pydantic_ai.models.wrapper import WrapperModel

from onward.integrations.provider_retries import without_retries

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
    """Switch off the retries of the model's client until the block ends."""
    if (stack := _OPEN.get()) is None:
        return
    while isinstance(model, WrapperModel):
        model = model.wrapped
    for part in getattr(model, "models", None) or [model]:  # those of a fallback
        stack.enter_context(without_retries(getattr(part, "client", None)))
