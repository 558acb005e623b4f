"""Routes that only read: the caller, the handlers, usage, the system, and how a task came to its state."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import Field

from onward.core.view_json import to_json
from onward.core.views import Check, HandlerView, TurnView, UsageReport
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema.shape import Shape
from onward.server.schema.shapes import LongPageQuery, Moment, RecordShape, Seq, StatsShape
from onward.service.serialize import timeline_json, whole_record_json

Kind = Literal[
    "queue",
    "shift",
    "turn",
    "step",
    "model",
    "tool",
    "wait",
    "sleep",
    "approval",
    "question",
    "child",
    "undo",
    "retry",
]


class Who(Shape):
    """The caller as the server sees it, for a console."""

    name: str = Field(description="The name of the key, or of the person with their id; empty without either.")
    key: str | None = Field(description="The id of the key; null without a key.")
    scopes: list[str]
    tenant: str | None
    agent: str | None = Field(description="The agent that the key belongs to.")
    person: str | None = Field(description="The stable id of the person who signed in; null with a key.")
    roles: list[str] = Field(description="The roles of the person.")
    session: str | None = Field(description="The id of the session of the person.")
    version: str = Field(description="The version of the server.")
    environment: str = Field(description="The setting `environment`: the name of this installation; empty without one.")


class Handlers(Shape):
    """Handlers, by name. Their schemas have about 4 MB together."""

    handlers: list[HandlerView]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class BarShape(Shape):
    """A part of a task that takes time. `kind` and `seq` together identify it; times are seconds since 1970."""

    kind: Kind
    name: str
    seq: int = Field(description="The record that began it; for a turn, the record of its call to the model.")
    last: int = Field(description="The last record about it.")
    start: float
    end: float | None
    state: Literal["ok", "failed", "killed", "running", "waiting", "retried", "in_doubt", "undone", "denied"]
    attempt: int
    parent: int | None = Field(description="The `seq` of the shift or turn that contains it.")
    depth: int
    child_id: str | None
    until: float | None = Field(description="When it should end, where that is known.")
    text: str


class MarkShape(Shape):
    """A moment in a task."""

    kind: str
    at: float
    seq: int
    text: str


class TimelineShape(Shape):
    """The journal as a waterfall. With `after`, only the bars and marks that changed since, and all bars that are open: they replace the
    ones with the same kind and `seq`, and the ones that were open. A response has some ten thousand bars or four megabytes at most."""

    task_id: str
    from_: float = Field(serialization_alias="from")
    until: float | None = Field(description="When the task ended.")
    seq: int = Field(description="The last record included; send it as `after` in the next request.")
    bars: list[BarShape]
    marks: list[MarkShape]
    more: bool = Field(False, description="Whether the journal has more records: send `seq` as `after`.")


class SinceQuery(Shape):
    """Only what changed after this record."""

    after: Seq = 0


class WholeRecord(RecordShape):
    """One record, with its input and output where they are known. A record that is too long is left out (`truncated`), and
    `text` is its beginning."""

    input: Any
    output: Any
    error: dict[str, Any] | None
    attempts: int | None
    effect_key: str | None
    size: int = Field(description="The size of the record in bytes.")
    truncated: bool
    text: str | None


class TurnPage(Shape):
    """Turns in order; send `next` as `after`. It is null when there are no more turns yet."""

    turns: list[TurnView]
    next: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class WholeTurn(TurnView):
    """The exact messages that the model received, and its reply."""

    messages: list[dict[str, Any]]
    reply: dict[str, Any]
    usage: dict[str, Any] | None
    """The tokens that the provider reported."""


class TurnQuery(SinceQuery):
    """Which turns."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class UsageQuery(Shape):
    """The grouping, and when the tasks were submitted."""

    by: Literal["agent", "model", "key", "day"] = "agent"
    since: Moment | None = None
    until: Moment | None = None


class SystemShape(Shape):
    """The system as a whole: the findings of `onward doctor`, and the facts behind them."""

    database: str
    store: Literal["sqlite", "postgres"]
    tables: int = Field(
        description="The number of the newest migration in the database; `tables_wanted` is the newest that this program has."
    )
    tables_wanted: int
    skew_s: float = Field(description="Seconds by which this machine's clock is behind the database's.")
    bytes: int
    stats: StatsShape
    settings: dict[str, Any] = Field(description="Secret values are masked.")
    version: str
    python: str
    fine: bool
    checks: list[Check]


