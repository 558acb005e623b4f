"""Calls about tasks: submit, look, wait, steer."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect

from onward.core.budget import Budget
from onward.core.caller import READ, SUBMIT
from onward.core.journal.explain import Explanation
from onward.core.task import SAME, Task, Tasks
from onward.errors import ResultTimeout, Unauthorized
from onward.server.http.problem import Problem
from onward.server.http.route import ApiResponse, ApiRoute, RequestContext
from onward.server.http.routes import streams as live
from onward.server.live import sse as stream
from onward.server.schema import shapes, task_shapes
from onward.service.serialize import record_json, task_json, why_json
from onward.service.submission import SubmitRequest
from onward.telemetry import incoming

LONGEST_WAIT = 60.0
"""Seconds for which an answer may be held back. Whoever wants to wait longer asks again, or follows the task."""

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,6})")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
TASK = {200: ("The task.", shapes.TaskShape)}


async def submit(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks`."""
    body: shapes.NewTask = asked.body
    wish = SubmitRequest(
        body.task,
        body.input,
        key=_key(asked.header("idempotency-key")),
        priority=body.priority,
        queue=body.queue,
        deadline=body.deadline_s,
        delay=body.delay_s,
        expires=body.expires_s,
        labels=body.labels,
        group=body.group,
        budget=None if body.budget is None else _budget(body.budget),
        trace=incoming(asked.request.headers),
        webhook=body.webhook_url,
    )
    (task_id,) = await asked.door.submit([wish], after=body.after)
    headers = {"Location": f"{asked.request.scope.get('root_path', '')}/api/tasks/{task_id}"}
    held = _held(asked)
    if held is None or READ not in asked.door.caller.scopes:  # who may not look has nothing to wait for
        return ApiResponse({"task_id": task_id, "state": "pending"}, 202, headers)
    task = await _waited(asked, task_id, held)
    headers["Preference-Applied"] = f"wait={held:g}"
    if task.ended:
        return ApiResponse(task_json(task), 200, headers)
    return ApiResponse({"task_id": task_id, "state": task.state.value}, 202, headers)


async def get(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}`."""
    held = _held(asked)
    if held is not None:
        await _waited(asked, asked.path["id"], held)
    task = await asked.door.get(asked.path["id"])
    headers = {} if held is None else {"Preference-Applied": f"wait={held:g}"}
    return ApiResponse(_placed(task, await asked.door.service.explainer.of([task])), headers=headers)


async def list_(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks`."""
    query: task_shapes.TaskQuery = asked.query
    found, cursor = await asked.door.list(limit=query.limit, cursor=query.cursor, brief=query.brief, **query.asked())
    return await _page(asked, found, cursor)


async def children(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/children`."""
    found, cursor = await asked.door.children(asked.path["id"], asked.query.limit, asked.query.cursor)
    return await _page(asked, found, cursor)


