"""Calls that go on: streams of one task, of several, of all. What they do is in `server/live/sse.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from onward.core.caller import Caller
from onward.errors import OnwardError
from onward.server.http.route import ApiResponse, ApiRoute, RequestContext, Shape
from onward.server.live import sse as stream
from onward.server.schema import shapes

if TYPE_CHECKING:
    from onward.server.http.app import Edge

LAST_SEEN = {
    "Last-Event-ID": "Go on after this, as the last `id:` said; an EventSource sends it by itself when it comes back."
}


class ProgressQuery(Shape):
    """Which tasks, and after which cursor."""

    task_id: Annotated[list[shapes.Name], Field(max_length=1000, default_factory=list)]
    all: bool = False
    after: Annotated[str, Field(pattern=r"^[0-9]{1,15}(,[0-9]{1,15})*$", max_length=2000)] | None = None


async def progress(asked: RequestContext) -> ApiResponse:
    """`GET /api/progress`."""
    query: ProgressQuery = asked.query
    edge, allowed = asked.edge, still_allowed(asked)
    if query.all:
        return ApiResponse(response=await stream.everything(asked.door, edge.feed, query.task_id, allowed))
    cursor = asked.header("last-event-id") or query.after
    return ApiResponse(response=await stream.progress(asked.door, edge.feed, query.task_id, cursor, allowed))


async def records(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/events` for whoever wants a stream."""
    cursor = asked.header("last-event-id") or (str(asked.query.after) if asked.query.after else None)
    feed = asked.edge.feed
    return ApiResponse(response=await stream.records(asked.door, feed, asked.path["id"], cursor, still_allowed(asked)))


def wants_stream(asked: RequestContext) -> bool:
    """Whether the client asks for events rather than JSON."""
    return stream.MEDIA in (asked.header("accept") or "")


def still_allowed(asked: RequestContext) -> stream.StillAllowed:
    """Whether whoever began a stream may still have it."""
    return check(asked.edge, asked.door.caller)


def check(edge: Edge, caller: Caller) -> stream.StillAllowed:
    """Ask the gate again. While it cannot answer, nothing changes."""

    async def allowed() -> bool:
        try:
            return await edge.gate.still(caller)
        except OnwardError:
            return True

    return allowed


CALLS = [
    ApiRoute(
        "GET",
        "/api/progress",
        "progress",
        progress,
        "What happens to one task, or several, as it happens; with `all`, to the newest tasks, all to come, and these. Ends with the tasks.",
        {200: ("Server-sent events.", str), 204: ("All of it was seen, and nothing more will come.", None)},
        query=ProgressQuery,
        headers=LAST_SEEN,
        errors=(404,),
        media=stream.MEDIA,
    ),
]
