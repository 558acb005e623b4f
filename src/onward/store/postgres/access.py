"""Access on PostgreSQL. The chain of the audit has one end: whoever adds to it holds a lock until the commit, taken last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.core.audit import BEGINNING, AuditEvent, Entry, to_entry
from onward.core.key import KeyRow
from onward.core.task import Message
from onward.store.port.access import Entries, Keys, Kin, audit_statement, seen_by
from onward.store.port.core import Sent
from onward.store.postgres import control as postgres_steer
from onward.store.postgres.execute import first, run


class PostgresAccess:
    """See `Access` for what each verb promises."""

    _fetch: Any
    _execute: Any
    _from_outside: Any

    async def kin(self, ids: Sequence[str], *, below: bool = False) -> Sequence[Kin]:
        return [Kin(*row) for row in await self._fetch("kin_below" if below else "kin", ids=list(ids))]

    async def add_key(self, key: KeyRow, seconds: float | None, deed: AuditEvent) -> KeyRow:
        async def job(connection: Any) -> KeyRow:
            await run(connection, "key_add", seconds=seconds, **key._asdict())
            await write_down(connection, deed)
            return KeyRow(*await first(connection, "key", id=key.id))

        return await self._from_outside(job)  # type: ignore[no-any-return]

    async def key(self, key_id: str) -> KeyRow | None:
        found = await self._fetch("key", id=key_id)
        return KeyRow(*found[0]) if found else None

    async def keys(self, whose: str | None = None) -> Keys:
        return [KeyRow(*row) for row in await self._fetch("keys", **seen_by(whose))]

    async def has_keys(self) -> bool:
        return bool((await self._fetch("has_keys"))[0]["found"])

    async def revoke_key(self, key_id: str, deed: AuditEvent, whose: str | None = None) -> KeyRow | None:
        async def job(connection: Any) -> KeyRow | None:
            if await first(connection, "key_revoke", id=key_id, **seen_by(whose)) is not None:
                await write_down(connection, deed)
            found = await first(connection, "key", id=key_id)
            return None if found is None or whose not in {None, found["tenant"] or ""} else KeyRow(*found)

        return await self._from_outside(job)  # type: ignore[no-any-return]

    async def use_key(self, key_id: str) -> None:
        await self._execute("key_used", id=key_id)

    async def write_down(self, deed: AuditEvent) -> None:
        await self._from_outside(lambda c: write_down(c, deed))

    async def audit(self, after: int, limit: int, whose: str | None = None, before: int | None = None) -> Entries:
        asked = {"after": after, "before": before, "limit": limit, "tenant": whose}
        return [Entry(*row) for row in await self._fetch(audit_statement(whose, before), **asked)]


async def write_down(connection: Any, deed: AuditEvent) -> None:
    """The next entry of the audit."""
    await run(connection, "lock_audit")
    number, before = await first(connection, "audit_head") or (
        0,
        BEGINNING,
    )  # a statement of its own: it sees who was before
    now = (await first(connection, "now"))["now"]
    await run(connection, "audit_add", **to_entry(deed, number + 1, before, now)._asdict())


async def resolve_ended(
    connection: Any, task_id: str, message: Message, deed: AuditEvent | None, undo: str | None, data: bytes
) -> Sent:
    """See `Store.resolve_ended`."""
    sent = await postgres_steer.resolve_ended(connection, task_id, message, undo, data)
    if deed is not None and sent.number is not None and sent.there is None:
        await write_down(connection, deed)
    return sent


async def send(connection: Any, task_id: str, message: Message, deed: AuditEvent | None) -> Sent:
    """See `Store.send`."""
    sent = await postgres_steer.send(connection, task_id, message)
    if deed is not None and sent.number is not None and sent.there is None:
        await write_down(connection, deed)
    return sent
