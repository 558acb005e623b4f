"""Authentication of every request: by key (`auth.py`), or by the session of a person who signed in (`session_auth.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.core.caller import Caller
from onward.server.access.auth import KeyAuthenticator
from onward.server.access.session_auth import SessionAuthenticator

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection


class Authenticator:
    """Finds the caller of a request. One per process."""

    def __init__(self, keys: KeyAuthenticator, sessions: SessionAuthenticator | None = None) -> None:
        self.keys, self.sessions = keys, sessions

    async def caller(self, authorization: str | None, outside: str | None = None) -> Caller:
        """The caller by its key; see `KeyAuthenticator.caller`."""
        return await self.keys.caller(authorization, outside)

    async def person(self, connection: HTTPConnection) -> Caller | None:
        """The person by the cookie of their session; None for a request without such a cookie, or of a foreign page. Raises
        Unauthorized for a session that has ended."""
        token = None if self.sessions is None else self.sessions.cookie.value_of_own_page(connection)
        return None if token is None or self.sessions is None else await self.sessions.caller(token)

    async def still_valid(self, caller: Caller) -> bool:
        """Whether the caller is still allowed in, for open streams."""
        if caller.session is None:
            return await self.keys.still_valid(caller)
        return self.sessions is not None and await self.sessions.still_valid(caller)
