"""Telemetry: the names of all that is measured, the counters, and `span()`. Logs, metrics and traces hang on this module.

Nothing is imported for it and nothing is switched on by it. Counters count once somebody wants to read them (`counters.on`).
Spans are made when the program has set up OpenTelemetry: whoever has done that has imported it, so we only look whether it
is there. What is off costs a look.

A task's trace is the one of whoever submitted it (`traceparent`, W3C), kept with the task; without one it is the trace whose id
is the task's own. The id of a shift's span follows from the task and the number of the shift. So every shift, in whatever process
and after whatever crash, joins the same trace and can name the shift before it, and nothing has to be written for that.
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
MOST: Final = 100
"""Values of a metric's first label that are told apart; whatever comes after them is `other`."""

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The upper edges of all histograms."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

SUBMITTED: Final = "onward_tasks_submitted_total"
CLAIMED: Final = "onward_claims_total"
SHIFTS: Final = "onward_shifts_total"
STEPS: Final = "onward_steps_total"
RETRIES: Final = "onward_retries_total"
ENDED: Final = "onward_tasks_ended_total"
LOST: Final = "onward_leases_lost_total"
CALLS: Final = "onward_model_calls_total"
TOKENS: Final = "onward_model_tokens_total"
MONEY: Final = "onward_model_cost_usd_total"
REQUESTS: Final = "onward_http_requests_total"
DELIVERIES: Final = "onward_deliveries_total"
CLIENTS: Final = "onward_stream_clients"
STEP_SECONDS: Final = "onward_step_seconds"
TASK_SECONDS: Final = "onward_task_seconds"
WAIT_SECONDS: Final = "onward_queue_wait_seconds"
REQUEST_SECONDS: Final = "onward_http_request_seconds"

COUNTED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    SUBMITTED: ("Tasks that were submitted through this process, each once.", ("task",)),
    CLAIMED: ("Tasks that this process has claimed.", ("task",)),
    SHIFTS: ("Shifts that ended here, by how: an end, a reason to wait, or `lost` to another.", ("task", "outcome")),
    STEPS: ("Steps that ran here, by outcome. What is replayed is not run.", ("task", "outcome")),
    RETRIES: ("Attempts that failed and will be followed by another, of a `step` or the `task`.", ("task", "of")),
    ENDED: ("Tasks that this process has ended, by state.", ("task", "state")),
    LOST: ("How often this worker was declared dead and started anew.", ()),
    CALLS: ("Questions to models, answered or not.", ("model", "outcome")),
    TOKENS: ("Tokens as providers counted them: `input`, of it `cached`, and `output`.", ("model", "type")),
    MONEY: ("Dollars, where the price is known.", ("model",)),
    REQUESTS: ("Requests answered over HTTP.", ("route", "method", "status")),
    DELIVERIES: ("Attempts to deliver an event to the outside, by what came of them.", ("outcome",)),
}
"""What only grows: its sentence and its labels. The first label is the one whose values are bounded by MOST."""

LEVELS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    CLIENTS: ("Clients that follow tasks just now.", ("kind",)),
}
"""What goes up and down."""

TIMED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    STEP_SECONDS: ("From the start of a step to its durable record.", ("task",)),
    TASK_SECONDS: ("From the submit of a task to its end.", ("task", "state")),
    WAIT_SECONDS: ("From the submit of a task to its first claim.", ("task",)),
    REQUEST_SECONDS: ("From a request to the last byte of its answer.", ("route",)),
}
"""What takes time."""

# ── names: spans ─────────────────────────────────────────────────────────────────────────────────────────────────────
# Those of the GenAI conventions as of semconv 1.42; they still move, so they stand here and nowhere else.

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
SAID: Final = "gen_ai.input.messages"
REPLIED: Final = "gen_ai.output.messages"
INSTRUCTED: Final = "gen_ai.system_instructions"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
EVENT_WAIT: Final = "onward.wait"
EVENT_WAITED: Final = "onward.waited"
EVENT_RETRY: Final = "onward.retry"
CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

Trace = dict[str, str]
"""Where a span belongs, as it travels: `traceparent`, and `tracestate` where there is one."""

DOING: ContextVar[Any] = ContextVar("onward_doing")
"""The claimed task that the code around us belongs to; it travels through tasks and threads."""

WORKING: ContextVar[Any] = ContextVar("onward_working")
"""The worker that it runs in."""

# ── counters ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Key = tuple[str, tuple[str, ...]]


