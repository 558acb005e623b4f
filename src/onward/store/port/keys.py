"""The port of the access keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onward.core.audit import AuditEvent
from onward.core.key import KeyRow


class Keys(Protocol):
    """The access keys. (See `tenant` for `whose`.)"""

    async def add(self, key: KeyRow, seconds: float | None, event: AuditEvent) -> KeyRow:
        """Add a key that expires after so many seconds (None: never), and the audit event, in one transaction. The key as it is stored:
        the store sets its times."""
        ...

    async def get(self, key_id: str) -> KeyRow | None:
        """A key by its id, valid or not; None where there is none."""
        ...

    async def list(self, whose: str | None = None) -> Sequence[KeyRow]:
        """All keys, the oldest first."""
        ...

    async def exist(self) -> bool:
        """Whether there ever was a key."""
        ...

    async def revoke(self, key_id: str, event: AuditEvent, whose: str | None = None) -> KeyRow | None:
        """Revoke a key, and add the audit event, in one transaction; the key, or None where there is none. A key that was revoked
        before stays as it is, and no event is added."""
        ...

    async def mark_used(self, key_id: str) -> None:
        """Store the time at which a key was used, at most once a minute."""
        ...
