"""One shift: the stretch of a task that one worker does, from claim to release.

    read the journal ─► call the handler ─► its steps: known → from the record, new → run and recorded ─► settle

The shift is the Host under the handler's context. It ends in exactly one way, an `Ending`, which is a value: completed,
failed, retried later, waiting, handed back, or lost to another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from onward.core import record as r
from onward.core import secret, wire
from onward.core.control import Cancel, Control, Doubt, Fenced, HandBack, Park, Suspend, Unheard
from onward.core.epoch import CAUSE, lost_from
from onward.core.journal.checkpoint import EVERY_STEP, ON_STATE_CHANGE
from onward.core.lock import without_fences
from onward.core.sealed import ENCRYPTED_TEXT, NO_KEY
from onward.core.task import NEVER, SAID, Reason, State
from onward.engine.context.approvals import approved
from onward.engine.context.arguments import is_async
from onward.engine.context.call import Call
from onward.engine.context.context import CURRENT, Context
from onward.engine.context.sync_context import SyncContext
from onward.engine.context.unawaited import Unawaited
from onward.engine.handlers import Handler
from onward.engine.shift.branches import Branches, NamedBranch
from onward.engine.shift.environment import LAST_ANSWER_SHARE
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.locks import LockBlock
from onward.engine.shift.reads import DeferringSteps
from onward.engine.shift.replay import Replay
from onward.engine.shift.resources import JOURNAL_PAGE_SIZE, TaskResources
from onward.engine.shift.rolling import pass_on
from onward.engine.shift.saga import Saga
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.steps import Steps
from onward.engine.shift.timeout import run_with_timeout
from onward.engine.shift.transaction import Transaction
from onward.engine.shift.waits import WaitRequest, Waits
from onward.errors import (
    DeadlineExceeded,
    EncryptionKeyMissing,
    Expired,
    OnwardError,
    StepFailed,
    StoreUnavailable,
    UnfitCheckpoint,
    UsageError,
)
from onward.store.port.core import SUSPECT_AFTER, Claimed, End, Wait
from onward.store.port.paging import journal_pages
from onward.store.writer import Hold
from onward.telemetry import CURRENT_TASK

log = logging.getLogger("onward.shift")

Ending = tuple[str, dict[str, Any], End | Wait]
"""The last record of a shift (kind, data) and what becomes of the task."""

MAX_CONCURRENT_SUBMITS = 100
"""Children that one task submits at the same time, so that other queries of the process do not wait behind all of them."""

PARTIAL_RESULT_TIMEOUT_S = 30.0
"""Seconds in which an agent whose deadline has passed reads its journal for the best result so far."""

KEY_RETRY_S = 30.0
"""Seconds after which a task is tried again whose payloads the worker could not decrypt."""

_FAILURES = frozenset({r.FAILED, r.RETRY})


class Shift(TaskResources):
    """One claimed task while a worker does it."""

    settling: bool = False
    """Whether the last record is on its way into the store."""
    over: bool = False
    submitting: int = 0
    """Children that are on their way into the store."""
    _unawaited: Unawaited | None = None
    _branches: Branches | None = None
    _submit_slots: asyncio.Semaphore | None = None
    _versions: dict[str, bool] | None = None
    """What `ctx.version` returned in this shift, by key."""

    def __init__(self, services: WorkerServices, claimed: Claimed, handler: Handler) -> None:
        self._services, self._claimed, self._handler = services, claimed, handler
        self.task_id: str = claimed.id
        self.attempt: int = claimed.attempt
        self.rng: random.Random = services.rng
        self.effects_of: str = claimed.id
        self.parent: str | None = claimed.parent
        self.hold: Hold = Hold(claimed.id, claimed.shift, claimed.shift, at=claimed.claimed_at, gate=claimed.gate)
        self.began: float = services.clock.monotonic()
        self._options: dict[str, Any] = wire.decode(claimed.options)
        self._allowed: float | None = self._options.get("deadline", handler.deadline)
        self._root = Scope()
        self._root.resumed = claimed.shift > 2
        self._journal = self._make_journal()
        self._waits = self._make_waits()
        steps = Steps if handler.checkpoint.strategy == EVERY_STEP else DeferringSteps
        self._steps = steps(services, self._journal, self._waits)

    def _make_journal(self) -> ShiftJournal:
        return ShiftJournal(self._services, self.hold, self._options.get("tenant"))

    def _make_waits(self) -> Waits:
        return Waits(self._services, self._journal, self._claimed.id, self._claimed.inbox, self._handler.name)

    # ── what the worker does with a shift ────────────────────────────────────────────────────────────────────────

    async def work(self) -> None:
        """Do the shift, from the first read of the journal to the last record."""
        self._journal.task = asyncio.current_task()
        SCOPE.set(self._root)
        CURRENT_TASK.set(self._claimed)
        try:
            kind, data, ending = await self._run_to_ending()
            if kind == r.PARKED:
                why = self._may_log(data["reason"])
                passed = await pass_on(self._services, self._claimed, self.attempt, self._journal.replay, why)
                kind, data, ending = passed or (kind, data, ending)
            await self._settle(kind, data, ending)
        except Fenced:
            log.info(
                "task %s: another worker went on with it, or it was cancelled; its work here is dropped", self.task_id
            )
        finally:
            self.over = True
            CURRENT.set(None)  # the shift has the asyncio task, which has this variable
            self._waits.close()
            self._journal.drop_tracebacks()
            if self._keyring is not None:
                self._keyring.close()

    def stop(self, why: Control, *, now: bool) -> None:
        """End the shift at its next step, or at once."""
        self._journal.interrupt(why)
        if now and self._journal.task is not None and not self.settling and not self.over:
            self._journal.task.cancel()

    def announce(self, after: float) -> None:
        """Record the start of steps that have run for `after` seconds. A quick step has one record only, its result."""
        for scope in (self._root, *(self._branches.scopes if self._branches else ())):
            if (
                scope.key is not None
                and not scope.reported
                and not self.hold.lost
                and self._services.clock.monotonic() - scope.started_at > after
            ):
                scope.reported = True
                with contextlib.suppress(Fenced):
                    self._journal.writer.mention(self.hold, r.STEP_STARTED, scope.key, b"{}")

    @property
    def handler_name(self) -> str:
        return self._handler.name

    @property
    def suspected(self) -> bool:
        """Whether the task runs alone, because it ended or blocked its worker before."""
        return self._claimed.crashes >= SUSPECT_AFTER

    # ── from claim to ending ─────────────────────────────────────────────────────────────────────────────────────

    async def _run_to_ending(self) -> Ending:
        """Run the handler; returns how the shift ends."""
        if self._claimed.crashes > SUSPECT_AFTER and (idle := await self._count_idle_shifts()) > SUSPECT_AFTER:
            why = f"it ended its worker {idle} times in a row, the last time alone"
            return self._wait_for_person(r.QUARANTINED, Reason.QUARANTINED, why)
        try:
            await self._read_journal()
            if isinstance(self._journal.interruption, Control):  # the worker began to stop before the call
                raise self._journal.end(self._journal.interruption)
            result = await self._run_handler_in_time()
            self._check_returned()
            result = self._handler.dump_result(result)
        except BaseException as error:
            cause = self._exit_cause(error)
            return self._undo_ending(cause) if self._journal.replay.undoing else self._ending_for(cause)
        return r.COMPLETED, {**self._usage_data(), "result": result}, self._end(State.COMPLETED, self._waits.last_read)

    async def _count_idle_shifts(self) -> int:
        """Shifts in a row before this one that recorded nothing. The store's count may be too high: a worker that was taken for
        dead can still write until another has claimed. Nothing is kept or decoded: the journal may be what kills the worker."""
        idle = -1
        async for page in journal_pages(self._read_page, self.task_id, 0, JOURNAL_PAGE_SIZE):
            for record in page:
                idle = idle + 1 if record.kind == r.SHIFT else idle if record.kind in r.NEWS else 0
        return idle - 1

    async def _read_journal(self) -> None:
        replay, lost = self._journal.replay, lost_from(self._options.get("lost"))  # its parent or schedule lost time
        if self._claimed.shift > 2:  # more than its submit is there
            records = await self._read_since_checkpoint(self.task_id)
            replay = Replay([record for record in records if record.seq <= self._claimed.shift], lost)
        elif lost is not None:
            replay.lost = lost
        if replay.forked == self._claimed.shift - 1:  # no shift of this task has begun anything
            self._root.resumed = False
        if replay.checkpoint:
            self._handler.checkpoint.check_age(replay.checkpoint, self._claimed.claimed_at - replay.fresh_at)
            self._begin_at(replay.checkpoint)
        self.effects_of = replay.origin or self.task_id
        replay.started_at = replay.started_at or self._claimed.claimed_at
        self._journal.load(replay, self._allowed)
        self.hold.locks = replay.in_lock
        self._waits.deadline = self._deadline_at()
        if self._handler.agent:
            self._waits.cut_at = self._time_of(LAST_ANSWER_SHARE)
        if self._waits.begin():
            await self._waits.read_claimed_messages()
        CAUSE.set(replay.lost)

    def _begin_at(self, checkpoint: int) -> None:
        """Begin a new root scope at a checkpoint: from here on the names of steps are counted anew."""
        resumed, self._root = self._root.resumed, Scope(f"@{checkpoint}")
        self._root.resumed = resumed
        SCOPE.set(self._root)

    def _run_handler_in_time(self) -> Coroutine[Any, Any, Any]:
        """Call the handler, within its deadline when it has one."""
        expires, claimed = self._options.get("expires"), self._claimed
        if expires is not None and claimed.shift == 2 and claimed.claimed_at > claimed.created_at + expires:
            raise Expired(expires)
        deadline, call = self._deadline_at(), self._call_handler
        if self._journal.replay.approvals and self._journal.recorded_stop is None and not self._handler.agent:
            call = self._call_when_approved
        if deadline == NEVER or self._journal.recorded_stop is not None:  # undo steps run however long they take
            return call()
        left = deadline - self.now()
        if left <= 0:
            late = self._exceed_deadline()
            if not self._handler.agent or claimed.shift <= 2:
                raise late
            # Nothing new begins any more; the replay finds the best result so far.
            return run_with_timeout(call(), self._services.clock, PARTIAL_RESULT_TIMEOUT_S, lambda: late)
        return run_with_timeout(call(), self._services.clock, left, self._exceed_deadline)

    def _exceed_deadline(self) -> OnwardError:
        """Interrupt the handler because its deadline has passed; returns the error."""
        late = DeadlineExceeded(self._allowed or 0.0)
        self._journal.interrupt(late)
        return late

    async def _call_when_approved(self) -> Any:
        """Call the handler of a fork when all approvals of the original task are given anew: its code may do anything because of
        an approval. (An agent asks again for exactly the calls that are not done yet.)"""
        for number in self._journal.replay.approvals:
            page = functools.partial(self._services.store.journal, self.task_id, number - 1, 1)
            (approval,) = await self._journal.retry_store(page)
            message = await self._waits.ask_again(approval)
            approved(str(approval.value["what"]), message, approval.value.get("default", "deny"))
        return await self._call_handler()

    def _call_handler(self) -> Coroutine[Any, Any, Any]:
        if secret.MARK in self._claimed.input or self._handler.takes.secrets:
            return self._call_with_secrets()
        args, kwargs = self._handler.arguments(wire.decode(self._claimed.input))
        context, function = self._make_context(), self._handler.function
        if isinstance(context, Context):
            return function(context, *args, **kwargs)  # type: ignore[no-any-return]
        return self._call_in_thread(functools.partial(function, context, *args, **kwargs))

    async def _call_with_secrets(self) -> Any:
        given = await self.keyring.given(wire.decode(self._claimed.input))
        args, kwargs = self._handler.arguments(given)
        return await self.keyring.call(self._handler.function, self._make_context(), *args, **kwargs)

    def _make_context(self) -> Context | SyncContext:
        context = Context(self)
        self._unawaited = context._unawaited
        if is_async(self._handler.function):
            CURRENT.set(context)
            return context
        return SyncContext(context, asyncio.get_running_loop())

    async def _call_in_thread(self, call: Callable[[], Any]) -> Any:
        result = await self._services.threads.run(call)
        return await result if inspect.isawaitable(result) else result

    def _check_returned(self) -> None:
        """Raise what the handler hid by returning: the end of the shift, a stop, or records that it did not ask for."""
        if self._journal.ended_by is not None:
            log.warning(
                "task %s: its handler caught %s and returned; it should let it pass",
                self.task_id,
                type(self._journal.ended_by).__name__,
            )
            raise self._journal.ended_by
        if self._journal.recorded_stop is not None:
            raise self._journal.recorded_stop
        if unread := self._journal.replay.first_unread():
            raise Park(_unread_reason("returned", unread))
        if self._unawaited is not None:
            self._unawaited.check()

    def _exit_cause(self, error: BaseException) -> BaseException:
        """Why the handler was left: behind a cancellation is the reason of the worker or of the deadline."""
        journal = self._journal
        if journal.ended_by is not None:
            return journal.ended_by
        if isinstance(error, asyncio.CancelledError):
            if journal.interruption is not None:
                return journal.interruption
            if journal.task is not None and journal.task.cancelling():
                raise error
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:  # of a TaskGroup in the handler
            error = error.exceptions[0]
        return error

    # ── endings ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _ending_for(self, error: BaseException) -> Ending:
        """How a shift ends whose handler was left by this exception."""
        match error:
            case Suspend():
                wait = Wait(self.task_id, error.due_at, error.reason, self.attempt, error.inbox)
                return r.HANDED_BACK, {"reason": error.reason}, wait
            case HandBack():
                return r.HANDED_BACK, {"reason": "handed back"}, Wait(self.task_id, None, Reason.QUEUED, self.attempt)
            case EncryptionKeyMissing():
                return self._leave_to_others(error)
            case Park() | UnfitCheckpoint() if (
                isinstance(self._journal.interruption, DeadlineExceeded) and not self._journal.sagas
            ):
                return self._failure_ending(self._journal.interruption)  # it only read the journal for a partial result
            case Park() | UnfitCheckpoint():
                return self._wait_for_person(r.PARKED, Reason.PARKED, str(error))
            case Doubt():
                why = self._may_log(error.why)
                log.warning("task %s: it is unknown whether step %r happened: %s", self.task_id, error.key, why)
                until = self._deadline_at() if self._journal.recorded_stop is None else NEVER
                wait = Wait(self.task_id, until, Reason.IN_DOUBT, self.attempt, error.inbox)
                return r.DOUBTED, {"step": error.key, "reason": error.why}, wait
            case Cancel():
                return r.CANCELLED, {**self._usage_data(), **self._undo_data()}, self._end(State.CANCELLED)
            case Control():
                raise error
            case DeadlineExceeded() if self._journal.recorded_stop is None and (
                self._journal.sagas or self._journal.replay.owes_undo
            ):
                return r.DEADLINE, {}, Wait(self.task_id, None, Reason.QUEUED, self.attempt)  # the next shift undoes
            case _:
                return self._failure_ending(error)

    def _undo_ending(self, error: BaseException) -> Ending:
        """How a shift ends that only undoes an effect in doubt of another task, which has ended. Its handler always leaves by an
        exception, because nothing new begins in it."""
        replay = self._journal.replay
        if isinstance(error, EncryptionKeyMissing) or (isinstance(error, Control) and not isinstance(error, Cancel)):
            return self._ending_for(error)
        if replay.undone:
            result = {"undone": replay.undone, "of": replay.origin}
            return r.COMPLETED, {**self._usage_data(), "result": result}, self._end(State.COMPLETED)
        if replay.undo_error is not None:
            return self._failure_ending(replay.undo_error)
        why = f"it is to undo an effect of task {replay.origin}, and the code no longer comes to that step; it was changed under this task"
        return self._wait_for_person(r.PARKED, Reason.PARKED, why)

    def _failure_ending(self, error: BaseException) -> Ending:
        """A failure of the task, or another attempt later."""
        failure = wire.error_value(error) | {"attempts": self.attempt} | _step_data(error) | self._undo_data()
        # A failed step has been judged by its own policy; here the task's policy judges the cause of that failure.
        late = isinstance(error, DeadlineExceeded | Expired)
        pause = None if late else self._handler.retry.pause(self.attempt, _root_cause(error), self.rng)
        if pause is None:
            if not late and (unread := self._journal.replay.first_unread()):
                why = _unread_reason(f"raised {failure['type']}: {failure['message']}", unread)
                return self._wait_for_person(r.PARKED, Reason.PARKED, why)
            if self.attempt > 1:
                failure["message"] = f"{failure['message']} (attempt {self.attempt} of the task)"
            partial = {} if self.partial is None else {"partial": self.partial}
            return r.FAILED, {**self._usage_data(), "error": failure, **partial}, self._end(State.FAILED)
        due = min(self.now() + pause, self._deadline_at())
        return (
            r.RETRY,
            {"error": failure, "attempt": self.attempt, "due_at": due},
            Wait(self.task_id, due, Reason.RETRYING, self.attempt + 1),
        )

    def _leave_to_others(self, error: EncryptionKeyMissing) -> Ending:
        """The task waits for a worker that has the key of its payloads, and has not failed."""
        log.error("task %s waits: this worker has not the encryption key %r", self.task_id, error.key_id)
        wait = Wait(self.task_id, self.now() + KEY_RETRY_S, Reason.DELAYED, self.attempt)
        return r.HANDED_BACK, {"reason": NO_KEY, "key": error.key_id}, wait

    def _may_log(self, text: str) -> str:
        """A string that may quote values of the task, for a log line: no line has such values when payloads are encrypted."""
        return text if self._services.store.codec is None else ENCRYPTED_TEXT

    def _undo_data(self) -> dict[str, Any]:
        """The steps that sagas of this shift have undone, and those that they could not undo."""
        data = {"undone": self._journal.undone, "not_undone": self._journal.not_undone}
        return {name: keys for name, keys in data.items() if keys}

    def _wait_for_person(self, kind: str, reason: Reason, why: str) -> Ending:
        return kind, {"reason": why}, Wait(self.task_id, NEVER, reason, self.attempt)

    def _end(self, state: State, inbox: int | None = None) -> End:
        return End(self.task_id, state, self.attempt, 0, self._claimed.parent, inbox)

    async def _settle(self, kind: str, data: dict[str, Any], ending: End | Wait) -> None:
        """Write the last record and what becomes of the task, and nudge those that wait for it."""
        self.settling = True
        writer = self._journal.writer
        if kind == r.FAILED and isinstance(self._journal.interruption, DeadlineExceeded):
            writer.mention(self.hold, r.DEADLINE, "", b"{}")
        try:
            await writer.settle(self.hold, kind, wire.encode(data, "the result of the task"), ending)
        except Unheard:  # the next shift comes to the same place, and reads the message
            kind, ending = r.HANDED_BACK, Wait(self.task_id, None, Reason.QUEUED, self.attempt)
            await writer.settle(self.hold, kind, wire.encode({"reason": SAID}), ending)
            self._services.store.nudge("ready", [self.task_id])
        except OnwardError as error:  # the result is not JSON, or the database refuses it
            data = {"error": wire.error_value(error) | {"attempts": self.attempt}}
            kind, ending = r.FAILED, self._end(State.FAILED)
            await writer.settle(self.hold, r.FAILED, wire.encode({**self._usage_data(), **data}), ending)
        self._log_ending(kind, data, ending)
        if isinstance(ending, End):
            self.ended = ending.state
            self._services.store.nudge("ended")
            if ending.parent is not None:
                self._services.store.nudge("ready", [ending.parent])
        elif ending.due_at is not None and ending.due_at < NEVER:
            self._services.due(ending.due_at)
        elif kind == r.DEADLINE:
            self._services.store.nudge("ready", [self.task_id])
        if self.hold.locks and isinstance(ending, End):
            await self._services.locks.call_next()
        if self.hold.gate is not None:  # a task under the same limit may start now
            self._services.store.nudge("ready")

    def _log_ending(self, kind: str, data: dict[str, Any], ending: End | Wait) -> None:
        """Log an ending that is durable, if it is a failure or waits for a person."""
        if kind in _FAILURES:
            level, what = (logging.ERROR, "failed") if kind == r.FAILED else (logging.WARNING, "is tried again")
            error = data["error"]
            log.log(
                level,
                "task %s (%s) %s: %s: %s",
                self.task_id,
                self._handler.name,
                what,
                error["type"],
                self._may_log(error["message"]),
            )
        elif kind in {r.PARKED, r.QUARANTINED} and isinstance(ending, Wait):
            log.warning("task %s is %s: %s", self.task_id, ending.reason, self._may_log(data["reason"]))

    # ── the Host under ctx (steps, waits and branches have their own modules) ────────────────────────────────────

    def run(self, call: Call) -> Coroutine[Any, Any, Any]:
        return self._steps.run(call)

    def transaction(self, call: Call) -> Transaction:
        return Transaction(self._services, self._journal, self._steps, self._waits, call)

    def lock(self, name: str, timeout: float | None) -> LockBlock:
        return LockBlock(self._services, self._journal, self._waits, self.task_id, name, timeout)

    def saga(self, name: str, *, whole: bool = False) -> Saga:
        return Saga(self._journal, self.run, name, whole=whole)

    async def gather(
        self, makers: Sequence[Callable[[], Awaitable[Any]]], *, limit: int | None, return_exceptions: bool
    ) -> list[Any]:
        self._branches = self._branches or Branches(self._journal, self._waits)
        return await self._branches.gather(makers, limit=limit, return_exceptions=return_exceptions)

    @property
    def replaying(self) -> bool:
        return bool(self._journal.replay.unread)

    def next_recorded(self) -> str | None:
        known = self._journal.replay.peek(SCOPE.get().prefix)
        return None if known is None else known.key

    def unread_in(self, path: str) -> int:
        return self._journal.replay.unread_in(path)

    def branch(self, name: str) -> NamedBranch:
        self._branches = self._branches or Branches(self._journal, self._waits)
        return self._branches.named(name)

    async def wait(self, kind: str, name: str, data: dict[str, Any], timeout: float | None) -> dict[str, Any] | None:
        return await self._waits.wait(WaitRequest(kind, name, data, timeout))

    async def messages(self, *, last: bool = False) -> list[Any]:
        return await self._waits.messages(last=last)

    async def patches(self) -> list[Any]:
        return await self._waits.patches()

    def mention(self, data: dict[str, Any]) -> None:
        replaying = self._journal.replay.unread or self._journal.transacting  # an earlier shift recorded it
        if self._journal.ended_by is None and not replaying:
            self._journal.enqueue(r.PROGRESS, "", data)

    async def note(self, kind: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        noted = await self._journal.note(kind, name, data)
        if self._handler.checkpoint.strategy == ON_STATE_CHANGE and any(noted.values()):
            await self._journal.flush()
        return noted

    def inherits(self, *, anywhere: bool = False) -> bool:
        return self._journal.replay.inherits(None if anywhere else SCOPE.get().prefix)

    @property
    def forked(self) -> bool:
        return self._journal.replay.forked > 0

    async def version(self, name: str) -> bool:
        scope, journal = SCOPE.get(), self._journal
        key = f"{scope.prefix}version {name}"
        if name in journal.replay.decided:
            return journal.replay.decided[name]
        self._versions = self._versions or {}
        if key not in self._versions:
            known = key in journal.replay.versions
            self._versions[key] = new = known or not journal.replay.unread_ahead(scope.path)
            if new and not known:
                await journal.ensure_may_continue()
                journal.enqueue(r.VERSION, key, {})
        return self._versions[key]

    # ── children ─────────────────────────────────────────────────────────────────────────────────────────────────

    def task_name(self, function: Callable[..., Any]) -> str | None:
        siblings = self._handler.siblings
        return next((name for name, handler in siblings.items() if handler.function is function), None)

    def load_result(self, name: str, value: Any) -> Any:
        handler = self._handler.siblings.get(name)
        return value if handler is None else handler.load_result(value, self._journal.secret_value)

    async def child(self, name: str, value: Any, options: dict[str, Any]) -> str:
        call = Call(f"submit {name}", functools.partial(self._submit_child, name, value, options))
        call.mark = wire.fingerprint([without_fences(value), options])
        return str(await self.run(call))

    async def _submit_child(self, name: str, value: Any, options: dict[str, Any]) -> str:
        # The answer of an agent needs the results of its children: they end while it has time left for that.
        deadline = self._time_of(LAST_ANSWER_SHARE) if self._handler.agent else self._deadline_at()
        inherited: dict[str, Any] = {"tenant": self._options.get("tenant"), "trace": self._options.get("trace")}
        inherited |= {"inherited_budgets": budgets} if (budgets := self._child_budgets()) else {}
        inherited |= {"lost": lost.to_json()} if (lost := self._journal.replay.lost) else {}
        scope = SCOPE.get()
        key = f"{self.task_id}:{scope.key}"
        until = None if deadline == NEVER else deadline
        self._submit_slots = self._submit_slots or asyncio.Semaphore(MAX_CONCURRENT_SUBMITS)
        scope.reported = True  # watchers hear of a submit that takes its time, not of one that waits for its turn
        async with self._submit_slots:
            await self._journal.ensure_may_continue()  # the task may have been paused since
            scope.started_at, scope.reported = self._services.clock.monotonic(), False
            self.submitting += 1
            try:
                return await self._services.submit(name, value, {**options, **inherited}, key, self.task_id, until)
            finally:
                self.submitting -= 1

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def restored(self) -> Any:
        return self._journal.replay.restored

    async def checkpoint(self, value: Any) -> None:
        scope, journal = SCOPE.get(), self._journal
        if scope is not self._root or scope.key is not None or scope.locks:
            raise UsageError(
                "a checkpoint stands in the handler's own line: outside of steps, sagas, locks and branches, where nothing is open"
            )
        await journal.ensure_may_continue()
        journal.run_check(journal.replay.check_last, f"{scope.prefix}checkpoint")
        replay, number = journal.replay, journal.replay.checkpoint + 1
        decided = {key.partition("version ")[2]: new for key, new in (self._versions or {}).items()}
        replay.decided = {**replay.decided, **decided}
        journal.enqueue(r.CHECKPOINT, "", replay.checkpoint_data(number, value))
        replay.checkpoint_seq, replay.checkpoint, replay.restored = journal.hold.seq, number, value
        self._begin_at(number)
        await self._trim_checkpoints()

    async def _trim_checkpoints(self) -> None:
        """Make the checkpoint durable and drop older ones, as the handler's checkpoint policy says."""
        policy, store = self._handler.checkpoint, self._services.store
        if policy.strategy != EVERY_STEP or policy.keep is not None:
            await self._journal.flush()
        if policy.keep is not None:
            with contextlib.suppress(StoreUnavailable):  # the next checkpoint trims them
                await store.pruning.trim(self.task_id, policy.keep, policy.dropped_before(self.now()))


def _unread_reason(how: str, step: str) -> str:
    return f"the handler {how} without asking for step {step!r}, which the journal has; it was changed under this task"


def _root_cause(error: BaseException) -> BaseException:
    """The error that decides about a retry of the task. An error that a library raised from the failure of a step counts like that failure."""
    if isinstance(error.__cause__, StepFailed):
        error = error.__cause__
    return error.__cause__ if isinstance(error, StepFailed) and error.__cause__ is not None else error


def _step_data(error: BaseException) -> dict[str, Any]:
    """The step whose failure ended the task, and why that step failed."""
    if not isinstance(error, StepFailed):
        return {}
    cause = {"type": error.kind, "message": error.message}
    return {"attempts": error.attempts, "step": error.step, "cause": cause}
