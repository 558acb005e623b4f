"""Calls that only tell: who asks, what can be asked for, and how a task came to where it is."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import Field

from onward.server.http.route import ApiResponse, ApiRoute, RequestContext, Shape
from onward.server.schema.shapes import Moment, RecordShape, Seq, StatsShape, Time
from onward.service.serialize import timeline_json, turn_json, whole_record_json

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
    """Who asks, as the server sees it: what a console may show."""

    name: str = Field(description="What the key is called; empty where no key was shown.")
    key: str | None = Field(description="The id of the key; null where no key was shown.")
    scopes: list[str]
    tenant: str | None
    agent: str | None = Field(description="The agent whose own key it is.")
    version: str = Field(description="Of the server.")


class HandlerShape(Shape):
    """What does tasks of a name."""

    name: str
    doc: str
    schema_: dict[str, Any] = Field(serialization_alias="schema", description="JSON schema of the input.")
    kind: Literal["task", "agent"]
    queue: str
    here: bool = Field(description="Whether the process that answers has it.")
    workers: int = Field(description="Living workers that have it.")
    version: str | None = Field(description="Of Onward, as those workers have it.")


class Handlers(Shape):
    """All of them, by name."""

    handlers: list[HandlerShape]


class BarShape(Shape):
    """Something that takes time. Its kind and its `seq` name it; times are seconds since 1970."""

    kind: Kind
    name: str
    seq: int = Field(description="The record that began it; of a turn, that of its question to the model.")
    last: int = Field(description="The last record about it.")
    start: float
    end: float | None
    state: Literal["ok", "failed", "killed", "running", "waiting", "retried", "in_doubt", "undone", "denied"]
    attempt: int
    parent: int | None = Field(description="The `seq` of the shift or the turn that it lies in.")
    depth: int
    child_id: str | None
    until: float | None = Field(description="When it is to end, where that was said.")
    text: str


class MarkShape(Shape):
    """Something that takes none."""

    kind: str
    at: float
    seq: int
    text: str


class TimelineShape(Shape):
    """A journal as a waterfall. With `after`, the bars and marks that changed since, to be put in the place of those there were."""

    task_id: str
    from_: float = Field(serialization_alias="from")
    until: float | None = Field(description="When it ended.")
    seq: int = Field(description="The last record that is in it: what to ask for next, as `after`.")
    bars: list[BarShape]
    marks: list[MarkShape]


class SinceQuery(Shape):
    """After which record."""

    after: Seq = 0


class WholeRecord(RecordShape):
    """One record, with what went in and what came out, where that is known. What is too long is left out (`truncated`), and `text` is
    how it begins."""

    input: Any
    output: Any
    error: dict[str, Any] | None
    attempts: int | None
    effect_key: str | None
    size: int = Field(description="Bytes of all that it has to tell.")
    truncated: bool
    text: str | None


class TurnShape(Shape):
    """A turn of an agent. Null is unknown."""

    turn: int
    seq: int
    at: Time
    took_s: float | None
    model: str
    finish: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    text: str = Field(description="How the answer begins.")
    tools: list[str] = Field(description="What it asked for.")


class TurnPage(Shape):
    """Turns in order; `next` is for `after`, null when there are no more just now."""

    turns: list[TurnShape]
    next: int | None


class WholeTurn(TurnShape):
    """Exactly what the model saw, and what it said."""

    messages: list[dict[str, Any]]
    reply: dict[str, Any]


class TurnQuery(SinceQuery):
    """Which turns."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class UsageRow(Shape):
    """What one group took. `unknown` is how many of its tasks, or of its calls, did not tell all of it, which is not in the sums."""

    group: str
    tasks: int
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    unknown: int


class UsageReport(Shape):
    """What models took; the dearest first, days in order."""

    by: str
    rows: list[UsageRow]
    complete: bool = Field(description="False when there are more tasks than the 10,000 newest, which were looked at.")


class UsageQuery(Shape):
    """By what, and of tasks that were submitted when."""

    by: Literal["agent", "model", "key", "day"] = "agent"
    since: Moment | None = None
    until: Moment | None = None


class Finding(Shape):
    """One thing that was looked at; `fine` is null for what is neither right nor wrong."""

    name: str
    fine: bool | None
    detail: str


