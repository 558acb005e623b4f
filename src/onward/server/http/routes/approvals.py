"""Routes for people: approvals, questions, effects in doubt and budgets; and the state and artifacts of an agent."""

from __future__ import annotations

import contextlib
import math
import re

from pydantic import Field

from onward.artifacts.keeper import BeforeLoad
from onward.core import views
from onward.core.asks import AskedIn
from onward.core.caller import ADMIN, DECIDE, SUBMIT
from onward.core.doubts import InDoubt
from onward.core.page import Page
from onward.core.state import AgentState
from onward.core.view_json import to_json
from onward.core.views import Ask, Spent
from onward.errors import NotFound, TaskNotFound
from onward.server.http.route import LOADED_BYTES, ApiResponse, RequestContext, Routes
from onward.server.http.sending import LARGE_BYTES, body_response
from onward.server.schema import shapes
from onward.server.schema.shape import Shape
from onward.service.serialize import task_json

_ARTIFACT = re.compile(r"([!-~]+)\.([!-~]+)")

LOADED_TIMES = 2
"""By how much the memory for one question or approval is larger than its record: the record, and the response."""

routes = Routes("people")


class BudgetQuery(Shape):
    """For a task that spends from no budget."""

    or_empty: bool = Field(False, description="Whether it gets a budget without meters, instead of an error.")


@routes.add(
    "GET",
    "/api/approvals",
    "Open approvals, a page at a time: in a page those that expire first, then the oldest.",
    {200: ("A page of open approvals.", shapes.Approvals)},
    query=shapes.Pending,
)
async def approvals(context: RequestContext) -> ApiResponse:
    page = await _asks(context, "approval")
    page.sort(key=lambda ask: (ask.expires_at or math.inf, ask.asked_at))
    return ApiResponse({"approvals": [to_json(ask) for ask in page], "next": page.next})


@routes.add(
    "GET",
    "/api/approvals/{id}",
    "An approval in full, open or decided, with the digest of what will run.",
    {200: ("The approval.", shapes.Approval)},
    errors=(404,),
    loads=0,
)
async def approval(context: RequestContext) -> ApiResponse:
    return await _one(context, "approval")


@routes.add(
    "GET",
    "/api/approvals/{id}/turn",
    "The turn of the agent that asked for an approval, and the reason that the model wrote.",
    {200: ("The turn.", AskedIn)},
    errors=(404,),
    loads=0,
)
async def asked_in(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.asked_in(context.path["id"], _before_load(context))))


@routes.add(
    "POST",
    "/api/approvals/{id}",
    "Approve or deny, once; a vote, if the approval has a rule.",
    {200: ("The decision or the vote counts.", views.Decided)},
    body=shapes.Decision,
    scopes=(DECIDE,),
    errors=(404, 409, 410),
)
async def decide(context: RequestContext) -> ApiResponse:
    body: shapes.Decision = context.body
    decided = await context.service.decide(
        context.path["id"],
        body.decision,
        reason=body.reason,
        arguments=body.arguments,
        always=body.always,
        hash=body.hash,
        digest=body.digest,
    )
    return ApiResponse(to_json(decided))


@routes.add(
    "GET",
    "/api/questions",
    "Open questions, a page at a time: in a page the oldest first.",
    {200: ("A page of open questions.", shapes.Questions)},
    query=shapes.Pending,
)
async def questions(context: RequestContext) -> ApiResponse:
    page = await _asks(context, "question")
    return ApiResponse({"questions": [to_json(ask) for ask in page], "next": page.next})


@routes.add(
    "GET",
    "/api/questions/{id}",
    "A question in full, open or answered.",
    {200: ("The question.", shapes.Question)},
    errors=(404,),
    loads=0,
)
async def question(context: RequestContext) -> ApiResponse:
    return await _one(context, "question")


@routes.add(
    "POST",
    "/api/questions/{id}",
    "Answer a question, once.",
    {200: ("Answered by this call.", views.Decided)},
    body=shapes.NewAnswer,
    scopes=(DECIDE,),
    errors=(404, 409, 410),
)
async def answer(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.answer(context.path["id"], context.body.answer)))


@routes.add(
    "GET",
    "/api/tasks/{id}/doubts",
    "Effects in doubt: they may or may not have happened.",
    {200: ("The doubts of the task.", shapes.Doubts)},
    errors=(404,),
)
async def doubts(context: RequestContext) -> ApiResponse:
    open_doubts = await context.service.doubts(context.path["id"])
    shown = open_doubts[: shapes.MAX_DOUBTS]
    return ApiResponse({"doubts": [to_json(doubt) for doubt in shown], "more": len(open_doubts) - len(shown)})


@routes.add(
    "GET",
    "/api/doubts",
    "Effects in doubt of all tasks, and unfinished tasks that the last restore took back.",
    {200: ("A page: about `limit` of each.", InDoubt)},
    query=shapes.DoubtsQuery,
    scopes=(ADMIN,),
)
async def in_doubt(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.in_doubt(context.query.limit, context.query.after or "")))


@routes.add(
    "POST",
    "/api/tasks/{id}/resolve",
    "Resolve an effect in doubt: say whether it happened.",
    {200: ("The task.", shapes.TaskShape)},
    body=shapes.Verdict,
    scopes=(DECIDE,),
    errors=(404, 409),
)
async def resolve(context: RequestContext) -> ApiResponse:
    body: shapes.Verdict = context.body
    return ApiResponse(
        task_json(await context.service.resolve(context.path["id"], body.verdict, body.result, step=body.step))
    )


