"""Request and response models for lists of tasks and for forks. See `shapes.py` for the others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel, StrictBool

from onward.core.durations import Time
from onward.core.task import Reason, State
from onward.server.http.route import Shape
from onward.server.schema.shapes import Moment, Name, TaskShape, Whole
from onward.service.listing import BRIEF_BYTES, MAX_SEARCH_CHARS

Names = Annotated[list[Name], Field(max_length=50)]
Label = Annotated[str, Field(pattern=r"^[^:]+:", max_length=1024, description="NAME:VALUE")]


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
    tenant: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="Tasks of this tenant, for a caller that sees all tenants; empty for tasks without a tenant."
    )
    since: Moment | None = Field(None, description="Created at this time or later; `created_after` is the same filter.")
    until: Moment | None = Field(None, description="Created before this time; `created_before` is the same filter.")
    created_after: Moment | None = None
    created_before: Moment | None = None
    q: Annotated[str, Field(max_length=MAX_SEARCH_CHARS)] | None = Field(
        None,
        description="A search text: in the name, the key, the labels or the beginning of the input, upper or lower case; or the "
        "beginning or end of the id.",
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

    would_repeat: list[Repeated]
    keeps: int = Field(description="How many records it would begin with.")
    asks_again: list[int] = Field(
        default=[],
        description="Approvals among them that it would ask for again; an agent asks only if the call is not done yet.",
    )


class Forked(RootModel[TaskShape | ForkPlan]):
    """The new task; with `preview`, the preview."""
