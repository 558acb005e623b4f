"""Access keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onward.core.audit import AuditEvent
from onward.core.key import KeyRow
from onward.core.page import FIRST, TimeCursor
from onward.store.shared.audit import Audit
from onward.store.shared.database import Connection, Database, OverDatabase, seen_by

KEPT_S = 90 * 86400.0
"""Seconds for which a key is listed after it was revoked or has expired."""

MAX_PRUNED = 100
"""Keys that are deleted in one transaction."""


PAGE_KEYS = 1_000
"""Keys of a page. A key has a few hundred bytes."""


class Keys(OverDatabase):
    """The access keys. (See `seen_by` for `whose`.)"""

    def __init__(self, database: Database, audit: Audit) -> None:
        super().__init__(database)
        self._audit = audit

    async def add(self, key: KeyRow, seconds: float | None, event: AuditEvent) -> KeyRow:
        """Add a key that expires after so many seconds (None: never), and the audit event, in one transaction. The key as it is stored:
        the store sets its times. Keys that have been invalid for `KEPT_S` are deleted, `MAX_PRUNED` at most. The newest key stays,
        valid or not: once there was a key, a server never again takes requests without one."""

        async def job(connection: Connection) -> KeyRow:
            await connection.run("key_add", seconds=seconds, **key._asdict())
            await connection.first("keys_prune", seconds=KEPT_S, most=MAX_PRUNED)
            await self._audit.append_within(connection, event)
            return KeyRow(*await connection.first("key", id=key.id))

        return await self._db.transact(job)

    async def get(self, key_id: str) -> KeyRow | None:
        """A key by its id, valid or not; None where there is none."""
        rows = await self._db.fetch("key", id=key_id)
        return KeyRow(*rows[0]) if rows else None

    async def list(
        self, whose: str | None = None, *, after: TimeCursor = FIRST, limit: int = PAGE_KEYS
    ) -> Sequence[KeyRow]:
        """A page of the keys, the oldest first, after the time and the id of one."""
        values = {"after_at": after.at, "after": after.id, "limit": limit}
        return [KeyRow(*row) for row in await self._db.fetch("keys", **values, **seen_by(whose))]

    async def count_valid(self, tenant: str, most: int) -> int:
        """How many valid keys a tenant has, up to `most`."""
        ((count,),) = await self._db.fetch("keys_valid", tenant=tenant, limit=most)
        return int(count)

    async def names(self, ids: Iterable[str], whose: str | None = None) -> Mapping[str, str]:
        """The names of keys, by their ids. Unknown ones are left out."""
        return dict(await self._db.fetch("key_names", ids=list(ids), **seen_by(whose)))

    async def exist(self) -> bool:
        """Whether there ever was a key."""
        ((exists,),) = await self._db.fetch("has_keys")
        return bool(exists)

    async def revoke(self, key_id: str, event: AuditEvent, whose: str | None = None) -> KeyRow | None:
        """Revoke a key, and add the audit event, in one transaction; the key, or None where there is none. A key that was revoked
        before stays as it is, and no event is added."""

        async def job(connection: Connection) -> KeyRow | None:
            if await connection.first("key_revoke", id=key_id, **seen_by(whose)) is not None:
                await self._audit.append_within(connection, event)
            row = await connection.first("key", id=key_id)
            key = None if row is None else KeyRow(*row)
            return None if key is None or whose not in {None, key.tenant or ""} else key

        return await self._db.transact(job)

    async def mark_used(self, key_id: str) -> None:
        """Store the time at which a key was used, at most once a minute."""
        await self._db.write("key_used", id=key_id)
