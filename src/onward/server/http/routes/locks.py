"""Routes for locks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from onward.core.caller import ADMIN
from onward.core.lock import MAX_NAME_CHARS, Lock
from onward.core.view_json import to_json
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema.shape import Shape
from onward.service.locks import MAX_PAGE, MAX_REASON_CHARS

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class LocksQuery(Shape):
    """A page of locks."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    cursor: Annotated[str, Field(max_length=8_000)] | None = None


class LocksPage(Shape):
    """Locks that are held or waited for, by tenant and name; send `next` as `cursor`. It is null when there are no more."""

    locks: list[Lock]
    next: str | None


class Release(Shape):
    """Which lock to take from its holder, and why."""

    name: Name
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS)]
    """The audit log keeps it."""
    tenant: Name | None = None
    """The tenant whose lock it is. A caller with a tenant has locks of that tenant only."""


routes = Routes("place")


@routes.add(
    "GET",
    "/api/locks",
    "Locks that are held or waited for, with their holders and the first that wait.",
    {200: ("Locks.", LocksPage)},
    query=LocksQuery,
)
async def locks(context: RequestContext) -> ApiResponse:
    query: LocksQuery = context.query
    page, next_ = await context.service.locks(query.limit, query.cursor)
    return ApiResponse({"locks": [to_json(lock) for lock in page], "next": next_})


@routes.add(
    "POST",
    "/api/locks/release",
    "Take a lock from its holder, and let the next one in. The holder is not stopped: cancel or pause its task first.",
    {200: ("The lock as it was.", Lock)},
    body=Release,
    scopes=(ADMIN,),
    errors=(404,),
)
async def release_lock(context: RequestContext) -> ApiResponse:
    body: Release = context.body
    return ApiResponse(to_json(await context.service.release_lock(body.name, body.reason, body.tenant)))
