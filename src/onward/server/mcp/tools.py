"""The tools of the MCP server: methods of `AuthorizedService`, under the same names; and handlers of the app that are exposed
as tools."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Concatenate, Final, Literal, ParamSpec

from mcp.server.mcpserver import Context, require_client_extension
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import func_metadata
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import Field

from onward.core.caller import DECIDE, READ, SUBMIT
from onward.core.task import ASKS_A_PERSON, Task
from onward.core.view_json import to_json
from onward.engine.handlers import Handler
from onward.errors import BadSetting, OnwardError, ResultTimeout
from onward.server.access.service import AuthorizedService
from onward.server.mcp.common import (
    TASKS,
    AccessByRequest,
    client_knows_tasks,
    outcome,
    to_error_result,
    tool_result,
    uri_of,
)
from onward.server.mcp.tasks import MAX_ASKS, pointer
from onward.server.schema import shapes
from onward.service.handlers import INTERNAL_ARGUMENTS
from onward.service.serialize import task_json
from onward.service.submission import SubmitRequest

P = ParamSpec("P")

MAX_WAIT_S = 60.0
"""Seconds for which a call may wait; clients give up on longer calls."""

HANDLER_WAIT_S = 45.0
"""Seconds for which a call of a handler waits for its result, if the client does not support MCP tasks."""

ASKS_BYTES = 200_000
"""Bytes of the questions and approvals in one result, about. The result has them twice, as text and as a structure, and clients of the SDK
read at most 1 MB of an event."""

POLL_INTERVAL_S = 1.0
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

TaskId = Annotated[str, Field(description="The id of the task.")]
WaitS = Annotated[float, Field(ge=0, le=MAX_WAIT_S, description="Wait up to this many seconds for the task to end.")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

SCOPES: Final = {"submit": SUBMIT, "get": READ, "cancel": SUBMIT, "patch": SUBMIT, "answer": DECIDE, "decide": DECIDE}
"""The tools, each with the scope that a caller needs to see it."""

_READ = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_DECIDES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)

ToolMethod = Callable[Concatenate[Any, P], Coroutine[Any, Any, CallToolResult]]


def _errors_as_results(method: ToolMethod[P]) -> ToolMethod[P]:
    """Returns errors of Onward as the result of the tool, with their sentence and code."""

    @functools.wraps(method)
    async def called(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        try:
            return await method(self, *args, **kwargs)
        except OnwardError as error:
            return to_error_result(error)

    return called


class TaskTools:
    """The tools for tasks."""

    def __init__(self, access: AccessByRequest) -> None:
        self._access = access

    def tools(self) -> list[Tool]:
        """All tools for tasks."""
        methods: list[tuple[Callable[..., Any], ToolAnnotations]] = [
            (self.submit, _ADDS),
            (self.get, _READ),
            (self.cancel, _ENDS),
            (self.patch, _ADDS),
            (self.answer, _DECIDES),
            (self.decide, _DECIDES),
        ]
        return [
            Tool.from_function(method, name=method.__name__, annotations=annotations, structured_output=False)
            for method, annotations in methods
        ]

    def _service(self, ctx: Context[Any, Any]) -> AuthorizedService:
        return self._access.of(ctx.request_context)

    @_errors_as_results
    async def submit(
        self,
        ctx: Context[Any, Any],
        task: Annotated[str, Field(description="The name of the handler or agent.")],
        input: Annotated[Any, Field(description="The input; for an agent, its goal.")] = None,  # noqa: A002 -- the name of this field in every API
        key: Annotated[
            str | None,
            Field(
                description="Submitting the same key with the same task, input and options again returns the same task."
            ),
        ] = None,
        priority: Annotated[int, Field(description="Higher goes first.")] = 0,
        queue: str | None = None,
        deadline_s: Seconds | None = None,
        delay_s: Seconds | None = None,
        labels: dict[str, str] | None = None,
        after: Annotated[
            str | None, Field(description="An ended task of an agent; the new task begins with its state.")
        ] = None,
        wait_s: WaitS = 0,
    ) -> CallToolResult:
        """Submit a task. It is durable when this returns, and goes on even if this connection ends; `get` returns its state."""
        service = self._service(ctx)
        request = SubmitRequest(task, input, key, priority, queue, deadline_s, delay_s, labels=labels)
        (task_id,) = await service.submit([request], after=after)
        if client_knows_tasks(ctx.request_context) or READ not in service.caller.scopes:
            return pointer(await self._access.service.get(task_id))
        return await _task_result(service, await _wait_for_end(service, task_id, wait_s))

    @_errors_as_results
    async def get(
        self,
        ctx: Context[Any, Any],
        task_id: TaskId,
        wait_s: WaitS = 0,
        ask_id: Annotated[
            str | None,
            Field(
                description="The id of one of its asks: return this one in full, also where a list has it with `left_out`."
            ),
        ] = None,
        asks_cursor: Annotated[
            str | None, Field(description="`asks_next` of the call before: return the next page of its asks.")
        ] = None,
    ) -> CallToolResult:
        """The state of a task, its result or error, and its open questions and approvals (`asks`), for `answer` and `decide`. Where an
        ask has `left_out`, these fields are missing because they are large: call `get` with its `ask_id` before a person decides it."""
        service = self._service(ctx)
        task = await _wait_for_end(service, task_id, wait_s)
        if ask_id is not None:
            return tool_result(_brief_json(task) | {"asks": [to_json(await service.ask(ask_id))]})
        return await _task_result(service, task, asks_cursor)

    @_errors_as_results
    async def cancel(self, ctx: Context[Any, Any], task_id: TaskId) -> CallToolResult:
        """Cancel a task and its children, in whatever state they are."""
        return tool_result(_brief_json(await self._service(ctx).cancel(task_id)))

    @_errors_as_results
    async def patch(
        self,
        ctx: Context[Any, Any],
        task_id: TaskId,
        append_facts: Annotated[list[dict[str, Any]], Field(description="{key, value, source} each.")] = [],  # noqa: B006 -- read only
        replace_plan: Annotated[list[str] | None, Field(description="The whole plan, step by step.")] = None,
        add_questions: list[str] = [],  # noqa: B006
        answer_questions: Annotated[list[dict[str, Any]], Field(description="{question, answer, source} each.")] = [],  # noqa: B006
        flag_risks: list[str] = [],  # noqa: B006
        unflag_risks: list[str] = [],  # noqa: B006
        id: Annotated[shapes.Name | None, Field(description="Two patches with the same id count as one.")] = None,  # noqa: A002
    ) -> CallToolResult:
        """Change the state of an agent while it works: readers see the change at once, the agent at its next turn. Patches sent
        at the same time are all applied. An ended task takes none: submit a new one `after` it."""
        service = self._service(ctx)
        source = service.caller.name or _client(ctx)
        change: dict[str, Any] = {
            "append_facts": [{"source": source, **fact} for fact in append_facts],
            "add_questions": add_questions,
            "answer_questions": [{"source": source, **answer} for answer in answer_questions],
            "flag_risks": flag_risks,
            "unflag_risks": unflag_risks,
        } | ({} if replace_plan is None else {"replace_plan": replace_plan})
        state = await service.patch(task_id, change, id=id)
        task = await self._access.service.get(task_id)
        known = None if state is None else state.model_dump(mode="json")
        return tool_result({"task_id": task_id, "resource": uri_of(task.task, task_id), "state": known})

    @_errors_as_results
    async def answer(
        self,
        ctx: Context[Any, Any],
        question_id: Annotated[str, Field(description="Its id, as in the `asks` of `get`.")],
        answer: Annotated[Any, Field(description="One of its choices, if it has any.")],
    ) -> CallToolResult:
        """Answer a question of a task. Of several answers the first counts."""
        answered = await self._service(ctx).answer(question_id, answer)
        return tool_result({"id": answered.id, "task_id": answered.task_id, "decided": True})

    @_errors_as_results
    async def decide(
        self,
        ctx: Context[Any, Any],
        approval_id: Annotated[str, Field(description="Its id, as in the `asks` of `get`.")],
        decision: Literal["approve", "deny"],
        digest: Annotated[
            str,
            Field(
                description="The digest of what the person was shown, as in the `asks` of `get`. Show the person all of the approval: "
                "`text`, `risk`, `tool`, `arguments` and `data`. A decision with another digest is refused."
            ),
        ],
        reason: Annotated[str, Field(description="Sent to the task with the decision.")] = "",
        arguments: Annotated[
            dict[str, Any] | None, Field(description="Approve the call with these arguments instead.")
        ] = None,
        always: Annotated[bool, Field(description="From now on this tool needs no approval in this task.")] = False,
    ) -> CallToolResult:
        """Approve or deny an action of a task, on behalf of a person who said so. Never decide by yourself. Where the approval has a
        `rule`, this is a vote: `decided` says whether it was the last one that the rule needs."""
        decided = await self._service(ctx).decide(
            approval_id, decision, reason=reason, arguments=arguments, always=always, digest=digest
        )
        return tool_result({**to_json(decided), "digest": digest})

    # ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def handler_tool(self, handler: Handler, description: str, *, must_be_task: bool) -> Tool:
        """A handler, or an agent, as a tool: its arguments are those of the tool, and the result of the task is the result of
        the tool."""
        if not _NAME.fullmatch(handler.name) or handler.name in SCOPES:
            raise BadSetting(
                "expose", handler.name, f"up to 128 letters, digits, '_', '-' and '.', and none of {', '.join(SCOPES)}"
            )

        async def call(arguments: dict[str, Any], ctx: Context[Any, Any]) -> CallToolResult:
            if must_be_task:
                require_client_extension(ctx.request_context, TASKS)
            try:
                return await self._call_handler(handler, arguments, ctx)
            except OnwardError as error:
                return to_error_result(error)

        schema = {name: part for name, part in handler.takes.schema().items() if name != "description"}
        schema["properties"] = {
            name: part for name, part in schema["properties"].items() if name not in INTERNAL_ARGUMENTS
        }
        return _HandlerTool(
            fn=call,
            name=handler.name,
            title=None,
            context_kwarg=None,
            description=description
            or handler.takes.schema()["description"]
            or f"Run a task of the handler {handler.name}.",
            parameters=schema,
            fn_metadata=func_metadata(_nothing, structured_output=False),
            is_async=True,
            annotations=_ADDS,
        )

    async def _call_handler(
        self, handler: Handler, arguments: dict[str, Any], ctx: Context[Any, Any]
    ) -> CallToolResult:
        service = self._service(ctx)
        handler.takes.by_name(arguments)
        (task_id,) = await service.submit([SubmitRequest(handler.name, arguments)])
        if client_knows_tasks(ctx.request_context) or READ not in service.caller.scopes:
            return pointer(await self._access.service.get(task_id))
        task = await _wait_for_end(service, task_id, HANDLER_WAIT_S, until_asked=True)
        result = outcome(task) if task.ended else None
        return await _task_result(service, task) if result is None else result


class _HandlerTool(Tool):
    """A tool whose schema Onward writes and checks."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:  # noqa: ARG002
        return await self.fn(arguments, context)


