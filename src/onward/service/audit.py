"""The audit log: reads its entries, and verifies that none was changed or removed. A part of the service."""

from __future__ import annotations

import dataclasses
import re

from onward.core.audit import BEGINNING, AuditEvent, Entry
from onward.errors import BadSetting, UsageError
from onward.store.port.core import Store

PAGE_ENTRIES = 1000
Entries = list[Entry]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check of the whole chain."""

    entries: int
    head: str
    """`NUMBER:HASH` of the last sound entry. A copy that is kept elsewhere proves later that no entry up to it was removed."""
    broken: int | None = None
    """The number of the first entry that was changed, or is missing."""
    why: str = ""

    @property
    def sound(self) -> bool:
        """Whether the check found no fault."""
        return self.broken is None


class Audit:
    """Writes, lists and verifies the audit log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def append(self, event: AuditEvent) -> None:
        """Append an event."""
        await self._store.audit.append(event)

    async def list(
        self, after: int = 0, limit: int = 100, whose: str | None = None, before: int | None = None
    ) -> Entries:
        """Entries after a number, in order, or before a number, the newest first; of one tenant, or of all."""
        if not 1 <= limit <= PAGE_ENTRIES:
            raise BadSetting("limit", limit, f"between 1 and {PAGE_ENTRIES}")
        return await self._store.audit.entries(after, limit, whose, before)

    async def verify(self, seen: str | None = None) -> Verdict:
        """Check every entry. With `seen`, a head (`NUMBER:HASH`) that was noted before, also check that the chain still contains it: a
        chain that was cut off at its end, or written anew as a whole, is sound in itself."""
        noted = None if seen is None else _parse_head(seen)
        number, hash_ = 0, BEGINNING
        while page := await self._store.audit.entries(number, PAGE_ENTRIES):
            for entry in page:
                if why := _fault(entry, number, hash_, noted):
                    return Verdict(number, f"{number}:{hash_}", number + 1, why)
                number, hash_ = entry.number, entry.hash
        if noted is not None and noted[0] > number:
            return Verdict(number, f"{number}:{hash_}", number + 1, f"entry {noted[0]} was there, and is gone")
        return Verdict(number, f"{number}:{hash_}")


def _fault(entry: Entry, number: int, before: str, noted: tuple[int, str] | None) -> str:
    """The fault of an entry, given the entry before it; empty when it is sound."""
    if entry.number != number + 1:
        return f"entry {number + 1} is missing"
    if entry.before != before:
        return f"entry {entry.number} does not go on from the one before it"
    if entry.hash != entry.expected_hash:
        return f"entry {entry.number} was changed after it was written"
    if noted is not None and noted[0] == entry.number and noted[1] != entry.hash:
        return f"entry {entry.number} is not the one that was noted"
    return ""


def _parse_head(seen: str) -> tuple[int, str]:
    match = re.fullmatch(r"([0-9]{1,15}):([0-9a-f]{64})", seen)
    if match is None:
        raise UsageError(f"a head of the audit is NUMBER:HASH, as `onward audit verify` prints it, not {seen!r:.80}")
    return int(match[1]), match[2]
