"""Request and response models of the HTTP API, as the OpenAPI document shows them. Times are ISO 8601 in UTC.

Most objects in responses are views (`core/views.py`), and the document has their fields. Here are those whose JSON differs from
the fields of a class.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, RootModel, StrictBool, StrictInt

from onward.core.doubts import Doubt
from onward.core.durations import Time
from onward.core.state import AgentState
from onward.core.task import Reason, State
from onward.core.views import Ask, CodeVersion, Queue, Schedule, WorkerView
from onward.server.schema.shape import Shape
from onward.service.listing import BRIEF_BYTES, MAX_SEARCH_CHARS
from onward.service.messages import MAX_MESSAGE_CHARS
from onward.service.submission import PRIORITY_LIMIT
from onward.store.port.listing import MAX_ASKS, PAGE_BYTES

_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _check_date(value: Any) -> Any:
    if isinstance(value, str) and not _DATE.match(value):
        raise ValueError("a time such as 2026-11-15T14:00:00Z, with its zone")
    return value


Name = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00]+$")]
"""No database stores a string that contains NUL."""
Whole = Annotated[
    StrictInt, BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
]
"""A whole number; in JSON, 5.0 is one too."""
Priority = Annotated[Whole, Field(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)]
Seconds = Annotated[float, Field(ge=0, le=315_360_000, allow_inf_nan=False, strict=True)]
Moment = Annotated[AwareDatetime, BeforeValidator(_check_date)]
"""A time with its zone. A bare number is refused; pydantic would read it as a time."""
Seq = Annotated[int, Field(ge=0, le=2**53)]
Names = Annotated[list[Name], Field(max_length=50)]
Label = Annotated[str, Field(pattern=r"^[^:]+:", max_length=1024, description="NAME:VALUE")]


class NewBudget(Shape):
    """The most that a task and its children may spend. The values are absolute: setting the same limits twice changes nothing."""

    max_steps: Annotated[Whole, Field(ge=1, le=2**53)] | None = None
    max_wall_time_s: Seconds | None = None
    max_llm_tokens: Annotated[Whole, Field(ge=1, le=2**53)] | None = None
    max_cost_usd: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False, strict=True)] | None = None


class OwnBudget(NewBudget):
    """The most that a task and its children may spend, and what to do when it is spent."""

    max_artifact_bytes_in_context: Annotated[StrictInt, Field(ge=0, le=2**53)] | None = None
    when_spent: Literal["wait", "finish"] = "wait"


class NewTask(Shape):
    """A task to submit."""

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
    unchecked: StrictBool = Field(
        False,
        description="Submit it even if no worker has ever had a handler of this name. Needs the scope admin, and no tenant.",
    )


class Accepted(Shape):
    """A task that was accepted. It is durable when this response arrives."""

    task_id: str
    state: State


class Taken(Shape):
    """Model usage. Null means unknown, never zero."""

    calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None


class UsageShape(Taken):
    """Usage of the task alone, and in `with_children` of the task and all its descendants; the latter only in requests for one
    task."""

    with_children: Taken | None


class TaskShape(Shape):
    """A task."""

    task_id: str
    task: str
    state: State
    reason: Reason | None
    input: Any
    result: Any
    error: dict[str, Any] | None = Field(
        description="`type`, `message` and `attempts`. If a step failed: its name in `step`, and `type` and `message` of its error in "
        "`cause`."
    )
    partial: Any = Field(description="For a failed task: the best unfinished result that it had. Agents have one.")
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
    usage: UsageShape | None = Field(
        description="Null when no model was called; in lists, also while the task is unfinished."
    )
    in_flight: int | None = None
    left_out: list[Literal["input", "result", "error"]] = Field(
        [],
        description=f"The fields of a list that are null only because they are large: with `brief`, or beyond the {PAGE_BYTES:,} bytes "
        "of inputs and results that a page has. The task alone has them. Also those that were erased, or for which the server has no "
        "encryption key.",
    )
    erased: bool = Field(
        False, description="Whether the key that encrypted its values was destroyed: they cannot be read."
    )


class TaskFilter(Shape):
    """Which tasks. A task must match every field; of several values in one field, one must match. Labels of the same name count
    as one field."""

    state: Annotated[list[State], Field(max_length=6)] = Field([])
    reason: Annotated[list[Reason], Field(max_length=50)] = Field([])
    name: Names = Field([], description="The name of the handler; `task` is the same filter.")
    task: Names = Field([])
    queue: Names = Field([])
    label: Annotated[list[Label], Field(max_length=10)] = Field([])
    parent: Name | None = None
    key: Name | None = None
    tenant: Annotated[str, Field(max_length=512, pattern=r"^[^\x00]*$")] | None = Field(
        None, description="Tasks of this tenant, for a caller that sees all tenants; empty for tasks without a tenant."
    )
    since: Moment | None = Field(None, description="Created at this time or later; `created_after` is the same filter.")
    until: Moment | None = Field(None, description="Created before this time; `created_before` is the same filter.")
    created_after: Moment | None = None
    created_before: Moment | None = None
    q: Annotated[str, Field(max_length=MAX_SEARCH_CHARS)] | None = Field(
        None,
        description="A search text: in the name, the key, the labels or the beginning of the input, upper or lower case; or the "
        "beginning or end of the id. Inputs that are encrypted are not searched.",
    )

    def to_filter(self) -> dict[str, Any]:
        """The filter as keyword arguments of `AuthorizedService.list`."""
        labels: dict[str, list[str]] = {}
        for label in self.label:
            name, _, value = label.partition(":")
            labels.setdefault(name, []).append(value)
        since, until = (
            max((at.timestamp() for at in (self.since, self.created_after) if at is not None), default=None),
            min((at.timestamp() for at in (self.until, self.created_before) if at is not None), default=None),
        )
        return {
            "state": self.state or None,
            "reason": self.reason or None,
            "task": [*self.name, *self.task] or None,
            "queue": self.queue or None,
            "labels": labels or None,
            "parent": self.parent,
            "key": self.key,
            "tenant": self.tenant,
            "created_after": since,
            "created_before": until,
            "text": self.q,
        }


class TaskQuery(TaskFilter):
    """Which tasks, and which page of them."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Name | None = None
    brief: bool = Field(
        False,
        description=f"Leave out inputs, results and errors of more than {BRIEF_BYTES:,} bytes; `left_out` names them.",
    )


