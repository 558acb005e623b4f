"""Shapes of lists of tasks and of forks, over HTTP. See `shapes.py` for the others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel, StrictBool

from onward.core.task import Reason, State
from onward.server.http.route import Shape
from onward.server.schema.shapes import Moment, Name, TaskShape, Time, Whole
from onward.service.listing import BRIEF_BYTES, MAX_SEARCH_CHARS

Names = Annotated[list[Name], Field(max_length=50)]
Label = Annotated[str, Field(pattern=r"^[^:]+:", max_length=1024, description="NAME:VALUE")]


class TaskFilter(Shape):
    """Which tasks. All of it has to hold; of several values of one name each will do, and of labels those of one name."""

    state: Annotated[list[State], Field(max_length=6)] = Field([])
    reason: Annotated[list[Reason], Field(max_length=50)] = Field([])
    name: Names = Field([], description="The handler; `task` is the same.")
    task: Names = Field([])
    queue: Names = Field([])
    label: Annotated[list[Label], Field(max_length=10)] = Field([])
    parent: Name | None = None
    key: Name | None = None
    tenant: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="Of one tenant, for who sees all; empty for what has none."
    )
    since: Moment | None = Field(None, description="Created then or later; `created_after` is the same.")
    until: Moment | None = Field(None, description="Created before; `created_before` is the same.")
    created_after: Moment | None = None
    created_before: Moment | None = None
    q: Annotated[str, Field(max_length=MAX_SEARCH_CHARS)] | None = Field(
        None,
        description="A text in the name, the key, the labels or the beginning of the input, in small or capital letters, or with which "
        "the id begins or ends.",
    )

    def asked(self) -> dict[str, Any]:
        """The same, as the door takes it."""
        labels: dict[str, list[str]] = {}
        for one in self.label:
            name, _, value = one.partition(":")
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
    """Which tasks, and how many of them."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Name | None = None
    brief: bool = Field(
        False,
        description=f"Leave out inputs, results and errors of more than {BRIEF_BYTES:,} bytes: `left_out` names them.",
    )


class WhyShape(Shape):
    """Why a task is where it is: what, and since when and until when."""

    text: str = Field(examples=["behind 12 others", "waits for approval of send_email", "in doubt: charge"])
    since: Time | None
    until: Time | None
    behind: int | None = Field(
        description="How many stand before it, where it could be started now; 1000 is so many or more."
    )


class PlacedTask(TaskShape):
    """A task, and why it is where it is."""

    why: WhyShape


class TaskPage(Shape):
    """Tasks, newest first. A page of a look that no index helps may have few tasks, or none, and a `next`."""

    tasks: list[PlacedTask]
    next: str | None


class PageQuery(Shape):
    """How many, and from where on."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Name | None = None


class NewFork(Shape):
    """After which record to fork; with another input, from the first. With `preview` nothing is made."""

    at: Annotated[Whole, Field(ge=1, le=2**53)] | None = None
    input: Any = None
    preview: StrictBool = False


class Repeated(Shape):
    """Something that a fork would do anew, if its way leads there."""

    seq: int
    name: str
    kind: Literal["step", "question", "approval", "child"]
    effect: bool = Field(description="Whether it is an effect that must not happen twice by itself.")


class ForkPlan(Shape):
    """What a fork would come to."""

    would_repeat: list[Repeated]
    keeps: int = Field(description="Records that it would begin with.")
    asks_again: list[int] = Field(
        default=[],
        description="Approvals among them that it asks for again; an agent only where the call is not done yet.",
    )


class Forked(RootModel[TaskShape | ForkPlan]):
    """The new task; with `preview`, what it would come to."""
