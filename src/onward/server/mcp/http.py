"""MCP over streamable HTTP, behind the same host, origin and key checks as every other call.

Every request is judged anew, also within a session. A session belongs to the key that began it: with any other it does not exist.
What stays open for long (a stream of notifications) is judged again while it lasts, so that a key that is revoked ends it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from onward.core import wire
from onward.core.caller import Caller
from onward.core.shutdown import end_tasks
from onward.engine.background import spawn
from onward.errors import OnwardError, StoreUnavailable
from onward.server.http import bodies, problem
from onward.server.http.app import Edge
from onward.server.http.problem import Problem
from onward.server.mcp.common import CALLER

log = logging.getLogger("onward.mcp")

AGAIN = 1.0
"""Seconds after which an open request is judged again."""

ENDS_WITHIN = 5.0
"""Seconds that a request gets to end after it was cancelled."""


class Endpoint:
    """An ASGI app for one path. The part of the SDK that holds sessions is started with the first request, and ends when the server
    closes; until then it costs nothing."""

    def __init__(self, edge: Edge, server: MCPServer[Any], **options: Any) -> None:
        self._edge = edge
        # hosts and origins are judged by the edge, in one place for all calls
        open_to_all = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        options = {"max_request_body_size": edge.body_limit, **options}
        server.streamable_http_app(transport_security=open_to_all, **options)
        self._manager = server.session_manager
        # of its own: a call of a tool may take its time, and what is worked on elsewhere does not wait for that
        self._room = bodies.Room(max(bodies.ARRIVING, edge.body_limit), max(bodies.WORKING, edge.body_limit))
        self._begun: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._edge.check_origin(request.headers.get("host", ""), request.headers.get("origin"))
            caller = await self._edge.caller(request, request.headers.get("authorization"))
            await self._begin()
            data = await self._body(request)
        except OnwardError as error:
            await problem.response(error)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        # blanks around a value are no part of it (RFC 9110), and not every server takes them off
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        scope = {**scope, "headers": headers, CALLER: caller, "user": _user(caller)}
        if not data:
            await self._judged(scope, receive, send, caller)
            return
        async with self._room.working(len(data)):
            await self._judged(scope, _replayed(data, receive), send, caller)

    async def _body(self, request: Request) -> bytes:
        """The body of a POST, bounded as those of all other calls are, before the SDK parses it."""
        if request.method != "POST":
            return b""
        data = await self._room.read(request, self._edge.body_limit)
        if (why := await bodies.apart(data, lambda: wire.oversized(data))) is not None:
            raise Problem(400, "bad_json", f"the body is not read as JSON: {why}")
        return data

    async def _judged(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve it for as long as whoever asked may ask."""
        serving = spawn(self._manager.handle_request(scope, receive, send), "onward-mcp-request")
        try:
            while not (await asyncio.wait({serving}, timeout=AGAIN))[0]:
                if not await self._still(caller):
                    break
        finally:
            if not serving.done():
                await end_tasks([serving], ENDS_WITHIN, log, "an MCP request")
        if serving.done() and not serving.cancelled():
            serving.result()

    async def _still(self, caller: Caller) -> bool:
        try:
            return await self._edge.gate.still(caller)
        except StoreUnavailable:
            return True  # nobody was told no

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> None:
        if self._edge.closing.is_set():
            raise Problem(503, "closing", "this server stops; another one, or this one later, will answer")
        if self._begun is None:
            self._begun = asyncio.get_running_loop().create_future()
            spawn(self._run(self._begun), "onward-mcp")
        await asyncio.shield(self._begun)

    async def _run(self, begun: asyncio.Future[None]) -> None:
        async with self._manager.run():
            begun.set_result(None)
            await self._edge.closing.wait()


def _replayed(data: bytes, receive: Receive) -> Receive:
    """A body that was read, once more; then what comes after it."""
    pieces = [{"type": "http.request", "body": data, "more_body": False}]

    async def again() -> Any:
        return pieces.pop() if pieces else await receive()

    return again


def _user(caller: Caller) -> AuthenticatedUser:
    """Who it is to the SDK: it gives a session to nobody else than whoever began it."""
    tenant = "" if caller.tenant is None else f"of {caller.tenant}"
    return AuthenticatedUser(
        AccessToken(
            token="", client_id=f"{caller.key or ''} {tenant}", scopes=sorted(caller.scopes), subject=caller.name
        )
    )
