"""Deeds: who did what to what, as a chain. Each entry of the audit has the hash of the one before it in its own, so that one
that was changed, taken out or put in between shows. Pure; `audit.py` reads and verifies it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from onward.core import wire

BEGINNING = "0" * 64
"""What the first entry has for the hash of the one before it."""


class AuditEvent(NamedTuple):
    """What is to be written down. `tenant` is that of the subject, so that a tenant sees what others did to what is its."""

    action: str
    subject: str
    tenant: str | None = None
    key: str | None = None
    """The id of the key that was shown; None for somebody who has the database itself, or where there are no keys."""
    name: str = ""
    """Who, as far as is known."""
    data: Mapping[str, Any] = {}


class Entry(NamedTuple):
    """A deed as it is kept."""

    number: int
    at: float
    tenant: str | None
    key: str | None
    name: str
    action: str
    subject: str
    data: bytes
    before: str
    hash: str

    @property
    def sealed(self) -> str:
        """The hash that it has to have."""
        said = json.dumps(
            [*self[:7], self.data.decode("utf-8", "backslashreplace"), self.before], separators=(",", ":")
        )
        return hashlib.sha256(said.encode()).hexdigest()


def entered(deed: AuditEvent, number: int, before: str, at: float) -> Entry:
    """A deed as the entry after another."""
    data = wire.encode(dict(deed.data), "what an entry of the audit says")
    entry = Entry(number, at, deed.tenant, deed.key, deed.name, deed.action, deed.subject, data, before, "")
    return entry._replace(hash=entry.sealed)
