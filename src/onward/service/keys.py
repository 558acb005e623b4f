"""Keys: creates, lists, revokes and checks them. A part of the service.

The database has only the hash of a key, so a key is shown once, when it is created. A program with access to the database needs no key.
"""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Sequence

from onward.core import identity, wire
from onward.core import key as key_format
from onward.core.audit import AuditEvent
from onward.core.caller import ADMIN, ANYBODY, SCOPES, Caller
from onward.core.durations import Duration, seconds
from onward.core.key import KeyRow, Token
from onward.core.page import Page, TimeCursor, check_limit, every_item, parse_time_cursor
from onward.core.text import is_visible, safe
from onward.core.view_json import from_row
from onward.core.views import Key
from onward.errors import BadSetting, NotFound, UsageError
from onward.service.submission import named
from onward.store.port.core import Store
from onward.store.port.listing import Kin
from onward.store.shared.keys import PAGE_KEYS

MAX_SHOWN_CHARS = 80
"""Characters of a wrong value in an error."""

_NO_HASH = bytes(32)
"""The hash that a token is compared with when there is no key of its id: the comparison takes as long."""


@dataclasses.dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just created. `token` is the key itself: it is shown here and never again."""

    key: Key
    token: str = dataclasses.field(repr=False)
    webhook_secret: str | None = dataclasses.field(default=None, repr=False)
    """It signs the webhooks that the key's tenant gives at submit, where this installation sends webhooks."""


KeyList = list[Key]


class Keys:
    """Creates, lists, revokes and checks keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tenant: str | None = None,
        agent: str | None = None,
        expires: Duration | None = None,
        owner: str | None = None,
        by: Caller = ANYBODY,
    ) -> NewKey:
        """Create a key. With `agent` it is the key of that agent: it cannot decide on anything that this agent takes part in. `owner`
        (`person:ID` or `key:ID`) is the caller that the key acts for under approval rules: a creator with a key or a session is always
        the owner."""
        for scope in scopes:
            if scope not in SCOPES:
                raise BadSetting("scope", scope, f"one of {', '.join(SCOPES)}")
        if not scopes:
            raise UsageError(f"a key without a scope opens nothing; give it some of {', '.join(SCOPES)}")
        if agent is not None and ADMIN in scopes:
            raise UsageError(
                "an agent's own key cannot have the scope admin: it could make itself a key to decide with"
            )
        token = key_format.new()
        new_row = KeyRow(
            id=token.id,
            hash=token.hash,
            name=named("name", name),
            tenant=None if tenant is None else named("tenant", tenant),
            scopes=" ".join(scope for scope in SCOPES if scope in scopes),
            agent=None if agent is None else named("agent", agent),
            created_at=0,
            expires_at=None,
            revoked_at=None,
            last_used_at=None,
            owner=_owner(owner) if by.person is None and by.key is None else by.principal,
            now=0,
        )
        event = _audit_event("create_key", new_row, by)
        row = await self._store.keys.add(new_row, None if expires is None else seconds(expires, "expires"), event)
        return NewKey(_view(row), token.text)

    async def page(self, whose: str | None = None, *, limit: int = PAGE_KEYS, cursor: str | None = None) -> Page[Key]:
        """A page of the keys, valid or not, the oldest first; `next` is the cursor of the next page. `whose` as for `Service.get`."""
        check_limit(limit, PAGE_KEYS)
        rows = await self._store.keys.list(whose, after=parse_time_cursor(cursor), limit=limit)
        next_ = str(TimeCursor(rows[-1].created_at, rows[-1].id)) if len(rows) == limit else None
        return Page([_view(row) for row in rows], next_)

    async def list(self, whose: str | None = None) -> KeyList:
        """All keys, of all pages."""
        return await every_item(lambda cursor: self.page(whose, cursor=cursor))

    async def revoke(self, key_id: str, *, whose: str | None = None, by: Caller = ANYBODY) -> Key:
        """Revoke a key: requests with it are refused from now on. Revoking it again changes nothing. Raises NotFound."""
        row = await self._store.keys.get(key_id) if key_id.isascii() and key_id.isalnum() else None
        event = None if row is None else _audit_event("revoke_key", row, by)
        revoked = None if event is None else await self._store.keys.revoke(key_id, event, whose)
        if revoked is None:
            raise NotFound(f"there is no key {key_id!r:.80}; `onward keys` lists them")
        return _view(revoked)

    # ── for the server's check of requests ───────────────────────────────────────────────────────────────────────

    async def any(self) -> bool:
        """Whether there ever was a key."""
        return await self._store.keys.exist()

    async def of(self, token: Token) -> KeyRow | None:
        """The key of this token, if it is valid now. An unknown id and a wrong secret take the same time and look the same to the
        caller."""
        row = await self._store.keys.get(token.id)
        same = hmac.compare_digest(token.hash, _NO_HASH if row is None else row.hash)
        return row if row is not None and same and row.valid else None

    async def valid(self, key_id: str) -> bool:
        """Whether a key that was valid still is."""
        row = await self._store.keys.get(key_id)
        return row is not None and row.valid

    async def used(self, key_id: str) -> None:
        """Record that a key was used."""
        await self._store.keys.mark_used(key_id)

    async def concerns(self, agent: str, task_id: str) -> bool:
        """Whether an agent takes part in the tree of a task: it does a task of the tree, or submitted one with its own key."""
        root, ids = task_id, [task_id]
        while ids:
            relatives = await self._store.listing.kin(ids)
            if any(_involves(agent, task) for task in relatives):
                return True
            root, ids = ids[0], [task.parent for task in relatives if task.parent is not None]
        ids = [root]
        while ids:
            relatives = await self._store.listing.kin(ids, below=True)
            if any(_involves(agent, task) for task in relatives):
                return True
            ids = [task.id for task in relatives]
        return False


def caller(row: KeyRow) -> Caller:
    """The caller that shows this key."""
    return Caller(row.tenant, frozenset(row.scopes.split()), row.id, row.name, row.agent, owner=row.owner)


def _involves(agent: str, task: Kin) -> bool:
    return task.task == agent or (b'"agent"' in task.options and wire.decode(task.options).get("agent") == agent)


def _audit_event(action: str, row: KeyRow, by: Caller) -> AuditEvent:
    data = {"name": row.name, "scopes": row.scopes, "agent": row.agent}
    return AuditEvent(
        action, row.id, row.tenant, by.id, by.name, {name: value for name, value in data.items() if value}
    )


def _owner(given: str | None) -> str | None:
    """The principal of a key's owner, in the form in which a person that signs in, or a key, has it. Raises BadSetting, UsageError."""
    if given is None:
        return None
    kind, _, owner_id = named("owner", given).partition(":")
    if kind == "person" and identity.is_name(owner_id, identity.MAX_PERSON_CHARS) and is_visible(owner_id):
        return given
    if kind == "key" and key_format.is_id(owner_id):
        return given
    raise BadSetting(
        "owner",
        safe(given)[:MAX_SHOWN_CHARS],
        f"person:ID (1 to {identity.MAX_PERSON_CHARS} visible characters) or key:ID (as `onward keys` lists it)",
    )


def _view(row: KeyRow) -> Key:
    return from_row(Key, row, scopes=tuple(row.scopes.split()))
