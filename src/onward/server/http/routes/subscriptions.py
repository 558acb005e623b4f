"""Routes for subscriptions to events, and for their deliveries."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from onward.core.caller import ADMIN
from onward.core.durations import Time
from onward.core.view_json import to_json
from onward.core.views import Delivery, DeliveryState
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema.shape import Shape
from onward.server.schema.shapes import Name, PageQuery
from onward.service.serialize import subscription_json

Type = Annotated[str, Field(min_length=1, max_length=80, examples=["task.completed", "task.*", "*"])]


class NewSubscription(Shape):
    """The events to send, and the URL to send them to."""

    url: Annotated[str, Field(min_length=1, max_length=2048, examples=["https://example.com/hook"])]
    types: Annotated[list[Type], Field(min_length=1, max_length=100)]
    tenant: Annotated[
        Name | None,
        Field(
            description="The tenant whose tasks it covers. Without it: the tenant of the key, or all tasks if the key has none."
        ),
    ] = None


class SubscriptionShape(Shape):
    """A subscription: the events of which tasks go to which sink."""

    id: str
    types: list[str]
    tenant: Annotated[
        str | None,
        Field(description="The tenant whose tasks it covers: null for all tasks, empty for tasks without a tenant."),
    ]
    sink: str
    created_at: Time
    offered_at: Time | None
    disabled: Annotated[str | None, Field(description="Why it is disabled.")]
    dropped: Annotated[int, Field(description="How many events were dropped because too many were waiting.")]


class MadeSubscription(SubscriptionShape):
    """A new subscription, with the secret that signs its deliveries. The secret is not shown again."""

    secret: str


class SubscriptionPage(Shape):
    """Subscriptions, ordered by id."""

    subscriptions: list[SubscriptionShape]
    next: str | None


class DeliveryPage(Shape):
    """Deliveries, newest first."""

    deliveries: list[Delivery]
    next: str | None


class DeliveryQuery(PageQuery):
    """Which deliveries."""

    state: DeliveryState | None = None
    task: Name | None = None
    task_id: Name | None = Field(None, description="The same as `task`.")
    subscription: Name | None = None


routes = Routes("events")


@routes.add(
    "POST",
    "/api/subscriptions",
    "Subscribe a URL to events; the server signs each delivery.",
    {201: ("Created. Keep the secret.", MadeSubscription)},
    body=NewSubscription,
    scopes=(ADMIN,),
)
async def subscribe(context: RequestContext) -> ApiResponse:
    body: NewSubscription = context.body
    subscription = await context.service.subscribe(body.url, body.types, tenant=body.tenant)
    return ApiResponse(subscription_json(subscription) | {"secret": subscription.secret}, 201)


@routes.add(
    "GET",
    "/api/subscriptions",
    "All subscriptions that the caller may see.",
    {200: ("A page of subscriptions.", SubscriptionPage)},
    query=PageQuery,
)
async def subscriptions(context: RequestContext) -> ApiResponse:
    page, cursor = await context.service.subscriptions(context.query.limit, context.query.cursor)
    return ApiResponse({"subscriptions": [subscription_json(subscription) for subscription in page], "next": cursor})


@routes.add(
    "DELETE",
    "/api/subscriptions/{id}",
    "Delete a subscription: it receives no more events.",
    {204: ("Deleted.", None)},
    errors=(404,),
)
async def unsubscribe(context: RequestContext) -> ApiResponse:
    await context.service.unsubscribe(context.path["id"])
    return ApiResponse(response=Response(status_code=204))


@routes.add(
    "GET",
    "/api/deliveries",
    "Deliveries of events, newest first.",
    {200: ("A page of deliveries.", DeliveryPage)},
    query=DeliveryQuery,
)
async def deliveries(context: RequestContext) -> ApiResponse:
    params = context.query.model_dump()
    task_id = params.pop("task_id")
    page, cursor = await context.service.deliveries(**params | {"task": params["task"] or task_id})
    return ApiResponse({"deliveries": [to_json(delivery) for delivery in page], "next": cursor})


@routes.add(
    "POST",
    "/api/deliveries/{id}/redeliver",
    "Send an event again now: the same id, the same bytes.",
    {202: ("It will be sent now.", Delivery)},
    errors=(404, 409),
)
async def redeliver(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.redeliver(context.path["id"])), 202)
