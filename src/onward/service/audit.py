"""The audit log: reads its entries, and verifies that none was changed or removed. A part of the service."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Sequence

from onward.core.audit import BEGINNING, AuditEvent, AuditKey, Entry, Head, parse_head
from onward.errors import BadSetting
from onward.store.port.core import Store

PAGE_ENTRIES = 1000
TAMPERED, NO_KEY, UNKEYED = "tampered", "no_key", "unkeyed"
"""The causes of a verdict that is not sound."""
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
    cause: str = ""
    """Why it is not sound: `tampered`; `no_key`, this process has not the key to check it; `unkeyed`, no entry is keyed though there is a
    key."""
    keyed_from: int | None = None
    """The number of the first keyed entry. It must stay the same from check to check."""

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

    async def verify(self, heads: str | Sequence[str] | None = None) -> Verdict:
        """Check every entry. With `heads` (`NUMBER:HASH`) that were noted before, also check that the chain still contains them: a
        chain that was cut off at its end, or written anew as a whole, is sound in itself. Keyed entries are checked with the keys of
        this process."""
        noted = [parse_head(head) for head in ([heads] if isinstance(heads, str) else heads or ())]
        chain = _Chain(self._store.audit.keys, noted)
        while page := await self._store.audit.entries(chain.head.number, PAGE_ENTRIES):
            for entry in page:
                if why := chain.fault(entry):
                    return chain.verdict(chain.head, TAMPERED, why)
                chain.add(entry)
        return chain.end()


class _Chain:
    """The part of the chain that is checked so far."""

    def __init__(self, keys: Sequence[AuditKey], noted: Sequence[Head]) -> None:
        self._keys = {key.id: key for key in keys}
        self._noted: dict[int, set[str]] = {}
        for head in noted:
            self._noted.setdefault(head.number, set()).add(head.hash)
        self.head = Head(0, BEGINNING)
        self._keyed_from: int | None = None
        self._unchecked: tuple[Head, str] | None = None
        """The head before the first entry whose key this process does not have, and the id of that key."""

    def fault(self, entry: Entry) -> str:
        """The fault of the next entry; empty when it is sound, or cannot be checked without its key."""
        if entry.number != self.head.number + 1:
            return f"entry {self.head.number + 1} is missing"
        if entry.before != self.head.hash:
            return f"entry {entry.number} does not go on from the one before it"
        if entry.keyed_with is None and self._keyed_from is not None:
            return f"entry {entry.number} is not keyed, and the entries from {self._keyed_from} on are"
        key = self._keys.get(entry.keyed_with or "")
        expected = key.hash_of(entry) if key is not None else None if entry.keyed_with else entry.expected_hash
        if expected is not None and not hmac.compare_digest(entry.hash.encode(), expected.encode()):
            return f"entry {entry.number} was changed after it was written"
        if self._noted.get(entry.number, {entry.hash}) != {entry.hash}:
            return f"entry {entry.number} is not the one that was noted"
        return ""

    def add(self, entry: Entry) -> None:
        """Go on behind an entry that has no fault."""
        if entry.keyed_with is not None:
            self._keyed_from = self._keyed_from or entry.number
            if self._unchecked is None and entry.keyed_with not in self._keys:
                self._unchecked = self.head, entry.keyed_with
        self.head = Head(entry.number, entry.hash)

    def end(self) -> Verdict:
        """The verdict at the end of the chain, in which no entry has a fault."""
        if self._noted and (last := max(self._noted)) > self.head.number:
            return self.verdict(self.head, TAMPERED, f"entry {last} was there, and is gone")
        if self._unchecked is not None:
            head, id_ = self._unchecked
            mine = f"those of this process are {', '.join(self._keys)}" if self._keys else "this process has none"
            return self.verdict(
                head,
                NO_KEY,
                f"entry {head.number + 1} was written with the key {id_}, and {mine}; set that key too (ONWARD_AUDIT_KEY). "
                "Their numbers and links fit, but their hashes were not checked",
            )
        if self._keys and self.head.number and self._keyed_from is None:
            return self.verdict(
                Head(0, BEGINNING),
                UNKEYED,
                "no entry is keyed, though this process has a key: no process has written with it yet, or the log was replaced",
            )
        return Verdict(self.head.number, str(self.head), keyed_from=self._keyed_from)

    def verdict(self, head: Head, cause: str, why: str) -> Verdict:
        """A verdict on the entry behind this head."""
        return Verdict(head.number, str(head), head.number + 1, why, cause, self._keyed_from)
