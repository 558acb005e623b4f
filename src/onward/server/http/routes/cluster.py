"""Calls about the place itself: schedules, queues, workers, numbers, health, metrics."""

from __future__ import annotations

from starlette.responses import Response

from onward.errors import SchemaMismatch, UsageError
from onward.server.http.metrics import Metrics
from onward.server.http.problem import Problem
from onward.server.http.route import ApiResponse, ApiRoute, RequestContext
from onward.server.schema import shapes
from onward.service.serialize import queue_json, schedule_json, stats_json, worker_json


async def schedules(asked: RequestContext) -> ApiResponse:
    """`GET /api/schedules`."""
    return ApiResponse({"schedules": [schedule_json(schedule) for schedule in await asked.door.schedules()]})


async def pause_schedule(asked: RequestContext) -> ApiResponse:
    """`POST /api/schedules/{name}/pause`."""
    return ApiResponse(schedule_json(await asked.door.pause_schedule(asked.path["name"])))


async def unpause_schedule(asked: RequestContext) -> ApiResponse:
    """`POST /api/schedules/{name}/unpause`."""
    return ApiResponse(schedule_json(await asked.door.unpause_schedule(asked.path["name"])))


async def trigger(asked: RequestContext) -> ApiResponse:
    """`POST /api/schedules/{name}/trigger`."""
    task_id = await asked.door.trigger(asked.path["name"])
    where = {"Location": f"{asked.request.scope.get('root_path', '')}/api/tasks/{task_id}"}
    return ApiResponse({"task_id": task_id, "state": "pending"}, 202, where)


async def queues(asked: RequestContext) -> ApiResponse:
    """`GET /api/queues`."""
    return ApiResponse({"queues": [queue_json(queue) for queue in await asked.door.queues()]})


async def pause_queue(asked: RequestContext) -> ApiResponse:
    """`POST /api/queues/{name}/pause`."""
    return ApiResponse(queue_json(await asked.door.pause_queue(asked.path["name"])))


async def unpause_queue(asked: RequestContext) -> ApiResponse:
    """`POST /api/queues/{name}/unpause`."""
    return ApiResponse(queue_json(await asked.door.unpause_queue(asked.path["name"])))


async def workers(asked: RequestContext) -> ApiResponse:
    """`GET /api/workers`."""
    return ApiResponse({"workers": [worker_json(worker) for worker in await asked.door.workers()]})


async def stats(asked: RequestContext) -> ApiResponse:
    """`GET /api/stats`."""
    return ApiResponse(stats_json(await asked.door.stats()))


async def healthz(_asked: RequestContext) -> ApiResponse:
    """`GET /healthz`: this process answers."""
    return ApiResponse({"status": "ok"})


async def metrics(asked: RequestContext) -> ApiResponse:
    """`GET /metrics`: of all tenants together, so it is for who runs the place."""
    asked.door.measures()
    edge = asked.edge
    try:
        edge.metrics = edge.metrics or Metrics(asked.door.service.standing)
    except UsageError as error:
        raise Problem(501, "no_metrics", str(error)) from None
    text, media = await edge.metrics.text(asked.header("accept") or "")
    return ApiResponse(response=Response(text, 200, {"Content-Type": media}))


async def readyz(asked: RequestContext) -> ApiResponse:
    """`GET /readyz`: the database answers too, and has the tables of this version."""
    there, wanted = await asked.door.service.version()
    if there < wanted:
        raise SchemaMismatch(
            f"the tables are of version {there}, and this program needs {wanted}; run `onward migrate`"
        )
    return ApiResponse({"status": "ok"})


_SCHEDULE = {200: ("The schedule.", shapes.ScheduleShape)}
_QUEUE = {200: ("The queue.", shapes.QueueShape)}
_WELL = {200: ("It is well.", shapes.Health)}
CALLS = [
    ApiRoute(
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
    ApiRoute(
        "GET",
        "/api/schedules",
        "schedules",
        schedules,
        "What submits tasks by the clock.",
        {200: ("All schedules.", shapes.Schedules)},
        tag="place",
    ),
    ApiRoute(
        "POST",
        "/api/schedules/{name}/pause",
        "pause_schedule",
        pause_schedule,
        "No tick until it is unpaused.",
        _SCHEDULE,
        errors=(404,),
        tag="place",
    ),
    ApiRoute(
        "POST",
        "/api/schedules/{name}/unpause",
        "unpause_schedule",
        unpause_schedule,
        "Go on with its next tick from now.",
        _SCHEDULE,
        errors=(404,),
        tag="place",
    ),
    ApiRoute(
        "POST",
        "/api/schedules/{name}/trigger",
        "trigger",
        trigger,
        "Submit the task of a schedule now, beside its ticks.",
        {202: ("Accepted.", shapes.Accepted)},
        errors=(404,),
        tag="place",
    ),
    ApiRoute(
        "GET",
        "/api/queues",
        "queues",
        queues,
        "What is unfinished, by queue.",
        {200: ("All queues.", shapes.Queues)},
        tag="place",
    ),
    ApiRoute(
        "POST",
        "/api/queues/{name}/pause",
        "pause_queue",
        pause_queue,
        "Let nobody start anything of a queue until it is unpaused; what runs goes on.",
        _QUEUE,
        tag="place",
    ),
    ApiRoute(
        "POST",
        "/api/queues/{name}/drain",
        "drain_queue",
        pause_queue,
        "The same as pause: `running` says how many are still at work, and it is drained when that is 0.",
        _QUEUE,
        tag="place",
    ),
    ApiRoute(
        "POST",
        "/api/queues/{name}/unpause",
        "unpause_queue",
        unpause_queue,
        "Let a queue go on.",
        _QUEUE,
        tag="place",
    ),
    ApiRoute(
        "GET",
        "/api/workers",
        "workers",
        workers,
        "Workers that were not declared dead.",
        {200: ("All workers.", shapes.Workers)},
        tag="place",
    ),
    ApiRoute(
        "GET",
        "/api/stats",
        "stats",
        stats,
        "How many tasks there are, by state and reason, and what the workers manage.",
        {200: ("Numbers.", shapes.StatsShape)},
        tag="place",
    ),
    ApiRoute("GET", "/healthz", "healthz", healthz, "Whether this process answers.", _WELL, open=True, tag="place"),
    ApiRoute(
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
