"""Traces of the OpenAI Agents SDK in tasks: each span once, however often the handler is replayed.

A replay opens the traces and spans of the run again. A span that contains nothing new is not passed on: an earlier shift did that. A span that
is still open when the replay is over (the run, the agent) is passed on when its first new span begins, with the id that it had in the
earlier shift, and ends once. The ids are made of the task's id and of the place in the trace.

The functions here take the place of those of the SDK's own provider of traces. A provider of the user (`set_trace_provider`) is left alone.
"""

from __future__ import annotations

import collections
import hashlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

from agents.tracing import Span, Trace, TracingProcessor
from agents.tracing.provider import DefaultTraceProvider
from agents.tracing.scope import Scope
from agents.tracing.spans import SpanImpl
from agents.tracing.traces import TraceImpl

from onward.engine.context.context import CURRENT, Context
from onward.engine.shift.scope import SCOPE

_create_trace = DefaultTraceProvider.create_trace
_create_span = DefaultTraceProvider.create_span
_places: weakref.WeakKeyDictionary[Context, collections.Counter[str]] = weakref.WeakKeyDictionary()
"""How many spans and traces of each place this shift of a task has opened."""


def install() -> None:
    """Put the functions of this module in the place of those of the SDK."""
    DefaultTraceProvider.create_trace = create_trace
    DefaultTraceProvider.create_span = create_span


def create_trace(provider: DefaultTraceProvider, name: str, trace_id: str | None = None, **options: Any) -> Trace:
    """A trace; in a task, one whose beginning and end are passed on once."""
    ctx = CURRENT.get()
    if ctx is not None and trace_id is None:
        trace_id = f"trace_{_id(ctx, f'trace {name}')[:32]}"
    trace = _create_trace(provider, name, trace_id=trace_id, **options)
    if ctx is not None and isinstance(trace, TraceImpl):
        trace._processor = Once(ctx, trace._processor, None)
    return trace


def create_span(
    provider: DefaultTraceProvider, span_data: Any, span_id: str | None = None, parent: Any = None, **options: Any
) -> Span[Any]:
    """A span; in a task, one that is passed on once."""
    ctx = CURRENT.get()
    above = parent or Scope.get_current_span() or Scope.get_current_trace()
    if ctx is not None and span_id is None and above is not None:
        place = f"{getattr(above, 'span_id', above.trace_id)} {span_data.type} {getattr(span_data, 'name', '')}"
        span_id = f"span_{_id(ctx, place)[:24]}"
    span = _create_span(provider, span_data, span_id=span_id, parent=parent, **options)
    if ctx is not None and isinstance(span, SpanImpl):
        around = getattr(above, "_processor", None)
        span._processor = Once(ctx, span._processor, around if isinstance(around, Once) else None)
    return span


def _id(ctx: Context, place: str) -> str:
    """An id that is the same in every shift of the task."""
    places = _places.setdefault(ctx, collections.Counter())
    places[place] += 1
    return hashlib.sha256(f"{ctx.task_id} {place} {places[place]}".encode()).hexdigest()


class Once(TracingProcessor):
    """Passes one trace or span on to the processors of the user, if there is something new in it."""

    def __init__(self, ctx: Context, processor: TracingProcessor, around: Once | None) -> None:
        self._ctx, self._processor, self._around = ctx, processor, around
        self._begin: Callable[[], None] | None = None
        self._last_record = 0

    def on_trace_start(self, trace: Trace) -> None:
        """Pass the beginning on, unless it is replayed."""
        self._open(lambda: self._processor.on_trace_start(trace))

    def on_span_start(self, span: Span[Any]) -> None:
        """Pass the beginning on, unless it is replayed."""
        self._open(lambda: self._processor.on_span_start(span))

    def on_trace_end(self, trace: Trace) -> None:
        """Pass the end on, unless it is replayed or the task goes on later."""
        if self._is_over():
            self._processor.on_trace_end(trace)

    def on_span_end(self, span: Span[Any]) -> None:
        """Pass the end on, unless it is replayed or the task goes on later."""
        if self._is_over():
            self._processor.on_span_end(span)

    def shutdown(self) -> None:
        """The provider shuts the processors of the user down."""

    def force_flush(self) -> None:
        """The provider flushes the processors of the user."""

    def _open(self, begin: Callable[[], None]) -> None:
        self._begin, self._last_record = begin, self._ctx._host.last_record()
        if SCOPE.get().key is not None or not self._ctx.replaying:
            self._pass_on()

    def _pass_on(self) -> None:
        """Pass the beginning on, after those of the spans around it."""
        begin, self._begin = self._begin, None
        if begin is not None:
            if self._around is not None:
                self._around._pass_on()
            begin()

    def _is_over(self) -> bool:
        """Whether the span ends now for the first time."""
        error = sys.exc_info()[0]
        if error is not None and not issubclass(error, Exception):  # the task waits, or its worker stops
            return False
        if self._begin is not None and self._ctx._host.last_record() == self._last_record:
            return False
        self._pass_on()
        return True
