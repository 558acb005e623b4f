"""Telemetry: the names of all metrics and span attributes, the counters, and `span()`. Logs, metrics and traces use this module.

It imports no other library and switches nothing on. Counters count once a reader wants them (`counters.on`). Spans exist when the
program has set up OpenTelemetry: such a program has imported it, so this module only checks whether it is imported. Telemetry that
is off costs one check.

A task belongs to the trace of its submitter (`traceparent`, W3C), which is stored with the task; without one, the id of its trace is
the task's own id. The id of a shift's span is computed from the task and the number of the shift. So every shift, in any process and
after any crash, joins the same trace and can name the shift before it, and nothing has to be written for that.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, Self

from onward.core import mask

# ── names: metrics ───────────────────────────────────────────────────────────────────────────────────────────────────

OTHER: Final = "other"
MAX_LABEL_VALUES: Final = 100
"""How many values of a metric's first label are counted apart; later values count as `other`."""

HISTOGRAM_EDGES_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The upper edges of all histograms."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

SUBMITTED: Final = "onward_tasks_submitted_total"
CLAIMED: Final = "onward_claims_total"
SHIFTS: Final = "onward_shifts_total"
STEPS: Final = "onward_steps_total"
RETRIES: Final = "onward_retries_total"
ENDED: Final = "onward_tasks_ended_total"
LEASES_LOST: Final = "onward_leases_lost_total"
MODEL_CALLS: Final = "onward_model_calls_total"
MODEL_TOKENS: Final = "onward_model_tokens_total"
MODEL_COST: Final = "onward_model_cost_usd_total"
REQUESTS: Final = "onward_http_requests_total"
DELIVERIES: Final = "onward_deliveries_total"
AUDIT_HEADS: Final = "onward_audit_heads_total"
MESSAGES: Final = "onward_intake_messages_total"
INTAKE_LAG: Final = "onward_intake_lag"
CLIENTS: Final = "onward_stream_clients"
STEP_SECONDS: Final = "onward_step_seconds"
TASK_SECONDS: Final = "onward_task_seconds"
WAIT_SECONDS: Final = "onward_queue_wait_seconds"
REQUEST_SECONDS: Final = "onward_http_request_seconds"

COUNTER_METRICS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    SUBMITTED: ("Tasks that were submitted through this process, each once.", ("task",)),
    CLAIMED: ("Tasks that this process has claimed.", ("task",)),
    SHIFTS: ("Shifts that ended here, by how: an end, a reason to wait, or `lost` to another.", ("task", "outcome")),
    STEPS: ("Steps that ran here, by outcome. What is replayed is not run.", ("task", "outcome")),
    RETRIES: ("Attempts that failed and will be followed by another, of a `step` or the `task`.", ("task", "of")),
    ENDED: ("Tasks that this process has ended, by state.", ("task", "state")),
    LEASES_LOST: ("How often this worker was declared dead and started anew.", ()),
    MODEL_CALLS: ("Questions to models, answered or not.", ("model", "outcome")),
    MODEL_TOKENS: ("Tokens as providers counted them: `input`, of it `cached`, and `output`.", ("model", "type")),
    MODEL_COST: ("Dollars, where the price is known.", ("model",)),
    REQUESTS: ("Requests answered over HTTP.", ("route", "method", "status")),
    DELIVERIES: ("Attempts to deliver an event to the outside, by what came of them.", ("outcome",)),
    AUDIT_HEADS: (
        "Heads of the audit log, by what came of them: `exported`, `failed`, `unread`, `gone`.",
        ("outcome",),
    ),
    MESSAGES: (
        "Messages of brokers, by what came of them: `received`, `repeated` (it had a task already), `dead`.",
        ("intake", "outcome"),
    ),
}
"""Metrics that only grow: help text and labels. MAX_LABEL_VALUES bounds the values of the first label."""

GAUGE_METRICS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    CLIENTS: ("Clients that follow tasks just now.", ("kind",)),
    INTAKE_LAG: ("Messages that wait at the broker, as this process saw it last.", ("intake",)),
}
"""Metrics that go up and down."""

HISTOGRAM_METRICS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    STEP_SECONDS: ("From the start of a step to its durable record.", ("task",)),
    TASK_SECONDS: ("From the submit of a task to its end.", ("task", "state")),
    WAIT_SECONDS: ("From the submit of a task to its first claim.", ("task",)),
    REQUEST_SECONDS: ("From a request to the last byte of its answer.", ("route",)),
}
"""Histograms of durations."""

