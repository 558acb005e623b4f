"""Authentication by session: the cookie of a person who signed in, and the checks against requests of foreign pages.

A browser adds cookies to requests that other pages cause. So a cookie counts only in a request that a page of this server made:

    HTTP        the header `Onward-Console` is there, which no foreign page can set without a preflight, and the server allows none;
                `Sec-Fetch-Site`, where the browser sends it, is `same-origin`; and a request that may change something names the
                public address of the server as its `Origin`
    WebSocket   a browser sends no such header there: `Origin` must be the public address

The cookie of an `https` server begins with `__Host-`: no other host, nor a page over plain HTTP, can set it. What the store says of a
session is cached for as long as it is for a key (`auth.CACHE_TTL_S`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from onward.core import session as session_format
from onward.core.caller import Caller
from onward.core.clock import Clock
from onward.core.session import USED_INTERVAL_S, SessionRow
from onward.engine.background import Spawn, spawn
from onward.errors import StoreUnavailable, Unauthorized
from onward.server.access import auth
from onward.service.sessions import Sessions

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response

CONSOLE_HEADER: Final = "onward-console"
"""The header that the console sends with every request. Its value does not matter."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""


class Cookie:
    """A cookie of this server, for its public address."""

    def __init__(self, name: str, public_url: str) -> None:
        parts = urlsplit(public_url)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._secure = parts.scheme == "https"
        self.name = f"__Host-{name}" if self._secure else name

    def value(self, connection: HTTPConnection) -> str | None:
        """The value that the browser sent, or None."""
        return connection.cookies.get(self.name)

    def value_of_own_page(self, connection: HTTPConnection) -> str | None:
        """The value, if a page of this server made the request; otherwise None."""
        value = self.value(connection)
        return value if value is not None and self._is_own_page(connection) else None

    def _is_own_page(self, connection: HTTPConnection) -> bool:
        headers = connection.headers
        same_origin = headers.get("origin") == self.origin
        if connection.scope["type"] == "websocket":
            return same_origin
        if CONSOLE_HEADER not in headers or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        return same_origin or (connection.scope["method"] in SAFE_METHODS and "origin" not in headers)

    def set(self, response: Response, value: str, max_age_s: float) -> None:
        """Have the browser keep this value for so long. An empty value and 0 seconds delete it."""
        response.set_cookie(
            self.name, value, max_age=int(max_age_s), path="/", secure=self._secure, httponly=True, samesite="lax"
        )


class SessionAuthenticator:
    """Finds the person of a request, by the token in its cookie. One per process."""

    def __init__(self, sessions: Sessions, clock: Clock, cookie: Cookie, spawn: Spawn = spawn) -> None:
        self._sessions, self._clock, self._spawn = sessions, clock, spawn
        self.cookie = cookie
        self._callers: dict[bytes, tuple[float, Caller]] = {}
        self._valid: dict[str, float] = {}
        self._used: dict[str, float] = {}

    async def caller(self, token: str) -> Caller:
        """The person whose session has this token. Raises Unauthorized."""
        hash_ = session_format.token_hash(token)
        if hash_ is None:
            raise Unauthorized
        known = self._callers.get(hash_)
        return known[1] if known is not None and self._clock.monotonic() < known[0] else await self._look_up(hash_)

    async def still_valid(self, caller: Caller) -> bool:
        """Whether the caller's session has not ended, for open streams. An open stream does not keep a session from ending."""
        assert caller.session is not None
        now = self._clock.monotonic()
        if now < self._valid.get(caller.session, 0.0):
            return True
        if not await self._sessions.valid(caller.session):
            return False
        auth.remember(self._valid, caller.session, now + auth.CACHE_TTL_S)
        return True

    def forget(self, caller: Caller) -> None:
        """Forget a session that has just ended in this process."""
        self._valid.pop(caller.session or "", None)
        for hash_ in [hash_ for hash_, (_, known) in self._callers.items() if known.session == caller.session]:
            del self._callers[hash_]

    async def _look_up(self, hash_: bytes) -> Caller:
        now = self._clock.monotonic()
        row = await self._sessions.of(hash_)
        if row is None:
            self._callers.pop(hash_, None)
            raise Unauthorized
        until = now + min(auth.CACHE_TTL_S, row.until - row.now)
        auth.remember(self._callers, hash_, (until, row.caller))
        auth.remember(self._valid, row.id, until)
        if row.now - row.last_used_at >= USED_INTERVAL_S and now >= self._used.get(row.id, now):
            auth.remember(self._used, row.id, now + USED_INTERVAL_S)
            self._spawn(self._note_use(row), "onward-session-used")
        return row.caller

    async def _note_use(self, row: SessionRow) -> None:
        try:
            await self._sessions.used(row.id)
        except StoreUnavailable:  # the time of last use may be lost
            return