routes = Routes("tasks")


@routes.add("GET", "/api/whoami", "The caller, and what it may do.", {200: ("The caller.", Who)}, tag="access", loads=0)
async def whoami(context: RequestContext) -> ApiResponse:
    """For every key, whatever its scopes are."""
    caller = context.service.caller
    fields = {"name": caller.name, "key": caller.key, "tenant": caller.tenant, "agent": caller.agent}
    person = {"person": caller.person, "roles": sorted(caller.roles), "session": caller.session}
    server = {"version": context.server.version, "environment": context.server.settings.get("environment", "")}
    return ApiResponse({**fields, **person, "scopes": sorted(caller.scopes), **server})


@routes.add(
    "GET",
    "/api/handlers",
    "Handlers by name, and the input that each takes, a page at a time.",
    {200: ("A page of handlers.", Handlers)},
    query=LongPageQuery,
    tag="place",
)
async def handlers(context: RequestContext) -> ApiResponse:
    page = await context.service.handlers(limit=context.query.limit, cursor=context.query.cursor)
    return ApiResponse({"handlers": [to_json(handler) for handler in page], "next": page.next})


@routes.add(
    "GET",
    "/api/usage",
    "Model usage by agent, model, key or day.",
    {200: ("Sums.", UsageReport)},
    query=UsageQuery,
    tag="agents",
    loads=0,
)
async def usage(context: RequestContext) -> ApiResponse:
    query: UsageQuery = context.query
    since, until = (None if at is None else at.timestamp() for at in (query.since, query.until))
    return ApiResponse(to_json(await context.service.usage(query.by, since, until)))


@routes.add(
    "GET",
    "/api/system",
    "The database, the settings, the versions, and the findings of `onward doctor`.",
    {200: ("The system.", SystemShape)},
    tag="place",
    loads=0,
)
async def system(context: RequestContext) -> ApiResponse:
    health = await context.service.system(context.server.settings, context.server.version)
    return ApiResponse({**to_json(health), "fine": health.fine})


@routes.add(
    "GET",
    "/api/tasks/{id}/timeline",
    "The history of a task as a waterfall: queue, shifts, turns, steps, waits.",
    {200: ("Bars and marks.", TimelineShape)},
    query=SinceQuery,
    errors=(404,),
)
async def timeline(context: RequestContext) -> ApiResponse:
    return ApiResponse(timeline_json(await context.service.timeline(context.path["id"], context.query.after)))


@routes.add(
    "GET",
    "/api/tasks/{id}/records/{seq}",
    "One record, with its input and output.",
    {200: ("The record.", WholeRecord)},
    errors=(404,),
)
async def record(context: RequestContext) -> ApiResponse:
    return ApiResponse(
        whole_record_json(await context.service.record(context.path["id"], _parse_number(context.path["seq"])))
    )


@routes.add(
    "GET",
    "/api/tasks/{id}/turns",
    "The turns of an agent, in brief.",
    {200: ("Turns in order.", TurnPage)},
    query=TurnQuery,
    errors=(404,),
    tag="agents",
)
async def turns(context: RequestContext) -> ApiResponse:
    query: TurnQuery = context.query
    page = await context.service.turns(context.path["id"], query.after, query.limit)
    last = page[-1].turn if len(page) == query.limit else None
    return ApiResponse({"turns": [to_json(view) for view in page], "next": last})


@routes.add(
    "GET",
    "/api/tasks/{id}/turns/{n}",
    "The exact messages that the model received in a turn, and its reply.",
    {200: ("The turn.", WholeTurn)},
    errors=(404,),
    tag="agents",
)
async def turn(context: RequestContext) -> ApiResponse:
    whole = await context.service.turn(context.path["id"], _parse_number(context.path["n"]))
    return ApiResponse({**to_json(whole.view), "messages": whole.messages, "reply": whole.reply, "usage": whole.usage})


def _parse_number(text: str) -> int:
    """The number in a path; 0, which no record or turn has, when it is not a number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
