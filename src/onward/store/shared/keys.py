"""Access keys."""

from __future__ import annotations

from onward.core.audit import AuditEvent
from onward.core.key import KeyRow
from onward.store.port.access import seen_by
from onward.store.shared import audit
from onward.store.shared.database import Connection, Database


class Keys:
    """See `port.access.Access` for what each verb promises."""

    _db: Database

    async def add_key(self, key: KeyRow, seconds: float | None, deed: AuditEvent) -> KeyRow:
        async def job(connection: Connection) -> KeyRow:
            await connection.run("key_add", seconds=seconds, **key._asdict())
            await audit.append(connection, deed)
            return KeyRow(*await connection.first("key", id=key.id))

        return await self._db.transact(job)

    async def key(self, key_id: str) -> KeyRow | None:
        rows = await self._db.fetch("key", id=key_id)
        return KeyRow(*rows[0]) if rows else None

    async def keys(self, whose: str | None = None) -> list[KeyRow]:
        return [KeyRow(*row) for row in await self._db.fetch("keys", **seen_by(whose))]

    async def has_keys(self) -> bool:
        ((exists,),) = await self._db.fetch("has_keys")
        return bool(exists)

    async def revoke_key(self, key_id: str, deed: AuditEvent, whose: str | None = None) -> KeyRow | None:
        async def job(connection: Connection) -> KeyRow | None:
            if await connection.first("key_revoke", id=key_id, **seen_by(whose)) is not None:
                await audit.append(connection, deed)
            row = await connection.first("key", id=key_id)
            key = None if row is None else KeyRow(*row)
            return None if key is None or whose not in {None, key.tenant or ""} else key

        return await self._db.transact(job)

    async def use_key(self, key_id: str) -> None:
        await self._db.write("key_used", id=key_id)
