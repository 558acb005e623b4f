"""The MCP server: states of agents as resources, the methods of the service as tools, and long calls as tasks.

    build(service, …) ─► an MCPServer of the official SDK, for both eras of the protocol
        tools      mcp/tools.py    submit, get, cancel, patch, answer, decide; handlers of the app
        tasks      mcp/tasks.py    a call that takes long is a task in the store
        resources  here            state://agents/{agent_id}/tasks/{task_id}
        listeners  mcp/watch.py    clients that are notified when a state changes

Each request goes through `AuthorizedService` with the rights of its caller. `mcp/http.py` serves it over HTTP, `onward mcp` over
stdio. It is an ordinary MCPServer: you can add tools, prompts and resources of your own.
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
from onward.server.mcp.common import TEMPLATE, AccessByRequest, McpContext, to_mcp_error, uri_of
from onward.server.mcp.tasks import Tasks
from onward.server.mcp.tools import SCOPES, TaskTools
from onward.server.mcp.watch import Watch, task_of_uri
from onward.service.serialize import iso
from onward.service.service import Service

INSTRUCTIONS = """\
Onward runs tasks until they are done, even if processes are killed on the way. `submit` starts a task, by the name of a handler or
an agent; `get` returns its state, and its open questions and approvals. The state of an agent is the resource
state://agents/AGENT/tasks/TASK; listen to it, read it, and change it with `patch`. Ask a person before you use `decide` or
`answer`: they speak for a person."""

PAGE_TASKS = 50
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
    """An MCP server for this service; `feed` delivers the records of tasks that clients listen to.

    `expose` names handlers and agents, of `handlers`, that become tools of their own; those in `only_as_tasks` refuse clients that do
    not support MCP tasks. `agents` has a description for each agent of the app; if given, only tasks of these agents are listed as
    resources. `local` is the caller over stdio, where there is no key; None refuses it. `options` are those of MCPServer.
    """
    access = AccessByRequest(service, local)
    task_tools, watch = TaskTools(access), Watch(access, feed)
    known, descriptions = handlers or {}, agents or {}
    if unknown := sorted({*expose, *only_as_tasks} - known.keys()):
        raise UnknownTask(unknown[0], sorted(known))
    exposed = [
        task_tools.handler_tool(known[name], descriptions.get(name, ""), must_be_task=name in only_as_tasks)
        for name in sorted({*expose, *only_as_tasks})
    ]
    with _keep_root_logging():
        server: MCPServer[Any] = MCPServer(
            options.pop("name", "onward"),
            version=version,
            instructions=options.pop("instructions", INSTRUCTIONS),
            tools=[*task_tools.tools(), *exposed, *options.pop("tools", ())],
            extensions=[Tasks(access), *options.pop("extensions", ())],
            middleware=[
                _HideForbiddenTools(access, {tool.name for tool in exposed}),
                watch.listening,
                *options.pop("middleware", ()),
            ],
            subscriptions=watch.bus,
            **options,
        )
    StateResources(access, agents).add_to(server)
    lowlevel = server._lowlevel_server  # the SDK has no public way to register what older clients subscribe with
    lowlevel.add_request_handler("resources/subscribe", SubscribeRequestParams, watch.subscribe)
    lowlevel.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, watch.unsubscribe)
    return server


class StateResources:
    """The states of agents, as resources."""

    def __init__(self, access: AccessByRequest, agents: Mapping[str, str] | None) -> None:
        self._access, self._agents = access, agents

    def add_to(self, server: MCPServer[Any]) -> None:
        """Register the resource template, and the list of recent tasks."""
        server.resource(
            TEMPLATE,
            name="state",
            title="The state of an agent",
            description="Goal, plan, facts, open questions and artifacts of an agent's task, and the status of the task.",
            mime_type="application/json",
        )(self._read)

        async def recent(ctx: McpContext, params: PaginatedRequestParams) -> ListResourcesResult:
            fixed = [] if params.cursor else await server.list_resources()
            return await self._list(ctx, fixed, params.cursor)

        server._lowlevel_server.add_request_handler("resources/list", PaginatedRequestParams, recent)

    async def _read(self, agent_id: str, task_id: str, ctx: Context[Any, Any]) -> str:
        service = self._access.of(ctx.request_context)
        uri = uri_of(agent_id, task_id)
        try:
            task = await task_of_uri(service, uri)
            state = (await service.state(task_id)).model_dump(mode="json")
        except NoState:
            state = None  # the task has not begun, or has no state
        except NotFound:
            raise ResourceNotFoundError(f"there is no resource {uri}") from None
        except OnwardError as error:
            raise to_mcp_error(error) from None
        return json.dumps(_content(task, state), ensure_ascii=False)

    async def _list(self, ctx: McpContext, fixed: list[Resource], cursor: str | None) -> ListResourcesResult:
        try:
            tasks, next_cursor = await self._access.of(ctx).list(limit=PAGE_TASKS, cursor=cursor, brief=True)
        except OnwardError as error:
            raise to_mcp_error(error) from None
        shown = [task for task in tasks if self._agents is None or task.task in self._agents]
        return ListResourcesResult(resources=[*fixed, *map(_resource, shown)], next_cursor=next_cursor)


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


class _HideForbiddenTools:
    """A middleware that hides tools which the caller may not use. (`AuthorizedService` refuses them in any case.)"""

    def __init__(self, access: AccessByRequest, exposed: Collection[str]) -> None:
        self._access, self._scopes = access, SCOPES | dict.fromkeys(exposed, SUBMIT)

    async def __call__(self, ctx: McpContext, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method != "tools/list" or not isinstance(result, dict):
            return result
        try:
            allowed = self._access.of(ctx).caller.scopes
        except OnwardError as error:
            raise to_mcp_error(error) from None
        visible = [tool for tool in result["tools"] if self._scopes.get(tool["name"], SUBMIT) in allowed]
        return {**result, "tools": visible}


@contextlib.contextmanager
def _keep_root_logging() -> Iterator[None]:
    """Keep the SDK from configuring the root logger: it does not if the root logger has a handler."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
