"""Sign-in of people: from the button of the console to the identity provider and back, with a session at the end.

    GET /api/sign-in            state, nonce and PKCE verifier go into a cookie; the browser goes to the provider
    GET /api/sign-in/callback   the browser comes back with a code; the server checks the state, gets the ID token for the code,
                                checks it, and begins a session

A sign-in that has not ended costs the server nothing: all that it has to remember is in the cookie of that browser. The cookie needs no
signature. Its values are random, and they only count together: the provider bound the code to the challenge of the verifier, and the ID
token to the nonce. A person who changes their own cookie can only spoil their own sign-in.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from onward.core.audit import AuditEvent
from onward.core.caller import PERSON_PREFIX
from onward.core.clock import Clock
from onward.core.identity import ClaimRules, SignInRefused
from onward.core.rate import Bucket
from onward.core.text import short
from onward.errors import OnwardError
from onward.server.access.session_auth import Cookie
from onward.service.audit import Audit
from onward.service.sessions import NewSession, Sessions

if TYPE_CHECKING:
    from onward.server.access.oidc import Provider  # an extra

log = logging.getLogger("onward.http")

PENDING_S: Final = 600.0
"""Seconds for which a browser keeps the cookie of a sign-in that has begun."""

MAX_NEXT_CHARS: Final = 500
_NEXT = re.compile(r"/[!-~]*")
"""A path of the console: ASCII without blanks and controls."""

MAX_EXCHANGES: Final = 10
"""Codes that are exchanged at once. Each one holds a connection to the provider."""

REFUSALS_PER_HOUR, REFUSALS_AT_ONCE = 60, 10
"""SignInRefused sign-ins of one cause that go to the audit log and to the log, in one server process."""


class TooManySignIns(OnwardError):
    """The server waits for the identity provider in too many sign-ins at once."""

    code = "too_many_sign_ins"
    status = 503

    def __init__(self) -> None:
        super().__init__("too many people sign in at this moment; try again in a few seconds")


class Begun(NamedTuple):
    """A sign-in that has begun: the address to go to, and the value of the cookie."""

    url: str
    cookie: str


class SignedIn(NamedTuple):
    """A sign-in at its end: the new session, and the page to show."""

    new: NewSession
    url: str


class _Pending(NamedTuple):
    """The values of the cookie."""

    state: str
    nonce: str
    verifier: str
    next: str

    def encode(self) -> str:
        page = base64.urlsafe_b64encode(self.next.encode()).rstrip(b"=").decode()
        return f"{self.state}.{self.nonce}.{self.verifier}.{page}"

    @classmethod
    def parse(cls, text: str | None) -> _Pending | None:
        parts = (text or "").split(".")
        if len(parts) != 4 or not all(parts):
            return None
        try:
            page = base64.urlsafe_b64decode(parts[3] + "=" * (-len(parts[3]) % 4)).decode()
        except (binascii.Error, ValueError):
            return None
        return cls(parts[0], parts[1], parts[2], local_page(page))


class SignIn:
    """The sign-in of one server. One per process."""

    def __init__(
        self,
        provider: Provider,
        rules: ClaimRules,
        sessions: Sessions,
        audit: Audit,
        clock: Clock,
        *,
        issuer: str,
        public_url: str,
        idle_s: float,
        max_s: float,
    ) -> None:
        self._provider, self._rules, self._sessions, self._audit, self._clock = provider, rules, sessions, audit, clock
        self._issuer, self.public_url, self._idle_s, self.max_s = issuer, public_url, idle_s, max_s
        self.title = urlsplit(issuer).hostname or issuer
        """The name of the provider for people."""
        self.pending_cookie = Cookie("onward-login", public_url)
        self._exchanges = 0
        self._buckets: dict[str, Bucket] = {}
        self._left_out: dict[str, int] = {}

    async def begin(self, page: str) -> Begun:
        """Begin a sign-in that ends at this page of the console. Raises ProviderUnavailable."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        pending = _Pending(state, nonce, verifier, local_page(page))
        url = await self._provider.authorization_url(pending.state, pending.nonce, pending.verifier)
        return Begun(url, pending.encode())

    async def finish(self, query: Mapping[str, str], cookie: str | None) -> SignedIn:
        """End a sign-in with the parameters that the provider gave the browser. Raises SignInRefused, ProviderUnavailable and
        TooManySignIns."""
        try:
            return await self._finish(query, cookie)
        except SignInRefused as refused:
            await self._record(refused)
            raise

    async def _finish(self, query: Mapping[str, str], cookie: str | None) -> SignedIn:
        pending = self._check_state(query, cookie)
        if "error" in query:
            reason = short(query.get("error_description") or query["error"], 200)
            raise SignInRefused("provider", f"the identity provider did not sign you in: {reason}")
        if not query.get("code"):
            raise SignInRefused("code", "the identity provider gave no code; sign in again")
        if self._exchanges >= MAX_EXCHANGES:
            raise TooManySignIns
        self._exchanges += 1
        try:
            claims = await self._claims(query["code"], pending)
        finally:
            self._exchanges -= 1
        identity = self._rules.identity(claims)
        new = await self._sessions.begin(identity, idle_s=self._idle_s, max_s=self.max_s)
        return SignedIn(new, f"{self.public_url}/#{pending.next}")

    def _check_state(self, query: Mapping[str, str], cookie: str | None) -> _Pending:
        pending = _Pending.parse(cookie)
        if pending is None:
            raise SignInRefused(
                "state",
                f"this browser has not begun a sign-in here, or more than {PENDING_S / 60:g} minutes ago; open {self.public_url} and "
                "sign in there",
            )
        if not hmac.compare_digest(query.get("state", "").encode(), pending.state.encode()):
            raise SignInRefused(
                "state", "this answer belongs to another sign-in, perhaps of another tab; sign in again"
            )
        if query.get("iss", self._issuer) != self._issuer:  # RFC 9207
            raise SignInRefused("state", "this answer comes from another identity provider; sign in again")
        return pending

    async def _claims(self, code: str, pending: _Pending) -> dict[str, Any]:
        tokens = await self._provider.exchange(code, pending.verifier)
        claims = await self._provider.verify(tokens.id_token, pending.nonce)
        if self._rules.incomplete(claims):  # some providers give groups here alone
            claims = {**await self._provider.user_info(tokens, claims["sub"]), **claims}
        return claims

    async def _record(self, refused: SignInRefused) -> None:
        """Write a refusal to the audit log and the log. Beyond a rate it is only counted: a stranger can cause as many as they like."""
        now, rate, bucket = (
            self._clock.monotonic(),
            REFUSALS_PER_HOUR / 3600,
            self._buckets.setdefault(refused.cause, Bucket()),
        )
        if bucket.wait(now, rate, REFUSALS_AT_ONCE):
            self._left_out[refused.cause] = self._left_out.get(refused.cause, 0) + 1
            return
        bucket.take(now, rate)
        data: dict[str, Any] = {"cause": refused.cause, "reason": short(refused, 400)}
        if left_out := self._left_out.pop(refused.cause, 0):
            data["left_out"] = left_out
        person = f"{PERSON_PREFIX}{refused.person}" if refused.person else None
        log.warning("a sign-in was refused (%s): %s", refused.cause, data["reason"])
        await self._audit.append(AuditEvent("sign_in_refused", self.title, None, person, refused.person, data))


def local_page(page: str) -> str:
    """The page of the console to show after a sign-in: a path behind `#`, so that it never leads to another site."""
    return page if len(page) <= MAX_NEXT_CHARS and _NEXT.fullmatch(page) else "/"
