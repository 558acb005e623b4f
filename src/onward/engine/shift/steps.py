"""Steps: run once and recorded, and answered from the record after that; retried, timed out, announced, in doubt.

The effect that a step declares decides what happens when its worker dies:

    nothing, "read", "idempotent"   the step runs again when its end is unknown: one write, after it
    reconcile=…                     `reconcile` says whether it happened, before it runs again: one write, after it
    "once"                          announced before it starts; when its end is unknown a person decides: two writes
"""

from __future__ import annotations

import asyncio
import inspect
import math
from typing import Any, NoReturn

from onward.core import record as r
from onward.core import wire
from onward.core.control import Control, Doubt, Fenced, NotNow, Park
from onward.core.crash import crashpoint
from onward.core.result_types import encode_plain, result_type
from onward.core.retry import HOPELESS
from onward.core.schedule import stamp
from onward.core.task import NEVER, Reason
from onward.engine.context.arguments import is_async
from onward.engine.context.call import Call
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.ports import StepWriter
from onward.engine.shift.replay import DID_NOT_HAPPEN, STEPS, Known, failure_of
from onward.engine.shift.scope import IN_STEP, SCOPE, Scope, refuse_overlap
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.timeout import run_with_timeout
from onward.engine.shift.waits import Waits
from onward.errors import OnwardError, SecretMissing, StepFailed, StepTimeout, TimeUp
from onward.store.writer import MAX_UNSAVED_BYTES

_LOST_CONNECTION_ERRORS = frozenset(
    {
        *("ConnectionError", "ClientConnectionError", "ConnectionClosed", "Timeout", "TimeoutError", "TransportError"),
        "APIConnectionError",
    }
)
"""Names of exceptions with which HTTP and database libraries say that they do not know whether a request arrived."""


class _NotBegun(Exception):
    """The function of a step was not called: the shift was told to stop before."""


