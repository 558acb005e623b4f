"""Live text: pieces of a streamed reply go from the framework's events to the reporter of the step."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import RunContext

from onward.agent.model import Emit

_EMIT: ContextVar[Emit | None] = ContextVar("onward_emit", default=None)


@contextlib.contextmanager
def emitting(emit: Emit) -> Iterator[None]:
    """Pass the text of the reply that is streamed in this block to an emitter."""
    token = _EMIT.set(emit)
    try:
        yield
    finally:
        _EMIT.reset(token)


def with_live_text(handler: EventStreamHandler[Any] | None) -> EventStreamHandler[Any] | None:
    """The handler of a model's events, which also passes on the text."""
    emit = _EMIT.get()
    if emit is None:
        return handler

    async def handle(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        passed = _emitted(events, emit)
        if handler is not None:
            await handler(ctx, passed)
        async for _ in passed:
            pass

    return handle


def can_stream(model: object) -> bool:
    """Whether a request to the model can be streamed: not to a class without a method for it, and not to a function without one."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    if isinstance(model, FunctionModel):
        return model.stream_function is not None
    return isinstance(model, Model) and type(model).request_stream is not Model.request_stream


async def _emitted(events: AsyncIterable[Any], emit: Emit) -> AsyncIterator[Any]:
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart) and event.part.content:
            emit(event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            emit(event.delta.content_delta)
        yield event
