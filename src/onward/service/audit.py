"""The audit log: reads its entries, and verifies that none was changed or removed. A part of the service."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Sequence

from onward.core.audit import BEGINNING, AuditEvent, AuditKey, End, Entry, Head, key_id, parse_head
from onward.errors import BadSetting
from onward.store.port.core import Store

PAGE_ENTRIES = 1000
TAMPERED, NO_KEY, UNKEYED, UNSEALED = "tampered", "no_key", "unkeyed", "unsealed"
"""The causes of a verdict that is not sound."""
BY_HEAD, BY_SEAL, UNPROVEN = "head", "seal", "unproven"
"""What vouches for the end of the log."""
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
    key; `unsealed`, entries are keyed and the end of the log has no seal."""
    keyed_from: int | None = None
    """The number of the first keyed entry. It must stay the same from check to check."""
    end: str = UNPROVEN
    """What vouches that no entry behind the last one was removed: `head`, the last entry is a noted head; `seal`, a seal with the key of the log
    names it, or an entry a little before it; `unproven`, nothing does."""

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
        end = await self._store.audit.end()  # before the entries: an entry that is written meanwhile is behind it
        chain = _Chain(self._store.audit.keys, noted, end)
        while page := await self._store.audit.entries(chain.head.number, PAGE_ENTRIES):
            for entry in page:
                if why := chain.fault(entry):
                    return chain.verdict(chain.head, TAMPERED, why)
                chain.add(entry)
        return chain.end()


class _Chain:
    """The part of the chain that is checked so far."""

    def __init__(self, keys: Sequence[AuditKey], noted: Sequence[Head], end: End | None) -> None:
        self._end = end
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
        if self._end is not None and entry.number == self._end.number and entry.hash != self._end.hash:
            return f"entry {entry.number} is not the one that was the last when it was written"
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
        if why := self._fault_of_end():
            return self.verdict(self.head, TAMPERED, why)
        if self._unchecked is not None:
            head, id_ = self._unchecked
            mine = f"those of this process are {', '.join(self._keys)}" if self._keys else "this process has none"
            return self.verdict(
                head,
                NO_KEY,
                f"entry {head.number + 1} was written with the key {id_}, and {mine}; set that key too (ONWARD_AUDIT_KEY). "
                "Their numbers and links fit, but their hashes were not checked",
            )
        if self._keys and self._keyed_from is None:
            return self.verdict(
                Head(0, BEGINNING),
                UNKEYED,
                "no entry is keyed, though this process has a key: no process has written with it yet, or the log was emptied or replaced",
            )
        end = BY_HEAD if self.head.number in self._noted else BY_SEAL if self._sealed else UNPROVEN
        if self._keyed_from is not None and end == UNPROVEN:
            return self.verdict(
                self.head,
                UNSEALED,
                f"all entries up to {self.head.number} are as they were written, but the end of the log has no seal: no entry was written since the "
                "upgrade that brought the seal, or the log was cut off; a head (--head) of its last entry proves that it was not",
            )
        return Verdict(self.head.number, str(self.head), keyed_from=self._keyed_from, end=end)

    @property
    def _sealed(self) -> bool:
        """Whether the end has a seal of a key of this process. (`_fault_of_end` has checked it.)"""
        return self._end is not None and self._end.seal is not None and key_id(self._end.seal) in self._keys

    def _fault_of_end(self) -> str:
        """The fault of the end that was written down with the last entry; empty when it has none, or cannot be checked without its key."""
        if self._end is None:
            return "the table that has the end of the log is empty"
        if self._end.number > self.head.number:
            return f"entry {self._end.number} was the last one, and is gone"
        key = self._keys.get(key_id(self._end.seal or "") or "")
        expected = None if key is None else key.seal_of(Head(self._end.number, self._end.hash))
        if expected is not None and not hmac.compare_digest((self._end.seal or "").encode(), expected.encode()):
            return "the seal of its end was not made with the key of the log"
        return ""

    def verdict(self, head: Head, cause: str, why: str) -> Verdict:
        """A verdict on the entry behind this head."""
        return Verdict(head.number, str(head), head.number + 1, why, cause, self._keyed_from)
