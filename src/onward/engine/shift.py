"""One shift: the stretch of a task done by one worker, from claim to letting go.

    read the journal ─► call the handler ─► its steps: known → handed out, new → run and recorded ─► settle

The shift is the Host under the handler's context. It ends in exactly one way, an `Ending`, which is a value: completed,
failed, tried again later, waiting, handed back, or lost to another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol

from onward.core import record as r
from onward.core import wire
from onward.core.clock import Clock
from onward.core.control import Control, Fenced, HandBack, Park, Suspend
from onward.core.retry import HOPELESS
from onward.core.task import NEVER, Reason, State
from onward.engine.bounded import bounded
from onward.engine.context import Call, Context, PlainContext
from onward.engine.handlers import Handler, is_async, revived
from onward.engine.lease import Lease
from onward.engine.replay import Known, Replay
from onward.engine.threads import Threads
from onward.errors import (
    DeadlineExceeded,
    Expired,
    OnwardError,
    StepFailed,
    StepTimeout,
    StoreUnavailable,
    UsageError,
)
from onward.store.port import SUSPECT_AFTER, Claimed, End, Store, Wait
from onward.store.writer import Hold, Writer

log = logging.getLogger("onward.shift")

LINGER = 1.0
"""A wait of up to this many seconds is spent in memory: leaving and coming back would cost more than the slot."""

PAGE = 2_000

Ending = tuple[str, dict[str, Any], End | Wait]
"""The last record of a shift (kind, data) and what becomes of the task."""


class Desk(Protocol):
    """What a shift needs of its worker."""

    store: Store
    writer: Writer
    clock: Clock
    rng: random.Random
    threads: Threads
    lease: Lease

    def now(self) -> float:
        """The database's time, as far as this process knows it."""
        ...

    def due(self, at: float) -> None:
        """A task was put to sleep until then."""
        ...


