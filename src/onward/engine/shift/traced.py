"""TracedShift: a shift with spans, counters and log lines around it.

A worker uses it when the process traces, counts, or logs `onward.task`; otherwise it uses the plain Shift, which pays nothing for
this. A call that the journal answers is not run again, so it has no span: a step has a span from its begin, and the span says
`completed` when the record of the step is durable. A shift that is fenced out before that has a span that says so.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from onward import telemetry
from onward.core import record as r
from onward.core.control import Doubt, Fenced, Suspend
from onward.core.sealed import ENCRYPTED_TEXT
from onward.core.task import NEVER, Reason
from onward.engine.context.call import Call
from onward.engine.handlers import Handler
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.replay import Replay
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.shift import Shift
from onward.engine.shift.transaction import Transaction
from onward.engine.shift.waits import REASONS
from onward.errors import StepFailed
from onward.store.port.core import Claimed, End, Wait
from onward.store.writer import Hold
from onward.telemetry import NO_SPAN, Span, counters, shift_span, span

log = logging.getLogger("onward.task")

COMPLETED = "completed"
LOST = "lost"
_NOT_BEGUN = -1.0
_WAIT_ENDED = frozenset({r.SLEPT, r.WAITED})
_LOGGED_BY_SHIFT = frozenset({Reason.PARKED, Reason.QUARANTINED, Reason.IN_DOUBT, Reason.RETRYING})
"""Reasons that the shift itself logs, at a higher level."""


def watching() -> bool:
    """Whether this process traces, counts or logs what shifts do."""
    return counters.on or log.isEnabledFor(logging.INFO) or telemetry.tracer() is not None


class TracedShift(Shift):
    """A shift that reports what it does to a ShiftTrace."""

    def __init__(self, services: WorkerServices, claimed: Claimed, handler: Handler) -> None:
        self._trace = ShiftTrace(claimed, handler, services)
        super().__init__(services, claimed, handler)

    def _make_journal(self) -> ShiftJournal:
        return _TracedJournal(self._services, self.hold, self._trace)

    async def work(self) -> None:
        with self._trace.start(self._options.get("trace")):
            try:
                await super().work()
            finally:
                self._trace.finish()

    async def _read_journal(self) -> None:
        self._trace.log_start()
        await super()._read_journal()

    async def _read_since_checkpoint(self, task_id: str) -> list[r.Record]:
        records = await super()._read_since_checkpoint(task_id)
        if task_id == self.task_id:
            self._trace.link_previous_shift(records)
        return records

    def _log_ending(self, kind: str, data: dict[str, Any], ending: End | Wait) -> None:
        super()._log_ending(kind, data, ending)
        self._trace.report_ending(kind, data, ending, self.now())

    async def run(self, call: Call) -> Any:
        scope = SCOPE.get()
        if scope.key is not None or is_replayed(self._journal.replay, scope):
            return await self._steps.run(call)
        return await self._trace.run_step(scope, call, functools.partial(self._steps.run, call))

    def transaction(self, call: Call) -> Transaction:
        parts = self._services, self._journal, self._steps, self._waits, call
        return _TracedTransaction(self._trace, *parts)


class ShiftTrace:
    """The span, the counters and the log lines of one shift."""

    def __init__(self, claimed: Claimed, handler: Handler, services: WorkerServices) -> None:
        self._claimed, self._handler, self._name = claimed, handler, handler.name
        self._worker = getattr(services, "id", None)
        self._monotonic = services.clock.monotonic
        self._encrypted = services.store.codec is not None
        self._span = NO_SPAN
        self._outcome: str | None = None
        """What became of the task, once that is durable."""

    # ── the shift ────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, trace: object) -> Span:
        """Count the claim and begin the span, in the trace that the task was submitted with."""
        claimed = self._claimed
        counters.add(telemetry.CLAIMED, self._name)
        if claimed.shift == 2:
            counters.time(telemetry.WAIT_SECONDS, claimed.claimed_at - claimed.created_at, self._name)
        if telemetry.tracer() is not None:
            self._span = self._shift_span(telemetry.incoming(trace) if isinstance(trace, dict) else None)
        return self._span

    def _shift_span(self, trace: telemetry.Trace | None) -> Span:
        claimed, agent = self._claimed, self._handler.agent or bool(self._handler.framework)
        operation, name = ("invoke_agent", telemetry.AGENT) if agent else ("invoke_workflow", telemetry.WORKFLOW)
        attributes = {
            telemetry.OPERATION: operation,
            name: self._name,
            telemetry.CONVERSATION: claimed.id if agent else None,
            **self._task_attributes,
            telemetry.ATTEMPT: claimed.attempt,
            telemetry.WORKER: self._worker,
        }
        return shift_span(f"{operation} {self._name}", attributes, claimed.id, claimed.shift, trace)

    @property
    def _task_attributes(self) -> dict[str, Any]:
        claimed = self._claimed
        return {telemetry.TASK_ID: claimed.id, telemetry.TASK: self._name, telemetry.SHIFT: claimed.shift}

    def log_start(self) -> None:
        log.info("task %s (%s) %s", self._claimed.id, self._name, "started" if self._claimed.shift == 2 else "goes on")

    def link_previous_shift(self, records: list[r.Record]) -> None:
        if self._span.on and (previous := _previous_shift(records, self._claimed.shift)):
            self._span.link(self._claimed.id, previous)

    def report_ending(self, kind: str, data: dict[str, Any], ending: End | Wait, now: float) -> None:
        """Count and log an ending that is durable."""
        if isinstance(ending, End):
            self._outcome = ending.state.value
            counters.add(telemetry.ENDED, self._name, ending.state)
            took = max(0.0, now - self._claimed.created_at)
            counters.time(telemetry.TASK_SECONDS, took, self._name, ending.state)
            if kind == r.COMPLETED:
                log.info("task %s (%s) completed", self._claimed.id, self._name)
            elif kind == r.CANCELLED:
                log.info("task %s (%s) was cancelled", self._claimed.id, self._name)
        else:
            self._report_wait(kind, ending)
        if "error" in data:
            self._span.fail(data["error"]["type"], self._may_export(data["error"]["message"]))

    def _may_export(self, message: str) -> str:
        """The message of an error for a span: no span has one when payloads are encrypted."""
        return ENCRYPTED_TEXT if self._encrypted else message

    def _report_wait(self, kind: str, wait: Wait) -> None:
        handed_back = wait.reason == Reason.QUEUED
        self._outcome = "handed_back" if handed_back else str(wait.reason)
        due = None if wait.due_at is None or wait.due_at == NEVER else wait.due_at
        self._span.set({telemetry.REASON: str(wait.reason), telemetry.DUE: due})
        if kind == r.RETRY:
            counters.add(telemetry.RETRIES, self._name, "task")
        if handed_back:
            log.info("task %s (%s) is handed back", self._claimed.id, self._name)
        elif wait.reason not in _LOGGED_BY_SHIFT:
            log.info("task %s (%s) waits: %s", self._claimed.id, self._name, wait.reason)

    def finish(self) -> None:
        """Count the shift and set its outcome: the shift is over."""
        outcome = self._outcome or LOST
        counters.add(telemetry.SHIFTS, self._name, outcome)
        self._span.set({telemetry.OUTCOME: outcome})
        if outcome == LOST:
            self._span.fail(Fenced.__name__, "another worker went on with it, or it was cancelled")
        self._span = NO_SPAN

    # ── its records and steps ────────────────────────────────────────────────────────────────────────────────────

    def report_record(self, kind: str, key: str, data: dict[str, Any]) -> None:
        """Add an event to the span for a new record, durable or on its way."""
        if kind == r.STEP_RETRY:
            counters.add(telemetry.RETRIES, self._name, "step")
            failure = {telemetry.ATTEMPT: data["attempt"], telemetry.ERROR: data["error"]["type"]}
            self._span.event(telemetry.EVENT_RETRY, {telemetry.STEP_KEY: key, **failure})
        elif kind in REASONS:
            self._span.event(telemetry.EVENT_WAIT, {telemetry.STEP_KEY: key, telemetry.REASON: REASONS[kind].value})
        elif kind in _WAIT_ENDED:
            self._span.event(telemetry.EVENT_WAITED, {telemetry.STEP_KEY: key})

    async def run_step(self, scope: Scope, call: Call, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a step that the journal does not have, in a span of its own, and count its outcome."""
        began, scope.started_at = self._monotonic(), _NOT_BEGUN
        outcome = COMPLETED
        with self._step_span(call) as step:
            try:
                return await run()
            except BaseException as error:
                outcome = outcome_of(error) if scope.started_at != _NOT_BEGUN else ""
                if outcome == LOST:
                    step.fail(Fenced.__name__, "its record was refused: another worker went on with the task")
                elif isinstance(error, StepFailed):
                    step.fail(error.kind, self._may_export(error.message))
                raise
            finally:
                if outcome:
                    counters.add(telemetry.STEPS, self._name, outcome)
                    counters.time(telemetry.STEP_SECONDS, self._monotonic() - began, self._name)
                    step.set({telemetry.STEP_KEY: scope.prefix + scope.last_name, telemetry.OUTCOME: outcome})
                else:
                    step.drop()

    def _step_span(self, call: Call) -> Span:
        if not self._span.on:
            return NO_SPAN
        return span(f"onward.step {call.name}", {telemetry.STEP: call.name, **self._task_attributes})


