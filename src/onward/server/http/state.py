"""The state that all requests of one server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import HTTPConnection

from onward.core.caller import Caller
from onward.core.clock import Clock
from onward.core.hook import Hook
from onward.errors import OnwardError, QuotaExceeded, Unauthorized
from onward.server.access import auth
from onward.server.access.authenticator import Authenticator
from onward.server.access.service import AuthorizedService
from onward.server.access.sign_in import SignIn
from onward.server.http import bodies
from onward.server.http.metrics import Metrics
from onward.server.http.problem import Problem
from onward.server.http.turns import ByteTurns
from onward.server.live.feed import Feed
from onward.service.service import Service
from onward.store.port.follow import Tails

KEYLESS_NOT_ALLOWED = "this server is mounted in another one, and requests without a key are not allowed there; `app.asgi(keyless=True)` allows them"

MAX_HELD_REFUSALS = 1_000
"""Refusals that are held back at once. Beyond that number they are sent at once."""

MAX_LOADED_BYTES = 64 << 20
"""Bytes that handlers hold in memory at once; see `ApiRoute.loads`."""

LOADING_TIMEOUT_S = 30.0
"""Seconds that a request waits for its turn to load values."""


class ServerState:
    """The state that all requests of one server share."""

    def __init__(
        self,
        service: Service,
        authenticator: Authenticator,
        tails: Tails,
        clock: Clock,
        *,
        streams: int,
        version: str,
        body_limit: int,
        now: Callable[[], float],
        settings: Mapping[str, Any] | None = None,
        hosts: frozenset[str] | None = None,
        origins: frozenset[str] = frozenset(),
        hooks: Mapping[str, Hook] | None = None,
        keyless: bool = False,
        sign_in: SignIn | None = None,
    ) -> None:
        self.service, self.authenticator, self.version = service, authenticator, version
        self.body_limit, self.now = body_limit, now
        self.settings = {} if settings is None else settings
        """Secret values are masked."""
        self.hosts, self.origins, self.hooks = hosts, origins, {} if hooks is None else hooks
        self.sign_in = sign_in
        """None: people cannot sign in here."""
        self._keyless = keyless
        """Whether programs on this machine may send requests without a key, while no key exists."""
        self.metrics: Metrics | None = None
        """Created with the first request for `/metrics`. Nothing is counted before."""
        self.body_limiter = bodies.BodyLimiter(
            max(bodies.MAX_ARRIVING_BYTES, body_limit), max(bodies.MAX_PROCESSING_BYTES, body_limit)
        )
        self.unverified_body_limiter = bodies.BodyLimiter(
            max(bodies.MAX_UNVERIFIED_BYTES, body_limit), max(bodies.MAX_PROCESSING_BYTES, body_limit)
        )
        """The first limits bodies of authenticated callers; the second limits bodies of hooks, whose signature covers the body."""
        self.loading = ByteTurns(MAX_LOADED_BYTES, timeout_s=LOADING_TIMEOUT_S)
        """Limits the bytes that handlers load at once, until their responses are made."""
        self.closing = asyncio.Event()
        """Set when the server stops: streams, sockets and held responses end."""
        self.feed = Feed(tails, clock, streams=streams, closing=self.closing)
        self._held_refusals = 0

    async def caller(self, connection: HTTPConnection, authorization: str | None, *, cookies: bool = False) -> Caller:
        """The caller of this connection, by its `Authorization` header; with `cookies` and without that header, also by the cookie
        of a session. Raises Unauthorized, which names the identity provider where there is one."""
        try:
            return await self._caller(connection, authorization, cookies)
        except Unauthorized as error:
            if self.sign_in is not None:
                error.sign_in = self.sign_in.title
            raise

    async def _caller(self, connection: HTTPConnection, authorization: str | None, cookies: bool) -> Caller:
        if authorization is not None:
            return await self.authenticator.caller(authorization)
        if cookies and self.sign_in is not None and (person := await self.authenticator.person(connection)) is not None:
            return person
        outside = auth.outside_reason(connection) if self._keyless else KEYLESS_NOT_ALLOWED
        return await self.authenticator.caller(None, outside)

    async def authorized_service(self, connection: HTTPConnection, authorization: str | None) -> AuthorizedService:
        """The service with the rights of this caller, who may be a person with a session. Raises Unauthorized."""
        return AuthorizedService(self.service, await self.caller(connection, authorization, cookies=True))

    async def hold_refusal(self, error: OnwardError) -> None:
        """Hold back the refusal of a request, if its tenant sends many that are over its quota."""
        if isinstance(error, QuotaExceeded) and error.rates and self._held_refusals < MAX_HELD_REFUSALS:
            self._held_refusals += 1
            try:
                await self.feed.clock.sleep(self.service.tenant_quotas.process.pause_s(error.tenant))
            finally:
                self._held_refusals -= 1

    def check_origin(self, host: str, origin: str | None) -> None:
        """Refuse a request for a foreign host, or from a foreign web page (DNS rebinding, cross-site requests)."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if self.hosts is not None and name.lower() not in self.hosts:
            raise Problem(
                421, "wrong_host", f"the host {name!r:.80} is not one of this server's; list its hosts in ONWARD_HOSTS"
            )
        if origin is not None and origin not in self.origins and origin.partition("://")[2] != host:
            raise Problem(
                403,
                "foreign_origin",
                f"requests from pages of {origin!r:.80} are not allowed; allow them with ONWARD_ORIGINS",
            )
