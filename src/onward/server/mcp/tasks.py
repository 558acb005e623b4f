"""Long calls as MCP tasks (the extension io.modelcontextprotocol/tasks, SEP-2663).

An MCP task is an Onward task: a client's handle is the task id, so it is valid after a restart, and at every server on the same
database. A tool whose result is still to come returns a pointer to its task; a client that supports tasks gets a handle instead.
The open questions and approvals of the task are its `inputRequests`, under the same ids as in all other APIs; behind the id of an
approval comes the digest of what is shown, so that the response names it.
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

from onward.core.approval import approving
from onward.core.task import Reason, State, Task
from onward.core.text import readable, safe
from onward.core.views import Ask
from onward.errors import AlreadyDecided, InvalidInput, OnwardError, StateConflict, Withdrawn
from onward.server.access.service import AuthorizedService
from onward.server.mcp.common import (
    POINTER,
    TASKS,
    AccessByRequest,
    McpContext,
    client_knows_tasks,
    outcome,
    to_mcp_error,
    tool_result,
)
from onward.service.serialize import iso

POLL_MS = 1000
"""How often a client should poll, in milliseconds."""

MAX_ASKS = 100
"""Open questions and approvals of a task in one response. The next ones come when these are answered, or with the next page."""

MAX_SHOWN_CHARS = 32_000
"""Characters of an approval in the message for a person. A longer one is cut, and the message says so."""

_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)
Content = Mapping[str, Any] | None
"""What a person entered into the form of a request; None when the person cancelled."""

_TOO_LATE_ERRORS = (AlreadyDecided, Withdrawn, StateConflict)


class TaskParams(RequestParams):
    """Params that name a task."""

    task_id: str = Field(alias="taskId")


class TaskUpdateParams(TaskParams):
    """Answers to questions and approvals of a task, by their ids."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


def pointer(task: Task) -> CallToolResult:
    """The result of a tool whose result is still to come: that of this task."""
    return tool_result({"task_id": task.task_id, "state": task.state.value}, _meta={POINTER: task.task_id})


class Tasks(Extension):
    """The extension: turns pointers into handles, and has the three methods on them."""

    identifier = TASKS

    def __init__(self, access: AccessByRequest) -> None:
        self._access = access

    def methods(self) -> Sequence[MethodBinding]:
        """`tasks/get`, `tasks/update`, `tasks/cancel`."""
        return [
            MethodBinding("tasks/get", TaskParams, self._get, _MODERN),
            MethodBinding("tasks/update", TaskUpdateParams, self._update, _MODERN),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, _MODERN),
        ]

    async def intercept_tool_call(
        self,
        params: CallToolRequestParams,  # noqa: ARG002 -- the tool has checked them
        ctx: McpContext,
        call_next: CallNext,
    ) -> HandlerResult:
        """Returns a handle for a result that is still to come, if the client supports tasks."""
        result = await call_next(ctx)
        task_id = (result.meta or {}).get(POINTER) if isinstance(result, CallToolResult) else None
        if task_id is None or not client_knows_tasks(ctx):
            return result
        task = await self._access.of(ctx).service.get(task_id)
        return {"resultType": "task", **_task_fields(task), "status": "working"}

    async def _get(self, ctx: McpContext, params: TaskParams) -> dict[str, Any]:
        service = self._service(ctx, params)
        try:
            task = await service.get(params.task_id)
            elicits = _can_elicit(ctx) and not task.ended
            asks = await service.asks_of(task.task_id, limit=MAX_ASKS) if elicits else []
        except OnwardError as error:
            raise to_mcp_error(error) from None
        return _detailed(task, asks)

    async def _update(self, ctx: McpContext, params: TaskUpdateParams) -> dict[str, Any]:
        service = self._service(ctx, params)
        try:
            task = await service.get(params.task_id)
            asks = {} if task.ended else await _open_asks(service, task, params.input_responses)
            responses = [_response(asks, key, answer) for key, answer in params.input_responses.items()]
            for ask, digest, content in filter(None, responses):
                await _answer(service, ask, digest, content)
        except OnwardError as error:
            raise to_mcp_error(error) from None
        return {}

    async def _cancel(self, ctx: McpContext, params: TaskParams) -> dict[str, Any]:
        service = self._service(ctx, params)
        try:
            await service.cancel(params.task_id)
        except StateConflict:
            return {}  # the task has already ended
        except OnwardError as error:
            raise to_mcp_error(error) from None
        return {}

    def _service(self, ctx: McpContext, params: TaskParams) -> AuthorizedService:
        require_client_extension(ctx, TASKS)
        if ctx.request is not None:
            named = decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER))
            if named != params.task_id:
                raise MCPError(HEADER_MISMATCH, "the header Mcp-Name is not the taskId of the request")
        try:
            return self._access.of(ctx)
        except OnwardError as error:
            raise to_mcp_error(error) from None


# ── tasks in MCP's terms ─────────────────────────────────────────────────────────────────────────────────────────────