def _nothing() -> None:
    """The arguments are checked by the handler."""


async def _wait_for_end(service: AuthorizedService, task_id: str, seconds: float, *, until_asked: bool = False) -> Task:
    """The task once it has ended, or, with `until_asked`, once it waits for a person; or as it is when the time is up."""
    while True:
        task = await service.get(task_id)
        if task.ended or seconds <= 0 or (until_asked and task.reason in ASKS_A_PERSON):
            return task
        try:
            return await service.wait(task_id, min(seconds, POLL_INTERVAL_S))
        except ResultTimeout:
            seconds -= POLL_INTERVAL_S


async def _task_result(service: AuthorizedService, task: Task, cursor: str | None = None) -> CallToolResult:
    """A task and a page of its open questions and approvals."""
    if task.ended:
        return tool_result(_brief_json(task))
    asks = await service.asks_of(task.task_id, limit=MAX_ASKS, cursor=cursor, page_bytes=ASKS_BYTES)
    fields: dict[str, Any] = {"asks": [to_json(ask) for ask in asks]} if asks else {}
    return tool_result(_brief_json(task) | fields | ({} if asks.next is None else {"asks_next": asks.next}))


def _brief_json(task: Task) -> dict[str, Any]:
    """A task for a model: only what it needs to go on."""
    value = task_json(task)
    names = (
        "task_id",
        "task",
        "state",
        "reason",
        "result",
        "error",
        "partial",
        "created_at",
        "updated_at",
        "labels",
        "parent",
    )
    return {"resource": uri_of(task.task, task.task_id), **{name: value[name] for name in names}}


def _client(ctx: Context[Any, Any]) -> str:
    params = ctx.request_context.session.client_params
    return params.client_info.name if params is not None else "mcp"
