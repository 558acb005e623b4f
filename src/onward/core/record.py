"""Records: the numbered entries of a task's journal, and their kinds.

A record is written once and never changed; only its payload may be dropped, when a later checkpoint replaces it. `shift` is the number of
the `shift.started` record of the shift that wrote it, or 0 when no worker wrote it (submit, cancel, resume). By it, a writer whose commit
was not answered knows whether the record that is there is its own. `key` names the step that a record belongs to.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from onward.core import wire
from onward.errors import OnwardError

SUBMITTED: Final = "task.submitted"
FORKED: Final = "task.forked"
SHIFT: Final = "shift.started"
HANDED_BACK: Final = "shift.ended"
STEP_STARTED: Final = "step.started"
STEP_RETRY: Final = "step.retry"
STEP_WAITS: Final = "step.waits"
STEP_DONE: Final = "step.completed"
STEP_FAILED: Final = "step.failed"
ANNOUNCED: Final = "effect.announced"
DOUBTED: Final = "effect.in_doubt"
SLEEP: Final = "sleep.started"
SLEPT: Final = "sleep.ended"
SIGNAL: Final = "signal.awaited"
QUESTION: Final = "question.asked"
APPROVAL: Final = "approval.requested"
CHILD: Final = "child.awaited"
LOCK_AWAITED: Final = "lock.awaited"
LOCK_TAKEN: Final = "lock.taken"
LOCK_LEFT: Final = "lock.released"
WAITED: Final = "wait.ended"
MESSAGE: Final = "message.received"
HEARD: Final = "message.read"
SAGA: Final = "saga.started"
SAGA_DONE: Final = "saga.completed"
UNDOING: Final = "saga.undoing"
UNDONE: Final = "saga.undone"
VERSION: Final = "version.marked"
"""A mark of `ctx.version`; with `void`, code that did not ask for that mark has gone past it."""
PATCHED: Final = "state.patched"
CHECKPOINT: Final = "checkpoint.saved"
ARTIFACT: Final = "artifact.kept"
PROGRESS: Final = "progress"
RETRY: Final = "task.retry"
PARKED: Final = "task.parked"
QUARANTINED: Final = "task.quarantined"
RESUMED: Final = "task.resumed"
RESTORED: Final = "task.restored"
"""The database was restored from a backup that has the task unfinished: what it did since the backup is lost, its effects are not."""
CANCEL: Final = "cancel.requested"
DEADLINE: Final = "deadline.passed"
COMPLETED: Final = "task.completed"
FAILED: Final = "task.failed"
CANCELLED: Final = "task.cancelled"

ENDS: Final = frozenset({COMPLETED, FAILED, CANCELLED})
ENDS_BY_STATE: Final = {"completed": COMPLETED, "failed": FAILED, "cancelled": CANCELLED}
"""The kind of the last record of a task, by the state in which it ended."""
NEWS: Final = frozenset({STEP_STARTED, STEP_RETRY, STEP_WAITS, ARTIFACT, LOCK_TAKEN, PROGRESS})
"""Kinds that only report, or that every shift writes anew. A shift that wrote no other records made no progress."""

DROPPED: Final = b'{"dropped":'
"""The beginning of the data of a record whose payload was dropped because a later checkpoint replaces it."""

Entry = tuple[str, int, int, str, str, bytes, float]
"""A record to write: task_id, seq, shift, kind, key, data, at. It is a tuple, because a worker makes tens of thousands a second, and both
drivers take it as it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One numbered entry of a journal."""

    seq: int
    shift: int
    kind: str
    key: str
    data: bytes
    at: float

    @property
    def value(self) -> Any:
        return wire.decode(self.data)

    @property
    def dropped(self) -> int:
        """The number of the checkpoint for which the payload was dropped; 0 when the record is whole."""
        return int(self.value["dropped"]) if self.data.startswith(DROPPED) else 0


def payload(record: Record) -> Any:
    """The payload of a record; None when this version cannot read it."""
    try:
        return record.value
    except (OnwardError, ValueError):
        return None


def shift_data(worker: str, version: str) -> bytes:
    """The data of a `shift.started` record: the worker, and the version of its code."""
    return wire.encode({"worker": worker, "version": version} if version else {"worker": worker})
