"""A shift that is watched: the same, with spans, counters and lines in the log around what it does.

It is used where somebody traces, counts, or reads the log of `onward.task`; all others do the plain one, and pay nothing. What
the journal hands out is not done again, so nothing is told of it: a step has a span when it begins, and its span says that it
was completed when its record is durable. Whoever is fenced out before that has a span that says so.
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
from onward.core.task import NEVER, Reason
from onward.engine.context.host import Call
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
from onward.telemetry import NO_SPAN, Span, counters, shift_span, span

log = logging.getLogger("onward.task")

COMPLETED = "completed"
LOST = "lost"
_NOT_BEGUN = -1.0
_WAITED = frozenset({r.SLEPT, r.WAITED})
_TOLD_BEFORE = frozenset({Reason.PARKED, Reason.QUARANTINED, Reason.IN_DOUBT, Reason.RETRYING})
"""Reasons of which the shift itself has said something louder."""


def watching() -> bool:
    """Whether anybody wants to know what shifts do."""
    return counters.on or log.isEnabledFor(logging.INFO) or telemetry.tracer() is not None


class _OpenPen(ShiftJournal):
    """Lets somebody see what is written. Nothing that is replayed comes by here."""

    seen: Callable[[str, str, dict[str, Any]], None] = staticmethod(lambda _kind, _key, _data: None)

    def mention(self, kind: str, key: str, data: dict[str, Any]) -> int:
        number = super().mention(kind, key, data)
        self.seen(kind, key, data)
        return number


class TracedShift(Shift):
    """One claimed task being done, in the eyes of others."""

    pen = _OpenPen
    _span: Span = NO_SPAN
    _ended: str | None = None
    """What became of the task, once that is durable."""

    def __init__(self, desk: WorkerServices, claimed: Claimed, handler: Handler) -> None:
        super().__init__(desk, claimed, handler)
        self._name = handler.name
        self._pen.seen = self._written  # type: ignore[attr-defined]
        self._steps.run = functools.partial(self._step, self._steps.run)  # type: ignore[method-assign]
        self.run = self._steps.run

    # ── the shift ────────────────────────────────────────────────────────────────────────────────────────────────

    async def work(self) -> None:
        claimed = self._claimed
        counters.add(telemetry.CLAIMED, self._name)
        if claimed.shift == 2:
            counters.time(telemetry.WAIT_SECONDS, claimed.claimed_at - claimed.created_at, self._name)
        with self._begun() as self._span:
            try:
                await super().work()
            finally:
                self._over()
                self._let_go()

    def _let_go(self) -> None:
        """What refers back to us would keep us in memory until the collector finds the circle."""
        self._span = NO_SPAN
        for part, name in ((self, "run"), (self._steps, "run"), (self._pen, "seen")):
            vars(part).pop(name)

    def _begun(self) -> Span:
        if telemetry.tracer() is None:
            return NO_SPAN
        claimed, trace = self._claimed, self._options.get("trace")
        kind, named = (
            ("invoke_agent", telemetry.AGENT) if self._handler.agent else ("invoke_workflow", telemetry.WORKFLOW)
        )
        said = {
            telemetry.OPERATION: kind,
            named: self._name,
            telemetry.CONVERSATION: claimed.id if self._handler.agent else None,
            **self._about,
            telemetry.ATTEMPT: claimed.attempt,
            telemetry.WORKER: getattr(self._desk, "id", None),
        }
        known = telemetry.incoming(trace) if isinstance(trace, dict) else None
        return shift_span(f"{kind} {self._name}", said, claimed.id, claimed.shift, known)

    @property
    def _about(self) -> dict[str, Any]:
        claimed = self._claimed
        return {telemetry.TASK_ID: claimed.id, telemetry.TASK: self._name, telemetry.SHIFT: claimed.shift}

    def _told(self, kind: str, data: dict[str, Any], ending: End | Wait) -> None:
        super()._told(kind, data, ending)
        if isinstance(ending, End):
            self._ended = ending.state.value
            took = max(0.0, self.now() - self._claimed.created_at)
            counters.add(telemetry.ENDED, self._name, ending.state)
            counters.time(telemetry.TASK_SECONDS, took, self._name, ending.state)
            if kind == r.COMPLETED:
                log.info("task %s (%s) completed", self.task_id, self._name)
            elif kind == r.CANCELLED:
                log.info("task %s (%s) was cancelled", self.task_id, self._name)
        else:
            self._waits_now(kind, ending)
        if "error" in data:
            self._span.fail(data["error"]["type"], data["error"]["message"])

    def _waits_now(self, kind: str, wait: Wait) -> None:
        handed_back = wait.reason == Reason.QUEUED
        self._ended = "handed_back" if handed_back else str(wait.reason)
        due = None if wait.due_at is None or wait.due_at == NEVER else wait.due_at
        self._span.set({telemetry.REASON: str(wait.reason), telemetry.DUE: due})
        if kind == r.RETRY:
            counters.add(telemetry.RETRIES, self._name, "task")
        if handed_back:
            log.info("task %s (%s) is handed back", self.task_id, self._name)
        elif wait.reason not in _TOLD_BEFORE:
            log.info("task %s (%s) waits: %s", self.task_id, self._name, wait.reason)

    def _over(self) -> None:
        outcome = self._ended or LOST
        counters.add(telemetry.SHIFTS, self._name, outcome)
        self._span.set({telemetry.OUTCOME: outcome})
        if outcome == LOST:
            self._span.fail(Fenced.__name__, "another worker went on with it, or it was cancelled")

    async def _read_journal(self) -> None:
        log.info("task %s (%s) %s", self.task_id, self._name, "started" if self._claimed.shift == 2 else "goes on")
        await super()._read_journal()

    async def _since_checkpoint(self, task_id: str) -> list[r.Record]:
        records = await super()._since_checkpoint(task_id)
        if self._span.on and task_id == self.task_id and (before := _before(records, self._claimed.shift)):
            self._span.link(task_id, before)
        return records

    def _written(self, kind: str, key: str, data: dict[str, Any]) -> None:
        """Something new stands in the journal, or will with the next commit."""
        if kind == r.STEP_RETRY:
            counters.add(telemetry.RETRIES, self._name, "step")
            said = {telemetry.ATTEMPT: data["attempt"], telemetry.ERROR: data["error"]["type"]}
            self._span.event(telemetry.EVENT_RETRY, {telemetry.STEP_KEY: key, **said})
        elif kind in REASONS:
            self._span.event(telemetry.EVENT_WAIT, {telemetry.STEP_KEY: key, telemetry.REASON: REASONS[kind].value})
        elif kind in _WAITED:
            self._span.event(telemetry.EVENT_WAITED, {telemetry.STEP_KEY: key})

    # ── its steps ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _step(self, run: Callable[[Call], Awaitable[Any]], call: Call) -> Any:
        scope = SCOPE.get()
        if scope.key is not None or replayed(self._pen.replay, scope):
            return await run(call)
        return await self._seen(scope, call, functools.partial(run, call))

    async def _seen(self, scope: Scope, call: Call, run: Callable[[], Awaitable[Any]]) -> Any:
        """Something that the journal does not have, and what becomes of it."""
        began, scope.since = self._pen.monotonic(), _NOT_BEGUN
        outcome = COMPLETED
        with self._step_span(call) as step:
            try:
                return await run()
            except BaseException as error:
                outcome = outcome_of(error) if scope.since != _NOT_BEGUN else ""
                if outcome == LOST:
                    step.fail(Fenced.__name__, "its record was refused: another worker went on with the task")
                elif isinstance(error, StepFailed):
                    step.fail(error.kind, error.message)
                raise
            finally:
                if outcome:
                    counters.add(telemetry.STEPS, self._name, outcome)
                    counters.time(telemetry.STEP_SECONDS, self._pen.monotonic() - began, self._name)
                    step.set({telemetry.STEP_KEY: scope.prefix + scope.last, telemetry.OUTCOME: outcome})
                else:
                    step.drop()

    def _step_span(self, call: Call) -> Span:
        if not self._span.on:
            return NO_SPAN
        return span(f"onward.step {call.name}", {telemetry.STEP: call.name, **self._about})

    def transaction(self, call: Call) -> Transaction:
        return _WatchedTransaction(self, self._desk, self._pen, self._steps, self._waits, call)


class _WatchedTransaction(Transaction):
    """A step in a transaction, in the eyes of others."""

    def __init__(self, shift: TracedShift, *parts: Any) -> None:
        super().__init__(*parts)
        self._shift = shift

    async def run(self) -> Any:
        scope = SCOPE.get()
        if scope.key is not None or replayed(self._pen.replay, scope):
            return await super().run()
        return await self._shift._seen(scope, self._call, super().run)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A block is told when it is over: what happens in it is the handler's own line, which has a span already."""
        if self._work is None:
            await super().__aexit__(kind, error, trace)
            return

        async def leave() -> None:
            self._scope.since = 0.0
            await super(_WatchedTransaction, self).__aexit__(kind, error, trace)
            if error is not None:
                raise error

        try:
            await self._shift._seen(self._scope, self._call, leave)
        except BaseException as raised:
            if raised is not error:
                raise


def replayed(replay: Replay, scope: Scope) -> bool:
    """Whether the journal has what this scope comes to next. (Or something else in its place: then nothing is done either.)"""
    known = replay.peek(scope.prefix)
    return known is not None and known.over


def outcome_of(error: BaseException) -> str:
    """What became of a step that raised this: one of a few words."""
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


def _before(records: list[r.Record], shift: int) -> int:
    """The number of the shift before this one; 0 when there is none, or when it was another task's, of which this is a fork."""
    forked = max((record.seq for record in records if record.kind == r.FORKED), default=0)
    return max((record.shift for record in records if forked < record.shift < shift), default=0)
