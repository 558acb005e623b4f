"""The audit: who did what to what, as it was written down, and whether it still is as it was. A part of the
service.
"""

from __future__ import annotations

import dataclasses
import re

from onward.core.audit import BEGINNING, AuditEvent, Entry
from onward.errors import BadSetting, UsageError
from onward.store.port.core import Store

PAGE = 1000
Entries = list[Entry]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a look at the whole chain."""

    entries: int
    head: str
    """`NUMBER:HASH` of the last entry that is sound. Kept elsewhere, it shows later that nothing up to it was cut off."""
    broken: int | None = None
    """The number of the first entry that is not as it was, or is missing."""
    why: str = ""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return self.broken is None


class Audit:
    """All verbs about it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write_down(self, deed: AuditEvent) -> None:
        """Add a deed."""
        await self._store.audit.append(deed)

    async def list(
        self, after: int = 0, limit: int = 100, whose: str | None = None, before: int | None = None
    ) -> Entries:
        """Entries after a number, in order, or before one, the newest first; of one tenant, or of all."""
        if not 1 <= limit <= PAGE:
            raise BadSetting("limit", limit, f"between 1 and {PAGE}")
        return await self._store.audit.entries(after, limit, whose, before)

    async def verify(self, seen: str | None = None) -> Verdict:
        """Look at every entry. With `seen`, a head (`NUMBER:HASH`) that was noted before, also whether the chain still leads
        through it: whoever cuts off the end of a chain, or makes all of it anew, leaves one that is sound in itself."""
        noted = None if seen is None else _noted(seen)
        number, hash_ = 0, BEGINNING
        while page := await self._store.audit.entries(number, PAGE):
            for entry in page:
                if why := _fault(entry, number, hash_, noted):
                    return Verdict(number, f"{number}:{hash_}", number + 1, why)
                number, hash_ = entry.number, entry.hash
        if noted is not None and noted[0] > number:
            return Verdict(number, f"{number}:{hash_}", number + 1, f"entry {noted[0]} was there, and is gone")
        return Verdict(number, f"{number}:{hash_}")


def _fault(entry: Entry, number: int, before: str, noted: tuple[int, str] | None) -> str:
    """What is wrong with an entry, given the one before it."""
    if entry.number != number + 1:
        return f"entry {number + 1} is missing"
    if entry.before != before:
        return f"entry {entry.number} does not go on from the one before it"
    if entry.hash != entry.sealed:
        return f"entry {entry.number} is not what was written down"
    if noted is not None and noted[0] == entry.number and noted[1] != entry.hash:
        return f"entry {entry.number} is another than the one that was noted"
    return ""


def _noted(seen: str) -> tuple[int, str]:
    found = re.fullmatch(r"([0-9]{1,15}):([0-9a-f]{64})", seen)
    if found is None:
        raise UsageError(f"a head of the audit is NUMBER:HASH, as `onward audit verify` prints it, not {seen!r:.80}")
    return int(found[1]), found[2]
