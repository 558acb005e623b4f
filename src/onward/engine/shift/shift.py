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
from onward.core.control import Control, Fenced, Park, Unheard
from onward.core.epoch import CAUSE, lost_from
from onward.core.journal.checkpoint import EVERY_STEP, ON_STATE_CHANGE
from onward.core.lock import without_fences
from onward.core.task import NEVER, SAID, Reason, State
from onward.engine.context.approvals import approved
from onward.engine.context.arguments import is_async
from onward.engine.context.call import Call
from onward.engine.context.context import CURRENT, Context
from onward.engine.context.sync_context import SyncContext
from onward.engine.context.unawaited import Unawaited
from onward.engine.handlers import Handler
from onward.engine.shift.branches import Branches, NamedBranch
from onward.engine.shift.endings import Ending, Endings, unread_reason
from onward.engine.shift.environment import LAST_ANSWER_SHARE
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.locks import LockBlock
from onward.engine.shift.reads import DeferringSteps
from onward.engine.shift.replay import Replay
from onward.engine.shift.resources import TaskResources
from onward.engine.shift.rolling import pass_on, tried_versions
from onward.engine.shift.saga import Saga
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.steps import Steps
from onward.engine.shift.timeout import run_with_timeout
from onward.engine.shift.transaction import Transaction
from onward.engine.shift.waits import WaitRequest, Waits
from onward.errors import (
    DeadlineExceeded,
    Expired,
    InvalidInput,
    OnwardError,
    StoreUnavailable,
    UsageError,
)
from onward.store.port.core import SUSPECT_AFTER, Claimed, End, Wait
from onward.store.writer import Hold
from onward.telemetry import CURRENT_TASK

log = logging.getLogger("onward.shift")

MAX_CONCURRENT_SUBMITS = 100
"""Children that one task submits at the same time, so that other queries of the process do not wait behind all of them."""

PARTIAL_RESULT_TIMEOUT_S = 30.0
"""Seconds in which an agent whose deadline has passed reads its journal for the best result so far."""

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
    _tried: Sequence[str] = ()
    """The versions of the code that could not go on with this task since it came further, one for each try."""

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
            if kind == r.PARKED or self._journal.unfit:
                why = self._endings.may_log(data["reason"] if kind == r.PARKED else self._journal.unfit)
                passed = await pass_on(self._services, self._claimed, self.attempt, self._tried, why)
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
            return self._endings.wait_for_person(r.QUARANTINED, Reason.QUARANTINED, why)
        try:
            await self._read_journal()
            if isinstance(self._journal.interruption, Control):  # the worker began to stop before the call
                raise self._journal.end(self._journal.interruption)
            result = await self._run_handler_in_time()
            self._check_returned()
            result = self._handler.dump_result(result)
        except BaseException as error:
            cause = self._exit_cause(error)
            return self._endings.after(cause)
        return (
            r.COMPLETED,
            {**self._usage_data(), "result": result},
            self._endings.end(State.COMPLETED, self._waits.last_read),
        )

    async def _read_journal(self) -> None:
        replay, lost = self._journal.replay, lost_from(self._options.get("lost"))  # its parent or schedule lost time
        if self._claimed.shift > 2:  # more than its submit is there
            known = await self._read_since_checkpoint(self.task_id)
            records = [record for record in known if record.seq <= self._claimed.shift]
            self._tried = tried_versions(records)  # before the replay, which may refuse a checkpoint
            replay = Replay(records, lost)
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
        args, kwargs = self._arguments(wire.decode(self._claimed.input))
        context, function = self._make_context(), self._handler.function
        if isinstance(context, Context):
            return function(context, *args, **kwargs)  # type: ignore[no-any-return]
        return self._call_in_thread(functools.partial(function, context, *args, **kwargs))

    async def _call_with_secrets(self) -> Any:
        given = await self.keyring.given(wire.decode(self._claimed.input))
        args, kwargs = self._arguments(given)
        return await self.keyring.call(self._handler.function, self._make_context(), *args, **kwargs)

    def _arguments(self, value: Any) -> tuple[list[Any], dict[str, Any]]:
        try:
            return self._handler.arguments(value)
        except InvalidInput as error:
            self._journal.unfit = str(error)
            raise

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
            raise Park(unread_reason("returned", unread))
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

    @property
    def _endings(self) -> Endings:
        """Made when it is asked for: a shift that kept it would be in a circle of references."""
        return Endings(self._services, self._claimed, self._handler, self)

    # ── the last record ──────────────────────────────────────────────────────────────────────────────────────────

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
            kind, ending = r.FAILED, self._endings.end(State.FAILED)
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
                self._endings.may_log(error["message"]),
            )
        elif kind in {r.PARKED, r.QUARANTINED} and isinstance(ending, Wait):
            log.warning("task %s is %s: %s", self.task_id, ending.reason, self._endings.may_log(data["reason"]))

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
            known = journal.replay.takes_mark(key)
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
