"""One shift: the stretch of a task done by one worker, from claim to letting go.

    read the journal ─► call the handler ─► its steps: known → handed out, new → run and recorded ─► settle

The shift is the Host under the handler's context. It ends in exactly one way, an `Ending`, which is a value: completed,
failed, tried again later, waiting, handed back, or lost to another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from onward.core import record as r
from onward.core import secret, wire
from onward.core.control import Cancel, Control, Doubt, Fenced, HandBack, Park, Suspend, Unheard
from onward.core.journal.checkpoint import EVERY_STEP, FORM, ON_STATE_CHANGE
from onward.core.task import NEVER, SAID, Reason, State
from onward.engine.context.arguments import is_async
from onward.engine.context.context import Context
from onward.engine.context.host import Call
from onward.engine.context.sync_context import PlainContext
from onward.engine.handlers import Handler
from onward.engine.shift.branches import Branches
from onward.engine.shift.environment import LAST
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.reads import PatientSteps
from onward.engine.shift.replay import Replay
from onward.engine.shift.resources import TaskResources
from onward.engine.shift.saga import Saga
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.steps import Steps
from onward.engine.shift.timeout import bounded
from onward.engine.shift.transaction import Transaction
from onward.engine.shift.waits import Wait as Waiting
from onward.engine.shift.waits import Waits
from onward.errors import (
    DeadlineExceeded,
    Denied,
    Expired,
    OnwardError,
    StepFailed,
    StoreUnavailable,
    UnfitCheckpoint,
    UsageError,
)
from onward.store.port.core import SUSPECT_AFTER, Claimed, End, Wait
from onward.store.writer import Hold
from onward.telemetry import DOING

log = logging.getLogger("onward.shift")

Ending = tuple[str, dict[str, Any], End | Wait]
"""The last record of a shift (kind, data) and what becomes of the task."""


SUBMITS = 100
"""Children that one task submits at the same time: what others of the process ask of the store does not wait behind all."""

_FAILURES = frozenset({r.FAILED, r.RETRY})
READS = 30.0
"""Seconds in which an agent whose deadline has passed reads its journal for the best result so far."""


class Shift(TaskResources):
    """One claimed task being done."""

    pen = ShiftJournal
    waits = Waits
    settling = False
    over = False
    submitting = 0
    """Children that are on their way into the store."""
    _branches: Branches | None = None
    _submits: asyncio.Semaphore | None = None
    _versions: dict[str, bool] | None = None

    def __init__(self, desk: WorkerServices, claimed: Claimed, handler: Handler) -> None:
        self._desk, self._claimed, self._handler = desk, claimed, handler
        self.task_id, self.attempt, self.rng = claimed.id, claimed.attempt, desk.rng
        self.effects_of = claimed.id
        self.parent = claimed.parent
        self.hold = Hold(claimed.id, claimed.shift, claimed.shift, at=claimed.claimed_at, gate=claimed.gate)
        self.began = desk.clock.monotonic()
        self._options: dict[str, Any] = wire.decode(claimed.options)
        self._allowed: float | None = self._options.get("deadline", handler.deadline)
        self._root = Scope()
        self._root.resumed = claimed.shift > 2
        self._pen = self.pen(desk, self.hold)
        self._waits = self.waits(desk, self._pen, claimed.id, claimed.inbox)
        at_once = handler.checkpoint.strategy == EVERY_STEP
        self._steps = (Steps if at_once else PatientSteps)(desk, self._pen, self._waits)
        self.run = self._steps.run

    # ── from claim to settle ─────────────────────────────────────────────────────────────────────────────────────

    async def work(self) -> None:
        """Do the shift, whatever comes."""
        self._pen.task = asyncio.current_task()
        SCOPE.set(self._root)
        DOING.set(self._claimed)
        try:
            await self._settle(*await self._ending())
        except Fenced:
            log.info(
                "task %s: another worker went on with it, or it was cancelled; its work here is dropped", self.task_id
            )
        finally:
            self.over = True
            self._waits.close()
            self._pen.forget()
            if self._keyring is not None:
                self._keyring.close()

    async def _ending(self) -> Ending:
        """How the shift ends: its last record and what becomes of the task."""
        if self._claimed.crashes > SUSPECT_AFTER and (idle := await self._idle_shifts()) > SUSPECT_AFTER:
            why = f"it ended its worker {idle} times in a row, the last time alone"
            return self._waiting(r.QUARANTINED, Reason.QUARANTINED, why)
        try:
            await self._read_journal()
            if isinstance(self._pen.why, Control):  # the worker began to stop before the handler was called
                raise self._pen.end(self._pen.why)
            result = await self._in_time()
            self._check_returned()
        except BaseException as error:
            cause = self._cause(error)
            return self._undo_ending(cause) if self._pen.replay.undoing else self._left_by(cause)
        return r.COMPLETED, {**self._used(), "result": result}, self._end(State.COMPLETED, self._waits.heard)

    def _check_returned(self) -> None:
        if self._pen.ended_by is not None:
            log.warning(
                "task %s: its handler caught %s and returned; it should let it pass",
                self.task_id,
                type(self._pen.ended_by).__name__,
            )
            raise self._pen.ended_by
        if self._pen.stop is not None:
            raise self._pen.stop
        if left := self._pen.replay.leftover():
            raise Park(_unasked("returned", left))

    def _cause(self, error: BaseException) -> BaseException:
        """Why the handler was left: a cancellation is only the messenger of what the worker or the clock had to say."""
        pen = self._pen
        if pen.ended_by is not None:
            return pen.ended_by
        if isinstance(error, asyncio.CancelledError):
            if pen.why is not None:
                return pen.why
            if pen.task is not None and pen.task.cancelling():
                raise error
        return error

    def _left_by(self, error: BaseException) -> Ending:
        match error:
            case Suspend():
                wait = Wait(self.task_id, error.due_at, error.reason, self.attempt, error.inbox)
                return r.HANDED_BACK, {"reason": error.reason}, wait
            case HandBack():
                return r.HANDED_BACK, {"reason": "handed back"}, Wait(self.task_id, None, Reason.QUEUED, self.attempt)
            case Park() | UnfitCheckpoint() if isinstance(self._pen.why, DeadlineExceeded) and not self._pen.sagas:
                return self._failure(self._pen.why)  # the journal was only read for what the task had by then
            case Park() | UnfitCheckpoint():
                return self._waiting(r.PARKED, Reason.PARKED, str(error))
            case Doubt():
                log.warning("task %s: nobody knows whether step %r happened: %s", self.task_id, error.key, error.why)
                until = self._deadline_at() if self._pen.stop is None else NEVER
                wait = Wait(self.task_id, until, Reason.IN_DOUBT, self.attempt, error.inbox)
                return r.DOUBTED, {"step": error.key, "reason": error.why}, wait
            case Cancel():
                return r.CANCELLED, {**self._used(), **self._undone()}, self._end(State.CANCELLED)
            case Control():
                raise error
            case DeadlineExceeded() if self._pen.stop is None and (self._pen.sagas or self._pen.replay.owes_undo):
                return r.DEADLINE, {}, Wait(self.task_id, None, Reason.QUEUED, self.attempt)  # the next shift undoes
            case _:
                return self._failure(error)

    def _undo_ending(self, error: BaseException) -> Ending:
        """How a shift ends that only undoes an effect in doubt of another task, which has ended. Its handler always leaves by an
        exception: nothing new begins in it."""
        replay = self._pen.replay
        if isinstance(error, Control) and not isinstance(error, Cancel):
            return self._left_by(error)
        if replay.undone:
            result = {"undone": replay.undone, "of": replay.origin}
            return r.COMPLETED, {**self._used(), "result": result}, self._end(State.COMPLETED)
        if replay.undo_error is not None:
            return self._failure(replay.undo_error)
        why = f"it is to undo an effect of task {replay.origin}, and the code no longer comes to that step; it was changed under this task"
        return self._waiting(r.PARKED, Reason.PARKED, why)

    def _waiting(self, kind: str, reason: Reason, why: str) -> Ending:
        log.warning("task %s is %s: %s", self.task_id, reason, why)
        return kind, {"reason": why}, Wait(self.task_id, NEVER, reason, self.attempt)

    def _end(self, state: State, inbox: int | None = None) -> End:
        return End(self.task_id, state, self.attempt, 0, self._claimed.parent, inbox)

    def _undone(self) -> dict[str, Any]:
        """What the sagas took back on the way out, and what they could not."""
        told = {"undone": self._pen.undone, "not_undone": self._pen.not_undone}
        return {name: keys for name, keys in told.items() if keys}

    def _failure(self, error: BaseException) -> Ending:
        tried = error.attempts if isinstance(error, StepFailed) else self.attempt
        told = wire.error_value(error) | {"attempts": tried} | self._undone()
        # A failed step has been judged by its own policy; here the task's policy judges what the step died of.
        late = isinstance(error, DeadlineExceeded | Expired)
        pause = None if late else self._handler.retry.pause(self.attempt, _root(error), self.rng)
        if pause is None:
            if not late and (left := self._pen.replay.leftover()):
                why = _unasked(f"raised {told['type']}: {told['message']}", left)
                return self._waiting(r.PARKED, Reason.PARKED, why)
            if self.attempt > 1:
                told["message"] = f"{told['message']} (attempt {self.attempt} of the task)"
            partial = {} if self.partial is None else {"partial": self.partial}
            return r.FAILED, {**self._used(), "error": told, **partial}, self._end(State.FAILED)
        due = min(self.now() + pause, self._deadline_at())
        return (
            r.RETRY,
            {"error": told, "attempt": self.attempt, "due_at": due},
            Wait(self.task_id, due, Reason.RETRYING, self.attempt + 1),
        )

    async def _settle(self, kind: str, data: dict[str, Any], ending: End | Wait) -> None:
        self.settling = True
        writer = self._pen.writer
        if kind == r.FAILED and isinstance(self._pen.why, DeadlineExceeded):
            writer.mention(self.hold, r.DEADLINE, "", b"{}")
        try:
            await writer.settle(self.hold, kind, wire.encode(data, "the result of the task"), ending)
        except Unheard:  # the next shift comes to the same place, and reads it
            kind, ending = r.HANDED_BACK, Wait(self.task_id, None, Reason.QUEUED, self.attempt)
            await writer.settle(self.hold, kind, wire.encode({"reason": SAID}), ending)
            self._desk.store.nudge("ready", [self.task_id])
        except OnwardError as error:  # it is not JSON, or the database will not have it
            data = {"error": wire.error_value(error) | {"attempts": self.attempt}}
            kind, ending = r.FAILED, self._end(State.FAILED)
            await writer.settle(self.hold, r.FAILED, wire.encode({**self._used(), **data}), ending)
        self._told(kind, data, ending)
        if isinstance(ending, End):
            self._desk.store.nudge("ended")
            if ending.parent is not None:
                self._desk.store.nudge("ready", [ending.parent])
        elif ending.due_at is not None and ending.due_at < NEVER:
            self._desk.due(ending.due_at)
        elif kind == r.DEADLINE:
            self._desk.store.nudge("ready", [self.task_id])
        if self.hold.gate is not None:  # whoever waited for its place
            self._desk.store.nudge("ready")

    def _told(self, kind: str, data: dict[str, Any], _ending: End | Wait) -> None:
        """It is durable: say what those who run us have to know."""
        if kind in _FAILURES:
            level, what = (logging.ERROR, "failed") if kind == r.FAILED else (logging.WARNING, "is tried again")
            said = self.task_id, self._handler.name, what, data["error"]["type"], data["error"]["message"]
            log.log(level, "task %s (%s) %s: %s: %s", *said)

    # ── the handler ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _read_journal(self) -> None:
        replay = self._pen.replay
        if self._claimed.shift > 2:  # more than its submit is there
            records = await self._since_checkpoint(self.task_id)
            replay = Replay([record for record in records if record.seq <= self._claimed.shift])
        if replay.forked == self._claimed.shift - 1:  # no shift of this task has begun anything
            self._root.resumed = False
        if replay.checkpoint:
            self._handler.checkpoint.check_age(replay.checkpoint, self._claimed.claimed_at - replay.fresh_at)
            self._begin_at(replay.checkpoint)
        self.effects_of = replay.origin or self.task_id
        replay.started_at = replay.started_at or self._claimed.claimed_at
        self._pen.read(replay, self._allowed)
        self._waits.deadline = self._deadline_at()
        if self._handler.agent:
            self._waits.cut_at = self._time_of(LAST)
        await self._waits.read_first()

    async def _idle_shifts(self) -> int:
        """Shifts in a row before this one that left nothing behind. The store's count may be too high: a worker that was taken
        for dead can still write until another has claimed. Nothing is kept or decoded: the journal may be what kills."""
        idle, after = -1, 0
        while page := await self._page(after):
            for record in page:
                idle = idle + 1 if record.kind == r.SHIFT else idle if record.kind in r.NEWS else 0
            after = page[-1].seq
        return idle - 1

    def _in_time(self) -> Coroutine[Any, Any, Any]:
        """The handler, called; within its time when it has one."""
        expires, claimed = self._options.get("expires"), self._claimed
        if expires is not None and claimed.shift == 2 and claimed.claimed_at > claimed.created_at + expires:
            raise Expired(expires)
        deadline, call = self._deadline_at(), self._call_handler
        if self._pen.replay.approvals and self._pen.stop is None and not self._handler.agent:
            call = self._call_when_approved
        if deadline == NEVER or self._pen.stop is not None:  # what is owed is undone however long it takes
            return call()
        left = deadline - self.now()
        if left <= 0:
            late = self._too_late()
            if not self._handler.agent or claimed.shift <= 2:
                raise late
            # Nothing new begins any more; what the journal has tells the best result so far.
            return bounded(call(), self._desk.clock, READS, lambda: late)
        return bounded(call(), self._desk.clock, left, self._too_late)

    async def _call_when_approved(self) -> Any:
        """The handler of a fork, when everything that was approved in the task that it came from is approved anew: nobody knows what
        a handler does because of a yes. (An agent asks again for the very calls that are not done yet.)"""
        for number in self._pen.replay.approvals:
            page = functools.partial(self._desk.store.journal, self.task_id, number - 1, 1)
            (asked,) = await self._pen.patiently(page)
            message = await self._waits.ask_again(asked)
            late = {"decision": asked.value.get("default", "deny"), "reason": "nobody decided in time"}
            decided = late if message is None else message["value"]
            if decided["decision"] != "approve":
                raise Denied(str(asked.value["what"]), decided.get("reason") or "")
        return await self._call_handler()

    def _too_late(self) -> OnwardError:
        """The deadline has passed: whatever the handler is in the middle of learns it from here."""
        late = DeadlineExceeded(self._allowed or 0.0)
        self._pen.tell(late)
        return late

    def _call_handler(self) -> Coroutine[Any, Any, Any]:
        if secret.MARK in self._claimed.input or self._handler.takes.secrets:
            return self._call_with_secrets()
        args, kwargs = self._handler.arguments(wire.decode(self._claimed.input))
        context = Context(self)
        function = self._handler.function
        if is_async(function):
            return function(context, *args, **kwargs)  # type: ignore[no-any-return]
        plain = PlainContext(context, asyncio.get_running_loop())
        return self._in_thread(functools.partial(function, plain, *args, **kwargs))

    async def _call_with_secrets(self) -> Any:
        given = await self.keyring.given(wire.decode(self._claimed.input))
        args, kwargs = self._handler.arguments(given)
        context, function = Context(self), self._handler.function
        plain = None if is_async(function) else PlainContext(context, asyncio.get_running_loop())
        return await self.keyring.call(function, plain or context, *args, **kwargs)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        answer = await self._desk.threads.run(call)
        return await answer if inspect.isawaitable(answer) else answer

    # ── the Host under ctx (steps and branches have their own modules) ───────────────────────────────────────────

    def mention(self, data: dict[str, Any]) -> None:
        told = self._pen.replay.unread or self._pen.transacting  # what is replayed was told before
        if self._pen.ended_by is None and not told:
            self._pen.mention(r.PROGRESS, "", data)

    async def wait(self, kind: str, name: str, data: dict[str, Any], timeout: float | None) -> dict[str, Any] | None:
        return await self._waits.wait(Waiting(kind, name, data, timeout))

    async def messages(self, *, last: bool = False) -> list[Any]:
        return await self._waits.messages(last=last)

    async def gather(
        self, makers: Sequence[Callable[[], Awaitable[Any]]], *, limit: int | None, return_exceptions: bool
    ) -> list[Any]:
        self._branches = self._branches or Branches(self._pen, self._waits)
        return await self._branches.gather(makers, limit=limit, return_exceptions=return_exceptions)

    def inherits(self, *, anywhere: bool = False) -> bool:
        return self._pen.replay.inherits(None if anywhere else SCOPE.get().prefix)

    @property
    def forked(self) -> bool:
        return self._pen.replay.forked > 0

    def saga(self, name: str, *, whole: bool = False) -> Saga:
        return Saga(self._pen, self._steps, name, whole=whole)

    async def child(self, name: str, value: Any, options: dict[str, Any]) -> str:
        call = Call(f"submit {name}", functools.partial(self._start_child, name, value, options))
        call.mark = wire.fingerprint([value, {k: v for k, v in options.items() if k != "connection"}])
        return str(await self._steps.run(call))

    async def _start_child(self, name: str, value: Any, options: dict[str, Any]) -> str:
        # An agent has to answer with what its children came to: they end while it has time left for that.
        deadline = self._time_of(LAST) if self._handler.agent else self._deadline_at()
        beside: dict[str, Any] = {"tenant": self._options.get("tenant"), "trace": self._options.get("trace")}
        beside |= {"purses": budgets} if (budgets := self._budgets()) else {}
        scope = SCOPE.get()
        key = f"{self.task_id}:{scope.key}"
        until = None if deadline == NEVER else deadline
        self._submits = self._submits or asyncio.Semaphore(SUBMITS)
        scope.told = True  # watchers hear of a submit that takes its time, not of one that waits for its turn
        async with self._submits:
            await self._pen.may_go_on()  # the task may have been paused while this one waited for its turn
            scope.since, scope.told = self._desk.clock.monotonic(), False
            self.submitting += 1
            try:
                return await self._desk.submit(name, value, {**options, **beside}, key, self.task_id, until)
            finally:
                self.submitting -= 1

    async def version(self, name: str) -> bool:
        scope, pen = SCOPE.get(), self._pen
        key = f"{scope.prefix}version {name}"
        if name in pen.replay.decided:
            return pen.replay.decided[name]
        self._versions = self._versions or {}
        if key not in self._versions:
            known = key in pen.replay.versions
            self._versions[key] = new = known or not pen.replay.ahead(scope.path)
            if new and not known:
                await pen.may_go_on()
                pen.mention(r.VERSION, key, {})
        return self._versions[key]

    async def patches(self) -> list[Any]:
        return await self._waits.patches()

    async def note(self, kind: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        told = await self._pen.note(kind, name, data)
        if self._handler.checkpoint.strategy == ON_STATE_CHANGE and any(told.values()):
            await self._pen.flushed()
        return told

    @property
    def restored(self) -> Any:
        return self._pen.replay.restored

    async def checkpoint(self, value: Any) -> None:
        scope, pen = SCOPE.get(), self._pen
        if scope is not self._root or scope.key is not None:
            raise UsageError(
                "a checkpoint stands in the handler's own line: outside of steps, sagas and branches, where nothing is open"
            )
        await pen.may_go_on()
        pen.check(pen.replay.check_last, f"{scope.prefix}checkpoint")
        replay, number = pen.replay, pen.replay.checkpoint + 1
        decided = {key.partition("version ")[2]: new for key, new in (self._versions or {}).items()}
        replay.decided = {**replay.decided, **decided}
        told = {
            "form": FORM,
            "number": number,
            "value": value,
            "inbox": replay.inbox,
            "messages": replay.mail.all(),
            "started_at": replay.started_at,
            "versions": replay.decided,
        }
        pen.mention(r.CHECKPOINT, "", told)
        replay.begins, replay.checkpoint, replay.restored = pen.hold.seq, number, value
        self._begin_at(number)
        await self._rotate()

    async def _rotate(self) -> None:
        """What the handler wants of its older checkpoints, now that there is another."""
        said, store = self._handler.checkpoint, self._desk.store
        if said.strategy != EVERY_STEP or said.keep is not None:
            await self._pen.flushed()
        if said.keep is not None:
            with contextlib.suppress(StoreUnavailable):  # the next checkpoint comes to it
                await store.pruning.trim(self.task_id, said.keep, said.dropped_before(self.now()))

    def _begin_at(self, checkpoint: int) -> None:
        """From here on the names of steps begin anew."""
        resumed, self._root = self._root.resumed, Scope(f"@{checkpoint}")
        self._root.resumed = resumed
        SCOPE.set(self._root)

    def transaction(self, call: Call) -> Transaction:
        return Transaction(self._desk, self._pen, self._steps, self._waits, call)

    # ── what the worker does to a shift ──────────────────────────────────────────────────────────────────────────

    @property
    def handler_name(self) -> str:
        return self._handler.name

    @property
    def suspected(self) -> bool:
        """Whether the task runs alone, because it ended or blocked its worker before."""
        return self._claimed.crashes >= SUSPECT_AFTER

    def announce(self, after: float) -> None:
        """Tell watchers about steps that take their time. A quick one is told by its result alone, in one write."""
        for scope in (self._root, *(self._branches.scopes if self._branches else ())):
            if (
                scope.key is not None
                and not scope.told
                and not self.hold.lost
                and self._desk.clock.monotonic() - scope.since > after
            ):
                scope.told = True
                with contextlib.suppress(Fenced):
                    self._pen.writer.mention(self.hold, r.STEP_STARTED, scope.key, b"{}")

    def stop(self, why: Control, *, now: bool) -> None:
        """End the shift at its next step, or at once."""
        self._pen.tell(why)
        if now and self._pen.task is not None and not self.settling and not self.over:
            self._pen.task.cancel()


def _unasked(how: str, step: str) -> str:
    return f"the handler {how} without asking for step {step!r}, which the journal has; it was changed under this task"


def _root(error: BaseException) -> BaseException:
    return error.__cause__ if isinstance(error, StepFailed) and error.__cause__ is not None else error
