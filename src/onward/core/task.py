"""Tasks as the outside sees them: states, reasons, and the view that every door shows."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, NamedTuple

from onward.core.durations import Time
from onward.core.usage import Usage


class State(enum.StrEnum):
    """Where a task stands. Completed and cancelled never change; failed is reopened by resume alone."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen, unless somebody resumes a failed task."""
        return self in ENDED


ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class Reason(enum.StrEnum):
    """Why an unfinished task is not going on just now: a closed list."""

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


PENDING_REASONS = frozenset({Reason.QUEUED, Reason.DELAYED, Reason.RETRYING, Reason.CANCELLING, Reason.QUOTA})
NEEDS_A_PERSON = frozenset({Reason.PARKED, Reason.QUARANTINED})
"""Those that `resume` wakes."""

HEARS = frozenset({Reason.SIGNAL, Reason.QUESTION, Reason.APPROVAL, Reason.CHILD, Reason.IN_DOUBT, Reason.BUDGET})
"""Those that a message wakes."""

ASKS_A_PERSON = NEEDS_A_PERSON | {Reason.QUESTION, Reason.APPROVAL, Reason.IN_DOUBT, Reason.BUDGET}
"""Those in which nothing goes on before a person has done something."""

SAID = "message"
"""What people say to a task, and the name of the signal that it is for a handler that is no agent."""

SAME: Any = object()
"""The `input` of a fork that takes the input of its origin."""

NEVER = math.inf
"""The due time of a task that only somebody can wake."""


def open_state(worker: str | None, reason: str) -> State:
    """The state of an unfinished task, from its queue row."""
    if worker is not None:
        return State.RUNNING
    return State.PENDING if reason in PENDING_REASONS else State.WAITING


class Webhook(NamedTuple):
    """Who is told of the ends of a task, as the store keeps it: the address, and what it hears of."""

    sink: str
    lane: str
    types: str
    kinds: str


class NewTask(NamedTuple):
    """A task on its way into the store."""

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


class Message(NamedTuple):
    """Something for a task from outside: a signal, an answer, a decision, the end of a child, a word on an effect in doubt.
    `ref` is the number of the record that it answers; of several answers to one record the first counts."""

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
    """What it failed with. Of one task that is asked for, also why it is parked, quarantined or in doubt (`type`, `message`)."""
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
    """Whose it is; None for all who name no tenant."""
    in_flight: int | None = None
    """Only in the answer to a cancel: how many tasks of the tree were in the middle of something."""
    usage: Usage | None = None
    """What its models took, where it is an agent's and that is known here."""
    by: str | None = None
    """The id of the key with which it was asked for, where one was shown."""
    partial: Any = None
    """Of a task that failed: the best result that it had by then, which is not finished. Agents have one."""
    left_out: tuple[str, ...] = ()
    """Of `input`, `result` and `error`, what is None only because it is large, in a list that was asked to be brief."""

    @property
    def ended(self) -> bool:
        """Whether it has completed, failed or been cancelled."""
        return self.state.ended


Tasks = list[Task]
"""For classes that have a verb named `list`."""
