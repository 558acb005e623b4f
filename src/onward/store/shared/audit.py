"""The audit log: a chain of entries, each with the hash of the one before it."""

from __future__ import annotations

from onward.core.audit import BEGINNING, AuditEvent, Entry, to_entry
from onward.store.shared.database import Connection, OverDatabase


class Audit(OverDatabase):
    """The audit log: a chain of entries that are numbered 1, 2, 3 …"""

    async def append(self, event: AuditEvent) -> None:
        """Append an event."""
        await self._db.transact(lambda c: append(c, event))

    async def entries(self, after: int, limit: int, whose: str | None = None, before: int | None = None) -> list[Entry]:
        """Entries with numbers above `after`, in order. With `before`, those below that number instead, the newest first. (See
        `seen_by` for `whose`.)"""
        if before is None:
            name = "audit" if whose is None else "audit_tenant"
        else:
            name = "audit_before" if whose is None else "audit_tenant_before"
        rows = await self._db.fetch(name, after=after, before=before, limit=limit, tenant=whose)
        return [Entry(*row) for row in rows]


async def append(connection: Connection, event: AuditEvent) -> None:
    """Append an event to the audit log, as the last write of a transaction. On PostgreSQL the transaction holds the lock of the log until
    its commit, and no other lock is taken after that one."""
    await connection.lock("lock_audit")
    number, before = await connection.first("audit_head") or (0, BEGINNING)  # after the lock: it sees the last entry
    (now,) = await connection.first("now")
    await connection.run("audit_add", **to_entry(event, number + 1, before, now)._asdict())