class WhyShape(Shape):
    """Why a task is in its state, since when and until when."""

    text: str = Field(examples=["behind 12 others", "waits for approval of send_email", "in doubt: charge"])
    since: Time | None
    until: Time | None
    behind: int | None = Field(
        description="How many tasks are ahead of it, if it could start now; 1000 means 1000 or more."
    )
    subject: str | None = Field(
        description="The step, tool, signal, handler of a child or kind of budget that `text` is about.",
        examples=["send_email"],
    )
    detail: str | None = Field(
        description="What `text` says beside the state, the reason and the subject: an error, a question, the number of the retry.",
        examples=["retry 1 of 4: OSError: down"],
    )
    more: int = Field(description="How many other waits of the task are open.")


class PlacedTask(TaskShape):
    """A task, with an explanation of its state."""

    why: WhyShape


class TaskPage(Shape):
    """Tasks, newest first. When no index fits the filter, a page may have few tasks or none, and still have a `next`."""

    tasks: list[PlacedTask]
    next: str | None


class PageQuery(Shape):
    """Which page."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Name | None = None


MAX_REPEATED = 1_000
"""Steps, and approvals, that the preview of a fork lists."""


MAX_DOUBTS = 1_000
"""Effects in doubt that a response lists."""

MAX_WAITING = 1_000
"""Tasks that a response about a budget lists."""


class LongPageQuery(Shape):
    """Which page; the longest one unless `limit` says otherwise."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 1000
    cursor: Name | None = None


class DoubtsQuery(Shape):
    """About how many of each, and the task after which the page begins."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    after: Name | None = None


class NewFork(Shape):
    """`at` is the last record that the fork keeps. With another `input`, the fork begins at the first record. With `preview` no
    task is created."""

    at: Annotated[Whole, Field(ge=1, le=2**53)] | None = None
    input: Any = None
    preview: StrictBool = False


class Repeated(Shape):
    """A step that a fork would do again, if it comes to it."""

    seq: int
    name: str
    kind: Literal["step", "question", "approval", "child"]
    effect: bool = Field(description="Whether it is an effect that must not be repeated without a decision.")


class ForkPlan(Shape):
    """The preview of a fork."""

    would_repeat: list[Repeated] = Field(description=f"{MAX_REPEATED:,} of them at most, effects before others.")
    more: int = Field(0, description="How many more it would do again.")
    keeps: int = Field(description="How many records it would begin with.")
    asks_again: list[int] = Field(
        default=[],
        description="Approvals among them that it would ask for again; an agent asks only if the call is not done yet.",
    )


class ForkPlace(Shape):
    """A record after which a task can be forked."""

    at: int = Field(description="Its number.")
    kind: str
    key: str


class ForkPlaces(Shape):
    """Records in order; send `next` as `after`. It is null when there are no more."""

    places: list[ForkPlace]
    next: int | None


class Forked(RootModel[TaskShape | ForkPlan]):
    """The new task; with `preview`, the preview."""


class WaitQuery(Shape):
    """How long to wait for the end of the task."""

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
    """Records in order; send `next` as `after`. It is null when there are no more records yet. A page of large records ends before its
    `limit`."""

    records: list[RecordShape]
    next: int | None


class AfterQuery(Shape):
    """Records after this number."""

    after: Seq = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000


class NewPriority(Shape):
    """Tasks with a higher priority go first."""

    priority: Priority


class NewSignal(Shape):
    """A signal to a task. Two signals with the same `id` count as one."""

    value: Any = None
    id: Name | None = None


class NewMessage(Shape):
    """A message to a task. Two messages with the same `id` count as one."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_CHARS, pattern=r"\S")]
    id: Name | None = None


