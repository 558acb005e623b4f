"""Keys as strings, `onw_<env>_<id>_<secret><checksum>`, and as rows of the store.

The id is no secret: the store looks a key up by it. The secret has 256 bits, so the store keeps a plain hash of the whole key and needs no
slower one. The checksum is a CRC of everything before it: scanners recognise keys in code without a request to a server, and a mistyped
key is refused without a query.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib
from typing import NamedTuple

ENV = "live"
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_CHARS, _SECRET_CHARS, _CHECKSUM_CHARS = 12, 43, 6
_FORM = re.compile(
    rf"(onw_[a-z0-9]{{1,16}}_([0-9a-z]{{{_ID_CHARS}}})_[0-9A-Za-z]{{{_SECRET_CHARS}}})([0-9A-Za-z]{{{_CHECKSUM_CHARS}}})"
)


_ID = re.compile(rf"[0-9a-z]{{{_ID_CHARS}}}")


def is_id(text: str) -> bool:
    """Whether a string has the form of the id of a key."""
    return _ID.fullmatch(text) is not None


class Token(NamedTuple):
    """A whole key, with its secret."""

    text: str
    id: str

    @property
    def hash(self) -> bytes:
        """The hash that the store keeps."""
        return hashlib.sha256(self.text.encode()).digest()


class KeyRow(NamedTuple):
    """A key as the store has it, and the time of the database."""

    id: str
    hash: bytes
    name: str
    tenant: str | None
    scopes: str
    """Separated by blanks."""
    agent: str | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    owner: str | None
    """The principal that it acts for under approval rules (`Caller.principal`): its creator over HTTP; None for a key of its own."""
    now: float

    @property
    def valid(self) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.now < self.expires_at)


def new(env: str = ENV) -> Token:
    """A new key. Its randomness comes from the system and never from a seeded source: a known seed would give away the keys."""
    name = "".join(secrets.choice(_DIGITS[:10] + _DIGITS[36:]) for _ in range(_ID_CHARS))
    secret = "".join(secrets.choice(_DIGITS) for _ in range(_SECRET_CHARS))
    text = f"onw_{env}_{name}_{secret}"
    return Token(text + _checksum(text), name)


def parse(text: str) -> Token | None:
    """Parse a key; None for a string that is none."""
    match = _FORM.fullmatch(text)
    if match is None or _checksum(match[1]) != match[3]:
        return None
    return Token(text, match[2])


def _checksum(text: str) -> str:
    rest, digits = zlib.crc32(text.encode()), ""
    for _ in range(_CHECKSUM_CHARS):
        rest, digit = divmod(rest, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits
