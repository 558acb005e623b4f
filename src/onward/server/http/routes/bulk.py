"""Routes for many tasks: count them, and do one action to all of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from onward.core.caller import ADMIN, SUBMIT
from onward.core.view_json import to_json
from onward.core.views import Acted
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema.shape import Shape
from onward.server.schema.shapes import Priority, TaskFilter, Whole
from onward.service.listing import MAX_COUNT


class Count(Shape):
    """How many tasks match."""

    count: int
    capped: bool = Field(description=f"Whether more may match: the server counts up to {MAX_COUNT:,}.")


class Action(Shape):
    """An action for all tasks that match."""

    action: Literal["cancel", "resume", "pause", "priority", "prune"]
    filter: TaskFilter = Field(description="As for `GET /api/tasks`; an empty filter is refused.")
    count: Annotated[Whole, Field(ge=0, le=MAX_COUNT)] = Field(
        description="How many tasks you saw. When far more match by now, nothing is done."
    )
    priority: Priority | None = None


routes = Routes("tasks")
"""These come before the routes of one task in the table, because `/api/tasks/{id}` also matches their paths."""


@routes.add(
    "GET", "/api/tasks/count", "How many tasks match.", {200: ("The number.", Count)}, query=TaskFilter, loads=0
)
async def count(context: RequestContext) -> ApiResponse:
    number, capped = await context.service.count(**context.query.to_filter())
    return ApiResponse({"count": number, "capped": capped})


@routes.add(
    "POST",
    "/api/tasks/actions",
    "Cancel, resume, pause, prioritize or prune all tasks that match, 10,000 at most. `prune` needs the scope admin.",
    {200: ("The result.", Acted)},
    body=Action,
    scopes=(SUBMIT, ADMIN),
    errors=(409,),
    loads=0,
)
async def act(context: RequestContext) -> ApiResponse:
    body: Action = context.body
    result = await context.service.act(body.action, body.count, priority=body.priority, **body.filter.to_filter())
    return ApiResponse(to_json(result))
