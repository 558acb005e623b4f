"""Calls about the place itself: schedules, health, metrics."""

from __future__ import annotations

from starlette.responses import Response

from onward.edge import shapes
from onward.edge.calls import Answer, Asked, Call
from onward.edge.metrics import Metrics
from onward.edge.problem import Problem
from onward.errors import SchemaMismatch, UsageError
from onward.views import schedule_json


async def schedules(asked: Asked) -> Answer:
    """`GET /api/schedules`."""
    return Answer({"schedules": [schedule_json(schedule) for schedule in await asked.door.schedules()]})


async def healthz(_asked: Asked) -> Answer:
    """`GET /healthz`: this process answers."""
    return Answer({"status": "ok"})


async def metrics(asked: Asked) -> Answer:
    """`GET /metrics`: of all tenants together, so it is for who runs the place."""
    asked.door.measures()
    edge = asked.request.app.state.edge
    try:
        edge.metrics = edge.metrics or Metrics(asked.door.service.standing)
    except UsageError as error:
        raise Problem(501, "no_metrics", str(error)) from None
    text, media = await edge.metrics.text(asked.header("accept") or "")
    return Answer(response=Response(text, 200, {"Content-Type": media}))


async def readyz(asked: Asked) -> Answer:
    """`GET /readyz`: the database answers too, and has the tables of this version."""
    there, wanted = await asked.door.service.version()
    if there < wanted:
        raise SchemaMismatch(
            f"the tables are of version {there}, and this program needs {wanted}; run `onward migrate`"
        )
    return Answer({"status": "ok"})


_WELL = {200: ("It is well.", shapes.Health)}
CALLS = [
    Call(
        "GET",
        "/metrics",
        "metrics",
        metrics,
        "Numbers for Prometheus: the queues, the workers, what waits for people, and what this process has done.",
        {200: ("The numbers, as text.", str)},
        media="text/plain",
        errors=(501,),
        tag="place",
    ),
    Call(
        "GET",
        "/api/schedules",
        "schedules",
        schedules,
        "What submits tasks by the clock.",
        {200: ("All schedules.", shapes.Schedules)},
        tag="place",
    ),
    Call("GET", "/healthz", "healthz", healthz, "Whether this process answers.", _WELL, open=True, tag="place"),
    Call(
        "GET",
        "/readyz",
        "readyz",
        readyz,
        "Whether the database answers and is of this version.",
        _WELL,
        open=True,
        tag="place",
    ),
]
