"""Keys as text: `onw_<env>_<id>_<secret><checksum>`, and as the store has them.

The id is no secret: a key is looked up by it. The secret has 256 bits, so a plain hash of the whole text is kept and nothing
slower is needed. The checksum is a CRC of all before it: scanners that look for keys in code find ours without asking us, and
a key that was mistyped is refused without asking the database.
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
_ID, _SECRET, _CHECK = 12, 43, 6
_FORM = re.compile(rf"(onw_[a-z0-9]{{1,16}}_([0-9a-z]{{{_ID}}})_[0-9A-Za-z]{{{_SECRET}}})([0-9A-Za-z]{{{_CHECK}}})")


class Token(NamedTuple):
    """A key as its owner has it."""

    text: str
    id: str

    @property
    def hash(self) -> bytes:
        """What the store keeps of it."""
        return hashlib.sha256(self.text.encode()).digest()


class KeyRow(NamedTuple):
    """A key as the store has it, and the time there."""

    id: str
    hash: bytes
    name: str
    tenant: str | None
    scopes: str
    """With blanks between them."""
    agent: str | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    now: float

    @property
    def valid(self) -> bool:
        """Whether it opens anything just now."""
        return self.revoked_at is None and (self.expires_at is None or self.now < self.expires_at)


def new(env: str = ENV) -> Token:
    """A new key. Its randomness is the system's and never a seeded source: who knows the seed knows the keys."""
    name = "".join(secrets.choice(_DIGITS[:10] + _DIGITS[36:]) for _ in range(_ID))
    secret = "".join(secrets.choice(_DIGITS) for _ in range(_SECRET))
    text = f"onw_{env}_{name}_{secret}"
    return Token(text + _checksum(text), name)


def parse(text: str) -> Token | None:
    """The key that a text is; None when it cannot be one."""
    found = _FORM.fullmatch(text)
    if found is None or _checksum(found[1]) != found[3]:
        return None
    return Token(text, found[2])


def _checksum(text: str) -> str:
    rest, digits = zlib.crc32(text.encode()), ""
    for _ in range(_CHECK):
        rest, digit = divmod(rest, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits
