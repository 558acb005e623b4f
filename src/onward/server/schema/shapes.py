"""Shapes: what comes in and goes out over HTTP, as the OpenAPI document shows it. Times are ISO 8601 in UTC."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, Field, StrictBool, StrictInt

from onward.core.task import Reason, State
from onward.server.http.route import Shape
from onward.service.messages import MAX_MESSAGE_CHARS
from onward.service.submission import PRIORITY_LIMIT

_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _dated(value: Any) -> Any:
    if isinstance(value, str) and not _DATE.match(value):
        raise ValueError("a time such as 2026-11-15T14:00:00Z, with its zone")
    return value


Name = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00]+$")]
"""No database has a text with a NUL in it."""
Whole = Annotated[
    StrictInt, BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
]
"""A whole number; in JSON 5.0 is one."""
Priority = Annotated[Whole, Field(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)]
Seconds = Annotated[float, Field(ge=0, le=315_360_000, allow_inf_nan=False, strict=True)]
Time = Annotated[str, Field(description="ISO 8601, UTC", examples=["2026-11-15T14:00:00.000Z"])]
Moment = Annotated[AwareDatetime, BeforeValidator(_dated)]
"""A time with its zone, which comes in; and not a number, which pydantic would take for one."""
Seq = Annotated[int, Field(ge=0, le=2**53)]


class NewBudget(Shape):
    """What a task and its children may spend. Absolute: the same again is the same."""

    max_steps: Annotated[Whole, Field(ge=1, le=2**53)] | None = None
    max_wall_time_s: Seconds | None = None
    max_llm_tokens: Annotated[Whole, Field(ge=1, le=2**53)] | None = None
    max_cost_usd: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False, strict=True)] | None = None


class OwnBudget(NewBudget):
    """What a task and its children may spend, and what happens when it is gone."""

    max_artifact_bytes_in_context: Annotated[StrictInt, Field(ge=0, le=2**53)] | None = None
    when_spent: Literal["wait", "finish"] = "wait"


class NewTask(Shape):
    """A task that is asked for."""

    task: Name
    input: Any = None
    priority: Priority = 0
    queue: Name | None = None
    deadline_s: Seconds | None = None
    delay_s: Seconds | None = None
    expires_s: Seconds | None = None
    labels: dict[str, str] | None = None
    group: Name | None = None
    budget: OwnBudget | None = None
    after: Name | None = None
    webhook_url: Annotated[str, Field(max_length=2048)] | None = None


class Accepted(Shape):
    """A task that was accepted; it is durable when this arrives."""

    task_id: str
    state: State


class Taken(Shape):
    """What models took. Null is unknown, and never nothing."""

    calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None


class UsageShape(Taken):
    """Of the task alone, and with all that it started; the latter only where one task is asked for."""

    with_children: Taken | None


class TaskShape(Shape):
    """A task."""

    task_id: str
    task: str
    state: State
    reason: Reason | None
    input: Any
    result: Any
    error: dict[str, Any] | None
    partial: Any = Field(
        description="Of a task that failed: the best result that it had by then, which is not finished. Agents have one."
    )
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
    group: str | None
    tenant: str | None
    worker: str | None
    parent: str | None
    usage: UsageShape | None = Field(description="Null when no model was asked; in lists, also while it is under way.")
    in_flight: int | None = None
    left_out: list[Literal["input", "result", "error"]] = Field(
        [], description="What is null only because it is large, in a list that was asked to be brief."
    )


class WaitQuery(Shape):
    """How long to wait for the end."""

    timeout_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0


class RecordShape(Shape):
    """One record of a journal."""

    seq: int
    kind: str
    key: str
    shift: int
    at: Time
    data: Any


class RecordPage(Shape):
    """Records in order; `next` is for `after`, null when there are no more just now."""

    records: list[RecordShape]
    next: int | None


class AfterQuery(Shape):
    """After which record."""

    after: Seq = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000


class NewPriority(Shape):
    """Higher goes first."""

    priority: Priority


class NewSignal(Shape):
    """What is sent to a task; the same `id` twice is one signal."""

    value: Any = None
    id: Name | None = None


class NewMessage(Shape):
    """What is said to a task; the same `id` twice is one message."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_CHARS, pattern=r"\S")]
    id: Name | None = None


