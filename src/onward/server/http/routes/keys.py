"""Routes for keys and the audit log."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import Field

from onward.core.caller import ADMIN
from onward.core.view_json import to_json
from onward.core.views import Key
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema.shape import Shape
from onward.server.schema.shapes import LongPageQuery, Name, Seconds, Seq
from onward.service.encryption import EncryptionStatus
from onward.service.serialize import entry_json


class NewKey(Shape):
    """A key to create. Without `tenant` it gets the tenant of the caller."""

    name: Name
    scopes: Annotated[list[Literal["read", "submit", "decide", "admin"]], Field(min_length=1, max_length=4)]
    tenant: Name | None = None
    agent: Name | None = None
    expires_s: Seconds | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MadeKey(Key):
    """A key that was created. `token` goes after `Authorization: Bearer`; it is shown only in this response. `webhook_secret`
    signs the webhooks that the key's tenant gives at submit, where the server sends webhooks."""

    token: str
    webhook_secret: str | None


class KeyList(Shape):
    """Keys, the oldest first."""

    keys: list[Key]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class EntryShape(Shape):
    """One entry of the audit log: who did what to which subject. `hash` is the SHA-256 of this entry and the hash before it."""

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
    """Entries in order; send `next` as `after` (or as `before`, if the request had `before`). It is null when there are no more
    entries yet."""

    entries: list[EntryShape]
    next: int | None


class AuditQuery(Shape):
    """Entries after a number, in order; or before a number, the newest first."""

    after: Seq = 0
    before: Seq | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class Heads(Shape):
    """Heads of the audit log (`NUMBER:HASH`) that were noted before."""

    heads: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=1000)] = Field([])


class AuditCheckShape(Shape):
    """The result of a check of the whole audit log."""

    sound: bool
    entries: int
    head: str = Field(description="The last sound entry, as `NUMBER:HASH`. Note it elsewhere.")
    broken: int | None = Field(description="The first entry that was changed, or is missing.")
    cause: Literal["", "tampered", "no_key", "unkeyed", "unsealed"]
    why: str
    keyed_from: int | None = Field(description="The first entry with a key.")
    end: Literal["head", "seal", "unproven"] = Field(
        description="What vouches that no entry behind the last one is missing."
    )


routes = Routes("access")


@routes.add(
    "GET",
    "/api/keys",
    "Keys without their tokens, the oldest first, a page at a time.",
    {200: ("A page of keys.", KeyList)},
    query=LongPageQuery,
)
async def keys(context: RequestContext) -> ApiResponse:
    page = await context.service.keys(limit=context.query.limit, cursor=context.query.cursor)
    return ApiResponse({"keys": [to_json(key) for key in page], "next": page.next})


@routes.add(
    "POST",
    "/api/keys",
    "Create a key. Its token is shown only in this response.",
    {201: ("The key.", MadeKey)},
    body=NewKey,
    scopes=(ADMIN,),
)
async def create_key(context: RequestContext) -> ApiResponse:
    body: NewKey = context.body
    new_key = await context.service.create_key(
        body.name, body.scopes, tenant=body.tenant, agent=body.agent, expires=body.expires_s
    )
    payload = {**to_json(new_key.key), "token": new_key.token, "webhook_secret": new_key.webhook_secret}
    return ApiResponse(payload, 201, {"Cache-Control": "no-store"})


@routes.add(
    "POST",
    "/api/keys/{id}/revoke",
    "Revoke a key: within two seconds the server refuses requests with it.",
    {200: ("The key.", Key)},
    errors=(404,),
)
async def revoke_key(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.revoke_key(context.path["id"])))


@routes.add(
    "GET",
    "/api/audit",
    "The audit log: who did what to which subject, in order.",
    {200: ("Entries.", EntryPage)},
    query=AuditQuery,
)
async def audit(context: RequestContext) -> ApiResponse:
    query: AuditQuery = context.query
    page = await context.service.audit(query.after, query.limit, query.before)
    next_ = page[-1].number if len(page) == query.limit else None
    return ApiResponse({"entries": [entry_json(entry) for entry in page], "next": next_})


@routes.add(
    "POST",
    "/api/audit/verify",
    "Check that no entry of the audit log was changed or removed, up to the heads that were noted before. It reads all of the log.",
    {200: ("The result.", AuditCheckShape)},
    body=Heads,
    scopes=(ADMIN,),
    loads=0,
)
async def verify_audit(context: RequestContext) -> ApiResponse:
    verdict = await context.service.verify_audit(context.body.heads)
    return ApiResponse({"sound": verdict.sound, **dataclasses.asdict(verdict)})


@routes.add(
    "GET",
    "/api/encryption",
    "The keys of encrypted payloads: which master keys are in use. No key itself is shown.",
    {200: ("The keys.", EncryptionStatus)},
    loads=0,
)
async def encryption(context: RequestContext) -> ApiResponse:
    status = await context.service.encryption()
    return ApiResponse({**to_json(status), "masters": dict(status.masters)})
