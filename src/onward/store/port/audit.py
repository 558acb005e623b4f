"""The port of the audit log."""

from __future__ import annotations

from typing import Protocol

from onward.core.audit import AuditEvent, Entry


class Audit(Protocol):
    """The audit log: a chain of entries that are numbered 1, 2, 3 …"""

    async def append(self, event: AuditEvent) -> None:
        """Append an event."""
        ...

    async def entries(self, after: int, limit: int, whose: str | None = None, before: int | None = None) -> list[Entry]:
        """Entries with numbers above `after`, in order. With `before`, those below that number instead, the newest first. (See
        `tenant` for `whose`.)"""
        ...