class Verdict(Shape):
    """What became of an effect in doubt."""

    verdict: Literal["happened", "not_happened", "undo"]
    result: Any = None
    step: Name | None = None


class AskShape(Shape):
    """A question or an approval."""

    id: str
    kind: Literal["question", "approval"]
    task_id: str
    task: str
    text: str
    risk: str | None
    data: Any
    choices: list[str]
    asked_at: Time
    expires_at: Time | None
    default: str | None
    tool: str | None
    arguments: dict[str, Any] | None
    hash: str | None


class Approvals(Shape):
    """Approvals that wait for somebody: those that expire first, then the oldest."""

    approvals: list[AskShape]


class Questions(Shape):
    """Questions that wait for somebody, the oldest first."""

    questions: list[AskShape]


class Pending(Shape):
    """Only what is open can be listed."""

    state: Literal["pending"] = "pending"


class Decision(Shape):
    """A yes or a no. With `hash`, only for what was seen."""

    decision: Literal["approve", "deny"]
    reason: Annotated[str, Field(max_length=10_000)] = ""
    arguments: dict[str, Any] | None = None
    always: StrictBool = False
    hash: Name | None = None


class NewAnswer(Shape):
    """The answer to a question."""

    answer: Any


class Decided(Shape):
    """It was decided, and by this call."""

    id: str
    task_id: str
    decided: Literal[True] = True


class Meter(Shape):
    """One kind of spending."""

    spent: float | None
    reserved: float | None
    limit: float | None


class BudgetShape(Shape):
    """A budget and what of it is gone; `task_id` is the task whose budget it is."""

    task_id: str
    meters: dict[str, Meter]
    waiting: list[str]
    needs: dict[str, dict[str, float | None]] = Field(
        description="For each task that waits, how much of each kind its next call needs at least."
    )


class ArtifactShape(Shape):
    """What a step left behind; `id` is what `/api/artifacts/{id}` takes."""

    id: str
    artifact_id: str
    type: str
    summary: str
    bytes: int
    step: str | None


class Artifacts(Shape):
    """All of a task."""

    artifacts: list[ArtifactShape]


class DoubtShape(Shape):
    """An effect of which nobody knows whether it happened."""

    task_id: str
    seq: int
    step: str
    reason: str


class Doubts(Shape):
    """All of a task."""

    doubts: list[DoubtShape]


class ScheduleShape(Shape):
    """What submits tasks by the clock."""

    name: str
    task: str
    input: Any
    cron: str | None
    every: float | None
    timezone: str
    missed: str
    queue: str
    priority: int
    deadline: float | None
    labels: dict[str, str]
    next_at: Time | None
    upcoming: Annotated[list[Time], Field(description="The next ticks, that one first: up to three.")]
    last_at: Time | None
    paused: bool


class Schedules(Shape):
    """All of them, by name."""

    schedules: list[ScheduleShape]


class QueueShape(Shape):
    """A queue: all that is unfinished in it."""

    name: str
    waiting: int
    running: int
    reasons: dict[str, int]
    oldest_s: float | None
    paused: bool
    limit: int | None
    rate: float


class Queues(Shape):
    """All of them, by name."""

    queues: list[QueueShape]


class WorkerShape(Shape):
    """A worker that was not declared dead."""

    id: str
    host: str
    pid: int
    slots: int
    running: int
    queues: list[str]
    handlers: list[str]
    version: str
    started_at: Time
    lease_s: float
    rate: float
    alive: bool


class Workers(Shape):
    """All of them."""

    workers: list[WorkerShape]


class StatsShape(Shape):
    """Numbers of the place. Where it is not `exact`, what completed is an estimate, and what failed or was cancelled is at
    least so much."""

    states: dict[State, int]
    reasons: dict[str, int]
    people: int
    workers: int
    slots: int
    rate: float
    exact: bool


class Health(Shape):
    """Well, or what is wrong."""

    status: Literal["ok"] = "ok"


class Received(Shape):
    """A request from outside that was taken."""

    id: str


class Pruned(Shape):
    """What was forgotten."""

    pruned: int = Field(description="How many tasks are gone: the task, and all that it started.")