# ── names: spans ─────────────────────────────────────────────────────────────────────────────────────────────────────
# The GenAI names follow semconv 1.42; they still change, so they are defined here and nowhere else.

TASK_ID: Final = "onward.task.id"
TASK: Final = "onward.task.name"
SHIFT: Final = "onward.shift"
ATTEMPT: Final = "onward.attempt"
WORKER: Final = "onward.worker"
OUTCOME: Final = "onward.outcome"
STEP: Final = "onward.step.name"
STEP_KEY: Final = "onward.step.key"
REASON: Final = "onward.wait.reason"
DUE: Final = "onward.wait.due_at"
COUNT: Final = "onward.tasks"
ERROR: Final = "error.type"
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
WORKFLOW: Final = "gen_ai.workflow.name"
CONVERSATION: Final = "gen_ai.conversation.id"
MODEL: Final = "gen_ai.request.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
ANSWERED_BY: Final = "gen_ai.response.model"
FINISH: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
COST: Final = "onward.cost_usd"
TOOL: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
EVENT_WAIT: Final = "onward.wait"
EVENT_WAITED: Final = "onward.waited"
EVENT_RETRY: Final = "onward.retry"
CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

Trace = dict[str, str]
"""The parent of a span, as headers carry it: `traceparent`, and `tracestate` where there is one."""

CURRENT_TASK: ContextVar[Any] = ContextVar("onward_doing")
"""The claimed task that the running code belongs to, through asyncio tasks and threads."""

CURRENT_WORKER: ContextVar[Any] = ContextVar("onward_working")
"""The worker that the running code belongs to."""

# ── counters ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Key = tuple[str, tuple[str, ...]]


class Counters:
    """The metrics of this process: plain numbers, which the exporter turns into text."""

    def __init__(self) -> None:
        self.on = False
        """Whether `add` and `time` count."""
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Reset all metrics."""
        self.numbers: dict[Key, float] = {}
        self.times: dict[Key, list[float]] = {}
        """For each histogram: the count under each edge, the count above all edges, and the sum."""
        self._label_values: dict[str, set[str]] = {}

    def add(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        if self.on:
            self._add(name, labels, by)

    def _add(self, name: str, labels: tuple[str, ...], by: float) -> None:
        with self._lock:
            key = name, self._limit_labels(name, labels)
            self.numbers[key] = self.numbers.get(key, 0) + by

    def put(self, name: str, value: float, *labels: str) -> None:
        """Set a metric that goes up and down."""
        if self.on:
            with self._lock:
                self.numbers[name, self._limit_labels(name, labels)] = value

    def time(self, name: str, seconds: float, *labels: str) -> None:
        """Add a duration to a histogram."""
        if self.on:
            with self._lock:
                key = name, self._limit_labels(name, labels)
                buckets = self.times.setdefault(key, [0.0] * (len(HISTOGRAM_EDGES_S) + 2))
                buckets[bisect.bisect_left(HISTOGRAM_EDGES_S, seconds)] += 1
                buckets[-1] += seconds

    @contextlib.asynccontextmanager
    async def client(self, kind: str) -> AsyncIterator[None]:
        """Count a client that follows tasks over `sse` or a `websocket`, while the block runs. It also counts while `on` is off."""
        self._add(CLIENTS, (kind,), 1)
        try:
            yield
        finally:
            self._add(CLIENTS, (kind,), -1)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered. `route` is the pattern of its path, never the path."""
        self.add(REQUESTS, route, method if method in METHODS else OTHER, str(status))
        self.time(REQUEST_SECONDS, seconds, route)

    def snapshot(self) -> tuple[dict[Key, float], dict[Key, list[float]]]:
        """A copy of all numbers and histograms."""
        with self._lock:
            return dict(self.numbers), {key: list(buckets) for key, buckets in self.times.items()}

    def _limit_labels(self, name: str, labels: tuple[str, ...]) -> tuple[str, ...]:
        if not labels:
            return labels
        seen = self._label_values.setdefault(name, set())
        if labels[0] in seen:
            return labels
        if len(seen) >= MAX_LABEL_VALUES:
            return OTHER, *labels[1:]
        seen.add(labels[0])
        return labels


