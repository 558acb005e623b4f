"""Access on SQLite: there is one writer, so nothing has to be locked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw

from onward.core.audit import BEGINNING, AuditEvent, Entry, to_entry
from onward.core.key import KeyRow
from onward.core.task import Message
from onward.store.port.access import Entries, Keys, Kin, audit_statement, seen_by
from onward.store.port.core import Sent
from onward.store.sqlite import control as sqlite_steer
from onward.store.sqlite.execute import first, run


class SqliteAccess:
    """See `Access` for what each verb promises."""

    _reading: Any
    _writing: Any

    async def kin(self, ids: Sequence[str], *, below: bool = False) -> Sequence[Kin]:
        name, wanted = "kin_below" if below else "kin", json.dumps(list(ids))
        return await self._reading(lambda c: [Kin(*row) for row in run(c, name, ids=wanted)])  # type: ignore[no-any-return]

    async def add_key(self, key: KeyRow, seconds: float | None, deed: AuditEvent) -> KeyRow:
        def job(connection: apsw.Connection) -> KeyRow:
            run(connection, "key_add", seconds=seconds, **key._asdict())
            write_down(connection, deed)
            return KeyRow(*next(run(connection, "key", id=key.id)))

        return await self._writing(job)  # type: ignore[no-any-return]

    async def key(self, key_id: str) -> KeyRow | None:
        found = await self._reading(lambda c: first(c, "key", id=key_id))
        return None if found is None else KeyRow(*found)

    async def keys(self, whose: str | None = None) -> Keys:
        return await self._reading(lambda c: [KeyRow(*row) for row in run(c, "keys", **seen_by(whose))])  # type: ignore[no-any-return]

    async def has_keys(self) -> bool:
        return bool((await self._reading(lambda c: first(c, "has_keys")))[0])

    async def revoke_key(self, key_id: str, deed: AuditEvent, whose: str | None = None) -> KeyRow | None:
        def job(connection: apsw.Connection) -> KeyRow | None:
            if first(connection, "key_revoke", id=key_id, **seen_by(whose)) is not None:
                write_down(connection, deed)
            found = first(connection, "key", id=key_id)
            return None if found is None or whose not in {None, found[3] or ""} else KeyRow(*found)

        return await self._writing(job)  # type: ignore[no-any-return]

    async def use_key(self, key_id: str) -> None:
        await self._writing(lambda c: run(c, "key_used", id=key_id))

    async def write_down(self, deed: AuditEvent) -> None:
        await self._writing(lambda c: write_down(c, deed))

    async def audit(self, after: int, limit: int, whose: str | None = None, before: int | None = None) -> Entries:
        asked = {"after": after, "before": before, "limit": limit, "tenant": whose}
        name = audit_statement(whose, before)
        return await self._reading(lambda c: [Entry(*row) for row in run(c, name, **asked)])  # type: ignore[no-any-return]


def write_down(connection: apsw.Connection, deed: AuditEvent) -> None:
    """The next entry of the audit."""
    number, before = first(connection, "audit_head") or (0, BEGINNING)
    ((now,),) = run(connection, "now")
    run(connection, "audit_add", **to_entry(deed, number + 1, before, now)._asdict())


def resolve_ended(
    connection: apsw.Connection, task_id: str, message: Message, deed: AuditEvent | None, undo: str | None, data: bytes
) -> Sent:
    """See `Store.resolve_ended`."""
    sent = sqlite_steer.resolve_ended(connection, task_id, message, undo, data)
    if deed is not None and sent.number is not None and sent.there is None:
        write_down(connection, deed)
    return sent


def send(connection: apsw.Connection, task_id: str, message: Message, deed: AuditEvent | None) -> Sent:
    """See `Store.send`."""
    sent = sqlite_steer.send(connection, task_id, message)
    if deed is not None and sent.number is not None and sent.there is None:
        write_down(connection, deed)
    return sent
