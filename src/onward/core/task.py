"""Tasks: their states, their reasons, and the view that callers get."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, Final, NamedTuple

from onward.core.durations import Time
from onward.core.usage import Usage


class State(enum.StrEnum):
    """The state of a task. Completed and cancelled never change; only resume changes failed."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the task has ended. Only a resume of a failed task changes that."""
        return self in ENDED


INTAKE_MARK = "\n\n"
"""Stands in the stored key of a task that an intake submitted, and in no other key."""

ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class Reason(enum.StrEnum):
    """Why an unfinished task is in its state: a closed list."""

    QUEUED = "queued"
    DELAYED = "delayed"
    RUNNING = "running"
    RETRYING = "retrying"
    CANCELLING = "cancelling"
    ASLEEP = "asleep"
    SIGNAL = "signal"
    QUESTION = "question"
    APPROVAL = "approval"
    CHILD = "child"
    IN_DOUBT = "in_doubt"
    PAUSED = "paused"
    PARKED = "parked"
    QUARANTINED = "quarantined"
    QUOTA = "quota"
    BUDGET = "budget"
    LOCK = "lock"


PENDING_REASONS = frozenset({Reason.QUEUED, Reason.DELAYED, Reason.RETRYING, Reason.CANCELLING, Reason.QUOTA})
NEEDS_A_PERSON = frozenset({Reason.PARKED, Reason.QUARANTINED})
"""Reasons that `resume` ends."""

HEARS = frozenset(
    {Reason.SIGNAL, Reason.QUESTION, Reason.APPROVAL, Reason.CHILD, Reason.IN_DOUBT, Reason.BUDGET, Reason.LOCK}
)
"""Reasons that a message ends."""

ASKS_A_PERSON = NEEDS_A_PERSON | {Reason.QUESTION, Reason.APPROVAL, Reason.IN_DOUBT, Reason.BUDGET}
"""Reasons of tasks that wait for a person."""

SAID = "message"
"""The kind of a person's message to an agent, and the name of the signal that it is for any other handler."""

SAME: Any = object()
"""The `input` of a fork that takes the input of its origin."""

NEVER = math.inf
"""The due time of a task that only a message or a person wakes."""


def open_state(worker: str | None, reason: str) -> State:
    """The state of an unfinished task, from its queue row."""
    if worker is not None:
        return State.RUNNING
    return State.PENDING if reason in PENDING_REASONS else State.WAITING


class Webhook(NamedTuple):
    """The webhook of a task, as the store keeps it: the URL, and the events that are sent to it."""

    sink: str
    lane: str
    types: str
    kinds: str


class NewTask(NamedTuple):
    """A task to write."""

    id: str
    task: str
    input: bytes
    options: bytes
    queue: str
    priority: int
    delay: float
    key: str | None
    fingerprint: str
    parent: str | None = None
    group: str | None = None
    tenant: str | None = None
    webhook: Webhook | None = None
    turn_group: str | None = None
    """For a task of a tenant, the group by which it gets its turns (`core/tenant_quota.py`)."""


OWN_ID_PREFIX: Final = "onward:"
"""The first characters of the ids of messages that Onward sends itself, and can be guessed: the end of a child, more budget. No caller may
give such an id: of messages with the same id the first counts, so a caller could keep the true one from its task."""


class Message(NamedTuple):
    """A message to a task: a signal, an answer, a decision, the end of a child, a verdict on an effect in doubt. `ref` is the number of the
    record that it answers; of several answers to one record the first counts."""

    id: str
    kind: str
    name: str
    ref: int | None
    data: bytes
    number: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A task, as Python, the command line, HTTP and MCP show it. Times are seconds since 1970, UTC."""

    task_id: str
    task: str
    state: State
    reason: str | None
    input: Any
    result: Any
    error: dict[str, Any] | None
    """The error with which it failed. When one task is read, also why it is parked, quarantined or in doubt (`type`, `message`)."""
    priority: int
    queue: str
    attempt: int
    created_at: Time
    updated_at: Time
    finished_at: Time | None
    deadline_at: Time | None
    due_at: Time | None
    key: str | None
    labels: dict[str, str]
    worker: str | None
    parent: str | None = None
    group: str | None = None
    tenant: str | None = None
    """The tenant that owns it; None for tasks without a tenant."""
    in_flight: int | None = None
    """Only in the answer to a cancel or a pause: how many tasks of the tree a worker held."""
    usage: Usage | None = None
    """The usage of models, for the task of an agent, where it is known."""
    by: str | None = None
    """The id of the caller that submitted it: of its key, or `person:` and the person."""
    partial: Any = None
    """Of a task that failed: the best result that it had by then, which is not finished. Agents have one."""
    left_out: tuple[str, ...] = ()
    """Which of `input`, `result` and `error` are None only because they are large (in a list; `get` returns them), or because this process
    has not the key to read them, or because they were erased."""
    erased: bool = False
    """Whether the values of the task were erased: the key that encrypted them was destroyed."""

    @property
    def ended(self) -> bool:
        """Whether it has completed, failed or been cancelled."""
        return self.state.ended


Tasks = list[Task]
"""An alias for classes that have a verb named `list`."""
