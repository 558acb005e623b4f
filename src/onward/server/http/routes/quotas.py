"""Routes for the quotas of tenants."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from onward.core.caller import ADMIN
from onward.core.tenant_quota import MAX_VALUE
from onward.core.view_json import to_json
from onward.core.views import TenantUse
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema.shape import Shape

Number = Annotated[int, Field(ge=0, le=MAX_VALUE)]


class NewQuota(Shape):
    """Quotas to give to a tenant; those that are missing stay as they are. 0 is no quota, except for `priority`."""

    requests: Number | None = None
    """Requests a second of all its keys together, in one server process; twice as many at once."""
    key_requests: Number | None = None
    """The same for each of its keys."""
    streams: Number | None = None
    """Streams, sockets, held responses and MCP requests that are open at once, in one server process."""
    sessions: Number | None = None
    """MCP sessions, in one server process."""
    queue_share: Annotated[int, Field(ge=0, le=100)] | None = None
    """Percent of the length of a queue that its waiting tasks may fill."""
    tasks: Number | None = None
    """Unfinished tasks in all queues, without those that a worker holds."""
    queues: Number | None = None
    """Queues in which its unfinished tasks are, without those that a worker holds."""
    running: Annotated[int, Field(ge=0, le=100)] | None = None
    """Percent of the slots of each worker that its tasks may hold."""
    messages: Number | None = None
    """Messages that one of its tasks may get."""
    keys: Number | None = None
    """Valid keys."""
    subscriptions: Number | None = None
    """Subscriptions."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """The highest priority that it may give a task."""
    refused: Number | None = None
    """Refused calls of one key that the audit log records in a minute."""


class TenantsQuery(Shape):
    """Tenants after a name."""

    after: Annotated[str, Field(max_length=512)] = ""
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class TenantUses(Shape):
    """Tenants by name, each with its quotas and its use of them; send `next` as `after`. It is null when there are no more."""

    tenants: list[TenantUse]
    next: str | None


routes = Routes("access")
TENANT = {200: ("The tenant.", TenantUse)}


@routes.add(
    "GET",
    "/api/quotas",
    "The quotas of each tenant and its use of them; with the key of a tenant, of that tenant.",
    {200: ("Tenants.", TenantUses)},
    query=TenantsQuery,
)
async def quotas(context: RequestContext) -> ApiResponse:
    query: TenantsQuery = context.query
    page = await context.service.quotas(query.after, query.limit)
    next_ = page[-1].tenant if len(page) == query.limit else None
    return ApiResponse({"tenants": [to_json(use) for use in page], "next": next_})


@routes.add(
    "POST",
    "/api/quotas/{name}",
    "Give a tenant quotas of its own. Within 5 seconds they hold in every server.",
    TENANT,
    body=NewQuota,
    scopes=(ADMIN,),
)
async def set_quota(context: RequestContext) -> ApiResponse:
    values = context.body.model_dump(exclude_none=True)
    return ApiResponse(to_json(await context.service.set_quota(context.path["name"], values)))


@routes.add("DELETE", "/api/quotas/{name}", "Give a tenant the quotas of the settings again.", TENANT)
async def reset_quota(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.reset_quota(context.path["name"])))
