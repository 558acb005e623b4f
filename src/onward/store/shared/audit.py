"""The audit log: a chain of entries, each with the hash of the one before it."""

from __future__ import annotations

from onward.core.audit import BEGINNING, AuditEvent, AuditKeys, End, Entry, Head, to_end, to_entry
from onward.store.shared.database import Connection, Database, OverDatabase


class Audit(OverDatabase):
    """The audit log: a chain of entries that are numbered 1, 2, 3 …"""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.keys: AuditKeys = ()
        """The keys of this process; without one it writes entries without a key."""

    async def append(self, event: AuditEvent) -> None:
        """Append an event. Raises AuditKeyMissing."""
        await self._db.transact(lambda c: self.append_within(c, event))

    async def append_within(self, connection: Connection, event: AuditEvent) -> None:
        """Append an event to the audit log, as the last write of a transaction. On PostgreSQL the transaction holds the lock of the log
        until its commit, and no other lock is taken after that one. Raises AuditKeyMissing, and then the transaction is rolled back."""
        await connection.lock("lock_audit")
        number, before = await connection.first("audit_head") or (
            0,
            BEGINNING,
        )  # after the lock: it sees the last entry
        (now,) = await connection.first("now")
        entry = to_entry(event, number + 1, before, now, self.keys)
        await connection.run("audit_add", **entry._asdict())
        end = to_end(Head(entry.number, entry.hash), self.keys)
        await connection.run("audit_end_set", **end._asdict())

    async def head(self) -> Head:
        """The last entry; number 0 when there is none."""
        rows = await self._db.fetch("audit_head")
        return Head(*rows[0]) if rows else Head(0, BEGINNING)

    async def end(self) -> End | None:
        """The last entry as it was written down beside the log; None when that row is missing."""
        rows = await self._db.fetch("audit_end")
        return End(*rows[0]) if rows else None

    async def entries(self, after: int, limit: int, whose: str | None = None, before: int | None = None) -> list[Entry]:
        """Entries with numbers above `after`, in order. With `before`, those below that number instead, the newest first. (See
        `seen_by` for `whose`.)"""
        if before is None:
            name = "audit" if whose is None else "audit_tenant"
        else:
            name = "audit_before" if whose is None else "audit_tenant_before"
        rows = await self._db.fetch(name, after=after, before=before, limit=limit, tenant=whose)
        return [Entry(*row) for row in rows]
