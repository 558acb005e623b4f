"""Routes for people: approvals, questions, effects in doubt and budgets; and the state and artifacts of an agent."""

from __future__ import annotations

import math
import re

from starlette.responses import Response

from onward.core.caller import DECIDE
from onward.core.state import AgentState
from onward.core.views import Spent
from onward.errors import NotFound
from onward.server.http.route import ApiResponse, ApiRoute, RequestContext
from onward.server.schema import shapes
from onward.service.serialize import ask_json, task_json

_ARTIFACT = re.compile(r"([!-~]+)\.([!-~]+)")


async def approvals(context: RequestContext) -> ApiResponse:
    """`GET /api/approvals`."""
    open_approvals = sorted(
        await context.service.asks("approval"), key=lambda ask: (ask.expires_at or math.inf, ask.asked_at)
    )
    return ApiResponse({"approvals": [ask_json(ask) for ask in open_approvals]})


async def questions(context: RequestContext) -> ApiResponse:
    """`GET /api/questions`."""
    return ApiResponse({"questions": [ask_json(ask) for ask in await context.service.asks("question")]})


async def decide(context: RequestContext) -> ApiResponse:
    """`POST /api/approvals/{id}`."""
    body: shapes.Decision = context.body
    ask = await context.service.decide(
        context.path["id"],
        body.decision,
        reason=body.reason,
        arguments=body.arguments,
        always=body.always,
        hash=body.hash,
    )
    return ApiResponse({"id": ask.id, "task_id": ask.task_id, "decided": True})


async def answer(context: RequestContext) -> ApiResponse:
    """`POST /api/questions/{id}`."""
    ask = await context.service.answer(context.path["id"], context.body.answer)
    return ApiResponse({"id": ask.id, "task_id": ask.task_id, "decided": True})


async def doubts(context: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/doubts`."""
    open_doubts = await context.service.doubts(context.path["id"])
    return ApiResponse(
        {"doubts": [{"task_id": d.task_id, "seq": d.seq, "step": d.step, "reason": d.reason} for d in open_doubts]}
    )


async def resolve(context: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/resolve`."""
    body: shapes.Verdict = context.body
    return ApiResponse(
        task_json(await context.service.resolve(context.path["id"], body.verdict, body.result, step=body.step))
    )


async def budget(context: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/budget`."""
    return _budget(await context.service.budget(context.path["id"]))


async def raise_budget(context: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/budget`."""
    limits = context.body.model_dump()
    return _budget(
        await context.service.raise_budget(context.path["id"], max_wall_time=limits.pop("max_wall_time_s"), **limits)
    )


async def state(context: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/state`."""
    return ApiResponse((await context.service.state(context.path["id"])).model_dump(mode="json"))


async def artifacts(context: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/artifacts`."""
    task_id, refs = context.path["id"], await context.service.artifacts(context.path["id"])
    return ApiResponse(
        {"artifacts": [{"id": f"{task_id}.{ref.artifact_id}", **ref.model_dump(mode="json")} for ref in refs]}
    )


async def artifact(context: RequestContext) -> ApiResponse:
    """`GET /api/artifacts/{id}`: bytes of unknown origin, so the headers keep a browser from running them."""
    match = _ARTIFACT.fullmatch(context.path["id"])
    if match is None:
        raise NotFound(
            f"there is no artifact {context.path['id']!r:.80}; `/api/tasks/ID/artifacts` lists the artifacts of a task"
        )
    data = await context.service.artifact(match[1], match[2])
    headers = {
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return ApiResponse(response=Response(data, 200, headers, media_type="application/octet-stream"))


def _budget(spent: Spent) -> ApiResponse:
    return ApiResponse(
        {"task_id": spent.task_id, "meters": spent.meters, "waiting": list(spent.waiting), "needs": spent.needs}
    )


_BODY = (404, 409, 413, 415, 422)
ROUTES = [
    ApiRoute(
        "GET",
        "/api/approvals",
        "approvals",
        approvals,
        "Open approvals: those that expire first, then the oldest.",
        {200: ("Open approvals.", shapes.Approvals)},
        query=shapes.Pending,
        tag="people",
    ),
    ApiRoute(
        "POST",
        "/api/approvals/{id}",
        "decide",
        decide,
        "Approve or deny, once.",
        {200: ("Decided by this call.", shapes.Decided)},
        body=shapes.Decision,
        scopes=(DECIDE,),
        errors=(*_BODY, 410),
        tag="people",
    ),
    ApiRoute(
        "GET",
        "/api/questions",
        "questions",
        questions,
        "Open questions, the oldest first.",
        {200: ("Open questions.", shapes.Questions)},
        query=shapes.Pending,
        tag="people",
    ),
    ApiRoute(
        "POST",
        "/api/questions/{id}",
        "answer",
        answer,
        "Answer a question, once.",
        {200: ("Answered by this call.", shapes.Decided)},
        body=shapes.NewAnswer,
        scopes=(DECIDE,),
        errors=(*_BODY, 410),
        tag="people",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/doubts",
        "doubts",
        doubts,
        "Effects in doubt: they may or may not have happened.",
        {200: ("The doubts of the task.", shapes.Doubts)},
        errors=(404,),
        tag="people",
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/resolve",
        "resolve",
        resolve,
        "Resolve an effect in doubt: say whether it happened.",
        {200: ("The task.", shapes.TaskShape)},
        body=shapes.Verdict,
        scopes=(DECIDE,),
        errors=_BODY,
        tag="people",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/budget",
        "budget",
        budget,
        "The budget that a task spends from.",
        {200: ("The budget.", shapes.BudgetShape)},
        errors=(404,),
        tag="people",
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/budget",
        "raise_budget",
        raise_budget,
        "Set limits of the budget that a task spends from.",
        {200: ("The budget.", shapes.BudgetShape)},
        body=shapes.NewBudget,
        scopes=(DECIDE,),
        errors=_BODY,
        tag="people",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/state",
        "state",
        state,
        "The state of an agent: what it knows.",
        {200: ("The state.", AgentState)},
        errors=(404,),
        tag="agents",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/artifacts",
        "artifacts",
        artifacts,
        "The artifacts of a task.",
        {200: ("The artifacts.", shapes.Artifacts)},
        errors=(404,),
        tag="agents",
    ),
    ApiRoute(
        "GET",
        "/api/artifacts/{id}",
        "artifact",
        artifact,
        "The bytes of an artifact.",
        {200: ("The bytes.", bytes)},
        errors=(404,),
        media="application/octet-stream",
        tag="agents",
    ),
]