@routes.add(
    "GET",
    "/api/tasks/{id}/budget",
    "The budget that a task spends from.",
    {200: ("The budget.", shapes.BudgetShape)},
    query=BudgetQuery,
    errors=(404,),
)
async def budget(context: RequestContext) -> ApiResponse:
    task_id = context.path["id"]
    try:
        return _budget(await context.service.budget(task_id))
    except TaskNotFound:
        raise
    except NotFound:
        if not context.query.or_empty:
            raise
        return ApiResponse({"task_id": task_id, "meters": {}, "waiting": [], "needs": {}, "more": 0})


@routes.add(
    "POST",
    "/api/tasks/{id}/budget",
    "Set limits of the budget that a task spends from.",
    {200: ("The budget.", shapes.BudgetShape)},
    body=shapes.NewBudget,
    scopes=(DECIDE,),
    errors=(404, 409),
)
async def raise_budget(context: RequestContext) -> ApiResponse:
    limits = context.body.model_dump()
    return _budget(
        await context.service.raise_budget(context.path["id"], max_wall_time=limits.pop("max_wall_time_s"), **limits)
    )


@routes.add(
    "GET",
    "/api/tasks/{id}/state",
    "The state of an agent: what it knows.",
    {200: ("The state.", AgentState)},
    errors=(404,),
    tag="agents",
)
async def state(context: RequestContext) -> ApiResponse:
    return ApiResponse((await context.service.state(context.path["id"])).model_dump(mode="json"))


@routes.add(
    "POST",
    "/api/tasks/{id}/state",
    "Change the state of an agent that has not ended. The agent applies the patch at its next turn.",
    {200: ("The new state.", shapes.Patched)},
    body=shapes.NewPatch,
    scopes=(SUBMIT,),
    errors=(404, 409),
    tag="agents",
)
async def patch(context: RequestContext) -> ApiResponse:
    changed = await context.service.patch(context.path["id"], context.body.patch, id=context.body.id)
    return ApiResponse({"state": None if changed is None else changed.model_dump(mode="json")})


@routes.add(
    "GET",
    "/api/tasks/{id}/artifacts",
    "The artifacts of a task, in the order in which it stored them, a page at a time.",
    {200: ("A page of artifacts.", shapes.Artifacts)},
    query=shapes.LongPageQuery,
    errors=(404,),
    tag="agents",
)
async def artifacts(context: RequestContext) -> ApiResponse:
    task_id = context.path["id"]
    page = await context.service.artifacts(task_id, limit=context.query.limit, cursor=context.query.cursor)
    artifacts = [{"id": f"{task_id}.{ref.artifact_id}", **ref.model_dump(mode="json")} for ref in page]
    return ApiResponse({"artifacts": artifacts, "next": page.next})


@routes.add(
    "GET",
    "/api/artifacts/{id}",
    "The bytes of an artifact.",
    {200: ("The bytes.", bytes)},
    errors=(404,),
    media="application/octet-stream",
    tag="agents",
    loads=0,
)
async def artifact(context: RequestContext) -> ApiResponse:
    """Bytes of unknown origin, so the headers keep a browser from running them."""
    match = _ARTIFACT.fullmatch(context.path["id"])
    if match is None:
        raise NotFound(
            f"there is no artifact {context.path['id']!r:.80}; `/api/tasks/ID/artifacts` lists the artifacts of a task"
        )
    headers = {
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    loading = context.server.loading
    async with contextlib.AsyncExitStack() as looking:
        await looking.enter_async_context(loading.hold(LOADED_BYTES))

        async def before_load(size: int) -> None:
            await looking.aclose()  # the journal was read; the next turn is for the bytes, which a driver may copy once
            await context.until_made.enter_async_context(loading.hold(2 * size))

        data = await context.service.artifact(match[1], match[2], before_load)
    return ApiResponse(response=await body_response(data, 200, headers, "application/octet-stream"))


async def _asks(context: RequestContext, kind: str) -> Page[Ask]:
    query: shapes.Pending = context.query
    if query.task_id is not None:
        return await context.service.asks_of_one(query.task_id, kind, cursor=query.cursor)
    return await context.service.asks(kind, limit=query.limit, cursor=query.cursor)


async def _one(context: RequestContext, kind: str) -> ApiResponse:
    """One question or approval in full."""
    ask = await context.service.ask(context.path["id"], _before_load(context))
    if ask.kind != kind:
        raise NotFound(f"{ask.id} is {'a question' if kind == 'approval' else 'an approval'}: see `/api/{ask.kind}s`")
    return ApiResponse(to_json(ask))


def _before_load(context: RequestContext) -> BeforeLoad:
    """A large question or approval takes a turn until the response is made."""

    async def before_load(size: int) -> None:
        held = LOADED_BYTES if size <= LARGE_BYTES else LOADED_TIMES * size
        await context.until_made.enter_async_context(context.server.loading.hold(held))

    return before_load


def _budget(spent: Spent) -> ApiResponse:
    waiting = list(spent.waiting)[: shapes.MAX_WAITING]
    return ApiResponse(
        {
            "task_id": spent.task_id,
            "meters": spent.meters,
            "waiting": waiting,
            "needs": {task_id: spent.needs[task_id] for task_id in waiting},
            "more": len(spent.waiting) - len(waiting),
        }
    )