class Shift:
    """One claimed task being done."""

    def __init__(self, desk: Desk, claimed: Claimed, handler: Handler) -> None:
        self._desk, self._claimed, self._handler = desk, claimed, handler
        self._lease, self._writer = desk.lease, desk.writer
        self.task_id, self.attempt, self.rng = claimed.id, claimed.attempt, desk.rng
        self.hold = Hold(claimed.id, claimed.shift, claimed.shift)
        self._monotonic = desk.clock.monotonic
        self.began = self._monotonic()
        self.key: str | None = None
        self.settling = False
        self.over = False
        self._key_since = 0.0
        self._announced = False
        self._why: Control | OnwardError | None = None
        self._ended_by: Control | None = None
        self._task: asyncio.Task[Any] | None = None
        self._options: dict[str, Any] = wire.decode(claimed.options)
        self._allowed: float | None = self._options.get("deadline", handler.deadline)
        self._replay = Replay()

    # ── from claim to settle ─────────────────────────────────────────────────────────────────────────────────────

    async def work(self) -> None:
        """Do the shift, whatever comes."""
        self._task = asyncio.current_task()
        try:
            await self._settle(*await self._ending())
        except Fenced:
            log.info(
                "task %s: another worker went on with it, or it was cancelled; its work here is dropped", self.task_id
            )
        finally:
            self.over = True

    async def _ending(self) -> Ending:
        """How the shift ends: its last record and what becomes of the task."""
        if self._claimed.crashes > SUSPECT_AFTER:
            return self._waiting(
                r.QUARANTINED,
                Reason.QUARANTINED,
                f"it ended its worker {self._claimed.crashes} times in a row, the last time alone",
            )
        try:
            await self._read_journal()
            result = await self._in_time(self._call_handler)
            self._check_returned()
        except BaseException as error:
            return self._left_by(self._cause(error))
        return r.COMPLETED, {"result": result}, End(self.task_id, State.COMPLETED, self.attempt, 0)

    def _check_returned(self) -> None:
        if self._ended_by is not None:
            log.warning(
                "task %s: its handler caught %s and returned; it should let it pass",
                self.task_id,
                type(self._ended_by).__name__,
            )
            raise self._ended_by
        if left := self._replay.leftover():
            raise Park(
                f"the handler returned without asking for step {left!r}, which the journal has; it was changed under this task"
            )

    def _cause(self, error: BaseException) -> BaseException:
        """Why the handler was left: a cancellation is only the messenger of what the worker or the clock had to say."""
        if self._ended_by is not None:
            return self._ended_by
        if isinstance(error, asyncio.CancelledError):
            if self._why is not None:
                return self._why
            if self._task is not None and self._task.cancelling():
                raise error
        return error

    def _left_by(self, error: BaseException) -> Ending:
        match error:
            case Suspend():
                return (
                    r.HANDED_BACK,
                    {"reason": error.reason},
                    Wait(self.task_id, error.due_at, error.reason, self.attempt),
                )
            case HandBack():
                return r.HANDED_BACK, {"reason": "handed back"}, Wait(self.task_id, None, Reason.QUEUED, self.attempt)
            case Park():
                return self._waiting(r.PARKED, Reason.PARKED, str(error))
            case Control():
                raise error
            case _:
                return self._failure(error)

    def _waiting(self, kind: str, reason: Reason, why: str) -> Ending:
        log.warning("task %s is %s: %s", self.task_id, reason, why)
        return kind, {"reason": why}, Wait(self.task_id, NEVER, reason, self.attempt)

    def _failure(self, error: BaseException) -> Ending:
        told = wire.error_value(error) | {"attempts": self.attempt}
        # A failed step has been judged by its own policy; here the task's policy judges what the step died of.
        pause = (
            None
            if isinstance(error, DeadlineExceeded | Expired)
            else self._handler.retry.pause(self.attempt, _root(error), self.rng)
        )
        if pause is None:
            if self.attempt > 1:
                told["message"] = f"{told['message']} (attempt {self.attempt} of the task)"
            return r.FAILED, {"error": told}, End(self.task_id, State.FAILED, self.attempt, 0)
        due = min(self.now() + pause, self._deadline_at() or NEVER)
        return (
            r.RETRY,
            {"error": told, "attempt": self.attempt, "due_at": due},
            Wait(self.task_id, due, Reason.RETRYING, self.attempt + 1),
        )

    async def _settle(self, kind: str, data: dict[str, Any], ending: End | Wait) -> None:
        self.settling = True
        if kind == r.FAILED and isinstance(self._why, DeadlineExceeded):
            self._writer.mention(self.hold, r.DEADLINE, "", b"{}")
        try:
            await self._writer.settle(self.hold, kind, wire.encode(data, "the result of the task"), ending)
        except OnwardError as error:  # it is not JSON, or the database will not have it
            told = wire.error_value(error) | {"attempts": self.attempt}
            ending = End(self.task_id, State.FAILED, self.attempt, 0)
            await self._writer.settle(self.hold, r.FAILED, wire.encode({"error": told}), ending)
        if isinstance(ending, End):
            self._desk.store.nudge("ended")
        elif ending.due_at is not None and ending.due_at < NEVER:
            self._desk.due(ending.due_at)

    # ── the handler ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _read_journal(self) -> None:
        if self._claimed.shift == 2:  # only its submit is there
            self._replay.started_at = self._claimed.claimed_at
            return
        records: list[r.Record] = []
        while len(page := await self._page(records[-1].seq if records else 0)) == PAGE:
            records += page
        self._replay = Replay([record for record in records + page if record.seq <= self._claimed.shift])

    async def _page(self, after: int) -> list[r.Record]:
        """Part of the journal, however long it takes: an outage of the store is no failure of the task."""
        pause = 0.05
        while True:
            try:
                return await self._desk.store.journal(self.task_id, after, PAGE)
            except StoreUnavailable as error:
                log.warning("task %s: cannot read its journal, trying again: %s", self.task_id, error)
                await self._desk.clock.sleep(pause * self.rng.uniform(0.5, 1))
                pause = min(pause * 2, 1.0)

    def _deadline_at(self) -> float | None:
        started = self._replay.started_at or self._claimed.claimed_at
        return None if self._allowed is None else started + self._allowed

    async def _in_time(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        expires = self._options.get("expires")
        if (
            expires is not None
            and self._claimed.shift == 2
            and self._claimed.claimed_at > self._claimed.created_at + expires
        ):
            raise Expired(expires)
        deadline = self._deadline_at()
        if deadline is None or self._allowed is None:
            return await work()
        left = deadline - self.now()
        if left <= 0:
            raise self._too_late()
        return await bounded(work(), self._desk.clock, left, self._too_late)

    def _too_late(self) -> OnwardError:
        """The deadline has passed: whatever the handler is in the middle of learns it from here."""
        self._why = DeadlineExceeded(self._allowed or 0.0)
        return self._why

    async def _call_handler(self) -> Any:
        args, kwargs = self._handler.arguments(wire.decode(self._claimed.input))
        context = Context(self)
        function = self._handler.function
        if is_async(function):
            return await function(context, *args, **kwargs)
        plain = PlainContext(context, asyncio.get_running_loop())
        answer = await self._desk.threads.run(function, plain, *args, **kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    # ── the Host under ctx ───────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        return self._desk.now()

    def mention(self, data: dict[str, Any]) -> None:
        if self._ended_by is None and not self._replay.unread:  # what is replayed was told before
            self._mention(r.PROGRESS, "", data)

    async def run(self, call: Call) -> Any:
        if self.key is not None:
            self._refuse(call.key)
        if self._replay.unread:
            known = self._replay_next(call.key, r.STEP_DONE, call.mark)
            if known is not None:
                return self._recorded(call, known)
        started = self._monotonic()
        if self._ended_by is not None or self._why is not None or started >= self._lease.until:
            await self._may_go_on()
        self.key, self._key_since, self._announced = call.key, started, False
        try:
            attempt = self._replay.failures(call.key) + 1
            try:  # the common case, without a detour
                if call.timeout is None and is_async(call.function):
                    value = await call.function(*call.args, **call.kwargs)
                else:
                    value = await self._call(call)
                value, data = self._kept(call, attempt, value)
            except Control:
                raise
            except BaseException as error:
                value, data = await self._attempts(call, attempt, error)
            self._announced = True  # while its result is being saved it is too late to tell of its start
            await self._writer.append(self.hold, r.STEP_DONE, call.key, data)
        except Fenced as fenced:
            raise self._end(fenced) from None
        finally:
            self.key = None
        return value

    async def wait(self, key: str, delay: float) -> None:
        if self.key is not None:
            self._refuse(key)
        known = self._replay_next(key, r.SLEEP, "")
        if known is not None and known.over:
            return
        await self._may_go_on()
        until = self.now() + delay if known is None else known.data["until"]
        if known is None:
            self._mention(r.SLEEP, key, {"until": until, "for": delay})
        self.key, self._announced = key, True  # a sleep is nothing to announce, but takes its turn like a step
        try:
            await self._pause(until, Reason.ASLEEP)
        finally:
            self.key = None
        self._mention(r.SLEPT, key, {})

    async def _pause(self, until: float, reason: Reason) -> None:
        """Wait for a moment in memory, or for longer outside of it."""
        left = until - self.now()
        if left > LINGER:
            raise self._end(Suspend(min(until, self._deadline_at() or NEVER), reason))
        if left > 0:
            await self._desk.clock.sleep(left)

    def _refuse(self, key: str) -> NoReturn:
        raise UsageError(
            f"step {key!r} was started while step {self.key!r} of the same task was still running; "
            "await one before the next (ctx.gather runs several at once)"
        )

    def _replay_next(self, key: str, kind: str, mark: str) -> Known | None:
        try:
            return self._replay.next(key, kind, mark)
        except Park as park:
            raise self._end(park) from None

    def _end(self, control: Control) -> Control:
        """From here on the context is dead: whatever the handler does with this exception, it gets it again."""
        self._ended_by = control
        return control

    async def _may_go_on(self) -> None:
        if self._ended_by is not None:
            raise self._ended_by
        if isinstance(self._why, Control):
            raise self._end(self._why)
        if self._why is not None:
            raise self._why
        if not self._lease.holds():
            await self._lease.until_held()
            await self._may_go_on()

    def _recorded(self, call: Call, known: Known) -> Any:
        if known.kind == r.STEP_FAILED:
            raise known.failure()
        return revived(call.function, known.data["result"])

    async def _append(self, kind: str, key: str, data: bytes) -> None:
        try:
            await self._writer.append(self.hold, kind, key, data)
        except Fenced as fenced:
            raise self._end(fenced) from None

    def _mention(self, kind: str, key: str, data: dict[str, Any]) -> None:
        try:
            self._writer.mention(self.hold, kind, key, wire.encode(data))
        except Fenced as fenced:
            raise self._end(fenced) from None

    # ── attempts of a step ───────────────────────────────────────────────────────────────────────────────────────

    async def _attempts(self, call: Call, attempt: int, error: BaseException) -> tuple[Any, bytes]:
        """The attempts after one that failed."""
        while True:
            if (
                isinstance(error, asyncio.CancelledError)
                and self._task is not None
                and (self._task.cancelling() or self._why is not None)
            ):
                raise error
            await self._step_failed(call, attempt, error)
            attempt += 1
            try:
                return self._kept(call, attempt, await self._call(call))
            except Control:
                raise
            except BaseException as another:
                error = another

    def _kept(self, call: Call, attempt: int, value: Any) -> tuple[Any, bytes]:
        """The value as a replay would see it, and the record of it."""
        result = wire.encode(value, "its result")
        took = int((self._monotonic() - self._key_since) * 1000)
        head = b'{"ms":%d,"result":' % took if took else b'{"ms":0,"result":'
        tail = b"}" if attempt == 1 and not call.mark else _extras(call.mark, attempt)
        same = wire.same_as_recorded(value, result)
        return (same if same is value else revived(call.function, same)), head + result + tail

    async def _call(self, call: Call) -> Any:
        if call.timeout is not None:
            bare = Call(call.key, call.function, call.args, call.kwargs)
            late = StepTimeout(call.key, call.timeout)
            return await bounded(self._call(bare), self._desk.clock, call.timeout, lambda: late)
        if is_async(call.function):
            return await call.function(*call.args, **call.kwargs)
        answer = await self._desk.threads.run(call.function, *call.args, **call.kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    async def _step_failed(self, call: Call, attempt: int, error: BaseException) -> None:
        """Record the failure and raise it, or wait for the next attempt."""
        told = wire.error_value(error) | {"attempts": attempt}
        pause = call.retry.pause(attempt, error, self.rng)
        if pause is None:
            told |= {"fatal": True} if isinstance(error, HOPELESS) else {}
            await self._append(r.STEP_FAILED, call.key, wire.encode({"error": told, "args": call.mark}))
            raise StepFailed(call.key, attempt, told["type"], told["message"]) from error
        until = self.now() + pause
        self._mention(r.STEP_RETRY, call.key, {"error": told, "attempt": attempt, "due_at": until})
        await self._pause(until, Reason.RETRYING)
        await self._may_go_on()  # another attempt is as good as another step

    # ── what the worker does to a shift ──────────────────────────────────────────────────────────────────────────

    def announce(self, after: float) -> None:
        """Tell watchers about a step that takes its time. A quick one is told by its result alone, in one write."""
        if self.key is not None and not self._announced and self._monotonic() - self._key_since > after:
            self._announced = True
            with contextlib.suppress(Fenced):
                self._writer.mention(self.hold, r.STEP_STARTED, self.key, b"{}")

    def stop(self, why: Control, *, now: bool) -> None:
        """End the shift at its next step, or at once."""
        self._why = self._why or why
        if now and self._task is not None and not self.settling and not self.over:
            self._task.cancel()


def _root(error: BaseException) -> BaseException:
    return error.__cause__ if isinstance(error, StepFailed) and error.__cause__ is not None else error


def _extras(mark: str, attempt: int) -> bytes:
    args = b',"args":"%b"' % mark.encode() if mark else b""
    return args + (b',"attempts":%d}' % attempt if attempt > 1 else b"}")
