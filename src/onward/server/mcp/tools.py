"""The tools of the MCP server: the verbs of the door, under their names; and handlers of the app that are offered as tools."""

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
from onward.engine.handlers import Handler
from onward.errors import BadSetting, OnwardError, ResultTimeout
from onward.server.access.service import AuthorizedService
from onward.server.mcp.common import TASKS, Doors, declared, outcome, refused, told, uri_of
from onward.server.mcp.tasks import pointer
from onward.server.schema import shapes
from onward.service.serialize import ask_json, task_json
from onward.service.submission import SubmitRequest

P = ParamSpec("P")

LONGEST_WAIT = 60.0
"""Seconds for which a call may wait; clients give up on calls that take longer."""

PATIENCE = 45.0
"""Seconds for which a call of a handler waits for its result, where the client does not know tasks."""

LOOK_EVERY = 1.0
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

TaskId = Annotated[str, Field(description="The id of the task.")]
WaitS = Annotated[float, Field(ge=0, le=LONGEST_WAIT, description="Wait up to so many seconds for its end.")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

SCOPES: Final = {"submit": SUBMIT, "get": READ, "cancel": SUBMIT, "patch": SUBMIT, "answer": DECIDE, "decide": DECIDE}
"""The tools, and what one must be allowed to do to see them."""

_READ = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_DECIDES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)

Called = Callable[Concatenate[Any, P], Coroutine[Any, Any, CallToolResult]]


