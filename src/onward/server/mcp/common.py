"""Shared parts of the MCP server: the caller of a request, task results and errors in MCP's terms."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, CallToolResult, TextContent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from onward.core.caller import Caller
from onward.core.task import State, Task
from onward.errors import DeadlineExceeded, Expired, Forbidden, NotFound, OnwardError, Unauthorized, UsageError
from onward.server.access.service import AuthorizedService
from onward.server.http import problem
from onward.service.service import Service

CALLER: Final = "onward.caller"
"""The key in the ASGI scope under which the HTTP endpoint stores the caller."""

TASKS: Final = "io.modelcontextprotocol/tasks"
"""The MCP extension for calls that take long."""

POINTER: Final = "onward/task"
"""A key in the `_meta` of a result: the task whose result this will be."""

TEMPLATE: Final = "state://agents/{agent_id}/tasks/{task_id}"

McpContext = ServerRequestContext[Any, Any]

_RUNTIME_FAILURES = frozenset({DeadlineExceeded.__name__, Expired.__name__})
"""Failures that no handler raised."""


class AccessByRequest:
    """The service with the rights of the caller of a request. Over HTTP, `server/mcp/http.py` has authenticated every request;
    over stdio there is one caller."""

    def __init__(self, service: Service, local: Caller | None) -> None:
        self.service, self._local = service, local

    def of(self, context: McpContext) -> AuthorizedService:
        """Raises Unauthorized if the request was not authenticated."""
        caller = self._local if context.request is None else context.request.scope.get(CALLER)
        if caller is None:
            raise Unauthorized
        return AuthorizedService(self.service, caller)


def uri_of(agent_id: str, task_id: str) -> str:
    """The URI of the resource that holds the state of a task."""
    return f"state://agents/{quote(agent_id, safe='')}/tasks/{quote(task_id, safe='')}"


def client_knows_tasks(context: McpContext) -> bool:
    """Whether the client supports MCP tasks, as this request declares."""
    capabilities = context.session.client_capabilities
    extensions = (capabilities.extensions or {}) if capabilities else {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in extensions


def to_mcp_error(error: OnwardError) -> MCPError:
    """An error as a JSON-RPC error, for requests without a tool result."""
    if isinstance(error, NotFound | UsageError):
        code = INVALID_PARAMS
    else:
        code = INVALID_REQUEST if error.status < 500 else INTERNAL_ERROR
    return MCPError(code, str(error), problem.document(error))


def to_error_result(error: OnwardError) -> CallToolResult:
    """An error as the result of a tool: the sentence for a model, the problem document for a program."""
    if isinstance(error, Unauthorized | Forbidden):
        raise to_mcp_error(error)
    text = f"{error.code}: {error}"
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=problem.document(error), is_error=True
    )


def tool_result(value: Any, **more: Any) -> CallToolResult:
    """A value as the result of a tool: as text, and for an object also as structured content."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    structured = value if isinstance(value, dict) else None
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured, **more)


def outcome(task: Task) -> CallToolResult | None:
    """The result of a tool whose work was this task; None if the task failed for a reason that is not the tool's."""
    if task.state is State.COMPLETED:
        return tool_result(task.result)
    error = task.error or {}
    if task.state is State.FAILED and error.get("type") in _RUNTIME_FAILURES:
        return None
    message = (
        f"task {task.task_id} was cancelled" if task.state is State.CANCELLED else str(error.get("message", "failed"))
    )
    structured = {"code": "task_failed", "task_id": task.task_id, "error": error} if error else None
    return CallToolResult(
        content=[TextContent(type="text", text=message)], structured_content=structured, is_error=True
    )
