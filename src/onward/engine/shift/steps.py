"""Steps: run once and recorded, handed out from the record after that; tried again, timed out, announced, in doubt.

What happens to a step depends on what it says of its effect:

    nothing, "read", "idempotent"   run again when nobody knows whether it ran: one write, after it
    reconcile=…                     asked whether it happened, before it is run again: one write, after it
    "once"                          announced before it starts; when its end is unknown a person is asked: two writes
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
from onward.core.retry import HOPELESS
from onward.core.secret import SecretMissing
from onward.core.task import NEVER, Reason
from onward.engine.context.arguments import is_async, revived
from onward.engine.context.host import Call
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.replay import STEPS, Known, failure_of
from onward.engine.shift.scope import SCOPE, Scope, refuse
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.timeout import bounded
from onward.engine.shift.waits import Waits
from onward.errors import OnwardError, StepFailed, StepTimeout, TimeUp
from onward.store.writer import MAX_UNSAVED_BYTES

_LOST = frozenset(
    {"ConnectionError", "ClientConnectionError", "ConnectionClosed", "Timeout", "TransportError", "APIConnectionError"}
)
"""Names under which HTTP and database libraries raise "I do not know whether it arrived"."""


class _NotBegun(Exception):
    """The function of a step was not called: the shift was told to stop before."""


class Steps:
    """The steps of one shift."""

    def __init__(self, desk: WorkerServices, pen: ShiftJournal, waits: Waits) -> None:
        self._desk, self._pen, self._waits = desk, pen, waits
        self._writer, self._lease, self._monotonic = pen.writer, pen.lease, pen.monotonic

    async def begin(self, scope: Scope, call: Call) -> Known | None:
        """What the journal has of this step, or its beginning."""
        if scope.key is not None:
            refuse(call.name, scope.key)
        key = scope.prefix + scope.next(call.name)
        known = self._pen.next(scope, key, STEPS, call.mark)
        if known is None:
            await self._pen.may_go_on()
            scope.key, scope.since, scope.told = key, self._monotonic(), True
        return known

    async def run(self, call: Call) -> Any:
        """The recorded result of the step, or the result of running it now, recorded."""
        scope, pen = SCOPE.get(), self._pen
        if scope.key is not None:
            refuse(call.name, scope.key)
        key = scope.prefix + scope.next(call.name)
        known, attempt = None, 1
        if not pen.plain:
            known = pen.next(scope, key, STEPS, call.mark)
            if known is not None and known.over:
                return self.recorded(scope, call, known)
            attempt = pen.replay.failures(key) + 1
            if known is not None and pen.stop is not None and "verdict" in known.data:
                return await self._answered(scope, call, known)
        started = self._monotonic()
        if not pen.plain or started >= self._lease.until or pen.hold.unsaved > MAX_UNSAVED_BYTES:
            await pen.may_go_on()
        scope.key, scope.since, scope.told = key, started, False
        try:
            if call.effect == "once" or call.reconcile is not None or known is not None:
                value, data = await self._with_care(scope, call, attempt, known)
            else:
                try:  # the common case, without a detour
                    if call.timeout is None and is_async(call.function):
                        value = await call.function(*call.args, **call.kwargs)
                    else:
                        value = await self._call(call, key)
                    value, data = self.kept(scope, call, attempt, value)
                except Control:
                    raise
                except BaseException as error:
                    value, data = await self._attempts(scope, call, attempt, error)
            scope.resumed = False
            scope.told = True  # while its result is being saved it is too late to tell of its start
            written = self._writer.append(pen.hold, r.STEP_DONE, key, data)
            seq = pen.hold.seq
            await written
        except Fenced as fenced:
            raise pen.end(fenced) from None
        finally:
            scope.key, scope.announced = None, False
        if call.undo is not None and scope.saga is not None:
            scope.saga.owe(seq, key, call, value)
        return value

    def recorded(self, scope: Scope, call: Call, known: Known) -> Any:
        """The result, or the failure, that the journal has."""
        if known.kind == r.STEP_FAILED:
            raise known.failure()
        try:
            value = revived(call.function, known.data["result"], self._desk.secrets.value)
        except ValueError as error:
            park = Park(f"the recorded result of step {known.key!r} is not what the code now says it returns: {error}")
            raise self._pen.end(park) from None
        except SecretMissing as missing:
            raise self._pen.end(Park(str(missing))) from None
        if call.undo is not None and scope.saga is not None:
            scope.saga.owe(known.seq, known.key, call, value)
        return value

    def kept(self, scope: Scope, call: Call, attempt: int, value: Any) -> tuple[Any, bytes]:
        """The value as a replay would see it, and the record of it."""
        result = wire.encode(value, "its result")
        took = int((self._monotonic() - scope.since) * 1000)
        head = b'{"ms":%d,"result":' % took if took else b'{"ms":0,"result":'
        tail = b"}" if attempt == 1 and not call.mark else _extras(call.mark, attempt)
        same = wire.same_as_recorded(value, result)
        if same is not value:
            same = revived(call.function, same, self._desk.secrets.value)
        return same, head + result + tail

    # ── attempts ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _attempts(self, scope: Scope, call: Call, attempt: int, error: BaseException) -> tuple[Any, bytes]:
        """The attempts after one that failed."""
        assert scope.key is not None
        while True:
            if self._pen.leaving(error):
                raise error
            attempt = await self.failed(scope, call, attempt, error)
            try:
                return self.kept(scope, call, attempt, await self._call(call, scope.key))
            except Control:
                raise
            except BaseException as another:
                error = another

    async def _call(self, call: Call, key: str) -> Any:
        until: float | None = getattr(call.function, "until", None)
        left = math.inf if until is None else until - self._desk.now()
        if left <= 0:
            raise TimeUp(f"{call.name} was not started")
        if call.timeout is None:
            return await self._bare(call)
        late: OnwardError = StepTimeout(key, call.timeout)
        if left < call.timeout and getattr(call.function, "cut", False):
            late = TimeUp(f"{call.name} was cut off")
            return await bounded(self._bare(call), self._desk.clock, left, lambda: late)
        return await bounded(self._bare(call), self._desk.clock, call.timeout, lambda: late)

    async def _bare(self, call: Call) -> Any:
        if is_async(call.function):
            return await call.function(*call.args, **call.kwargs)
        try:
            answer = await self._desk.threads.run(self._in_thread, call.function, call.args, call.kwargs)
        except _NotBegun:
            await self._may_begin()
            raise
        return await answer if inspect.isawaitable(answer) else answer

    def _in_thread(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The function, in its thread. That may have come a while after the step was asked for, and the shift was told to stop since."""
        if isinstance(self._pen.why, Control):
            raise _NotBegun
        return function(*args, **kwargs)

    async def _may_begin(self) -> None:
        """Raises what stopped the task while its step was about to begin (a pause, a worker that stops). Then it does not begin, and what
        was announced for it is not in doubt."""
        scope = SCOPE.get()
        try:
            await self._pen.may_go_on()
        except BaseException:
            if scope.announced and scope.key is not None and not self._pen.hold.gone:
                self._pen.mention(
                    r.STEP_WAITS, scope.key, {"reason": Reason.QUEUED, "why": "it was stopped before it began"}
                )
            raise

    async def failed(self, scope: Scope, call: Call, attempt: int, error: BaseException) -> int:
        """Record the failure and raise it, or wait for the next attempt; its number."""
        assert scope.key is not None
        if isinstance(error, NotNow):
            return await self._not_now(scope.key, attempt, error)
        told = wire.error_value(error) | {"attempts": attempt}
        pause = call.retry.pause(attempt, error, self._desk.rng)
        if pause is None:
            told |= {"fatal": True} if isinstance(error, HOPELESS) else {}
            await self._pen.append(r.STEP_FAILED, scope.key, wire.encode({"error": told, "args": call.mark}))
            raise StepFailed(scope.key, attempt, told["type"], told["message"]) from error
        until = self._desk.now() + pause
        self._pen.mention(r.STEP_RETRY, scope.key, {"error": told, "attempt": attempt, "due_at": until})
        await self._waits.pause(until, Reason.RETRYING)
        await self._pen.may_go_on()  # another attempt is as good as another step
        return attempt + 1

    async def _not_now(self, key: str, attempt: int, why: NotNow) -> int:
        """It could not begin: wait, and try the same attempt again."""
        until = {} if why.until == NEVER else {"due_at": why.until}
        self._pen.mention(r.STEP_WAITS, key, {"reason": why.reason, "why": why.why, **until, **why.said})
        await self._waits.pause(why.until, Reason(why.reason))
        await self._pen.may_go_on()
        return attempt

    # ── effects that are not safe to repeat ──────────────────────────────────────────────────────────────────────

    async def _with_care(self, scope: Scope, call: Call, attempt: int, known: Known | None) -> tuple[Any, bytes]:
        """An effect that must not happen twice."""
        assert scope.key is not None
        doubt = "" if known is None else "the worker that did it died before it could tell"
        if call.reconcile is not None and scope.resumed:
            doubt = "an earlier shift may have done it"
        verdict = {} if known is None else known.data.get("verdict", {})
        while True:
            if verdict or doubt:
                happened, value = await self._clear_up(scope, call, verdict, doubt)
                if happened:
                    return self.kept(scope, call, attempt, value)
                verdict, doubt = {}, ""
            if call.reconcile is None:
                await self._pen.append(r.ANNOUNCED, scope.key, wire.encode({"args": call.mark} if call.mark else {}))
                scope.told = scope.announced = True
            if self._pen.why is not None or self._monotonic() >= self._lease.until:
                await self._may_begin()
            crashpoint("effect.before")
            try:
                value = await self._call(call, scope.key)
                crashpoint("effect.after")
                return self.kept(scope, call, attempt, value)
            except Control:
                raise
            except BaseException as error:
                if self._pen.leaving(error):
                    raise
                if _unknown(error):
                    doubt = f"{type(error).__name__}: {error}"
                    if call.reconcile is not None:
                        await self._pen.may_go_on()
                    continue
                attempt = await self.failed(scope, call, attempt, error)

    async def _answered(self, scope: Scope, call: Call, known: Known) -> Any:
        """A person has said what became of an effect in doubt, and the task is being ended: nothing new begins, but what happened is
        recorded, so that a saga undoes it, and what is to be undone is."""
        verdict = known.data["verdict"]
        if verdict["name"] == "not_happened" or self._pen.why is not None or not self._lease.holds():
            await self._pen.may_go_on()  # raises what ends it
        scope.key, scope.since, scope.told = known.key, self._monotonic(), True
        try:
            if verdict["name"] == "undo":
                await self._undone_by_hand(scope, call)
            value, data = self.kept(scope, call, 1, verdict["value"])
            await self._pen.append(r.STEP_DONE, known.key, data)
        finally:
            scope.key = None
        if call.undo is not None and scope.saga is not None:
            scope.saga.owe(self._pen.hold.seq, known.key, call, value)
        return value

    async def _clear_up(self, scope: Scope, call: Call, verdict: dict[str, Any], doubt: str) -> tuple[bool, Any]:
        """Whether it happened, and with what result: by a person's word, by asking outside, or not known."""
        assert scope.key is not None
        if verdict.get("name") == "happened":
            return True, verdict["value"]
        if verdict.get("name") == "not_happened":
            return False, None
        if verdict.get("name") == "undo":
            await self._undone_by_hand(scope, call)
        if call.reconcile is None:
            raise self._pen.end(Doubt(scope.key, doubt, self._pen.replay.inbox))
        value = await self._bare(call.as_reconcile())
        return value is not None, value

    async def _undone_by_hand(self, scope: Scope, call: Call) -> NoReturn:
        assert scope.key is not None
        if call.undo is not None:
            try:
                await self._bare(call.as_undo(None))
            except Exception as error:
                self._pen.replay.undo_error = error
                raise
        told = {
            "type": "Undone",
            "message": "a person had it undone, as nobody knew whether it happened",
            "fatal": True,
            "attempts": 1,
        }
        await self._pen.append(r.STEP_FAILED, scope.key, wire.encode({"error": told, "args": call.mark}))
        self._pen.replay.undone = scope.key
        raise failure_of(scope.key, told)  # fatal: no retry of the task does again what was just taken back


def _unknown(error: BaseException) -> bool:
    """Whether the error leaves open what happened on the other side."""
    if isinstance(error, ConnectionRefusedError):
        return False
    if isinstance(error, TimeoutError | ConnectionError | EOFError | StepTimeout | asyncio.CancelledError):
        return True
    return any(kind.__name__ in _LOST for kind in type(error).__mro__)


def _extras(mark: str, attempt: int) -> bytes:
    args = b',"args":"%b"' % mark.encode() if mark else b""
    return args + (b',"attempts":%d}' % attempt if attempt > 1 else b"}")
