"""Routes for tasks: submit, read, wait, control."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect

from onward.core import wire
from onward.core.budget import Budget
from onward.core.caller import READ, SUBMIT
from onward.core.journal.explain import Explanation
from onward.core.task import SAME, Task, Tasks
from onward.errors import QuotaExceeded, ResultTimeout, Unauthorized
from onward.server.http.problem import Problem
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.http.routes import streams
from onward.server.http.sending import LARGE_BYTES, client_gone
from onward.server.schema import shapes
from onward.service.serialize import record_json, task_json, why_json
from onward.service.submission import SubmitRequest
from onward.store.port.paging import PAGE_BYTES
from onward.telemetry import incoming

MAX_WAIT_S = 60.0
"""The server holds a response back for at most this time. A client that wants to wait longer asks again, or follows the task."""

MAX_TASK_BYTES = 2 * wire.LIMIT
"""Bytes of the input and the result of one task."""

SLICE_TASKS = 20
"""Tasks of a page that are put into JSON at once; other requests go on in between."""

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,6})")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
TASK = {200: ("The task.", shapes.TaskShape)}
_SUBMIT_HEADERS = {
    "Idempotency-Key": "Requests with the same key, task, input and options submit one task. The key is kept as long as the task.",
    "Prefer": "`wait=N` holds the response back for up to N seconds (60 at most): 200 with the task if it has ended by then.",
    "traceparent": "The trace of the caller (W3C): the spans of the task become a part of it. `tracestate` is read too.",
}

routes = Routes("tasks")


@routes.add(
    "POST",
    "/api/tasks",
    "Submit a task. It is durable when the response comes.",
    {202: ("Accepted.", shapes.Accepted), 200: ("The task ended while the response was held back.", shapes.TaskShape)},
    body=shapes.NewTask,
    scopes=(SUBMIT,),
    headers=_SUBMIT_HEADERS,
    errors=(404, 409, 429),
    loads=0,
)
async def submit(context: RequestContext) -> ApiResponse:
    body: shapes.NewTask = context.body
    request = SubmitRequest(
        body.task,
        body.input,
        key=_idempotency_key(context.header("idempotency-key")),
        priority=body.priority,
        queue=body.queue,
        deadline=body.deadline_s,
        delay=body.delay_s,
        expires=body.expires_s,
        labels=body.labels,
        group=body.group,
        budget=None if body.budget is None else _budget(body.budget),
        trace=incoming(context.request.headers),
        webhook=body.webhook_url,
    )
    (task_id,) = await context.service.submit([request], after=body.after, unchecked=body.unchecked)
    headers = {"Location": f"{context.request.scope.get('root_path', '')}/api/tasks/{task_id}"}
    wait_s = _prefer_wait(context)
    if wait_s is None or READ not in context.service.caller.scopes:  # a caller that may not read has no use for waiting
        return ApiResponse({"task_id": task_id, "state": "pending"}, 202, headers)
    try:
        task = await _wait(context, task_id, wait_s)
    except QuotaExceeded:  # too many responses of the tenant are held back; the task is submitted
        return ApiResponse({"task_id": task_id, "state": "pending"}, 202, headers)
    headers["Preference-Applied"] = f"wait={wait_s:g}"
    if task.ended:
        return ApiResponse(task_json(task), 200, headers)
    return ApiResponse({"task_id": task_id, "state": task.state.value}, 202, headers)


@routes.add(
    "GET",
    "/api/tasks",
    "Tasks, newest first, each with an explanation of its state. A task must match all filters.",
    {200: ("A page of tasks.", shapes.TaskPage)},
    query=shapes.TaskQuery,
)
async def list_(context: RequestContext) -> ApiResponse:
    query: shapes.TaskQuery = context.query
    page, explanations, cursor = await context.service.list_explained(
        limit=query.limit, cursor=query.cursor, brief=query.brief, **query.to_filter()
    )
    return await _page(page, explanations, cursor)


@routes.add(
    "GET",
    "/api/tasks/{id}",
    "One task, with its usage and an explanation of its state.",
    {200: ("The task.", shapes.PlacedTask)},
    headers={"Prefer": "`wait=N` holds the response back until the task has ended, for up to N seconds (60 at most)."},
    errors=(404,),
    loads=0,
)
async def get(context: RequestContext) -> ApiResponse:
    wait_s = _prefer_wait(context)
    if wait_s is not None:
        await _until_ended(context, context.path["id"], wait_s)
    task = await _load(context, context.path["id"])
    headers = {} if wait_s is None else {"Preference-Applied": f"wait={wait_s:g}"}
    return ApiResponse(_task_with_why(task, await context.server.service.explainer.of([task])), headers=headers)


@routes.add(
    "GET",
    "/api/tasks/{id}/children",
    "The children of a task, newest first, ended or not.",
    {200: ("A page of tasks.", shapes.TaskPage)},
    query=shapes.PageQuery,
    errors=(404,),
)
async def children(context: RequestContext) -> ApiResponse:
    page, cursor = await context.service.children(context.path["id"], context.query.limit, context.query.cursor)
    return await _page(page, await context.server.service.explainer.of(page), cursor)


@routes.add(
    "GET",
    "/api/tasks/{id}/result",
    "The task, once it has ended or the time is up.",
    {200: ("The task has ended.", shapes.TaskShape), 202: ("The task has not ended yet.", shapes.TaskShape)},
    query=shapes.WaitQuery,
    errors=(404,),
    loads=0,
)
async def result(context: RequestContext) -> ApiResponse:
    task = await _wait(context, context.path["id"], context.query.timeout_s)
    return ApiResponse(task_json(task), 200 if task.ended else 202)


@routes.add(
    "GET",
    "/api/tasks/{id}/events",
    "All records of a task after a number; with `Accept: text/event-stream`, as they come.",
    {
        200: ("Records in order.", shapes.RecordPage),
        204: ("As a stream: the client has seen all records, and no more will come.", None),
    },
    query=shapes.AfterQuery,
    headers=streams.LAST_SEEN,
    errors=(404,),
    streams=True,
)
async def events(context: RequestContext) -> ApiResponse:
    """A page as JSON, or a stream if the client asks for one."""
    if streams.wants_sse(context):
        return await streams.records(context)
    query: shapes.AfterQuery = context.query
    page = await context.service.journal(context.path["id"], query.after, query.limit, PAGE_BYTES)
    last = None if page.next is None else int(page.next)
    return ApiResponse({"records": [record_json(record) for record in page], "next": last})


@routes.add(
    "POST",
    "/api/tasks/{id}/cancel",
    "Cancel a task and its children, in whatever state they are.",
    TASK,
    errors=(404, 409),
)
async def cancel(context: RequestContext) -> ApiResponse:
    return _task(await context.service.cancel(context.path["id"]))


@routes.add(
    "DELETE",
    "/api/tasks/{id}",
    "Delete an ended task and all its descendants: journal, result, artifacts, key. Needs the scope admin.",
    {200: ("How many tasks were deleted.", shapes.Pruned)},
    errors=(404, 409),
)
async def prune(context: RequestContext) -> ApiResponse:
    return ApiResponse({"pruned": await context.service.prune(context.path["id"])})


@routes.add(
    "POST", "/api/tasks/{id}/resume", "Resume a failed, parked, quarantined or paused task.", TASK, errors=(404, 409)
)
async def resume(context: RequestContext) -> ApiResponse:
    return _task(await context.service.resume(context.path["id"]))


@routes.add(
    "POST",
    "/api/tasks/{id}/pause",
    "Pause a task and its children: no worker goes on with them until they are resumed.",
    TASK,
    errors=(404, 409),
)
async def pause(context: RequestContext) -> ApiResponse:
    return _task(await context.service.pause(context.path["id"]))


@routes.add(
    "POST",
    "/api/tasks/{id}/priority",
    "Change the priority of a task.",
    TASK,
    body=shapes.NewPriority,
    scopes=(SUBMIT,),
    errors=(404, 409),
)
async def priority(context: RequestContext) -> ApiResponse:
    return _task(await context.service.prioritize(context.path["id"], context.body.priority))


@routes.add(
    "POST",
    "/api/tasks/{id}/fork",
    "Create a new task from the first records of another; with `preview`, only list what it would do again.",
    {200: ("The new task, or the preview.", shapes.Forked)},
    body=shapes.NewFork,
    scopes=(SUBMIT,),
    errors=(404, 409),
)
async def fork(context: RequestContext) -> ApiResponse:
    body: shapes.NewFork = context.body
    new_input = body.input if "input" in body.model_fields_set else SAME
    if body.preview:
        plan = await context.service.fork_plan(context.path["id"], body.at, input=new_input)
        shown = sorted(plan.again, key=lambda step: not step.effect)[: shapes.MAX_REPEATED]  # effects before others
        shown.sort(key=lambda step: step.seq)
        again = [{"seq": step.seq, "name": step.step, "kind": step.kind, "effect": step.effect} for step in shown]
        document = {"would_repeat": again, "more": len(plan.again) - len(shown), "keeps": plan.at}
        return ApiResponse({**document, "asks_again": list(plan.approvals[: shapes.MAX_REPEATED])})
    fork_id = await context.service.fork(context.path["id"], body.at, input=new_input)
    return _task(context.service.shown(await context.server.service.get(fork_id)))


@routes.add(
    "GET",
    "/api/tasks/{id}/forks",
    "The records after which a task can be forked, in order.",
    {200: ("Records without their data.", shapes.ForkPlaces)},
    query=shapes.AfterQuery,
    errors=(404,),
)
async def fork_places(context: RequestContext) -> ApiResponse:
    query: shapes.AfterQuery = context.query
    places = [place for place in await context.service.fork_places(context.path["id"]) if place.seq > query.after]
    page = places[: query.limit]
    shown = [{"at": place.seq, "kind": place.kind, "key": place.key} for place in page]
    return ApiResponse({"places": shown, "next": page[-1].seq if len(places) > len(page) else None})


@routes.add(
    "POST",
    "/api/tasks/{id}/signals/{name}",
    "Send a signal to a task. It is kept until the task waits for it.",
    TASK,
    body=shapes.NewSignal,
    scopes=(SUBMIT,),
    errors=(404, 409),
)
async def signal(context: RequestContext) -> ApiResponse:
    await context.service.signal(context.path["id"], context.path["name"], context.body.value, id=context.body.id)
    return _task(context.service.shown(await context.server.service.get(context.path["id"])))


@routes.add(
    "POST",
    "/api/tasks/{id}/message",
    "Send a message to an unfinished task: an agent reads it before its next turn, other handlers receive it as the signal `message`.",
    TASK,
    body=shapes.NewMessage,
    scopes=(SUBMIT,),
    errors=(404, 409),
)
async def message(context: RequestContext) -> ApiResponse:
    return _task(await context.service.message(context.path["id"], context.body.text, id=context.body.id))


async def _page(tasks: Tasks, explanations: Mapping[str, Explanation], cursor: str | None) -> ApiResponse:
    shown = []
    for begin in range(0, len(tasks), SLICE_TASKS):
        shown += [_task_with_why(task, explanations) for task in tasks[begin : begin + SLICE_TASKS]]
        await asyncio.sleep(0)
    return ApiResponse({"tasks": shown, "next": cursor})


def _task_with_why(task: Task, explanations: Mapping[str, Explanation]) -> dict[str, Any]:
    return {**task_json(task), "why": why_json(explanations[task.task_id])}


def _prefer_wait(context: RequestContext) -> float | None:
    """The seconds for which the caller wants the response held back (`Prefer: wait=N`, RFC 7240)."""
    match = _WAIT.search(context.header("prefer") or "")
    return None if match is None else min(float(match[1]), MAX_WAIT_S)


def _task(task: Task) -> ApiResponse:
    return ApiResponse(task_json(task))


async def _wait(context: RequestContext, task_id: str, timeout: float) -> Task:
    """The task once it has ended, the time is up, or the server stops. Raises Unauthorized if the key was revoked meanwhile, and
    QuotaExceeded if too many responses of the tenant are held back."""
    ended = await _until_ended(context, task_id, timeout)
    return await _load(context, task_id) if ended is None or ended.left_out else ended


async def _load(context: RequestContext, task_id: str) -> Task:
    """The task. A large one takes a turn until the response is made."""
    task = await context.service.get(task_id, most=LARGE_BYTES)
    if not task.left_out:
        return task
    await context.until_made.enter_async_context(context.server.loading.hold(MAX_TASK_BYTES))
    return await context.service.get(task_id)


async def _until_ended(context: RequestContext, task_id: str, timeout: float) -> Task | None:
    """The task without large values, if it has ended by then. Raises Unauthorized if the key was revoked meanwhile."""
    ended = None
    if timeout:
        context.service.check_stream()
        with context.service.stream():
            ended = await _ended(context, task_id, timeout)
    if timeout and not await context.server.authenticator.still_valid(context.service.caller):
        raise Unauthorized
    return ended


async def _ended(context: RequestContext, task_id: str, timeout: float) -> Task | None:
    """The task without large values, if it has ended by then. Raises ClientDisconnect: if the client has left, the server stops waiting."""
    waiting = asyncio.ensure_future(context.service.wait(task_id, timeout, most=LARGE_BYTES))
    closing = asyncio.ensure_future(context.server.closing.wait())
    leaving = asyncio.ensure_future(client_gone(context.request.receive))
    try:
        await asyncio.wait({waiting, closing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            with contextlib.suppress(ResultTimeout):
                return await waiting
        elif leaving.done():
            raise ClientDisconnect
        return None
    finally:
        for future in (waiting, closing, leaving):
            future.cancel()
        await asyncio.gather(waiting, closing, leaving, return_exceptions=True)


def _budget(budget: shapes.OwnBudget) -> Budget:
    limits: dict[str, Any] = budget.model_dump(exclude_none=True)
    if "max_wall_time_s" in limits:
        limits["max_wall_time"] = limits.pop("max_wall_time_s")
    return Budget(**limits)


def _idempotency_key(header: str | None) -> str | None:
    """The header is a structured string ("…" with quotes); a bare word is accepted too. Its bytes are UTF-8, so that a key is
    the same over HTTP, MCP and Python; Starlette has read them as Latin-1."""
    if header is None:
        return None
    if not header.isascii():
        with contextlib.suppress(UnicodeError):
            header = header.encode("latin-1").decode()
    if not header.startswith('"'):
        return header
    quoted = _QUOTED.fullmatch(header)
    if quoted is None:
        raise Problem(400, "bad_header", "the header Idempotency-Key has a quote that does not end")
    return re.sub(r"\\(.)", r"\1", quoted[1]) if "\\" in quoted[1] else quoted[1]
