"""How a shift ends: which exception that left the handler means which last record, and what becomes of the task. Nothing is written here."""

from __future__ import annotations

import logging
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.control import Cancel, Control, Doubt, HandBack, Park, Suspend
from onward.core.sealed import ENCRYPTED_TEXT, NO_KEY
from onward.core.task import NEVER, Reason, State
from onward.engine.handlers import Handler
from onward.engine.shift.resources import TaskResources
from onward.engine.shift.services import WorkerServices
from onward.errors import DeadlineExceeded, EncryptionKeyMissing, Expired, StepFailed, UnfitCheckpoint
from onward.store.port.core import Claimed, End, Wait

log = logging.getLogger("onward.shift")

Ending = tuple[str, dict[str, Any], End | Wait]
"""The last record of a shift (kind, data) and what becomes of the task."""

KEY_RETRY_S = 30.0
"""Seconds after which a task is tried again whose payloads the worker could not decrypt."""


class Endings:
    """The ways in which a shift of one task can end."""

    def __init__(self, services: WorkerServices, claimed: Claimed, handler: Handler, task: TaskResources) -> None:
        self._services, self._claimed, self._handler, self._task = services, claimed, handler, task
        self._journal = task._journal

    def after(self, error: BaseException) -> Ending:
        """How the shift ends after this exception has left the handler."""
        return self._after_undo(error) if self._journal.replay.undoing else self._after(error)

    def _after(self, error: BaseException) -> Ending:
        match error:
            case Suspend():
                wait = self._wait(error.due_at, error.reason, error.inbox)
                return r.HANDED_BACK, {"reason": error.reason}, wait
            case HandBack():
                return r.HANDED_BACK, {"reason": "handed back"}, self._wait(None, Reason.QUEUED)
            case EncryptionKeyMissing():
                return self._leave_to_others(error)
            case Park() | UnfitCheckpoint() if (
                isinstance(self._journal.interruption, DeadlineExceeded) and not self._journal.sagas
            ):
                self._journal.unfit = str(error)  # the handler only read the journal for a partial result
                return self._after_failure(self._journal.interruption)
            case Park() | UnfitCheckpoint():
                return self.wait_for_person(r.PARKED, Reason.PARKED, str(error))
            case Doubt():
                why = self.may_log(error.why)
                log.warning("task %s: it is unknown whether step %r happened: %s", self._claimed.id, error.key, why)
                until = self._task._deadline_at() if self._journal.recorded_stop is None else NEVER
                wait = self._wait(until, Reason.IN_DOUBT, error.inbox)
                return r.DOUBTED, {"step": error.key, "reason": error.why}, wait
            case Cancel():
                return r.CANCELLED, {**self._task._usage_data(), **self._undo_data()}, self.end(State.CANCELLED)
            case Control():
                raise error
            case DeadlineExceeded() if self._journal.recorded_stop is None and (
                self._journal.sagas or self._journal.replay.owes_undo
            ):
                return r.DEADLINE, {}, self._wait(None, Reason.QUEUED)  # the next shift undoes
            case _:
                return self._after_failure(error)

    def _after_undo(self, error: BaseException) -> Ending:
        """How a shift ends that only undoes an effect in doubt of another task, which has ended. Its handler always leaves by an
        exception, because nothing new begins in it."""
        replay = self._journal.replay
        if isinstance(error, EncryptionKeyMissing) or (isinstance(error, Control) and not isinstance(error, Cancel)):
            return self._after(error)
        if replay.undone:
            result = {"undone": replay.undone, "of": replay.origin}
            return r.COMPLETED, {**self._task._usage_data(), "result": result}, self.end(State.COMPLETED)
        if replay.undo_error is not None:
            return self._after_failure(replay.undo_error)
        why = f"it is to undo an effect of task {replay.origin}, and the code no longer comes to that step; it was changed under this task"
        return self.wait_for_person(r.PARKED, Reason.PARKED, why)

    def _after_failure(self, error: BaseException) -> Ending:
        """A failure of the task, or another attempt later."""
        failure = wire.error_value(error) | {"attempts": self._claimed.attempt} | _step_data(error) | self._undo_data()
        # A failed step has been judged by its own policy; here the task's policy judges the cause of that failure.
        late = isinstance(error, DeadlineExceeded | Expired)
        pause = (
            None if late else self._handler.retry.pause(self._claimed.attempt, _root_cause(error), self._services.rng)
        )
        if pause is None:
            if not late and (unread := self._journal.replay.first_unread()):
                why = unread_reason(f"raised {failure['type']}: {failure['message']}", unread)
                return self.wait_for_person(r.PARKED, Reason.PARKED, why)
            if self._claimed.attempt > 1:
                failure["message"] = f"{failure['message']} (attempt {self._claimed.attempt} of the task)"
            partial = {} if self._task.partial is None else {"partial": self._task.partial}
            return r.FAILED, {**self._task._usage_data(), "error": failure, **partial}, self.end(State.FAILED)
        due = min(self._services.now() + pause, self._task._deadline_at())
        return (
            r.RETRY,
            {"error": failure, "attempt": self._claimed.attempt, "due_at": due},
            Wait(self._claimed.id, due, Reason.RETRYING, self._claimed.attempt + 1),
        )

    def _leave_to_others(self, error: EncryptionKeyMissing) -> Ending:
        """The task waits for a worker that has the key of its payloads, and has not failed."""
        log.error("task %s waits: this worker has not the encryption key %r", self._claimed.id, error.key_id)
        wait = self._wait(self._services.now() + KEY_RETRY_S, Reason.DELAYED)
        return r.HANDED_BACK, {"reason": NO_KEY, "key": error.key_id}, wait

    def may_log(self, text: str) -> str:
        """A string that may quote values of the task, for a log line: no line has such values when payloads are encrypted."""
        return text if self._services.store.codec is None else ENCRYPTED_TEXT

    def _undo_data(self) -> dict[str, Any]:
        """The steps that sagas of this shift have undone, and those that they could not undo."""
        data = {"undone": self._journal.undone, "not_undone": self._journal.not_undone}
        return {name: keys for name, keys in data.items() if keys}

    def wait_for_person(self, kind: str, reason: Reason, why: str) -> Ending:
        """The task goes on when a person resumes it."""
        return kind, {"reason": why}, self._wait(NEVER, reason)

    def _wait(self, due_at: float | None, reason: str, inbox: int | None = None) -> Wait:
        return Wait(self._claimed.id, due_at, reason, self._claimed.attempt, inbox)

    def end(self, state: State, inbox: int | None = None) -> End:
        """The task ends. With `inbox`, only if it has no more messages than these."""
        return End(self._claimed.id, state, self._claimed.attempt, 0, self._claimed.parent, inbox)


def unread_reason(how: str, step: str) -> str:
    """Why a task is parked whose handler is over before its journal."""
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
