"""OpenTelemetry as a program sets it up, and counters that begin at zero, each for one test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from onward.telemetry import counters


class Spans:
    """The exported spans so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, beginning: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name.startswith(beginning)]

    def single(self, beginning: str) -> ReadableSpan:
        (span,) = self.named(beginning)
        return span

    def steps(self) -> list[tuple[str, str]]:
        """Key and outcome of each step that ran."""
        return [
            (attribute(span, "onward.step.key"), attribute(span, "onward.outcome"))
            for span in self.named("onward.step ")
        ]


def attribute(span: ReadableSpan, name: str) -> str:
    return str((span.attributes or {}).get(name))


def provide(provider: TracerProvider | None) -> None:
    """Sets the tracer provider. A program does this once, a test process again and again."""
    trace._TRACER_PROVIDER = None
    trace._TRACER_PROVIDER_SET_ONCE = Once()
    if provider is not None:
        trace.set_tracer_provider(provider)


@pytest.fixture
def spans() -> Iterator[Spans]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provide(provider)
    yield Spans(exporter)
    provide(None)
    provider.shutdown()


@pytest.fixture
def counting() -> Iterator[None]:
    counters.clear()
    counters.on = True
    yield
    counters.on = False
    counters.clear()