counters: Counters = Counters()

# ── traces as they travel ────────────────────────────────────────────────────────────────────────────────────────────

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")
_ALPHABET = {letter: value for value, letter in enumerate("0123456789abcdefghjkmnpqrstvwxyz")}


def incoming(headers: Mapping[str, str]) -> Trace | None:
    """The trace in the headers of a request; None when there is none, or when it is not valid by W3C."""
    parent = headers.get("traceparent", "").strip()
    if not _PARENT.fullmatch(parent) or (parent.startswith("00") and len(parent) != 55):
        return None
    state = headers.get("tracestate", "").strip()
    return {"traceparent": parent, "tracestate": state} if _STATE.fullmatch(state) else {"traceparent": parent}


def outgoing(task_id: str, options: Mapping[str, Any], shift: int = 2) -> Trace:
    """The headers that name the trace of a task to another service (the receiver of a webhook): the trace of its submitter, or its own
    where this process traces."""
    trace = options.get("trace")
    if isinstance(trace, Mapping) and (known := incoming(trace)) is not None:
        return known
    return (
        {}
        if tracer() is None
        else {"traceparent": f"00-{trace_id_of(task_id):032x}-{span_id_of(task_id, shift):016x}-01"}
    )


def trace_id_of(task_id: str) -> int:
    """The id of the trace of a task that was submitted without a trace: the task's id, as a number."""
    number = 0
    for letter in task_id:
        number = number << 5 | _ALPHABET.get(letter, 0)
    return (number >> 2) & (1 << 128) - 1 or 1


def span_id_of(task_id: str, shift: int) -> int:
    """The id of the span of a shift."""
    return int.from_bytes(hashlib.blake2b(f"{task_id}.{shift}".encode(), digest_size=8).digest()) or 1


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_provider_tracer: tuple[Any, Any] = (None, None)


