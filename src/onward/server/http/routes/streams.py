"""Routes that stream: progress of one task, of several, of all. The streams themselves are in `server/live/sse.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from onward.core.caller import Caller
from onward.errors import OnwardError
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.live import sse
from onward.server.live.pump import StillAllowed
from onward.server.schema import shapes
from onward.server.schema.shape import Shape

if TYPE_CHECKING:
    from onward.server.http.state import ServerState

LAST_SEEN = {
    "Last-Event-ID": "Go on after this cursor, the last `id:` that the client saw. An EventSource sends it by itself when it reconnects."
}


class ProgressQuery(Shape):
    """The tasks to follow, and the cursor to go on after."""

    task_id: Annotated[list[shapes.Name], Field(max_length=1000, default_factory=list)]
    all: bool = False
    only: Literal["progress"] | None = None
    """Send only what handlers gave to `ctx.progress`, and the end of each task without its result or error."""
    after: Annotated[str, Field(pattern=r"^[0-9]{1,15}(,[0-9]{1,15})*$", max_length=2000)] | None = None


routes = Routes("tasks")


@routes.add(
    "GET",
    "/api/progress",
    "Live progress of one task or several; with `all`, of the newest tasks, of all new ones, and of these. Ends when the tasks end.",
    {200: ("Server-sent events.", str), 204: ("The client has seen all events, and no more will come.", None)},
    query=ProgressQuery,
    headers=LAST_SEEN,
    errors=(404,),
    media=sse.MEDIA,
    loads=0,
)
async def progress(context: RequestContext) -> ApiResponse:
    query: ProgressQuery = context.query
    server, allowed = context.server, still_allowed(context)
    if query.all:
        return ApiResponse(
            response=await sse.everything(context.service, server.feed, query.task_id, allowed, query.only)
        )
    cursor = context.header("last-event-id") or query.after
    stream = await sse.progress(context.service, server.feed, query.task_id, cursor, allowed, query.only)
    return ApiResponse(response=stream)


async def records(context: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/events` as a stream."""
    cursor = context.header("last-event-id") or (str(context.query.after) if context.query.after else None)
    feed = context.server.feed
    return ApiResponse(
        response=await sse.records(context.service, feed, context.path["id"], cursor, still_allowed(context))
    )


def wants_sse(context: RequestContext) -> bool:
    """Whether the client asks for events rather than JSON."""
    return sse.MEDIA in (context.header("accept") or "")


def still_allowed(context: RequestContext) -> StillAllowed:
    """A function that tells whether the caller of this request may still read the stream."""
    return key_check(context.server, context.service.caller)


def key_check(server: ServerState, caller: Caller) -> StillAllowed:
    """A function that asks the authenticator again. While the store does not answer, the caller stays allowed."""

    async def allowed() -> bool:
        try:
            return await server.authenticator.still_valid(caller)
        except OnwardError:
            return True

    return allowed