def _task_fields(task: Task) -> dict[str, Any]:
    return {
        "taskId": task.task_id,
        "createdAt": iso(task.created_at),
        "lastUpdatedAt": iso(task.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _detailed(task: Task, asks: Sequence[Ask]) -> dict[str, Any]:
    """The status "failed" is for failures of the runtime: a tool that ended with an error is "completed", with the error as its
    result."""
    fields = _task_fields(task)
    if task.state is State.CANCELLED:
        return {**fields, "status": "cancelled"}
    if task.ended:
        result = outcome(task)
        if result is not None:
            return {
                **fields,
                "status": "completed",
                "result": result.model_dump(by_alias=True, mode="json", exclude_none=True),
            }
        failure = task.error or {}
        error = {"code": INTERNAL_ERROR, "message": str(failure.get("message", "failed")), "data": failure}
        return {**fields, "status": "failed", "error": error}
    if requests := {_key(ask): _elicitation(ask) for ask in asks if not ask.left_out}:
        return {**fields, "status": "input_required", "inputRequests": requests}
    if asks:  # all are too large
        return {
            **fields,
            "status": "working",
            "statusMessage": f"waits for {asks[0].kind} {asks[0].id}, too large for a form. {_READ_IT}",
        }
    return {**fields, "status": "working", "statusMessage": _status_message(task)}


def _status_message(task: Task) -> str:
    if task.reason in {Reason.PARKED, Reason.QUARANTINED, Reason.PAUSED}:
        return f"{task.reason}: it waits for `onward resume {task.task_id}`"
    return f"{task.state} ({task.reason})" if task.reason else str(task.state)


def _can_elicit(ctx: McpContext) -> bool:
    """Whether the client can ask a person; if not, a person answers by other means."""
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


# ── questions, approvals and answers ───────────────────────────────────────────────────────────────────────────────


def _elicitation(ask: Ask) -> dict[str, Any]:
    if ask.kind == "question":
        answer: dict[str, Any] = {"type": "string", "title": "Answer"}
        properties = {"answer": answer | ({"enum": list(ask.choices)} if ask.choices else {})}
        needed = ["answer"]
    else:
        properties = {
            "confirm": {"type": "boolean", "title": "Approve", "description": "Whether the task may do this."},
            "reason": {"type": "string", "title": "Reason", "description": "Sent to the task with the decision."},
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
    lines = [f"{ask.task}: {ask.text}{risk}{until}"]
    if ask.tool is not None:
        lines += [f"tool: {safe(ask.tool)}", f"arguments: {readable(ask.arguments, 2)}"]
    elif ask.data is not None:
        lines.append(f"data: {readable(ask.data, 2)}")
    if ask.rule is not None:
        lines.append(f"rule: {safe(str(ask.rule))}; {approving(ask.votes)} of {ask.rule.votes} votes so far")
    if ask.digest is None:
        return "\n".join(lines)
    return "\n".join([_whole_or_cut("\n".join(lines)), f"digest: {ask.digest}"])


def _whole_or_cut(text: str) -> str:
    """All of the text, or its beginning with a sentence that says so."""
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return (
        f"{text[:MAX_SHOWN_CHARS]}…\nThis is cut: {MAX_SHOWN_CHARS:,} of {len(text):,} characters are shown. {_READ_IT}"
    )


_READ_IT = (
    "Read all of it before you decide: the tool `get` returns it with its `ask_id`, GET /api/approvals/ID over HTTP, `onward approvals ID` on "
    "the command line."
)


def _key(ask: Ask) -> str:
    """The key of its request. That of an approval has the digest of what the request shows, so that every response names it."""
    return ask.id if ask.digest is None else f"{ask.id}#{ask.digest}"


async def _open_asks(service: AuthorizedService, task: Task, responses: Mapping[str, Any]) -> dict[str, Ask]:
    """The open questions and approvals, without their large values, that these responses are for."""
    wanted, asks = {key.partition("#")[0] for key in responses}, dict[str, Ask]()
    cursor: str | None = None
    while True:
        page = await service.asks_of(task.task_id, cursor=cursor, page_bytes=0)
        asks |= {ask.id: ask for ask in page if ask.id in wanted}
        cursor = page.next
        if cursor is None or len(asks) == len(wanted):
            return asks


def _response(asks: Mapping[str, Ask], key: str, answer: Any) -> tuple[Ask, str, Content] | None:
    """The question or approval that a response is for, the digest that its key names, and its content; None when it is not open.
    Raises InvalidInput."""
    ask_id, _, digest = key.partition("#")
    ask = asks.get(ask_id)
    if ask is None or (ask.kind == "question" and digest):
        return None
    if ask.kind == "approval" and not digest:
        raise InvalidInput(
            f"a decision on {ask.id} names the digest of what the person was shown: its key is ID#DIGEST, as in the inputRequests of "
            "tasks/get; nothing was decided"
        )
    return ask, digest, _content(ask, answer)


def _content(ask: Ask, answer: Any) -> Content:
    """The content of the answer form; None if the person cancelled. Raises InvalidInput."""
    action = answer.get("action") if isinstance(answer, dict) else None
    content = answer.get("content") or {} if isinstance(answer, dict) else {}
    if action == "cancel" or (action == "decline" and ask.kind == "question"):
        return None
    if action == "decline":
        return {"confirm": False, "reason": str(content.get("reason", ""))}
    field, kind = ("answer", str) if ask.kind == "question" else ("confirm", bool)
    if action != "accept" or not isinstance(content, dict) or not isinstance(content.get(field), kind):
        raise InvalidInput(
            f"{ask.id} takes {{'action': 'accept', 'content': {{{field!r}: …}}}}, 'decline' or 'cancel', as its requestedSchema says"
        )
    return content


async def _answer(service: AuthorizedService, ask: Ask, digest: str, content: Content) -> None:
    """Send the answer. One that comes too late, or twice, changes nothing. Raises StaleDecision for another digest."""
    if content is None:
        return
    try:
        if ask.kind == "question":
            await service.answer(ask.id, content["answer"])
        else:
            decision = "approve" if content["confirm"] else "deny"
            await service.decide(ask.id, decision, reason=str(content.get("reason") or ""), digest=digest)
    except _TOO_LATE_ERRORS:
        return
