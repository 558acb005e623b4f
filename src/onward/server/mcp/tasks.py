"""Calls that take their time, as MCP tasks (the extension io.modelcontextprotocol/tasks, SEP-2663).

An MCP task is an Onward task: the handle that a client gets is its id, so that it is there after a restart, and at every other
server on the same database. A tool says which task its result will be with a pointer in its result; a client that understands tasks
gets a handle instead. What the task asks of people are its `inputRequests`, under the ids that they have at every door.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INTERNAL_ERROR, CallToolRequestParams, CallToolResult, RequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from onward.core.task import Reason, State, Task
from onward.core.views import Ask
from onward.errors import AlreadyDecided, InvalidInput, OnwardError, StateConflict, Withdrawn
from onward.server.access.service import AuthorizedService
from onward.server.mcp.common import POINTER, TASKS, Asked, Doors, declared, outcome, refusal, told
from onward.service.serialize import iso

POLL_MS = 1000
"""How often a client should ask again."""

_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)
_TOO_LATE = (AlreadyDecided, Withdrawn, StateConflict)


class OfTask(RequestParams):
    """What names a task."""

    task_id: str = Field(alias="taskId")


class Answers(OfTask):
    """Answers to what a task asks, by the ids under which it asks."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


def pointer(task: Task) -> CallToolResult:
    """The result of a tool that is still to come: the result of this task."""
    return told({"task_id": task.task_id, "state": task.state.value}, _meta={POINTER: task.task_id})


class Tasks(Extension):
    """The extension: handles for pointers, and the three methods on them."""

    identifier = TASKS

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def methods(self) -> Sequence[MethodBinding]:
        """`tasks/get`, `tasks/update`, `tasks/cancel`."""
        return [
            MethodBinding("tasks/get", OfTask, self._get, _MODERN),
            MethodBinding("tasks/update", Answers, self._update, _MODERN),
            MethodBinding("tasks/cancel", OfTask, self._cancel, _MODERN),
        ]

    async def intercept_tool_call(
        self,
        params: CallToolRequestParams,  # noqa: ARG002 -- the tool has looked at it
        ctx: Asked,
        call_next: CallNext,
    ) -> HandlerResult:
        """A handle for a result that is still to come, where the client knows what to do with one."""
        result = await call_next(ctx)
        task_id = (result.meta or {}).get(POINTER) if isinstance(result, CallToolResult) else None
        if task_id is None or not declared(ctx):
            return result
        task = await self._doors.of(ctx).service.get(task_id)
        return {"resultType": "task", **_about(task), "status": "working"}

    async def _get(self, ctx: Asked, params: OfTask) -> dict[str, Any]:
        door = self._door(ctx, params)
        try:
            task = await door.get(params.task_id)
            asks = [] if task.ended else await door.asks_of(task.task_id)
        except OnwardError as error:
            raise refusal(error) from None
        return _detailed(task, asks if _elicits(ctx) else [])

    async def _update(self, ctx: Asked, params: Answers) -> dict[str, Any]:
        door = self._door(ctx, params)
        try:
            task = await door.get(params.task_id)
            asks = {ask.id: ask for ask in await door.asks_of(task.task_id)} if not task.ended else {}
            said = [_said(asks[key], answer) for key, answer in params.input_responses.items() if key in asks]
            for ask, answer in said:
                await _answer(door, ask, answer)
        except OnwardError as error:
            raise refusal(error) from None
        return {}

    async def _cancel(self, ctx: Asked, params: OfTask) -> dict[str, Any]:
        door = self._door(ctx, params)
        try:
            await door.cancel(params.task_id)
        except StateConflict:
            return {}  # it has ended; that is what was wanted
        except OnwardError as error:
            raise refusal(error) from None
        return {}

    def _door(self, ctx: Asked, params: OfTask) -> AuthorizedService:
        require_client_extension(ctx, TASKS)
        if ctx.request is not None:
            named = decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER))
            if named != params.task_id:
                raise MCPError(HEADER_MISMATCH, "the header Mcp-Name is not the taskId of the request")
        try:
            return self._doors.of(ctx)
        except OnwardError as error:
            raise refusal(error) from None