class _TracedJournal(ShiftJournal):
    """A journal that reports the records that it enqueues. Records that are replayed do not come through here."""

    def __init__(self, services: WorkerServices, hold: Hold, trace: ShiftTrace) -> None:
        super().__init__(services, hold)
        self._trace = trace

    def enqueue(self, kind: str, key: str, data: dict[str, Any]) -> int:
        number = super().enqueue(kind, key, data)
        self._trace.report_record(kind, key, data)
        return number


class _TracedTransaction(Transaction):
    """A step in a transaction, with a span."""

    def __init__(self, trace: ShiftTrace, *parts: Any) -> None:
        super().__init__(*parts)
        self._trace = trace

    async def run(self) -> Any:
        scope = SCOPE.get()
        if scope.key is not None or is_replayed(self._journal.replay, scope):
            return await super().run()
        return await self._trace.run_step(scope, self._call, super().run)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The span of a block begins at its end: the code of the block is the handler's own line, which the shift's span covers."""
        if self._work is None:
            await super().__aexit__(kind, error, trace)
            return

        async def leave() -> None:
            self._scope.started_at = 0.0
            await super(_TracedTransaction, self).__aexit__(kind, error, trace)
            if error is not None:
                raise error

        try:
            await self._trace.run_step(self._scope, self._call, leave)
        except BaseException as raised:
            if raised is not error:
                raise


def is_replayed(replay: Replay, scope: Scope) -> bool:
    """Whether the journal has a record for the next call in this scope. (If it is of another call, nothing is run either.)"""
    known = replay.peek(scope.prefix)
    return known is not None and known.over


def outcome_of(error: BaseException) -> str:
    """The outcome of a step that raised this error, as one of a few words for metrics."""
    match error:
        case Exception():
            return "failed"
        case Fenced():
            return LOST
        case Suspend():
            return "waiting"
        case Doubt():
            return "in_doubt"
        case _:
            return "left"


def _previous_shift(records: list[r.Record], shift: int) -> int:
    """The number of the shift before this one; 0 when there is none, or when this task is a fork and it was the original's."""
    forked = max((record.seq for record in records if record.kind == r.FORKED), default=0)
    return max((record.shift for record in records if forked < record.shift < shift), default=0)
