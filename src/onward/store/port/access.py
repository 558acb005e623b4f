"""Access, in the store: whose tasks are, who may ask, and who did what. A part of the Store's contract.

`whose` means the same everywhere: a tenant; "" for what has no tenant; None for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from onward.core.audit import AuditEvent, Entry
from onward.core.key import KeyRow

Keys = list[KeyRow]
Entries = list[Entry]


class Kin(NamedTuple):
    """A task as one of a tree."""

    id: str
    parent: str | None
    task: str
    options: bytes


class Access(Protocol):
    """What every Store keeps about those who ask. The promises of all verbs of the Store hold here too."""

    async def kin(self, ids: Sequence[str], *, below: bool = False) -> Sequence[Kin]:
        """These tasks, or all their children, in whatever state."""
        ...

    async def add_key(self, key: KeyRow, seconds: float | None, deed: AuditEvent) -> KeyRow:
        """Keep a key for so long, and write down who made it, in one transaction; the key as it is kept. (Times of the key
        that is given do not count.)"""
        ...

    async def key(self, key_id: str) -> KeyRow | None:
        """A key by its id, valid or not."""
        ...

    async def keys(self, whose: str | None = None) -> Keys:
        """All keys, the oldest first."""
        ...

    async def has_keys(self) -> bool:
        """Whether there ever was a key."""
        ...

    async def revoke_key(self, key_id: str, deed: AuditEvent, whose: str | None = None) -> KeyRow | None:
        """Let a key open nothing any more, and write down who did that, in one transaction; the key, or None where there is
        none. Once revoked it stays as it is, and nothing more is written down."""
        ...

    async def use_key(self, key_id: str) -> None:
        """Remember that it was used, once in a minute at most."""
        ...

    async def write_down(self, deed: AuditEvent) -> None:
        """Add a deed to the audit."""
        ...

    async def audit(self, after: int, limit: int, whose: str | None = None, before: int | None = None) -> Entries:
        """Entries with numbers above `after`, in order; with `before`, those below that number instead, the newest first."""
        ...


def seen_by(whose: str | None) -> dict[str, Any]:
    """The parameters of all sections that show what is a tenant's: of this one, of none (""), or of all (None)."""
    return {"tenant": whose, "of_all": whose is None}
