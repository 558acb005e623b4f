"""Sessions: begins, lists, ends and checks the sessions of people who signed in. A part of the service."""

from __future__ import annotations

import dataclasses

from onward.core import session as session_format
from onward.core.audit import AuditEvent
from onward.core.caller import ANYBODY, ROLES, Caller
from onward.core.identity import Identity
from onward.core.page import Page, TimeCursor, check_limit, every_item, parse_time_cursor
from onward.core.session import SessionRow
from onward.core.view_json import from_row
from onward.core.views import Session
from onward.errors import NotFound
from onward.store.port.core import Store
from onward.store.shared.sessions import PAGE_SESSIONS


@dataclasses.dataclass(frozen=True, slots=True)
class NewSession:
    """A session that just began. `token` is for the cookie: it is given here and never again."""

    session: Session
    token: str = dataclasses.field(repr=False)


SessionList = list[Session]


class Sessions:
    """Begins, lists, ends and checks sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(self, identity: Identity, *, idle_s: float, max_s: float) -> NewSession:
        """Begin a session of a person whom the identity provider has verified."""
        token = session_format.new_token()
        hash_ = session_format.token_hash(token)
        assert hash_ is not None
        new_row = SessionRow(
            id=session_format.new_id(),
            hash=hash_,
            person=identity.person,
            name=identity.name,
            roles=" ".join(role for role in ROLES if role in identity.roles),
            tenant=identity.tenant,
            created_at=0,
            last_used_at=0,
            idle_s=idle_s,
            expires_at=0,
            now=0,
        )
        row = await self._store.sessions.add(new_row, max_s, _audit_event("sign_in", new_row, new_row.caller))
        return NewSession(_view(row), token)

    async def page(
        self, whose: str | None = None, *, limit: int = PAGE_SESSIONS, cursor: str | None = None
    ) -> Page[Session]:
        """A page of the sessions that have not ended, the oldest first; `next` is the cursor of the next page. `whose` as for
        `Service.get`."""
        check_limit(limit, PAGE_SESSIONS)
        rows = await self._store.sessions.list(whose, after=parse_time_cursor(cursor), limit=limit)
        next_ = str(TimeCursor(rows[-1].created_at, rows[-1].id)) if len(rows) == limit else None
        return Page([_view(row) for row in rows], next_)

    async def list(self, whose: str | None = None) -> SessionList:
        """The sessions that have not ended, of all pages."""
        return await every_item(lambda cursor: self.page(whose, cursor=cursor))

    async def revoke(self, session_id: str, *, whose: str | None = None, by: Caller = ANYBODY) -> Session:
        """End a session: requests with it are refused from now on. Raises NotFound, also when it has ended."""
        return await self._end("revoke_session", session_id, whose, by)

    async def sign_out(self, caller: Caller) -> None:
        """End the caller's own session, if it has one."""
        if caller.session is not None:
            try:
                await self._end("sign_out", caller.session, None, caller)
            except NotFound:
                return  # another request was quicker

    async def _end(self, action: str, session_id: str, whose: str | None, by: Caller) -> Session:
        row = await self._store.sessions.get(session_id) if session_id.isascii() and session_id.isalnum() else None
        if row is None or not await self._store.sessions.end(session_id, _audit_event(action, row, by), whose):
            raise NotFound(f"there is no session {session_id!r:.80}; `onward sessions` lists them")
        return _view(row)

    # ── for the server's check of requests ───────────────────────────────────────────────────────────────────────

    async def of(self, hash_: bytes) -> SessionRow | None:
        """The session whose token has this hash, if it has not ended."""
        row = await self._store.sessions.by_hash(hash_)
        return row if row is not None and row.valid else None

    async def valid(self, session_id: str) -> bool:
        """Whether a session that was valid still is."""
        row = await self._store.sessions.get(session_id)
        return row is not None and row.valid

    async def used(self, session_id: str) -> None:
        """Record that a session was used."""
        await self._store.sessions.mark_used(session_id)


def _audit_event(action: str, row: SessionRow, by: Caller) -> AuditEvent:
    data = {"person": row.person, "name": row.name, "roles": row.roles}
    return AuditEvent(action, row.id, row.tenant, by.id, by.name, data)


def _view(row: SessionRow) -> Session:
    return from_row(Session, row, roles=tuple(row.roles.split()))
