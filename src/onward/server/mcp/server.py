"""The MCP server: what agents know as resources, the verbs of the door as tools, and long calls as tasks.

    build(service, …) ─► an MCPServer of the official SDK, for both eras of the protocol
        tools      mcp_tools.py    submit, get, cancel, patch, answer, decide; handlers of the app
        tasks      mcp_tasks.py    a call that takes its time is a task in the store
        resources  here            state://agents/{agent_id}/tasks/{task_id}
        listeners  mcp_watch.py    who is told that a state has changed

Everything goes through the door of whoever asks (`server/access/service.py`). `server/mcp/http.py` serves it over HTTP, `onward mcp` over stdio. It is an
ordinary MCPServer: tools, prompts and resources of your own can be added to it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp_types import (
    ListResourcesResult,
    PaginatedRequestParams,
    Resource,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)

from onward.core.caller import SUBMIT, Caller
from onward.core.task import Task
from onward.engine.handlers import Handler
from onward.errors import NoState, NotFound, OnwardError, UnknownTask
from onward.server.live.feed import Feed
from onward.server.mcp.common import TEMPLATE, Asked, Doors, refusal, uri_of
from onward.server.mcp.tasks import Tasks
from onward.server.mcp.tools import SCOPES, Verbs
from onward.server.mcp.watch import Watch, of_uri
from onward.service.serialize import iso
from onward.service.service import Service

INSTRUCTIONS = """\
Onward does tasks that go on until they are done, whatever is killed on the way. `submit` asks for one, by the name of a handler or
an agent; `get` tells how it is, and what it asks of people. What an agent knows is the resource state://agents/AGENT/tasks/TASK;
listen to it, read it, and change it with `patch`. Ask a person before you use `decide` or `answer`: they speak for one."""

RECENT = 50
"""Tasks on one page of resources."""


def build(
    service: Service,
    feed: Feed,
    *,
    handlers: Mapping[str, Handler] | None = None,
    agents: Mapping[str, str] | None = None,
    expose: Collection[str] = (),
    only_as_tasks: Collection[str] = (),
    local: Caller | None = None,
    version: str = "",
    **options: Any,
) -> MCPServer[Any]:
    """An MCP server for this service; `feed` tells what happens to the tasks that somebody listens to.

    `expose` names handlers and agents, of `handlers`, that are tools of their own; those in `only_as_tasks` refuse clients that do not
    know tasks. `agents` tells what the agents of the app are for; where it is given, their tasks alone are listed as resources.
    `local` is who asks over stdio, where nobody shows a key; None is nobody. `options` are those of MCPServer.
    """
    doors = Doors(service, local)
    verbs, watch = Verbs(doors), Watch(doors, feed)
    known, about = handlers or {}, agents or {}
    if unknown := sorted({*expose, *only_as_tasks} - known.keys()):
        raise UnknownTask(unknown[0], sorted(known))
    exposed = [
        verbs.of_handler(known[name], about.get(name, ""), must_be_task=name in only_as_tasks)
        for name in sorted({*expose, *only_as_tasks})
    ]
    with _own_logging():
        server: MCPServer[Any] = MCPServer(
            options.pop("name", "onward"),
            version=version,
            instructions=options.pop("instructions", INSTRUCTIONS),
            tools=[*verbs.tools(), *exposed, *options.pop("tools", ())],
            extensions=[Tasks(doors), *options.pop("extensions", ())],
            middleware=[
                _Visible(doors, {one.name for one in exposed}),
                watch.listening,
                *options.pop("middleware", ()),
            ],
            subscriptions=watch.bus,
            **options,
        )
    StateResources(doors, agents).add_to(server)
    below = server._lowlevel_server  # the SDK has no other door to what older clients subscribe with
    below.add_request_handler("resources/subscribe", SubscribeRequestParams, watch.subscribe)
    below.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, watch.unsubscribe)
    return server


class StateResources:
    """What agents know, as resources."""

    def __init__(self, doors: Doors, agents: Mapping[str, str] | None) -> None:
        self._doors, self._agents = doors, agents

    def add_to(self, server: MCPServer[Any]) -> None:
        """The template, and the list of what is recent."""
        server.resource(
            TEMPLATE,
            name="state",
            title="What an agent knows",
            description="Goal, plan, facts, open questions and artifacts of a task of an agent, and where the task stands.",
            mime_type="application/json",
        )(self._read)

        async def recent(ctx: Asked, params: PaginatedRequestParams) -> ListResourcesResult:
            fixed = [] if params.cursor else await server.list_resources()
            return await self._list(ctx, fixed, params.cursor)

        server._lowlevel_server.add_request_handler("resources/list", PaginatedRequestParams, recent)

    async def _read(self, agent_id: str, task_id: str, ctx: Context[Any, Any]) -> str:
        door = self._doors.of(ctx.request_context)
        uri = uri_of(agent_id, task_id)
        try:
            task = await of_uri(door, uri)
            state = (await door.state(task_id)).model_dump(mode="json")
        except NoState:
            state = None  # it has not begun, or has none
        except NotFound:
            raise ResourceNotFoundError(f"there is no resource {uri}") from None
        except OnwardError as error:
            raise refusal(error) from None
        return json.dumps(_content(task, state), ensure_ascii=False)

    async def _list(self, ctx: Asked, fixed: list[Resource], cursor: str | None) -> ListResourcesResult:
        try:
            tasks, following = await self._doors.of(ctx).list(limit=RECENT, cursor=cursor)
        except OnwardError as error:
            raise refusal(error) from None
        shown = [task for task in tasks if self._agents is None or task.task in self._agents]
        return ListResourcesResult(resources=[*fixed, *map(_resource, shown)], next_cursor=following)


def _content(task: Task, state: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "agent_id": task.task,
        "task_id": task.task_id,
        "task_state": task.state.value,
        "reason": task.reason,
        "updated_at": iso(task.updated_at),
        "result": task.result,
        "error": task.error,
        "partial": task.partial,
        "state": state,
    }


def _resource(task: Task) -> Resource:
    return Resource(
        uri=uri_of(task.task, task.task_id),
        name=f"{task.task} {task.task_id}",
        title=f"{task.task}: {task.state.value}",
        description=str(task.input)[:200],
        mime_type="application/json",
    )


class _Visible:
    """A middleware: whoever may not use a tool does not see it. (The door refuses it in any case.)"""

    def __init__(self, doors: Doors, exposed: Collection[str]) -> None:
        self._doors, self._scopes = doors, SCOPES | dict.fromkeys(exposed, SUBMIT)

    async def __call__(self, ctx: Asked, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method != "tools/list" or not isinstance(result, dict):
            return result
        try:
            allowed = self._doors.of(ctx).caller.scopes
        except OnwardError as error:
            raise refusal(error) from None
        seen = [tool for tool in result["tools"] if self._scopes.get(tool["name"], SUBMIT) in allowed]
        return {**result, "tools": seen}


@contextlib.contextmanager
def _own_logging() -> Iterator[None]:
    """The SDK would set up the logging of the whole program; where it finds a handler it leaves it alone."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
