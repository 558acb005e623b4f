"""Access keys."""

from __future__ import annotations

from collections.abc import Sequence

from onward.core.audit import AuditEvent
from onward.core.key import KeyRow
from onward.store.port.tenant import seen_by
from onward.store.shared import audit
from onward.store.shared.database import Connection, OverDatabase


class Keys(OverDatabase):
    """See `port.keys.Keys` for what each verb promises."""

    async def add(self, key: KeyRow, seconds: float | None, event: AuditEvent) -> KeyRow:
        async def job(connection: Connection) -> KeyRow:
            await connection.run("key_add", seconds=seconds, **key._asdict())
            await audit.append(connection, event)
            return KeyRow(*await connection.first("key", id=key.id))

        return await self._db.transact(job)

    async def get(self, key_id: str) -> KeyRow | None:
        rows = await self._db.fetch("key", id=key_id)
        return KeyRow(*rows[0]) if rows else None

    async def list(self, whose: str | None = None) -> Sequence[KeyRow]:
        return [KeyRow(*row) for row in await self._db.fetch("keys", **seen_by(whose))]

    async def exist(self) -> bool:
        ((exists,),) = await self._db.fetch("has_keys")
        return bool(exists)

    async def revoke(self, key_id: str, event: AuditEvent, whose: str | None = None) -> KeyRow | None:
        async def job(connection: Connection) -> KeyRow | None:
            if await connection.first("key_revoke", id=key_id, **seen_by(whose)) is not None:
                await audit.append(connection, event)
            row = await connection.first("key", id=key_id)
            key = None if row is None else KeyRow(*row)
            return None if key is None or whose not in {None, key.tenant or ""} else key

        return await self._db.transact(job)

    async def mark_used(self, key_id: str) -> None:
        await self._db.write("key_used", id=key_id)
