"""Sessions of people: the token in the cookie, and the session as a row of the store.

The token is 256 random bits. The store has its SHA-256 alone and looks a session up by it: the id of a session is no secret, and is for
lists and for revoking.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from typing import Final, NamedTuple

from onward.core.caller import ROLES, Caller

MAX_PER_PERSON: Final = 20
"""Sessions of one person at once. One more sign-in ends the one that was unused for the longest time."""

DISPLACED: Final = "displace_session"
"""The audit event of a session that ended because its person has too many."""

USED_INTERVAL_S: Final = 60.0
"""Seconds between two writes of when a session was last used."""

MIN_IDLE_S: Final = 5 * USED_INTERVAL_S
"""The shortest idle timeout: the time of last use is only known to the minute."""

_TOKEN_BYTES: Final = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_ID_DIGITS, _ID_CHARS = string.digits + string.ascii_lowercase, 12


class SessionRow(NamedTuple):
    """A session as the store has it, and the time of the database."""

    id: str
    hash: bytes
    person: str
    name: str
    roles: str
    """Separated by blanks."""
    tenant: str | None
    created_at: float
    last_used_at: float
    idle_s: float
    expires_at: float
    """When it ends, however often it is used."""
    now: float

    @property
    def until(self) -> float:
        """When it ends if it is not used again."""
        return min(self.expires_at, self.last_used_at + self.idle_s)

    @property
    def valid(self) -> bool:
        """Whether it has not ended."""
        return self.now < self.until

    @property
    def caller(self) -> Caller:
        """The person as a caller."""
        roles = frozenset(self.roles.split())
        scopes = frozenset(scope for role in roles for scope in ROLES.get(role, ()))
        return Caller(
            self.tenant,
            scopes,
            name=full_name(self.name, self.person),
            person=self.person,
            roles=roles,
            session=self.id,
        )


def new_token() -> str:
    """A new token for a cookie. Its randomness comes from the system."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def new_id() -> str:
    """A new id of a session."""
    return "".join(secrets.choice(_ID_DIGITS) for _ in range(_ID_CHARS))


def token_hash(text: str) -> bytes | None:
    """The hash of a token, as the store has it; None for a string that is no token."""
    return hashlib.sha256(text.encode()).digest() if _TOKEN.fullmatch(text) else None


def full_name(name: str, person: str) -> str:
    """The name of a person in journals and in the audit log: readable, with the stable id behind it. A person may be able to choose the
    first part at the identity provider; the last pair of brackets is always the provider's own."""
    return name if name == person else f"{name} ({person})"
