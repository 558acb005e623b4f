"""MCP over streamable HTTP, with the same checks of host, origin and key as all other routes.

Every request is authenticated, also within a session. A session belongs to the key that began it: for any other key it does not
exist. A request that stays open (a stream of notifications) is checked every second, so
that it ends when its key is revoked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from onward.core import wire
from onward.core.caller import Caller
from onward.core.shutdown import end_tasks
from onward.engine.background import spawn
from onward.errors import OnwardError, StoreUnavailable
from onward.server.http import bodies, problem, ratelimit
from onward.server.http.problem import Problem
from onward.server.http.state import ServerState
from onward.server.mcp.common import CALLER
from onward.service.process_use import RateState

log = logging.getLogger("onward.mcp")

RECHECK_INTERVAL_S = 1.0
"""Seconds between two checks of the key of an open request."""

CANCEL_TIMEOUT_S = 5.0
"""Seconds that a request gets to end after it was cancelled."""


class Endpoint:
    """An ASGI app for one path. The session manager of the SDK starts with the first request, and ends when the server closes;
    it costs nothing before."""

    def __init__(self, state: ServerState, server: MCPServer[Any], **options: Any) -> None:
        self._state = state
        # ServerState checks hosts and origins, in one place for all routes
        no_check = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        options = {"max_request_body_size": state.body_limit, **options}
        server.streamable_http_app(transport_security=no_check, **options)
        self._manager = server.session_manager
        # a limiter of its own: a tool call may take long, and other requests must not wait for it
        self._body_limiter = bodies.BodyLimiter(
            max(bodies.MAX_ARRIVING_BYTES, state.body_limit), max(bodies.MAX_PROCESSING_BYTES, state.body_limit)
        )
        self._started: asyncio.Future[None] | None = None
        self._quotas = state.service.tenant_quotas
        self._quotas.process.sessions = self._sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._state.check_origin(request.headers.get("host", ""), request.headers.get("origin"))
            caller = await self._state.caller(request, request.headers.get("authorization"))
            send = _with_rates(send, await self._quotas.admit(caller))
            await self._start_sessions()
            data = await self._body(request, caller)
            self._quotas.process.take_body(caller, self._quotas.known(caller), len(data))
            self._check_quotas(request, caller)
        except OnwardError as error:
            await self._state.hold_refusal(error)
            await problem.response(error)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        # spaces around a value are not part of it (RFC 9110), and not every server removes them
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        scope = {**scope, "headers": headers, CALLER: caller, "user": _user(caller)}
        with self._quotas.process.stream(caller):
            if not data:
                await self._serve(scope, receive, send, caller)
                return
            async with self._quotas.process.request_turn(caller), self._body_limiter.processing(len(data)):
                await self._serve(scope, _replay_body(data, receive), send, caller)

    def _check_quotas(self, request: Request, caller: Caller) -> None:
        """Raises QuotaExceeded if the caller's tenant has too many open requests, or too many sessions for one more."""
        quota, version = self._quotas.known(caller), request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        self._quotas.process.check_stream(caller, quota)
        old_client = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS  # newer ones have no sessions
        if old_client and request.method == "POST" and MCP_SESSION_ID_HEADER not in request.headers:
            self._quotas.process.check_session(caller, quota)

    def _sessions(self, tenant: str) -> int:
        """How many sessions a tenant has. (The SDK has no public list of its sessions.)"""
        owner = f"of {tenant}"
        return sum(
            context["client_id"].partition(" ")[2] == owner for context in self._manager._session_owners.values()
        )

    async def _body(self, request: Request, caller: Caller) -> bytes:
        """The body of a POST, with the same limits as for all other routes, before the SDK parses it."""
        if request.method != "POST":
            return b""
        data = await self._body_limiter.read(request, self._state.body_limit, caller.tenant)
        if (reason := await bodies.run_off_loop(data, lambda: wire.oversized(data))) is not None:
            raise Problem(400, "bad_json", f"the body is not read as JSON: {reason}")
        return data

    async def _serve(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve the request as long as the caller's key is valid."""
        serving = spawn(self._manager.handle_request(scope, receive, send), "onward-mcp-request")
        try:
            while not (await asyncio.wait({serving}, timeout=RECHECK_INTERVAL_S))[0]:
                if not await self._still_valid(caller):
                    break
        finally:
            if not serving.done():
                await end_tasks([serving], CANCEL_TIMEOUT_S, log, "an MCP request")
        if serving.done() and not serving.cancelled():
            serving.result()

    async def _still_valid(self, caller: Caller) -> bool:
        try:
            return await self._state.authenticator.still_valid(caller)
        except StoreUnavailable:
            return True  # the store does not answer, so the caller stays allowed

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _start_sessions(self) -> None:
        if self._state.closing.is_set():
            raise Problem(503, "closing", "this server stops; send the request to another one, or again later")
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            spawn(self._run_sessions(self._started), "onward-mcp")
        await asyncio.shield(self._started)

    async def _run_sessions(self, started: asyncio.Future[None]) -> None:
        async with self._manager.run():
            started.set_result(None)
            await self._state.closing.wait()


def _with_rates(send: Send, rates: Sequence[RateState]) -> Send:
    """A `send` that adds the headers of these rates to the response."""
    if not rates:
        return send
    more = [(name.lower().encode(), value.encode()) for name, value in ratelimit.headers(rates).items()]

    async def send_with_rates(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return send_with_rates


def _replay_body(data: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body that was already read, then what follows it."""
    messages = [{"type": "http.request", "body": data, "more_body": False}]

    async def next_message() -> Any:
        return messages.pop() if messages else await receive()

    return next_message


def _user(caller: Caller) -> AuthenticatedUser:
    """The caller as the SDK knows it: the SDK gives a session only to the caller that began it."""
    tenant = "" if caller.tenant is None else f"of {caller.tenant}"
    return AuthenticatedUser(
        AccessToken(
            token="", client_id=f"{caller.id or ''} {tenant}", scopes=sorted(caller.scopes), subject=caller.name
        )
    )
