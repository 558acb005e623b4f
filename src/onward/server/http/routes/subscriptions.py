"""Calls about subscriptions and deliveries: who hears of what, and what came of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from starlette.responses import Response

from onward.core.caller import ADMIN
from onward.server.http.route import ApiResponse, ApiRoute, RequestContext, Shape
from onward.server.schema.shapes import Name, Time
from onward.service.serialize import delivery_json, subscription_json

Type = Annotated[str, Field(min_length=1, max_length=80, examples=["task.completed", "task.*", "*"])]
State = Literal["pending", "delivered", "failed"]


class NewSubscription(Shape):
    """Which events go where."""

    url: Annotated[str, Field(min_length=1, max_length=2048, examples=["https://example.com/hook"])]
    types: Annotated[list[Type], Field(min_length=1, max_length=100)]
    tenant: Annotated[Name | None, Field(description="Of whose tasks; of all, where the key has no tenant.")] = None


class SubscriptionShape(Shape):
    """Who hears of what."""

    id: str
    types: list[str]
    tenant: Annotated[str | None, Field(description="Of whose tasks: null for all, empty for those without a tenant.")]
    sink: str
    created_at: Time
    offered_at: Time | None
    disabled: Annotated[str | None, Field(description="Why nothing is sent any more.")]
    dropped: Annotated[int, Field(description="Events that were dropped because too many waited.")]


class MadeSubscription(SubscriptionShape):
    """The same, with the secret that signs what is sent. It is not shown again."""

    secret: str


class SubscriptionPage(Shape):
    """Subscriptions by their ids."""

    subscriptions: list[SubscriptionShape]
    next: str | None


class PageQuery(Shape):
    """Which page."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Name | None = None


class DeliveryShape(Shape):
    """One event on its way to one receiver."""

    id: str
    subscription: str
    task_id: str
    seq: int
    type: str
    state: State
    sink: str | None
    attempts: int
    said: Annotated[str | None, Field(description="What came of the last attempt.")]
    at: Time
    due_at: Time | None
    done_at: Time | None
    sending: bool


class DeliveryPage(Shape):
    """Deliveries, newest first."""

    deliveries: list[DeliveryShape]
    next: str | None


class DeliveryQuery(PageQuery):
    """Which deliveries."""

    state: State | None = None
    task: Name | None = None
    task_id: Name | None = Field(None, description="The same as `task`.")
    subscription: Name | None = None


async def make(asked: RequestContext) -> ApiResponse:
    """`POST /api/subscriptions`."""
    body: NewSubscription = asked.body
    made = await asked.door.subscribe(body.url, body.types, tenant=body.tenant)
    return ApiResponse(subscription_json(made) | {"secret": made.secret}, 201)


async def list_(asked: RequestContext) -> ApiResponse:
    """`GET /api/subscriptions`."""
    found, cursor = await asked.door.subscriptions(asked.query.limit, asked.query.cursor)
    return ApiResponse({"subscriptions": [subscription_json(one) for one in found], "next": cursor})


async def remove(asked: RequestContext) -> ApiResponse:
    """`DELETE /api/subscriptions/{id}`."""
    await asked.door.unsubscribe(asked.path["id"])
    return ApiResponse(response=Response(status_code=204))


async def deliveries(asked: RequestContext) -> ApiResponse:
    """`GET /api/deliveries`."""
    said = asked.query.model_dump()
    task_id = said.pop("task_id")
    found, cursor = await asked.door.deliveries(**said | {"task": said["task"] or task_id})
    return ApiResponse({"deliveries": [delivery_json(one) for one in found], "next": cursor})


async def redeliver(asked: RequestContext) -> ApiResponse:
    """`POST /api/deliveries/{id}/redeliver`."""
    return ApiResponse(delivery_json(await asked.door.redeliver(asked.path["id"])), 202)


CALLS = [
    ApiRoute(
        "POST",
        "/api/subscriptions",
        "subscribe",
        make,
        "Have events sent to a URL, signed, from now on.",
        {201: ("Made. Keep the secret.", MadeSubscription)},
        body=NewSubscription,
        needs=(ADMIN,),
        errors=(413, 415, 422),
        tag="events",
    ),
    ApiRoute(
        "GET",
        "/api/subscriptions",
        "subscriptions",
        list_,
        "Who hears of what.",
        {200: ("A page of subscriptions.", SubscriptionPage)},
        query=PageQuery,
        tag="events",
    ),
    ApiRoute(
        "DELETE",
        "/api/subscriptions/{id}",
        "unsubscribe",
        remove,
        "Tell of nothing more.",
        {204: ("Gone.", None)},
        errors=(404,),
        tag="events",
    ),
    ApiRoute(
        "GET",
        "/api/deliveries",
        "deliveries",
        deliveries,
        "Events on their way out, newest first.",
        {200: ("A page of deliveries.", DeliveryPage)},
        query=DeliveryQuery,
        tag="events",
    ),
    ApiRoute(
        "POST",
        "/api/deliveries/{id}/redeliver",
        "redeliver",
        redeliver,
        "Send an event again now: the same id, the same bytes.",
        {202: ("It is due.", DeliveryShape)},
        errors=(404, 409),
        tag="events",
    ),
]