class Counters:
    """What this process has done since somebody wanted to know: plain numbers, turned into text when they are asked for."""

    def __init__(self) -> None:
        self.on = False
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.numbers: dict[Key, float] = {}
        self.times: dict[Key, list[float]] = {}
        """For each histogram: how many fell under each edge, those above all of them, and the sum."""
        self._seen: dict[str, set[str]] = {}

    def add(self, name: str, *labels: str, by: float = 1) -> None:
        """Count."""
        if self.on:
            self._add(name, labels, by)

    def _add(self, name: str, labels: tuple[str, ...], by: float) -> None:
        with self._lock:
            key = name, self._bounded(name, labels)
            self.numbers[key] = self.numbers.get(key, 0) + by

    def time(self, name: str, seconds: float, *labels: str) -> None:
        """Something took so long."""
        if self.on:
            with self._lock:
                key = name, self._bounded(name, labels)
                buckets = self.times.setdefault(key, [0.0] * (len(SECONDS) + 2))
                buckets[bisect.bisect_left(SECONDS, seconds)] += 1
                buckets[-1] += seconds

    @contextlib.asynccontextmanager
    async def client(self, kind: str) -> AsyncIterator[None]:
        """A client follows something while the block lasts: over `sse` or a `websocket`. Counted also while nobody asks."""
        self._add(CLIENTS, (kind,), 1)
        try:
            yield
        finally:
            self._add(CLIENTS, (kind,), -1)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request was answered. `route` is the pattern of its path, never the path."""
        self.add(REQUESTS, route, method if method in METHODS else OTHER, str(status))
        self.time(REQUEST_SECONDS, seconds, route)

    def snapshot(self) -> tuple[dict[Key, float], dict[Key, list[float]]]:
        """All numbers and all times as they are now."""
        with self._lock:
            return dict(self.numbers), {key: list(buckets) for key, buckets in self.times.items()}

    def _bounded(self, name: str, labels: tuple[str, ...]) -> tuple[str, ...]:
        if not labels:
            return labels
        seen = self._seen.setdefault(name, set())
        if labels[0] in seen:
            return labels
        if len(seen) >= MOST:
            return OTHER, *labels[1:]
        seen.add(labels[0])
        return labels


counters = Counters()

# ── traces as they travel ────────────────────────────────────────────────────────────────────────────────────────────

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")
_ALPHABET = {letter: value for value, letter in enumerate("0123456789abcdefghjkmnpqrstvwxyz")}


def incoming(headers: Mapping[str, str]) -> Trace | None:
    """The trace that a request belongs to, by its headers; None when it names none, or not as W3C has it."""
    parent = headers.get("traceparent", "").strip()
    if not _PARENT.fullmatch(parent) or (parent.startswith("00") and len(parent) != 55):
        return None
    state = headers.get("tracestate", "").strip()
    return {"traceparent": parent, "tracestate": state} if _STATE.fullmatch(state) else {"traceparent": parent}


def outgoing(task_id: str, options: Mapping[str, Any], shift: int = 2) -> Trace:
    """The headers that tell another service (a webhook's receiver) to which trace a task belongs: that of whoever submitted it,
    or, where somebody traces here, its own."""
    trace = options.get("trace")
    if isinstance(trace, Mapping) and (known := incoming(trace)) is not None:
        return known
    return (
        {}
        if tracer() is None
        else {"traceparent": f"00-{trace_id_of(task_id):032x}-{span_id_of(task_id, shift):016x}-01"}
    )


def trace_id_of(task_id: str) -> int:
    """The id of the trace of a task that nobody's trace came with: the task's id, as a number."""
    number = 0
    for letter in task_id:
        number = number << 5 | _ALPHABET.get(letter, 0)
    return (number >> 2) & (1 << 128) - 1 or 1


def span_id_of(task_id: str, shift: int) -> int:
    """The id of the span of a shift."""
    return int.from_bytes(hashlib.blake2b(f"{task_id}.{shift}".encode(), digest_size=8).digest()) or 1


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_known: tuple[Any, Any] = (None, None)


def tracer() -> Any:
    """The tracer of the provider that this program has set up; None when it has set up none."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or not hasattr(api, "get_tracer_provider"):  # another thread is just importing it
        return None
    provider = api.get_tracer_provider()
    if provider is not _known[0]:
        _meet(api, provider)
    return _known[1]


def _meet(api: Any, provider: Any) -> None:
    global _known  # noqa: PLW0603 -- one provider for a process, as OpenTelemetry has it
    found = None
    if not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        found = provider.get_tracer("onward")
        if isinstance(found, api.NoOpTracer):  # OTEL_SDK_DISABLED
            found = None
        elif hasattr(found, "id_generator"):
            found.id_generator = _ChosenIds(found.id_generator)
    _known = (provider, found)


_CHOSEN: ContextVar[tuple[int, int] | None] = ContextVar("onward_chosen_ids", default=None)


class _ChosenIds:
    """The ids of the SDK, but for spans whose ids are given. It serves our own tracer alone."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def generate_trace_id(self) -> int:
        chosen = _CHOSEN.get()
        return int(self._usual.generate_trace_id() if chosen is None else chosen[0])

    def generate_span_id(self) -> int:
        chosen = _CHOSEN.get()
        return int(self._usual.generate_span_id() if chosen is None else chosen[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


class Span:
    """A span under way; or, as it is here, none: all that can be said to one, said to nobody."""

    on = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """It is over."""

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Say more of it. What is None is left out."""

    def event(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Something happened on the way."""

    def link(self, task_id: str, shift: int) -> None:
        """It goes on where that shift of the same task was."""

    def fail(self, kind: str, message: str) -> None:
        """It did not come to a good end."""

    def drop(self) -> None:
        """It never began: nobody is told of it."""

    @property
    def trace(self) -> Trace | None:
        """How others name it as their parent."""
        return None


NO_SPAN: Final = Span()


def span(name: str, attributes: Mapping[str, Any], *, kind: str = "INTERNAL", within: Trace | None = None) -> Span:
    """A span, current while its block lasts; its parent is what is current now, else `within`. Nothing where nobody traces."""
    found = tracer()
    if found is None:
        return NO_SPAN
    api = sys.modules["opentelemetry.trace"]
    current = api.get_current_span().get_span_context().is_valid
    parent = None if current or within is None else api.set_span_in_context(api.NonRecordingSpan(_context(within)))
    return _Open(found, name, attributes, kind, parent)


def shift_span(name: str, attributes: Mapping[str, Any], task_id: str, shift: int, trace: Trace | None) -> Span:
    """The span of a shift: in the trace that came with the task, or in the task's own."""
    found = tracer()
    if found is None:
        return NO_SPAN
    api, empty = sys.modules["opentelemetry.trace"], sys.modules["opentelemetry.context"].Context()
    chosen = trace_id_of(task_id), span_id_of(task_id, shift)
    if trace is None and not isinstance(getattr(found, "id_generator", None), _ChosenIds):
        trace = outgoing(task_id, {})  # somebody else's SDK gives its own ids: then at least the trace is the task's
    if trace is not None:
        empty = api.set_span_in_context(api.NonRecordingSpan(_context(trace)), empty)
    return _Open(found, name, attributes, "INTERNAL", empty, chosen)


def captures() -> bool:
    """Whether spans may hold what is said to models and tools, and what they answer."""
    return os.environ.get(CONTENT, "").strip().lower() in {"true", "1", "span_only", "span_and_event"}


def _context(trace: Trace) -> Any:
    api = sys.modules["opentelemetry.trace"]
    parts = _PARENT.fullmatch(trace["traceparent"])
    assert parts is not None
    state = api.TraceState.from_header([trace["tracestate"]]) if "tracestate" in trace else api.TraceState()
    return api.SpanContext(int(parts[1], 16), int(parts[2], 16), True, api.TraceFlags(int(parts[3], 16)), state)


class _Open(Span):
    """One that is traced."""

    on = True

    def __init__(
        self,
        tracer: Any,
        name: str,
        attributes: Mapping[str, Any],
        kind: str,
        parent: Any,
        chosen: tuple[int, int] | None = None,
    ) -> None:
        self._api = sys.modules["opentelemetry.trace"]
        given = _masked(attributes)
        token = _CHOSEN.set(chosen)
        try:
            self._span = tracer.start_span(
                mask.text(name), context=parent, kind=self._api.SpanKind[kind], attributes=given
            )
        finally:
            _CHOSEN.reset(token)
        self._token: Any = None
        self._dropped = self._failed = False

    def __enter__(self) -> Self:
        self._token = sys.modules["opentelemetry.context"].attach(self._api.set_span_in_context(self._span))
        return self

    def __exit__(self, *exc: object) -> None:
        sys.modules["opentelemetry.context"].detach(self._token)
        if isinstance(error := exc[1], Exception) and not self._failed:
            self.fail(type(error).__name__, str(error))
        if not self._dropped:  # one that is never ended is never exported
            self._span.end()

    def set(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(_masked(attributes))

    def event(self, name: str, attributes: Mapping[str, Any]) -> None:
        self._span.add_event(name, _masked(attributes))

    def link(self, task_id: str, shift: int) -> None:
        own, before = self._span.get_span_context(), span_id_of(task_id, shift)
        there = self._api.SpanContext(own.trace_id, before, True, own.trace_flags, own.trace_state)
        self._span.add_link(there, {SHIFT: shift})

    def fail(self, kind: str, message: str) -> None:
        self._failed = True
        self._span.set_attribute(ERROR, kind)
        self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, mask.text(message)[:500]))

    def drop(self) -> None:
        self._dropped = True

    @property
    def trace(self) -> Trace | None:
        return carried(self._span)


def _masked(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of these, without values of secrets."""
    known = {key: value for key, value in attributes.items() if value is not None}
    return mask.value(known) if mask.on else known


def carried(span: Any = None) -> Trace | None:
    """The span that is current, as others name it as their parent; None when there is none."""
    if span is None and tracer() is None:
        return None
    api = sys.modules["opentelemetry.trace"]
    own = (api.get_current_span() if span is None else span).get_span_context()
    if not own.is_valid:
        return None
    told = {"traceparent": f"00-{own.trace_id:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}"}
    return told | ({"tracestate": own.trace_state.to_header()} if own.trace_state else {})
