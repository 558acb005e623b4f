"""The audit log as a chain of hashes. The hash of each entry covers the hash of the entry before it, so that an entry that was changed,
removed or inserted is noticed. Pure; `service/audit.py` reads and verifies the log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from onward.core import wire

BEGINNING = "0" * 64
"""The hash before the first entry."""


class AuditEvent(NamedTuple):
    """An event for the audit log. `tenant` is the tenant of the subject, so that a tenant sees what others did to its tasks."""

    action: str
    subject: str
    tenant: str | None = None
    key: str | None = None
    """The id of the caller's key; None for a caller with access to the database itself, or where there are no keys."""
    name: str = ""
    """The name of the caller, where it is known."""
    data: Mapping[str, Any] = {}


class Entry(NamedTuple):
    """An entry of the audit log."""

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
    def expected_hash(self) -> str:
        """The hash that an unchanged entry has."""
        fields = [*self[:7], self.data.decode("utf-8", "backslashreplace"), self.before]
        return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()


def to_entry(event: AuditEvent, number: int, before: str, at: float) -> Entry:
    """The entry of an event, after the entry with the hash `before`."""
    data = wire.encode(dict(event.data), "the data of an audit event")
    entry = Entry(number, at, event.tenant, event.key, event.name, event.action, event.subject, data, before, "")
    return entry._replace(hash=entry.expected_hash)
