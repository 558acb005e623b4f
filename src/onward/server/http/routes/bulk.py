"""Calls about many tasks: how many there are, and one action for all of them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field

from onward.core.caller import ADMIN, SUBMIT
from onward.server.http.route import ApiResponse, ApiRoute, RequestContext, Shape
from onward.server.schema.shapes import Priority, Whole
from onward.server.schema.task_shapes import TaskFilter
from onward.service.listing import MAX_COUNT


class Count(Shape):
    """How many tasks match."""

    count: int
    capped: bool = Field(description=f"Whether there may be more: they are counted up to {MAX_COUNT:,}.")


class Action(Shape):
    """What is done to all tasks that match."""

    action: Literal["cancel", "resume", "pause", "priority", "prune"]
    filter: TaskFilter = Field(description="As for `GET /api/tasks`; an empty one is refused.")
    count: Annotated[Whole, Field(ge=0, le=MAX_COUNT)] = Field(
        description="How many you have seen. When far more match by now, nothing is done."
    )
    priority: Priority | None = None


class RefusedTask(Shape):
    """A task that could not be acted on."""

    task_id: str
    code: str
    detail: str


class Outcome(Shape):
    """What came of it. `refused` has the first twenty."""

    matched: int
    done: int
    refused: list[RefusedTask]


async def count(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/count`."""
    found, more = await asked.door.count(**asked.query.asked())
    return ApiResponse({"count": found, "capped": more})


async def act(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/actions`."""
    body: Action = asked.body
    done = await asked.door.act(body.action, body.count, priority=body.priority, **body.filter.asked())
    return ApiResponse({**dataclasses.asdict(done), "refused": [dataclasses.asdict(one) for one in done.refused]})


CALLS = [
    ApiRoute(
        "GET",
        "/api/tasks/count",
        "count",
        count,
        "How many tasks match.",
        {200: ("The number.", Count)},
        query=TaskFilter,
    ),
    ApiRoute(
        "POST",
        "/api/tasks/actions",
        "act",
        act,
        "Cancel, resume, pause, prioritize or prune all tasks that match, 10,000 at most. To prune needs the scope admin.",
        {200: ("What came of it.", Outcome)},
        body=Action,
        needs=(SUBMIT, ADMIN),
        errors=(409, 413, 415, 422),
    ),
]
"""Before the calls of one task in the table: their paths look like its."""
