"""Calls about who may ask, and who did what: keys and the audit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from onward.core.caller import ADMIN
from onward.server.http.route import ApiResponse, ApiRoute, RequestContext, Shape
from onward.server.schema.shapes import Name, Seconds, Seq, Time
from onward.service.serialize import entry_json, key_json


class NewKey(Shape):
    """A key that is asked for. Without a tenant it is that of whoever asks."""

    name: Name
    scopes: Annotated[list[Literal["read", "submit", "decide", "admin"]], Field(min_length=1, max_length=4)]
    tenant: Name | None = None
    agent: Name | None = None
    expires_s: Seconds | None = None


class KeyShape(Shape):
    """A key: all but the key itself."""

    id: str
    name: str
    tenant: str | None
    scopes: list[str]
    agent: str | None
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None
    valid: bool


class MadeKey(KeyShape):
    """A key that was made. `token` is what goes behind `Authorization: Bearer`; it is shown this once. `webhook_secret` signs the
    webhooks that the key's tenant gives at submit, where the server sends any."""

    token: str
    webhook_secret: str | None


class KeyList(Shape):
    """Keys, the oldest first."""

    keys: list[KeyShape]


class EntryShape(Shape):
    """Who did what to what. `hash` is the SHA-256 of this entry with that of the one before it."""

    number: int
    at: float
    tenant: str | None
    key: str | None
    name: str
    action: str
    subject: str
    data: dict[str, Any]
    before: str
    hash: str


class EntryPage(Shape):
    """Entries in order; `next` is for `after` (or `before`, where that was asked), null when there are no more just now."""

    entries: list[EntryShape]
    next: int | None


class AuditQuery(Shape):
    """After which entry, in order; or before which, the newest first."""

    after: Seq = 0
    before: Seq | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


async def list_(asked: RequestContext) -> ApiResponse:
    """`GET /api/keys`."""
    return ApiResponse({"keys": [key_json(key) for key in await asked.door.keys()]})


async def create(asked: RequestContext) -> ApiResponse:
    """`POST /api/keys`."""
    body: NewKey = asked.body
    made = await asked.door.create_key(
        body.name, body.scopes, tenant=body.tenant, agent=body.agent, expires=body.expires_s
    )
    secret = asked.door.service.subscriptions.secret_of(made.key.tenant)
    told = {**key_json(made.key), "token": made.token, "webhook_secret": secret}
    return ApiResponse(told, 201, {"Cache-Control": "no-store"})


async def revoke(asked: RequestContext) -> ApiResponse:
    """`POST /api/keys/{id}/revoke`."""
    return ApiResponse(key_json(await asked.door.revoke_key(asked.path["id"])))


async def audit(asked: RequestContext) -> ApiResponse:
    """`GET /api/audit`."""
    query: AuditQuery = asked.query
    found = await asked.door.audit(query.after, query.limit, query.before)
    last = found[-1].number if len(found) == query.limit else None
    return ApiResponse({"entries": [entry_json(entry) for entry in found], "next": last})


CALLS = [
    ApiRoute(
        "GET",
        "/api/keys",
        "keys",
        list_,
        "All keys, without the keys themselves.",
        {200: ("Keys.", KeyList)},
        tag="access",
    ),
    ApiRoute(
        "POST",
        "/api/keys",
        "create_key",
        create,
        "Make a key; it is shown this once.",
        {201: ("The key.", MadeKey)},
        body=NewKey,
        needs=(ADMIN,),
        errors=(413, 415, 422),
        tag="access",
    ),
    ApiRoute(
        "POST",
        "/api/keys/{id}/revoke",
        "revoke_key",
        revoke,
        "Let a key open nothing any more; it takes effect within two seconds.",
        {200: ("The key.", KeyShape)},
        errors=(404,),
        tag="access",
    ),
    ApiRoute(
        "GET",
        "/api/audit",
        "audit",
        audit,
        "Who did what to what, in order.",
        {200: ("Entries.", EntryPage)},
        query=AuditQuery,
        tag="access",
    ),
]