async def result(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/result`."""
    task = await _waited(asked, asked.path["id"], asked.query.timeout_s)
    return ApiResponse(task_json(task), 200 if task.ended else 202)


async def events(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/events`: a page as JSON, or a stream for whoever asks for one."""
    if live.wants_stream(asked):
        return await live.records(asked)
    query: shapes.AfterQuery = asked.query
    found = await asked.door.journal(asked.path["id"], query.after, query.limit)
    last = found[-1].seq if len(found) == query.limit else None
    return ApiResponse({"records": [record_json(record) for record in found], "next": last})


async def cancel(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/cancel`."""
    return _task(await asked.door.cancel(asked.path["id"]))


async def prune(asked: RequestContext) -> ApiResponse:
    """`DELETE /api/tasks/{id}`."""
    return ApiResponse({"pruned": await asked.door.prune(asked.path["id"])})


async def resume(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/resume`."""
    return _task(await asked.door.resume(asked.path["id"]))


async def pause(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/pause`."""
    return _task(await asked.door.pause(asked.path["id"]))


async def priority(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/priority`."""
    return _task(await asked.door.prioritize(asked.path["id"], asked.body.priority))


async def fork(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/fork`."""
    body: task_shapes.NewFork = asked.body
    given = body.input if "input" in body.model_fields_set else SAME
    if body.preview:
        plan = await asked.door.fork_plan(asked.path["id"], body.at, input=given)
        again = [{"seq": one.seq, "name": one.step, "kind": one.kind, "effect": one.effect} for one in plan.again]
        return ApiResponse({"would_repeat": again, "keeps": plan.at, "asks_again": list(plan.approvals)})
    fork = await asked.door.fork(asked.path["id"], body.at, input=given)
    return _task(asked.door.shown(await asked.door.service.get(fork)))


async def signal(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/signals/{name}`."""
    await asked.door.signal(asked.path["id"], asked.path["name"], asked.body.value, id=asked.body.id)
    return _task(asked.door.shown(await asked.door.service.get(asked.path["id"])))


async def message(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/message`."""
    return _task(await asked.door.message(asked.path["id"], asked.body.text, id=asked.body.id))


async def _page(asked: RequestContext, found: Tasks, cursor: str | None) -> ApiResponse:
    whys = await asked.door.service.explainer.of(found)
    return ApiResponse({"tasks": [_placed(one, whys) for one in found], "next": cursor})


def _placed(task: Task, whys: Mapping[str, Explanation]) -> dict[str, Any]:
    return {**task_json(task), "why": why_json(whys[task.task_id])}


def _held(asked: RequestContext) -> float | None:
    """For how long the caller would have the answer held back (RFC 7240)."""
    wanted = _WAIT.search(asked.header("prefer") or "")
    return None if wanted is None else min(float(wanted[1]), LONGEST_WAIT)


def _task(task: Task) -> ApiResponse:
    return ApiResponse(task_json(task))


async def _waited(asked: RequestContext, task_id: str, timeout: float) -> Task:
    """The task once it has ended, the time is up, or the server stops. Raises Unauthorized when the key ended meanwhile."""
    ended = await _ended(asked, task_id, timeout) if timeout else None
    if timeout and not await asked.edge.gate.still(asked.door.caller):
        raise Unauthorized
    return await asked.door.get(task_id) if ended is None else ended


async def _ended(asked: RequestContext, task_id: str, timeout: float) -> Task | None:
    """The task, if it has ended by then. Raises ClientDisconnect: for whoever has left, nobody needs to look any more."""
    waiting = asyncio.ensure_future(asked.door.wait(task_id, timeout))
    closing = asyncio.ensure_future(asked.edge.closing.wait())
    leaving = asyncio.ensure_future(stream.gone(asked.request.receive))
    try:
        await asyncio.wait({waiting, closing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            with contextlib.suppress(ResultTimeout):
                return await waiting
        elif leaving.done():
            raise ClientDisconnect
        return None
    finally:
        for one in (waiting, closing, leaving):
            one.cancel()
        await asyncio.gather(waiting, closing, leaving, return_exceptions=True)


def _budget(asked: shapes.OwnBudget) -> Budget:
    said: dict[str, Any] = asked.model_dump(exclude_none=True)
    if "max_wall_time_s" in said:
        said["max_wall_time"] = said.pop("max_wall_time_s")
    return Budget(**said)


def _key(header: str | None) -> str | None:
    """The header is a structured string ("…" with quotes); a bare word is understood as well. Its bytes are UTF-8, so that a
    key is the same at every door; Starlette has read them as Latin-1."""
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


_KEY = {
    "Idempotency-Key": "The same key with the same task, input and options is the same task, however often it is sent. Kept as long as the task.",
    "Prefer": "`wait=N` holds the answer back for up to N seconds (60 at most); 200 with the task when it has ended by then.",
    "traceparent": "The trace of the caller (W3C): what the task does becomes a part of it. `tracestate` comes along.",
}
CALLS = [
    ApiRoute(
        "POST",
        "/api/tasks",
        "submit",
        submit,
        "Ask for a task; the answer comes when it is durable.",
        {202: ("Accepted.", shapes.Accepted), 200: ("It ended while the answer was held back.", shapes.TaskShape)},
        body=shapes.NewTask,
        needs=(SUBMIT,),
        headers=_KEY,
        errors=(404, 409, 413, 415, 422, 429),
    ),
    ApiRoute(
        "GET",
        "/api/tasks",
        "list",
        list_,
        "Tasks, newest first, and why each is where it is. All that is asked for has to hold.",
        {200: ("A page of tasks.", task_shapes.TaskPage)},
        query=task_shapes.TaskQuery,
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}",
        "get",
        get,
        "One task, with its usage, and why it is where it is.",
        {200: ("The task.", task_shapes.PlacedTask)},
        headers={"Prefer": "`wait=N` holds the answer back until it has ended, for up to N seconds (60 at most)."},
        errors=(404,),
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/children",
        "children",
        children,
        "What a task has started, newest first, ended or not.",
        {200: ("A page of tasks.", task_shapes.TaskPage)},
        query=task_shapes.PageQuery,
        errors=(404,),
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/result",
        "result",
        result,
        "The task, once it has ended or the time is up.",
        {200: ("It has ended.", shapes.TaskShape), 202: ("It has not ended by then.", shapes.TaskShape)},
        query=shapes.WaitQuery,
        errors=(404,),
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/events",
        "events",
        events,
        "All records of a task after a number; with `Accept: text/event-stream`, as they come.",
        {
            200: ("Records in order.", shapes.RecordPage),
            204: ("As a stream: all of it was seen, and nothing more will come.", None),
        },
        query=shapes.AfterQuery,
        headers=live.LAST_SEEN,
        errors=(404,),
        streams=True,
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/cancel",
        "cancel",
        cancel,
        "End a task and its children, wherever they stand.",
        TASK,
        errors=(404, 409),
    ),
    ApiRoute(
        "DELETE",
        "/api/tasks/{id}",
        "prune",
        prune,
        "Forget an ended task and all that it started: journal, result, artifacts, key. Needs the scope admin.",
        {200: ("How many tasks are gone.", shapes.Pruned)},
        errors=(404, 409),
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/resume",
        "resume",
        resume,
        "Go on with a failed, parked, quarantined or paused task.",
        TASK,
        errors=(404, 409),
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/pause",
        "pause",
        pause,
        "Let nobody go on with a task and its children until it is resumed.",
        TASK,
        errors=(404, 409),
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/priority",
        "priority",
        priority,
        "Change the priority of a task.",
        TASK,
        body=shapes.NewPriority,
        needs=(SUBMIT,),
        errors=(404, 409, 413, 415, 422),
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/fork",
        "fork",
        fork,
        "A new task from the first records of another; with `preview`, what it would do again.",
        {200: ("The new task, or what it would come to.", task_shapes.Forked)},
        body=task_shapes.NewFork,
        needs=(SUBMIT,),
        errors=(404, 409, 413, 415, 422),
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/signals/{name}",
        "signal",
        signal,
        "Send a signal to a task; one that nobody waits for yet is kept.",
        TASK,
        body=shapes.NewSignal,
        needs=(SUBMIT,),
        errors=(404, 409, 413, 415, 422),
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/message",
        "message",
        message,
        "Say something to a task under way: an agent reads it before its next turn, other handlers as the signal `message`.",
        TASK,
        body=shapes.NewMessage,
        needs=(SUBMIT,),
        errors=(404, 409, 413, 415, 422),
    ),
]
