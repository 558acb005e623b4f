"""Keys: made, listed, revoked, and told from others. A part of the service.

Of a key only its hash is kept, so it is shown once, when it is made. Whoever has the database needs none.
"""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Sequence

from onward.core import key as keys
from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.caller import ADMIN, ANYBODY, SCOPES, Caller
from onward.core.durations import Duration, seconds
from onward.core.key import KeyRow, Token
from onward.errors import BadSetting, NotFound, UsageError
from onward.service.submission import named
from onward.store.port.core import Store
from onward.store.port.listing import Kin

_NOBODYS = bytes(32)
"""What a key is compared with when there is none of its id: that takes as long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A key as every door shows it: all but the key itself. Times are seconds since 1970, UTC."""

    id: str
    name: str
    tenant: str | None
    scopes: tuple[str, ...]
    agent: str | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    """To the minute."""
    valid: bool


@dataclasses.dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. `token` is the key itself: shown here and never again."""

    key: Key
    token: str = dataclasses.field(repr=False)


KeyList = list[Key]


class Keys:
    """All verbs about keys."""

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
        by: Caller = ANYBODY,
    ) -> NewKey:
        """Make a key. `agent` makes it an agent's own: it decides on nothing that this agent has a part in."""
        for scope in scopes:
            if scope not in SCOPES:
                raise BadSetting("scope", scope, f"one of {', '.join(SCOPES)}")
        if not scopes:
            raise UsageError(f"a key without a scope opens nothing; give it some of {', '.join(SCOPES)}")
        if agent is not None and ADMIN in scopes:
            raise UsageError(
                "an agent's own key cannot have the scope admin: it could make itself a key to decide with"
            )
        token = keys.new()
        wanted = KeyRow(
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
            now=0,
        )
        deed = _deed("create_key", wanted, by)
        row = await self._store.keys.add(wanted, None if expires is None else seconds(expires, "expires"), deed)
        return NewKey(_shown(row), token.text)

    async def list(self, whose: str | None = None) -> KeyList:
        """All keys, valid or not, the oldest first; `whose` as for `Service.get`."""
        return [_shown(row) for row in await self._store.keys.list(whose)]

    async def revoke(self, key_id: str, *, whose: str | None = None, by: Caller = ANYBODY) -> Key:
        """Let a key open nothing any more. Revoking it again changes nothing. Raises NotFound."""
        row = await self._store.keys.get(key_id) if key_id.isascii() and key_id.isalnum() else None
        done = None if row is None else await self._store.keys.revoke(key_id, _deed("revoke_key", row, by), whose)
        if done is None:
            raise NotFound(f"there is no key {key_id!r:.80}; `onward keys` lists them")
        return _shown(done)

    # ── for the gate ─────────────────────────────────────────────────────────────────────────────────────────────

    async def any(self) -> bool:
        """Whether there ever was a key."""
        return await self._store.keys.exist()

    async def of(self, token: Token) -> KeyRow | None:
        """The key that this is, if it is valid now. Of an id that nobody has and a secret that is wrong, the second takes no
        longer and tells no more."""
        row = await self._store.keys.get(token.id)
        same = hmac.compare_digest(token.hash, _NOBODYS if row is None else row.hash)
        return row if row is not None and same and row.valid else None

    async def valid(self, key_id: str) -> bool:
        """Whether a key that was valid still is."""
        row = await self._store.keys.get(key_id)
        return row is not None and row.valid

    async def used(self, key_id: str) -> None:
        """Remember that it was used."""
        await self._store.keys.mark_used(key_id)

    async def concerns(self, agent: str, task_id: str) -> bool:
        """Whether an agent has a part in the tree of a task: as a task of it, above, below or beside, or as who asked for
        it with its own key."""
        top, line = task_id, [task_id]
        while line:
            kin = await self._store.listing.kin(line)
            if any(_is(agent, one) for one in kin):
                return True
            top, line = line[0], [one.parent for one in kin if one.parent is not None]
        line = [top]
        while line:
            kin = await self._store.listing.kin(line, below=True)
            if any(_is(agent, one) for one in kin):
                return True
            line = [one.id for one in kin]
        return False


def caller(row: KeyRow) -> Caller:
    """Whoever shows this key."""
    return Caller(row.tenant, frozenset(row.scopes.split()), row.id, row.name, row.agent)


def _is(agent: str, kin: Kin) -> bool:
    return kin.task == agent or (b'"agent"' in kin.options and wire.decode(kin.options).get("agent") == agent)


def _deed(action: str, row: KeyRow, by: Caller) -> AuditEvent:
    said = {"name": row.name, "scopes": row.scopes, "agent": row.agent}
    return AuditEvent(
        action, row.id, row.tenant, by.key, by.name, {name: value for name, value in said.items() if value}
    )


def _shown(row: KeyRow) -> Key:
    return Key(
        id=row.id,
        name=row.name,
        tenant=row.tenant,
        scopes=tuple(row.scopes.split()),
        agent=row.agent,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        valid=row.valid,
    )
