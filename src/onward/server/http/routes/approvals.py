"""Calls for people: approvals, questions, effects in doubt, budgets; and what an agent has made."""

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


async def approvals(asked: RequestContext) -> ApiResponse:
    """`GET /api/approvals`."""
    found = sorted(await asked.door.asks("approval"), key=lambda ask: (ask.expires_at or math.inf, ask.asked_at))
    return ApiResponse({"approvals": [ask_json(ask) for ask in found]})


async def questions(asked: RequestContext) -> ApiResponse:
    """`GET /api/questions`."""
    return ApiResponse({"questions": [ask_json(ask) for ask in await asked.door.asks("question")]})


async def decide(asked: RequestContext) -> ApiResponse:
    """`POST /api/approvals/{id}`."""
    body: shapes.Decision = asked.body
    ask = await asked.door.decide(
        asked.path["id"],
        body.decision,
        reason=body.reason,
        arguments=body.arguments,
        always=body.always,
        hash=body.hash,
    )
    return ApiResponse({"id": ask.id, "task_id": ask.task_id, "decided": True})


async def answer(asked: RequestContext) -> ApiResponse:
    """`POST /api/questions/{id}`."""
    ask = await asked.door.answer(asked.path["id"], asked.body.answer)
    return ApiResponse({"id": ask.id, "task_id": ask.task_id, "decided": True})


async def doubts(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/doubts`."""
    found = await asked.door.doubts(asked.path["id"])
    return ApiResponse(
        {"doubts": [{"task_id": d.task_id, "seq": d.seq, "step": d.step, "reason": d.reason} for d in found]}
    )


async def resolve(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/resolve`."""
    body: shapes.Verdict = asked.body
    return ApiResponse(task_json(await asked.door.resolve(asked.path["id"], body.verdict, body.result, step=body.step)))


async def budget(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/budget`."""
    return _budget(await asked.door.budget(asked.path["id"]))


async def raise_budget(asked: RequestContext) -> ApiResponse:
    """`POST /api/tasks/{id}/budget`."""
    said = asked.body.model_dump()
    return _budget(await asked.door.raise_budget(asked.path["id"], max_wall_time=said.pop("max_wall_time_s"), **said))


async def state(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/state`."""
    return ApiResponse((await asked.door.state(asked.path["id"])).model_dump(mode="json"))


async def artifacts(asked: RequestContext) -> ApiResponse:
    """`GET /api/tasks/{id}/artifacts`."""
    task_id, found = asked.path["id"], await asked.door.artifacts(asked.path["id"])
    return ApiResponse(
        {"artifacts": [{"id": f"{task_id}.{ref.artifact_id}", **ref.model_dump(mode="json")} for ref in found]}
    )


async def artifact(asked: RequestContext) -> ApiResponse:
    """`GET /api/artifacts/{id}`: bytes that somebody else chose, so never something that a browser would run."""
    named = _ARTIFACT.fullmatch(asked.path["id"])
    if named is None:
        raise NotFound(
            f"there is no artifact {asked.path['id']!r:.80}; `/api/tasks/ID/artifacts` lists those of a task"
        )
    data = await asked.door.artifact(named[1], named[2])
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
CALLS = [
    ApiRoute(
        "GET",
        "/api/approvals",
        "approvals",
        approvals,
        "Approvals that wait for somebody: those that expire first, then the oldest.",
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
        needs=(DECIDE,),
        errors=(*_BODY, 410),
        tag="people",
    ),
    ApiRoute(
        "GET",
        "/api/questions",
        "questions",
        questions,
        "Questions that wait for somebody.",
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
        needs=(DECIDE,),
        errors=(*_BODY, 410),
        tag="people",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/doubts",
        "doubts",
        doubts,
        "Effects of which nobody knows whether they happened.",
        {200: ("Those of a task.", shapes.Doubts)},
        errors=(404,),
        tag="people",
    ),
    ApiRoute(
        "POST",
        "/api/tasks/{id}/resolve",
        "resolve",
        resolve,
        "Say what became of an effect in doubt.",
        {200: ("The task.", shapes.TaskShape)},
        body=shapes.Verdict,
        needs=(DECIDE,),
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
        "Set limits of that budget.",
        {200: ("The budget.", shapes.BudgetShape)},
        body=shapes.NewBudget,
        needs=(DECIDE,),
        errors=_BODY,
        tag="people",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/state",
        "state",
        state,
        "What an agent knows.",
        {200: ("The state.", AgentState)},
        errors=(404,),
        tag="agents",
    ),
    ApiRoute(
        "GET",
        "/api/tasks/{id}/artifacts",
        "artifacts",
        artifacts,
        "What a task has left behind.",
        {200: ("All of them.", shapes.Artifacts)},
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