def _in_words(verb: Called[P]) -> Called[P]:
    """What Onward refuses is told as the result of the tool, with its sentence and its code."""

    @functools.wraps(verb)
    async def called(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        try:
            return await verb(self, *args, **kwargs)
        except OnwardError as error:
            return refused(error)

    return called


class Verbs:
    """The tools, for whoever asks."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def tools(self) -> list[Tool]:
        """All of them."""
        made: list[tuple[Callable[..., Any], ToolAnnotations]] = [
            (self.submit, _ADDS),
            (self.get, _READ),
            (self.cancel, _ENDS),
            (self.patch, _ADDS),
            (self.answer, _DECIDES),
            (self.decide, _DECIDES),
        ]
        return [
            Tool.from_function(verb, name=verb.__name__, annotations=annotations, structured_output=False)
            for verb, annotations in made
        ]

    def _door(self, ctx: Context[Any, Any]) -> AuthorizedService:
        return self._doors.of(ctx.request_context)

    @_in_words
    async def submit(
        self,
        ctx: Context[Any, Any],
        task: Annotated[str, Field(description="The name of the handler or agent that is to do it.")],
        input: Annotated[Any, Field(description="Its input: for an agent, the goal.")] = None,  # noqa: A002 -- the word at every door
        key: Annotated[str | None, Field(description="The same key with the same everything is the same task.")] = None,
        priority: Annotated[int, Field(description="Higher goes first.")] = 0,
        queue: str | None = None,
        deadline_s: Seconds | None = None,
        delay_s: Seconds | None = None,
        labels: dict[str, str] | None = None,
        after: Annotated[
            str | None, Field(description="An ended task of an agent, to go on from what it knew.")
        ] = None,
        wait_s: WaitS = 0,
    ) -> CallToolResult:
        """Ask for a task. It is durable when this answers, and goes on whatever becomes of this connection; `get` tells how it is."""
        door = self._door(ctx)
        wish = SubmitRequest(task, input, key, priority, queue, deadline_s, delay_s, labels=labels)
        (task_id,) = await door.submit([wish], after=after)
        if declared(ctx.request_context) or READ not in door.caller.scopes:
            return pointer(await door.service.get(task_id))
        return await _shown(door, await _settled(door, task_id, wait_s))

    @_in_words
    async def get(self, ctx: Context[Any, Any], task_id: TaskId, wait_s: WaitS = 0) -> CallToolResult:
        """How a task is: its state, its result or error, and what it asks of people (`asks`), for `answer` and `decide`."""
        door = self._door(ctx)
        return await _shown(door, await _settled(door, task_id, wait_s))

    @_in_words
    async def cancel(self, ctx: Context[Any, Any], task_id: TaskId) -> CallToolResult:
        """End a task and its children, wherever they stand."""
        return told(_brief(await self._door(ctx).cancel(task_id)))

    @_in_words
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
        id: Annotated[shapes.Name | None, Field(description="The same id twice is one patch.")] = None,  # noqa: A002
    ) -> CallToolResult:
        """Change what an agent knows, while it works: others read it at once, and the agent at its next turn. Patches that are sent at
        the same time all land. A task that has ended takes none: submit one that goes on `after` it."""
        door = self._door(ctx)
        source = door.caller.name or _client(ctx)
        change: dict[str, Any] = {
            "append_facts": [{"source": source, **fact} for fact in append_facts],
            "add_questions": add_questions,
            "answer_questions": [{"source": source, **one} for one in answer_questions],
            "flag_risks": flag_risks,
            "unflag_risks": unflag_risks,
        } | ({} if replace_plan is None else {"replace_plan": replace_plan})
        state = await door.patch(task_id, change, id=id)
        task = await door.service.get(task_id)
        known = None if state is None else state.model_dump(mode="json")
        return told({"task_id": task_id, "resource": uri_of(task.task, task_id), "state": known})

    @_in_words
    async def answer(
        self,
        ctx: Context[Any, Any],
        question_id: Annotated[str, Field(description="Its id, as in the `asks` of `get`.")],
        answer: Annotated[Any, Field(description="One of its choices, where it has some.")],
    ) -> CallToolResult:
        """Answer a question that a task asks. Of several answers the first counts."""
        ask = await self._door(ctx).answer(question_id, answer)
        return told({"id": ask.id, "task_id": ask.task_id, "decided": True})

    @_in_words
    async def decide(
        self,
        ctx: Context[Any, Any],
        approval_id: Annotated[str, Field(description="Its id, as in the `asks` of `get`.")],
        decision: Literal["approve", "deny"],
        reason: Annotated[str, Field(description="What whoever asked is told.")] = "",
        arguments: Annotated[dict[str, Any] | None, Field(description="Approve the call with these instead.")] = None,
        always: Annotated[bool, Field(description="This tool needs no approval in this task any more.")] = False,
        hash: Annotated[str | None, Field(description="Decide only on what was seen with this hash.")] = None,  # noqa: A002
    ) -> CallToolResult:
        """Approve or deny what a task wants to do, for a person who said so. Never decide by yourself."""
        ask = await self._door(ctx).decide(
            approval_id, decision, reason=reason, arguments=arguments, always=always, hash=hash
        )
        return told({"id": ask.id, "task_id": ask.task_id, "decided": True})

    # ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def of_handler(self, handler: Handler, about: str, *, must_be_task: bool) -> Tool:
        """A handler, or an agent, as a tool: its arguments are the tool's, and its result is the task's."""
        if not _NAME.fullmatch(handler.name) or handler.name in SCOPES:
            raise BadSetting(
                "expose", handler.name, f"up to 128 letters, digits, '_', '-' and '.', and none of {', '.join(SCOPES)}"
            )

        async def call(arguments: dict[str, Any], ctx: Context[Any, Any]) -> CallToolResult:
            if must_be_task:
                require_client_extension(ctx.request_context, TASKS)
            try:
                return await self._called(handler, arguments, ctx)
            except OnwardError as error:
                return refused(error)

        schema = {name: part for name, part in handler.takes.schema().items() if name != "description"}
        schema["properties"] = {name: part for name, part in schema["properties"].items() if name not in _OWN}
        return _HandlerTool(
            fn=call,
            name=handler.name,
            title=None,
            context_kwarg=None,
            description=about or handler.takes.schema()["description"] or f"Do a task {handler.name}.",
            parameters=schema,
            fn_metadata=func_metadata(_nothing, structured_output=False),
            is_async=True,
            annotations=_ADDS,
        )

    async def _called(self, handler: Handler, arguments: dict[str, Any], ctx: Context[Any, Any]) -> CallToolResult:
        door = self._door(ctx)
        handler.takes.by_name(arguments)
        (task_id,) = await door.submit([SubmitRequest(handler.name, arguments)])
        if declared(ctx.request_context) or READ not in door.caller.scopes:
            return pointer(await door.service.get(task_id))
        task = await _settled(door, task_id, PATIENCE, people=True)
        result = outcome(task) if task.ended else None
        return await _shown(door, task) if result is None else result


_OWN = frozenset({"depth"})
"""What only agents say to each other."""


class _HandlerTool(Tool):
    """A tool whose schema is written by Onward, and checked by it."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:  # noqa: ARG002
        return await self.fn(arguments, context)


def _nothing() -> None:
    """Its arguments are checked elsewhere."""


async def _settled(door: AuthorizedService, task_id: str, seconds: float, *, people: bool = False) -> Task:
    """The task once it has ended, or, with `people`, once it waits for some; or as it is when the time is up."""
    while True:
        task = await door.get(task_id)
        if task.ended or seconds <= 0 or (people and task.reason in ASKS_A_PERSON):
            return task
        try:
            return await door.wait(task_id, min(seconds, LOOK_EVERY))
        except ResultTimeout:
            seconds -= LOOK_EVERY


async def _shown(door: AuthorizedService, task: Task) -> CallToolResult:
    asks = [] if task.ended else [ask_json(ask) for ask in await door.asks_of(task.task_id)]
    return told(_brief(task) | ({"asks": asks} if asks else {}))


def _brief(task: Task) -> dict[str, Any]:
    """A task for a model: what it needs to go on, and no more."""
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
