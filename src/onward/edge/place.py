"""Calls about the place itself: schedules, health."""

from __future__ import annotations

from onward.edge import shapes
from onward.edge.calls import Answer, Asked, Call
from onward.errors import SchemaMismatch
from onward.views import schedule_json


async def schedules(asked: Asked) -> Answer:
    """`GET /api/schedules`."""
    return Answer({"schedules": [schedule_json(schedule) for schedule in await asked.door.schedules()]})


async def healthz(_asked: Asked) -> Answer:
    """`GET /healthz`: this process answers."""
    return Answer({"status": "ok"})


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
