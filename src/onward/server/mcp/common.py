"""What all parts of the MCP server share: who asks, tasks as MCP tells of them, and errors in its words."""

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
"""Where the gate in front of HTTP leaves who asks."""

TASKS: Final = "io.modelcontextprotocol/tasks"
"""The extension for calls that take their time."""

POINTER: Final = "onward/task"
"""In the `_meta` of a result: the task that it will be the result of."""

TEMPLATE: Final = "state://agents/{agent_id}/tasks/{task_id}"

Asked = ServerRequestContext[Any, Any]

_OF_THE_RUNTIME = frozenset({DeadlineExceeded.__name__, Expired.__name__})
"""Failures that no handler raised: it never came to an answer."""


class Doors:
    """The door of whoever sent a request. Over HTTP every request has been judged before; over stdio there is one caller."""

    def __init__(self, service: Service, local: Caller | None) -> None:
        self.service, self._local = service, local

    def of(self, asked: Asked) -> AuthorizedService:
        """Raises Unauthorized when nobody has judged the request."""
        caller = self._local if asked.request is None else asked.request.scope.get(CALLER)
        if caller is None:
            raise Unauthorized
        return AuthorizedService(self.service, caller)


def uri_of(agent_id: str, task_id: str) -> str:
    """The resource that is the state of a task."""
    return f"state://agents/{quote(agent_id, safe='')}/tasks/{quote(task_id, safe='')}"


def declared(asked: Asked) -> bool:
    """Whether the client understands tasks, as it says with this very request."""
    capabilities = asked.session.client_capabilities
    extensions = (capabilities.extensions or {}) if capabilities else {}
    return asked.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in extensions


def refusal(error: OnwardError) -> MCPError:
    """An error as a JSON-RPC error: where there is no result that could tell it."""
    if isinstance(error, NotFound | UsageError):
        code = INVALID_PARAMS
    else:
        code = INVALID_REQUEST if error.status < 500 else INTERNAL_ERROR
    return MCPError(code, str(error), problem.document(error))


def refused(error: OnwardError) -> CallToolResult:
    """An error as the result of a tool: the sentence for a model, the document for a program."""
    if isinstance(error, Unauthorized | Forbidden):
        raise refusal(error)
    text = f"{error.code}: {error}"
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=problem.document(error), is_error=True
    )


def told(value: Any, **more: Any) -> CallToolResult:
    """A value as the result of a tool: as text, and where it is an object also as one."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    structured = value if isinstance(value, dict) else None
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured, **more)


def outcome(task: Task) -> CallToolResult | None:
    """What a tool whose work was this task has to say; None when the task failed for a reason that is not the tool's."""
    if task.state is State.COMPLETED:
        return told(task.result)
    error = task.error or {}
    if task.state is State.FAILED and error.get("type") in _OF_THE_RUNTIME:
        return None
    said = (
        f"task {task.task_id} was cancelled" if task.state is State.CANCELLED else str(error.get("message", "failed"))
    )
    structured = {"code": "task_failed", "task_id": task.task_id, "error": error} if error else None
    return CallToolResult(content=[TextContent(type="text", text=said)], structured_content=structured, is_error=True)