def tracer() -> Any:
    """The tracer of the provider that this program has set up; None when it has set up none."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or not hasattr(api, "get_tracer_provider"):  # another thread is importing it now
        return None
    provider = api.get_tracer_provider()
    if provider is not _provider_tracer[0]:
        _adopt_provider(api, provider)
    return _provider_tracer[1]


def _adopt_provider(api: Any, provider: Any) -> None:
    global _provider_tracer  # noqa: PLW0603 -- one provider for a process, as OpenTelemetry has it
    tracer_ = None
    if not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        tracer_ = provider.get_tracer("onward")
        if isinstance(tracer_, api.NoOpTracer):  # OTEL_SDK_DISABLED
            tracer_ = None
        elif hasattr(tracer_, "id_generator"):
            tracer_.id_generator = _FixedIds(tracer_.id_generator)
    _provider_tracer = (provider, tracer_)


_FIXED_IDS: ContextVar[tuple[int, int] | None] = ContextVar("onward_chosen_ids", default=None)


class _FixedIds:
    """Generates the ids of the SDK, except for spans with fixed ids. Only Onward's own tracer uses it."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generate_trace_id(self) -> int:
        fixed = _FIXED_IDS.get()
        return int(self._generator.generate_trace_id() if fixed is None else fixed[0])

    def generate_span_id(self) -> int:
        fixed = _FIXED_IDS.get()
        return int(self._generator.generate_span_id() if fixed is None else fixed[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


class Span:
    """A span. This base class is the one that is not recorded: all its methods do nothing."""

    on = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """End the span."""

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes. Values that are None are left out."""

    def event(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Add an event."""

    def link(self, task_id: str, shift: int) -> None:
        """Link the span of an earlier shift of the same task."""

    def fail(self, kind: str, message: str) -> None:
        """Mark the span as failed."""

    def drop(self) -> None:
        """Do not export the span: the step never began."""

    @property
    def trace(self) -> Trace | None:
        """The headers with which another service names this span as its parent."""
        return None


NO_SPAN: Final = Span()


def span(name: str, attributes: Mapping[str, Any], *, kind: str = "INTERNAL", within: Trace | None = None) -> Span:
    """A span that is current inside its block. Its parent is the current span, else `within`. Not recorded without a tracer."""
    tracer_ = tracer()
    if tracer_ is None:
        return NO_SPAN
    api = sys.modules["opentelemetry.trace"]
    current = api.get_current_span().get_span_context().is_valid
    parent = None if current or within is None else api.set_span_in_context(api.NonRecordingSpan(_span_context(within)))
    return _RecordedSpan(tracer_, name, attributes, kind, parent)


def shift_span(name: str, attributes: Mapping[str, Any], task_id: str, shift: int, trace: Trace | None) -> Span:
    """The span of a shift: in the trace of the task's submitter, or in the task's own."""
    tracer_ = tracer()
    if tracer_ is None:
        return NO_SPAN
    api, empty = sys.modules["opentelemetry.trace"], sys.modules["opentelemetry.context"].Context()
    fixed = trace_id_of(task_id), span_id_of(task_id, shift)
    if trace is None and not isinstance(getattr(tracer_, "id_generator", None), _FixedIds):
        trace = outgoing(task_id, {})  # another SDK generates its own ids: then at least the trace is the task's
    if trace is not None:
        empty = api.set_span_in_context(api.NonRecordingSpan(_span_context(trace)), empty)
    return _RecordedSpan(tracer_, name, attributes, "INTERNAL", empty, fixed)


def captures_content() -> bool:
    """Whether spans may contain the messages to models and tools, and their replies."""
    return os.environ.get(CAPTURE_CONTENT, "").strip().lower() in {"true", "1", "span_only", "span_and_event"}


def _span_context(trace: Trace) -> Any:
    api = sys.modules["opentelemetry.trace"]
    parts = _PARENT.fullmatch(trace["traceparent"])
    assert parts is not None
    state = api.TraceState.from_header([trace["tracestate"]]) if "tracestate" in trace else api.TraceState()
    return api.SpanContext(int(parts[1], 16), int(parts[2], 16), True, api.TraceFlags(int(parts[3], 16)), state)


class _RecordedSpan(Span):
    """A span that OpenTelemetry records."""

    on = True

    def __init__(
        self,
        tracer: Any,
        name: str,
        attributes: Mapping[str, Any],
        kind: str,
        parent: Any,
        fixed: tuple[int, int] | None = None,
    ) -> None:
        self._api = sys.modules["opentelemetry.trace"]
        masked = _mask_attributes(attributes)
        token = _FIXED_IDS.set(fixed)
        try:
            self._span = tracer.start_span(
                mask.text(name), context=parent, kind=self._api.SpanKind[kind], attributes=masked
            )
        finally:
            _FIXED_IDS.reset(token)
        self._token: Any = None
        self._dropped = self._failed = False

    def __enter__(self) -> Self:
        self._token = sys.modules["opentelemetry.context"].attach(self._api.set_span_in_context(self._span))
        return self

    def __exit__(self, *exc: object) -> None:
        sys.modules["opentelemetry.context"].detach(self._token)
        if isinstance(error := exc[1], Exception) and not self._failed:
            self.fail(type(error).__name__, str(error))
        if not self._dropped:  # a span that is never ended is never exported
            self._span.end()

    def set(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(_mask_attributes(attributes))

    def event(self, name: str, attributes: Mapping[str, Any]) -> None:
        self._span.add_event(name, _mask_attributes(attributes))

    def link(self, task_id: str, shift: int) -> None:
        own, earlier = self._span.get_span_context(), span_id_of(task_id, shift)
        linked = self._api.SpanContext(own.trace_id, earlier, True, own.trace_flags, own.trace_state)
        self._span.add_link(linked, {SHIFT: shift})

    def fail(self, kind: str, message: str) -> None:
        self._failed = True
        self._span.set_attribute(ERROR, kind)
        self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, mask.text(message)[:500]))

    def drop(self) -> None:
        self._dropped = True

    @property
    def trace(self) -> Trace | None:
        return current_trace(self._span)


def _mask_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that are not None, with the values of secrets masked."""
    given = {key: value for key, value in attributes.items() if value is not None}
    return mask.value(given) if mask.on else given


def current_trace(span: Any = None) -> Trace | None:
    """The headers that name the current span as a parent; None when there is none."""
    if span is None and tracer() is None:
        return None
    api = sys.modules["opentelemetry.trace"]
    own = (api.get_current_span() if span is None else span).get_span_context()
    if not own.is_valid:
        return None
    headers = {"traceparent": f"00-{own.trace_id:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}"}
    return headers | ({"tracestate": own.trace_state.to_header()} if own.trace_state else {})
