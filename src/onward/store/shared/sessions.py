"""Sessions of people who signed in."""

from __future__ import annotations

from collections.abc import Sequence

from onward.core.audit import AuditEvent
from onward.core.page import FIRST, TimeCursor
from onward.core.session import DISPLACED, MAX_PER_PERSON, SessionRow
from onward.store.shared.audit import Audit
from onward.store.shared.database import Connection, Database, OverDatabase, seen_by

PAGE_SESSIONS = 1_000
"""Sessions of a page. A session has a few hundred bytes."""


class Sessions(OverDatabase):
    """The sessions of people. (See `seen_by` for `whose`.)"""

    def __init__(self, database: Database, audit: Audit) -> None:
        super().__init__(database)
        self._audit = audit

    async def add(self, session: SessionRow, seconds: float, event: AuditEvent) -> SessionRow:
        """Add a session that ends after so many seconds at the latest, and the audit event, in one transaction. The session as it is
        stored: the store sets its times. Sessions that have ended are deleted. Those of the same person beyond MAX_PER_PERSON end, each
        with an audit event of its own."""

        async def job(connection: Connection) -> SessionRow:
            await connection.run("sessions_prune")
            await connection.run("session_add", seconds=seconds, **session._asdict())
            ended = await connection.fetch("sessions_bound", person=session.person, most=MAX_PER_PERSON)
            await self._audit.append_within(connection, event)
            for id_, tenant, roles in ended:
                data = {**event.data, "roles": roles, "because_of": session.id}
                end = event._replace(action=DISPLACED, subject=id_, tenant=tenant, data=data)
                await self._audit.append_within(connection, end)
            return SessionRow(*await connection.first("session", id=session.id))

        return await self._db.transact(job)

    async def by_hash(self, hash_: bytes) -> SessionRow | None:
        """The session whose token has this hash, also when its time is over; None where there is none."""
        rows = await self._db.fetch("session_by_hash", hash=hash_)
        return SessionRow(*rows[0]) if rows else None

    async def get(self, session_id: str) -> SessionRow | None:
        """A session by its id, also when its time is over; None where there is none."""
        rows = await self._db.fetch("session", id=session_id)
        return SessionRow(*rows[0]) if rows else None

    async def list(
        self, whose: str | None = None, *, after: TimeCursor = FIRST, limit: int = PAGE_SESSIONS
    ) -> Sequence[SessionRow]:
        """A page of the sessions that have not ended, the oldest first, after the time and the id of one."""
        values = {"after_at": after.at, "after": after.id, "limit": limit}
        return [SessionRow(*row) for row in await self._db.fetch("sessions", **values, **seen_by(whose))]

    async def end(self, session_id: str, event: AuditEvent, whose: str | None = None) -> bool:
        """End a session, and add the audit event, in one transaction; False where there is none."""

        async def job(connection: Connection) -> bool:
            if await connection.first("session_end", id=session_id, **seen_by(whose)) is None:
                return False
            await self._audit.append_within(connection, event)
            return True

        return await self._db.transact(job)

    async def mark_used(self, session_id: str) -> None:
        """Store the time at which a session was used, at most once a minute."""
        await self._db.write("session_used", id=session_id)