class Verdict(Shape):
    """Whether an effect in doubt happened."""

    verdict: Literal["happened", "not_happened", "nothing_happened", "undo"]
    result: Any = None
    step: Name | None = None


class Approval(RootModel[Ask]):
    """An approval in full, with all fields of Ask."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Question(RootModel[Ask]):
    """A question in full, with all fields of Ask."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Approvals(Shape):
    """Open approvals. The pages follow the order in which the tasks were submitted; in a page those that expire first come first, then
    the oldest. A page may have few approvals or none, and still have a `next`."""

    approvals: list[Ask]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class Questions(Shape):
    """Open questions. The pages follow the order in which the tasks were submitted; in a page the oldest comes first. A page may have
    few questions or none, and still have a `next`."""

    questions: list[Ask]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class NewPatch(Shape):
    """A change to the state of an agent. Two patches with the same `id` count as one."""

    patch: dict[str, Any] = Field(
        description="`append_facts`, `replace_plan`, `add_questions`, `answer_questions`, `flag_risks`, `unflag_risks`.",
        examples=[{"append_facts": [{"key": "region", "value": "eu", "source": "ada"}]}],
    )
    id: Name | None = None


class Patched(Shape):
    """The state after a patch; null if the caller may not read it, or the agent has not begun one."""

    state: AgentState | None


class Pending(Shape):
    """Which page. Only open items can be listed."""

    state: Literal["pending"] = "pending"
    task_id: Name | None = Field(None, description="Only those of this task, a page of the longest size.")
    limit: Annotated[int, Field(ge=1, le=MAX_ASKS)] = MAX_ASKS
    cursor: Name | None = None


class Decision(Shape):
    """A yes or a no. With `digest`, it counts only if the approval has this digest; `hash` is a shorter form of it."""

    decision: Literal["approve", "deny"]
    reason: Annotated[str, Field(max_length=10_000)] = ""
    arguments: dict[str, Any] | None = None
    always: StrictBool = False
    hash: Name | None = None
    digest: Name | None = None


class NewAnswer(Shape):
    """The answer to a question."""

    answer: Any


class Meter(Shape):
    """One kind of spending."""

    spent: float | None
    reserved: float | None
    limit: float | None


class BudgetShape(Shape):
    """A budget and how much of it is spent; `task_id` is the task that has the budget."""

    task_id: str
    meters: dict[str, Meter]
    waiting: list[str] = Field(description=f"Tasks that wait for budget, {MAX_WAITING:,} of them at most.")
    needs: dict[str, dict[str, float | None]] = Field(
        description="For each of them: how much of each kind its next call needs at least."
    )
    more: int = Field(0, description="How many more tasks wait.")


class ArtifactShape(Shape):
    """An artifact of a step; `/api/artifacts/{id}` takes its `id`."""

    id: str
    artifact_id: str
    type: str
    summary: str
    bytes: int
    step: str | None


class Artifacts(Shape):
    """Artifacts of a task, in the order in which it stored them. A page has about 4 MB."""

    artifacts: list[ArtifactShape]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class Doubts(Shape):
    """Effects in doubt of a task, the oldest first."""

    doubts: list[Doubt] = Field(description=f"{MAX_DOUBTS:,} of them at most.")
    more: int = Field(0, description="How many more there are.")


class Schedules(Shape):
    """Schedules by name. The inputs of a page have about 4 MB together."""

    schedules: list[Schedule]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class Queues(Shape):
    """Queues, by name."""

    queues: list[Queue]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class Workers(Shape):
    """Workers, the oldest first. Their handlers and queues have about 4 MB together."""

    workers: list[WorkerView]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class Versions(Shape):
    """Versions of the code."""

    versions: list[CodeVersion]


class StatsShape(Shape):
    """Numbers of the whole system. Without `exact`, the number of completed tasks is an estimate, and the numbers of failed and
    cancelled tasks are lower bounds."""

    states: dict[State, int]
    reasons: dict[str, int]
    people: int
    workers: int
    slots: int
    rate: float
    exact: bool


class HealthShape(Shape):
    """The process is healthy."""

    status: Literal["ok"] = "ok"


class Received(Shape):
    """The id of a request that a hook accepted."""

    id: str


class Pruned(Shape):
    """The number of deleted tasks."""

    pruned: int = Field(description="How many tasks were deleted: the task and all its descendants.")