# ── a task in their words ────────────────────────────────────────────────────────────────────────────────────────────


def _about(task: Task) -> dict[str, Any]:
    return {
        "taskId": task.task_id,
        "createdAt": iso(task.created_at),
        "lastUpdatedAt": iso(task.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _detailed(task: Task, asks: Sequence[Ask]) -> dict[str, Any]:
    """The word "failed" is for what no tool has said: a tool that came to an error has completed, with an error for a result."""
    about = _about(task)
    if task.state is State.CANCELLED:
        return {**about, "status": "cancelled"}
    if task.ended:
        result = outcome(task)
        if result is not None:
            return {
                **about,
                "status": "completed",
                "result": result.model_dump(by_alias=True, mode="json", exclude_none=True),
            }
        said = task.error or {}
        error = {"code": INTERNAL_ERROR, "message": str(said.get("message", "failed")), "data": said}
        return {**about, "status": "failed", "error": error}
    if asks:
        return {**about, "status": "input_required", "inputRequests": {ask.id: _elicitation(ask) for ask in asks}}
    return {**about, "status": "working", "statusMessage": _standing(task)}


def _standing(task: Task) -> str:
    if task.reason in {Reason.PARKED, Reason.QUARANTINED, Reason.PAUSED}:
        return f"{task.reason}: it rests until somebody says `onward resume {task.task_id}`"
    return f"{task.state} ({task.reason})" if task.reason else str(task.state)


def _elicits(ctx: Asked) -> bool:
    """Whether the client can ask a person; where not, somebody answers at another door."""
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


# ── what it asks, and what is answered ───────────────────────────────────────────────────────────────────────────────


def _elicitation(ask: Ask) -> dict[str, Any]:
    if ask.kind == "question":
        answer: dict[str, Any] = {"type": "string", "title": "Answer"}
        properties = {"answer": answer | ({"enum": list(ask.choices)} if ask.choices else {})}
        needed = ["answer"]
    else:
        properties = {
            "confirm": {"type": "boolean", "title": "Approve", "description": "Whether this may be done."},
            "reason": {"type": "string", "title": "Reason", "description": "What whoever asked is told."},
        }
        needed = ["confirm"]
    schema = {"type": "object", "properties": properties, "required": needed}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": _message(ask), "requestedSchema": schema},
    }


def _message(ask: Ask) -> str:
    risk = f" (risk: {ask.risk})" if ask.risk else ""
    until = f" Until {iso(ask.expires_at)}." if ask.expires_at is not None else ""
    return f"{ask.task}: {ask.text}{risk}{until}"


def _said(ask: Ask, answer: Any) -> tuple[Ask, Mapping[str, Any] | None]:
    """What an answer says: the content of the form; None where the person would not say. Raises InvalidInput."""
    action = answer.get("action") if isinstance(answer, dict) else None
    content = answer.get("content") or {} if isinstance(answer, dict) else {}
    if action == "cancel" or (action == "decline" and ask.kind == "question"):
        return ask, None
    if action == "decline":
        return ask, {"confirm": False, "reason": str(content.get("reason", ""))}
    wanted, kind = ("answer", str) if ask.kind == "question" else ("confirm", bool)
    if action != "accept" or not isinstance(content, dict) or not isinstance(content.get(wanted), kind):
        raise InvalidInput(
            f"{ask.id} takes {{'action': 'accept', 'content': {{{wanted!r}: …}}}}, 'decline' or 'cancel', as its requestedSchema says"
        )
    return ask, content


async def _answer(door: AuthorizedService, ask: Ask, content: Mapping[str, Any] | None) -> None:
    """An answer that comes too late, or twice, changes nothing."""
    if content is None:
        return
    try:
        if ask.kind == "question":
            await door.answer(ask.id, content["answer"])
        else:
            decision = "approve" if content["confirm"] else "deny"
            await door.decide(ask.id, decision, reason=str(content.get("reason") or ""), hash=ask.hash)
    except _TOO_LATE:
        return