class SystemShape(Shape):
    """The system as a whole: what `onward doctor` finds, and all that it looks at."""

    database: str
    store: Literal["sqlite", "postgres"]
    tables: int = Field(
        description="The number of the newest migration there is; `tables_wanted` is that of this program."
    )
    tables_wanted: int
    skew_s: float = Field(description="Seconds by which this machine's clock is behind the database's.")
    bytes: int
    stats: StatsShape
    settings: dict[str, Any] = Field(description="With what is secret masked.")
    version: str
    python: str
    fine: bool
    checks: list[Finding]


async def whoami(asked: RequestContext) -> ApiResponse:
    """`GET /api/whoami`: for whoever has a key, whatever it is good for."""
    caller = asked.door.caller
    told = {"name": caller.name, "key": caller.key, "tenant": caller.tenant, "agent": caller.agent}
    return ApiResponse({**told, "scopes": sorted(caller.scopes), "version": asked.edge.version})


async def handlers(asked: RequestContext) -> ApiResponse:
    """`GET /api/handlers`."""
    return ApiResponse({"handlers": [dataclasses.asdict(one) for one in await asked.door.handlers()]})


async def timeline(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/timeline`."""
    found = await asked.door.timeline(asked.path["id"], asked.query.after)
    return ApiResponse(timeline_json(found))


async def record(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/records/{seq}`."""
    return ApiResponse(whole_record_json(await asked.door.record(asked.path["id"], _number(asked.path["seq"]))))


async def turns(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/turns`."""
    query: TurnQuery = asked.query
    found = await asked.door.turns(asked.path["id"], query.after, query.limit)
    last = found[-1].turn if len(found) == query.limit else None
    return ApiResponse({"turns": [turn_json(one) for one in found], "next": last})


async def turn(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/turns/{n}`."""
    found = await asked.door.turn(asked.path["id"], _number(asked.path["n"]))
    return ApiResponse({**turn_json(found.view), "messages": found.messages, "reply": found.reply})


async def usage(asked: RequestContext) -> ApiResponse:
    """`GET /api/usage`."""
    query: UsageQuery = asked.query
    since, until = (None if at is None else at.timestamp() for at in (query.since, query.until))
    found = await asked.door.usage(query.by, since, until)
    return ApiResponse(dataclasses.asdict(found))


async def system(asked: RequestContext) -> ApiResponse:
    """`GET /api/system`."""
    found = await asked.door.system(asked.edge.settings, asked.edge.version)
    return ApiResponse({**dataclasses.asdict(found), "fine": found.fine})


def _number(text: str) -> int:
    """What stands in a path; 0, which nothing has, for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


CALLS = [
    ApiRoute(
        "GET", "/api/whoami", "whoami", whoami, "Who asks, and what they may do.", {200: ("You.", Who)}, tag="access"
    ),
    ApiRoute(
        "GET",
        "/api/handlers",
        "handlers",
        handlers,
        "What can be asked for, and what it takes.",
        {200: ("All handlers.", Handlers)},
        tag="place",
    ),
    ApiRoute(
        "GET",
        "/api/usage",
        "usage",
        usage,
        "What models took, by agent, model, key or day.",
        {200: ("Sums.", UsageReport)},
        query=UsageQuery,
        tag="agents",
    ),
    ApiRoute(
        "GET",
        "/api/system",
        "system",
        system,
        "The database, the settings, the versions, and what `onward doctor` finds.",
        {200: ("All of it.", SystemShape)},
        tag="place",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/timeline",
        "timeline",
        timeline,
        "How a task came to where it is, as a waterfall: queue, shifts, turns, steps, waits.",
        {200: ("Bars and marks.", TimelineShape)},
        query=SinceQuery,
        errors=(404,),
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/records/{seq}",
        "record",
        record,
        "One record, with what went in and what came out.",
        {200: ("The record.", WholeRecord)},
        errors=(404,),
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/turns",
        "turns",
        turns,
        "The turns of an agent, each in a few words.",
        {200: ("Turns in order.", TurnPage)},
        query=TurnQuery,
        errors=(404,),
        tag="agents",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/turns/{n}",
        "turn",
        turn,
        "Exactly what the model saw in a turn, and what it said.",
        {200: ("The turn.", WholeTurn)},
        errors=(404,),
        tag="agents",
    ),
]