class Steps:
    """The steps of one shift."""

    def __init__(self, services: WorkerServices, journal: ShiftJournal, waits: Waits) -> None:
        self._services, self._journal, self._waits = services, journal, waits
        self._writer: StepWriter = journal.writer
        self._lease, self._monotonic = journal.lease, journal.monotonic

    async def run(self, call: Call) -> Any:
        """The recorded result of the step, or the result of running it now, recorded."""
        scope, journal = SCOPE.get(), self._journal
        if scope.key is not None:
            refuse_overlap(call.name, scope.key)
        key = scope.prefix + scope.next_name(call.name)
        known, attempt = None, 1
        if not journal.fast_path:
            known = journal.next(scope, key, STEPS, call.mark)
            if known is not None and known.over:
                return self.replay_result(scope, call, known)
            attempt = journal.replay.take_failures(key) + 1
            if known is not None and journal.recorded_stop is not None and "verdict" in known.data:
                return await self._apply_verdict(scope, call, known)
        started_at = self._monotonic()
        if not journal.fast_path or started_at >= self._lease.until or journal.hold.unsaved > MAX_UNSAVED_BYTES:
            await journal.ensure_may_continue()
        scope.key, scope.started_at, scope.reported = key, started_at, False
        IN_STEP.set(True)
        try:
            if call.effect == "once" or call.reconcile is not None or known is not None:
                value, data = await self._run_guarded(scope, call, attempt, known)
            else:
                try:  # the common case, without further function calls
                    if call.timeout is None and is_async(call.function):
                        value = await call.function(*call.args, **call.kwargs)
                    else:
                        value = await self._call_in_time(call, key)
                    value, data = self.encode_result(scope, call, attempt, value)
                except Control:
                    raise
                except BaseException as error:
                    value, data = await self._retry(scope, call, attempt, error)
            scope.resumed = False
            scope.reported = True  # its result is being saved: a record of its start would come too late
            written = self._writer.append(journal.hold, r.STEP_DONE, key, data)
            seq = journal.hold.seq
            await written
        except Fenced as fenced:
            raise journal.end(fenced) from None
        finally:
            scope.key, scope.announced = None, False
            IN_STEP.set(False)
        if call.undo is not None and scope.saga is not None:
            scope.saga.owe(seq, key, call, value)
        return value

    # ── for run, and for transactions ────────────────────────────────────────────────────────────────────────────

    async def begin(self, scope: Scope, call: Call) -> Known | None:
        """The record of this step, or None when it is new; then it has begun."""
        if scope.key is not None:
            refuse_overlap(call.name, scope.key)
        key = scope.prefix + scope.next_name(call.name)
        known = self._journal.next(scope, key, STEPS, call.mark)
        if known is None:
            await self._journal.ensure_may_continue()
            scope.key, scope.started_at, scope.reported = key, self._monotonic(), True
        return known

    def replay_result(self, scope: Scope, call: Call, known: Known) -> Any:
        """Return the recorded result, or raise the recorded failure."""
        if known.kind == r.STEP_FAILED:
            raise known.failure()
        try:
            declared = result_type(call.function)
            value = known.data["result"]
            value = value if declared is None else declared.load(value, self._journal.secret_value)
        except ValueError as error:
            park = Park(f"the recorded result of step {known.key!r} is not what the code now says it returns: {error}")
            raise self._journal.end(park) from None
        except SecretMissing as missing:
            raise self._journal.end(Park(str(missing))) from None
        if call.undo is not None and scope.saga is not None:
            scope.saga.owe(known.seq, known.key, call, value)
        return value

    def encode_result(self, scope: Scope, call: Call, attempt: int, value: Any) -> tuple[Any, bytes]:
        """The value as a replay would see it, and the data of its record."""
        declared = result_type(call.function)
        if declared is None:
            result = encode_plain(call.function, value)
        else:
            result = wire.encode(declared.dump(value), "its result")
        took_ms = int((self._monotonic() - scope.started_at) * 1000)
        head = b'{"ms":%d,"result":' % took_ms if took_ms else b'{"ms":0,"result":'
        tail = b"}" if attempt == 1 and not call.mark else _encode_tail(call.mark, attempt)
        if declared is None:
            return wire.same_as_recorded(value, result), head + result + tail
        replayed = declared.load(wire.decode(result), self._journal.secret_value)
        declared.check_same(value, replayed)
        return replayed, head + result + tail

    async def handle_failure(self, scope: Scope, call: Call, attempt: int, error: BaseException) -> int:
        """Record the failure of an attempt. Raise StepFailed when it was the last one, or wait for the next; returns its number."""
        assert scope.key is not None
        if isinstance(error, NotNow):
            return await self._wait_to_begin(scope.key, attempt, error)
        failure = wire.error_value(error) | {"attempts": attempt}
        pause = call.retry.pause(attempt, error, self._services.rng)
        if pause is None:
            failure |= {"fatal": True} if isinstance(error, HOPELESS) else {}
            details = getattr(error, "step_details", None)
            failure |= {} if details is None else {"details": details}
            await self._journal.append(r.STEP_FAILED, scope.key, wire.encode({"error": failure, "args": call.mark}))
            raise StepFailed(scope.key, attempt, failure["type"], failure["message"], details) from error
        until = self._services.now() + pause
        self._journal.enqueue(r.STEP_RETRY, scope.key, {"error": failure, "attempt": attempt, "due_at": until})
        await self._waits.pause(until, Reason.RETRYING)
        await self._journal.ensure_may_continue()  # an attempt begins under the same conditions as a step
        return attempt + 1

    async def _wait_to_begin(self, key: str, attempt: int, why: NotNow) -> int:
        """The step could not begin (no budget, no quota): wait, and try the same attempt again."""
        until = {} if why.until == NEVER else {"due_at": why.until}
        self._journal.enqueue(r.STEP_WAITS, key, {"reason": why.reason, "why": why.why, **until, **why.details})
        await self._waits.pause(why.until, Reason(why.reason))
        await self._journal.ensure_may_continue()
        return attempt

    # ── attempts ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _retry(self, scope: Scope, call: Call, attempt: int, error: BaseException) -> tuple[Any, bytes]:
        """Make the attempts after one that failed."""
        assert scope.key is not None
        while True:
            if self._journal.is_shift_exit(error):
                raise error
            attempt = await self.handle_failure(scope, call, attempt, error)
            try:
                return self.encode_result(scope, call, attempt, await self._call_in_time(call, scope.key))
            except Control:
                raise
            except BaseException as another:
                error = another

    async def _call_in_time(self, call: Call, key: str) -> Any:
        """Call the function within the step's timeout and within the time that is left for the agent."""
        until: float | None = getattr(call.function, "until", None)
        left = math.inf if until is None else until - self._services.now()
        if left <= 0:
            raise TimeUp(f"{call.name} was not started")
        if call.timeout is None:
            return await self._call(call)
        late: OnwardError = StepTimeout(key, call.timeout)
        if left < call.timeout and getattr(call.function, "cut", False):
            late = TimeUp(f"{call.name} was cut off")
            return await run_with_timeout(self._call(call), self._services.clock, left, lambda: late)
        return await run_with_timeout(self._call(call), self._services.clock, call.timeout, lambda: late)

    async def _call(self, call: Call) -> Any:
        """Call the function: an async one here, a plain one in a thread."""
        if is_async(call.function):
            return await call.function(*call.args, **call.kwargs)
        try:
            result = await self._services.threads.run(self._call_in_thread, call.function, call.args, call.kwargs)
        except _NotBegun:
            await self._ensure_may_begin()
            raise
        return await result if inspect.isawaitable(result) else result

    def _call_in_thread(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Runs in the thread. The thread may start a while after the step was asked for: the shift may have been stopped since."""
        if isinstance(self._journal.interruption, Control):
            raise _NotBegun
        return function(*args, **kwargs)

    async def _ensure_may_begin(self) -> None:
        """Raise what stopped the task while its step was about to begin (a pause, a worker that stops). The step does not begin
        then, and its announcement is not in doubt."""
        scope = SCOPE.get()
        try:
            await self._journal.ensure_may_continue()
        except BaseException:
            if scope.announced and scope.key is not None and not self._journal.hold.gone:
                why = {"reason": Reason.QUEUED, "why": "it was stopped before it began"}
                self._journal.enqueue(r.STEP_WAITS, scope.key, why)
            raise

    # ── effects that are not safe to repeat ──────────────────────────────────────────────────────────────────────

    async def _run_guarded(self, scope: Scope, call: Call, attempt: int, known: Known | None) -> tuple[Any, bytes]:
        """Run a step whose effect must not happen twice."""
        assert scope.key is not None
        doubt = "" if known is None else "the worker that did it died before it could tell"
        if call.reconcile is not None and (scope.resumed or self._journal.replay.lost is not None):
            doubt = "an earlier shift may have done it"
        elif known is None and self._journal.replay.may_have_happened(scope.key):
            await self.doubt_after_restore(scope, call)
        verdict = {} if known is None else known.data.get("verdict", {})
        lost: BaseException | None = None
        while True:
            if verdict or doubt:
                happened, value = await self._resolve_doubt(scope, call, verdict, doubt)
                if happened:
                    return self.encode_result(scope, call, attempt, value)
                verdict, doubt = {}, ""
                if lost is not None:  # the attempt of this shift did not happen: it failed
                    attempt, lost = await self.handle_failure(scope, call, attempt, lost), None
            if call.reconcile is None:
                await self._journal.append(
                    r.ANNOUNCED, scope.key, wire.encode({"args": call.mark} if call.mark else {})
                )
                scope.reported = scope.announced = True
            if self._journal.interruption is not None or self._monotonic() >= self._lease.until:
                await self._ensure_may_begin()
            crashpoint("effect.before")
            try:
                value = await self._call_in_time(call, scope.key)
                crashpoint("effect.after")
                return self.encode_result(scope, call, attempt, value)
            except Control:
                raise
            except BaseException as error:
                if self._journal.is_shift_exit(error):
                    raise
                if _leaves_doubt(error):
                    doubt, lost = f"{type(error).__name__}: {error}", error
                    if call.reconcile is not None:
                        await self._journal.ensure_may_continue()
                    continue
                attempt = await self.handle_failure(scope, call, attempt, error)

    async def _resolve_doubt(self, scope: Scope, call: Call, verdict: dict[str, Any], doubt: str) -> tuple[bool, Any]:
        """Whether the effect happened, and with which result: by the verdict of a person, or by `reconcile`. Raises Doubt when
        neither is there."""
        assert scope.key is not None
        if verdict.get("name") == "happened":
            return True, verdict["value"]
        if verdict.get("name") in DID_NOT_HAPPEN:
            return False, None
        if verdict.get("name") == "undo":
            await self.undo_by_verdict(scope, call)
        if call.reconcile is None:
            raise self._journal.end(Doubt(scope.key, doubt, self._journal.replay.inbox))
        value = await self._call(call.as_reconcile())
        return value is not None, value

    async def doubt_after_restore(self, scope: Scope, call: Call) -> NoReturn:
        """Leave an effect in doubt because the database was restored: it may have happened after the backup."""
        lost = self._journal.replay.lost
        assert scope.key is not None and lost is not None  # noqa: PT018 -- one fact: the caller has looked
        await self._journal.append(r.ANNOUNCED, scope.key, wire.encode({"args": call.mark} if call.mark else {}))
        scope.reported = True
        why = f"the database was restored from a backup of {stamp(lost.since)}; it may have happened after that"
        raise self._journal.end(Doubt(scope.key, why, self._journal.replay.inbox))

    async def _apply_verdict(self, scope: Scope, call: Call, known: Known) -> Any:
        """A person has decided about an effect in doubt, and the task is being ended. Nothing new begins. An effect that happened is
        recorded, so that a saga undoes it, and an effect that the person wants undone is undone here."""
        verdict = known.data["verdict"]
        if verdict["name"] in DID_NOT_HAPPEN or self._journal.interruption is not None or not self._lease.holds():
            await self._journal.ensure_may_continue()  # raises what ends it
        scope.key, scope.started_at, scope.reported = known.key, self._monotonic(), True
        try:
            if verdict["name"] == "undo":
                await self.undo_by_verdict(scope, call)
            value, data = self.encode_result(scope, call, 1, verdict["value"])
            await self._journal.append(r.STEP_DONE, known.key, data)
        finally:
            scope.key = None
        if call.undo is not None and scope.saga is not None:
            scope.saga.owe(self._journal.hold.seq, known.key, call, value)
        return value

    async def undo_by_verdict(self, scope: Scope, call: Call) -> NoReturn:
        """Undo an effect in doubt, record the step as failed, and raise that failure."""
        assert scope.key is not None
        if call.undo is not None:
            try:
                await self._call(call.as_undo(None))
            except Exception as error:
                self._journal.replay.undo_error = error
                raise
        failure = {
            "type": "Undone",
            "message": "a person had it undone, as it was unknown whether it happened",
            "fatal": True,
            "attempts": 1,
        }
        await self._journal.append(r.STEP_FAILED, scope.key, wire.encode({"error": failure, "args": call.mark}))
        self._journal.replay.undone = scope.key
        raise failure_of(scope.key, failure)  # fatal: no retry of the task repeats what was just undone


def _leaves_doubt(error: BaseException) -> bool:
    """Whether the error leaves open what happened on the other side."""
    if isinstance(error, ConnectionRefusedError):
        return False
    if isinstance(error, TimeoutError | ConnectionError | EOFError | StepTimeout | asyncio.CancelledError):
        return True
    return any(kind.__name__ in _LOST_CONNECTION_ERRORS for kind in type(error).__mro__)


def _encode_tail(mark: str, attempt: int) -> bytes:
    args = b',"args":"%b"' % mark.encode() if mark else b""
    return args + (b',"attempts":%d}' % attempt if attempt > 1 else b"}")
