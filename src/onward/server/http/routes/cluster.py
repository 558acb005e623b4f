"""Routes for the system as a whole: schedules, queues, workers, numbers, health, metrics."""

from __future__ import annotations

from typing import Literal

from starlette.responses import Response

from onward.core.history import History
from onward.core.view_json import to_json
from onward.core.views import Queue, Schedule
from onward.errors import SchemaMismatch, UsageError
from onward.server.http.metrics import Metrics
from onward.server.http.problem import Problem
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema import shapes
from onward.server.schema.shape import Shape

_SCHEDULE = {200: ("The schedule.", Schedule)}
_QUEUE = {200: ("The queue.", Queue)}
_HEALTHY = {200: ("Healthy.", shapes.HealthShape)}

routes = Routes("place")


class HistoryQuery(Shape):
    """How far back."""

    span: Literal["hour", "day"] = "hour"


@routes.add(
    "GET",
    "/metrics",
    "Metrics for Prometheus: the queues, the workers, open approvals and questions, and the counters of this process.",
    {200: ("The metrics, as text.", str)},
    media="text/plain",
    errors=(501,),
    loads=0,
)
async def metrics(context: RequestContext) -> ApiResponse:
    """Numbers of all tenants together, so it needs the scope admin and a key without a tenant."""
    context.service.check_metrics()
    server = context.server
    try:
        server.metrics = server.metrics or Metrics(server.service.standing)
    except UsageError as error:
        raise Problem(501, "no_metrics", str(error)) from None
    body, media = await server.metrics.text(context.header("accept") or "")
    return ApiResponse(response=Response(body, 200, {"Content-Type": media}))


@routes.add(
    "GET",
    "/api/schedules",
    "Schedules by name, a page at a time.",
    {200: ("A page of schedules.", shapes.Schedules)},
    query=shapes.LongPageQuery,
)
async def schedules(context: RequestContext) -> ApiResponse:
    page = await context.service.schedules(limit=context.query.limit, cursor=context.query.cursor)
    return ApiResponse({"schedules": [to_json(schedule) for schedule in page], "next": page.next})


@routes.add(
    "POST",
    "/api/schedules/{name}/pause",
    "Pause a schedule: it submits no task until it is unpaused.",
    _SCHEDULE,
    errors=(404,),
)
async def pause_schedule(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.pause_schedule(context.path["name"])))


@routes.add(
    "POST",
    "/api/schedules/{name}/unpause",
    "Unpause a schedule: it goes on with its next tick from now.",
    _SCHEDULE,
    errors=(404,),
)
async def unpause_schedule(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.unpause_schedule(context.path["name"])))


@routes.add(
    "POST",
    "/api/schedules/{name}/remove",
    "Remove a schedule; its tasks stay. A worker whose code declares it creates it again.",
    {204: ("Removed.", None)},
    errors=(404,),
)
async def remove_schedule(context: RequestContext) -> ApiResponse:
    await context.service.remove_schedule(context.path["name"])
    return ApiResponse(response=Response(status_code=204))


@routes.add(
    "POST",
    "/api/schedules/{name}/trigger",
    "Submit the task of a schedule now, beside its ticks.",
    {202: ("Accepted.", shapes.Accepted)},
    errors=(404,),
)
async def trigger(context: RequestContext) -> ApiResponse:
    task_id = await context.service.trigger(context.path["name"])
    headers = {"Location": f"{context.request.scope.get('root_path', '')}/api/tasks/{task_id}"}
    return ApiResponse({"task_id": task_id, "state": "pending"}, 202, headers)


@routes.add(
    "GET",
    "/api/queues",
    "Queues by name, with their unfinished tasks, a page at a time.",
    {200: ("A page of queues.", shapes.Queues)},
    query=shapes.LongPageQuery,
)
async def queues(context: RequestContext) -> ApiResponse:
    page = await context.service.queues(limit=context.query.limit, cursor=context.query.cursor)
    return ApiResponse({"queues": [to_json(queue) for queue in page], "next": page.next})


@routes.add(
    "POST",
    "/api/queues/{name}/drain",
    "The same as pause: `running` says how many tasks still run; the queue is drained when it is 0.",
    _QUEUE,
    name="drain_queue",
)
@routes.add(
    "POST",
    "/api/queues/{name}/pause",
    "Pause a queue: workers start no task of it until it is unpaused; running tasks go on.",
    _QUEUE,
)
async def pause_queue(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.pause_queue(context.path["name"])))


@routes.add("POST", "/api/queues/{name}/unpause", "Unpause a queue.", _QUEUE)
async def unpause_queue(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.unpause_queue(context.path["name"])))


@routes.add(
    "GET",
    "/api/workers",
    "Workers that were not declared dead, the oldest first, a page at a time.",
    {200: ("A page of workers.", shapes.Workers)},
    query=shapes.LongPageQuery,
)
async def workers(context: RequestContext) -> ApiResponse:
    page = await context.service.workers(limit=context.query.limit, cursor=context.query.cursor)
    return ApiResponse({"workers": [to_json(worker) for worker in page], "next": page.next})


@routes.add(
    "GET",
    "/api/versions",
    "The versions of the code that workers have, or that ran the latest shift of an unfinished task.",
    {200: ("Versions, the one with the most workers first.", shapes.Versions)},
)
async def versions(context: RequestContext) -> ApiResponse:
    return ApiResponse({"versions": [to_json(version) for version in await context.service.versions()]})


@routes.add(
    "GET",
    "/api/stats",
    "How many tasks there are, by state and reason, and the throughput of the workers.",
    {200: ("Numbers.", shapes.StatsShape)},
)
async def stats(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.stats()))


@routes.add(
    "GET",
    "/api/history",
    "The last hour or day on a time axis: tasks that ended, how long they took, what they cost, and how many waited.",
    {200: ("The pieces of the time axis.", History)},
    query=HistoryQuery,
)
async def history(context: RequestContext) -> ApiResponse:
    """Numbers of all tenants together, so it needs the same key as the metrics."""
    return ApiResponse(to_json(await context.service.history(context.query.span)))


@routes.add("GET", "/healthz", "Whether this process answers.", _HEALTHY, open=True)
async def healthz(_context: RequestContext) -> ApiResponse:
    return ApiResponse({"status": "ok"})


@routes.add("GET", "/readyz", "Whether the database answers and is of this version.", _HEALTHY, open=True)
async def readyz(context: RequestContext) -> ApiResponse:
    """The database also answers, and has the tables of this version."""
    current, needed = await context.server.service.version()
    if current < needed:
        raise SchemaMismatch(
            f"the tables are of version {current}, and this program needs {needed}; run `onward migrate`"
        )
    return ApiResponse({"status": "ok"})
