"""Encryption of payloads: which keys there are, a new master key, and the erasure of a tenant or a person. A part of the service.

An erasure destroys data keys. It first retires them, so that no process seals anything new with them, and waits until every process has
noticed. Only then it looks for unfinished tasks that need them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping

from onward.core.audit import AuditEvent
from onward.core.caller import Caller
from onward.core.clock import Clock
from onward.errors import NotFound, StateConflict, StillNeeded, UsageError
from onward.store.port.core import Store
from onward.store.shared.data_keys import TTL_S, DataKeyRow

SLICE_KEYS = 100
"""Data keys that are wrapped anew between two reports of progress."""

MAX_ROUNDS = 10
"""How often an erasure cancels the tasks that are unfinished then. New ones come from processes that had not noticed it."""

Keys = list[DataKeyRow]
Report = Callable[[int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class EncryptionStatus:
    """The keys of a database."""

    on: bool
    """Whether this process encrypts new payloads."""
    current: str | None
    """The id of the master key that wraps new data keys."""
    masters: Mapping[str, int]
    """The master keys that wrap data keys now, by id, and how many each wraps."""
    plain_tasks: int
    """Tasks whose input is not encrypted, counted up to a bound."""


@dataclasses.dataclass(frozen=True, slots=True)
class Erasure:
    """The result of an erasure."""

    keys: int
    """Data keys that were destroyed."""
    cancelled: int
    """Unfinished tasks that were cancelled for it."""
    plain_tasks: int
    """Tasks of the subject whose input was written before there was encryption. An erasure leaves them; prune them."""


class Encryption:
    """Reports on keys, wraps data keys anew, and erases."""

    def __init__(self, store: Store, clock: Clock, cancel: Callable[[str], Awaitable[object]]) -> None:
        self._store, self._clock, self._cancel = store, clock, cancel

    async def status(self) -> EncryptionStatus:
        """The keys of the database, and how far they are used."""
        keys = self._store.data_keys
        current = keys.master.current if keys.on else None
        return EncryptionStatus(keys.on, current, await keys.masters(), await keys.plain_tasks(None, None))

    async def rotate(self, report: Report, *, data_keys: bool = False) -> int:
        """Wrap all data keys anew with the current master key; how many that were. Interrupted, it is called again. With `data_keys`
        every subject also gets a new data key for what is written from now on. Raises EncryptionKeyMissing."""
        keys = self._store.data_keys
        after: str | None = ""
        total = 0
        while after is not None:
            after, count = await keys.rewrap(after, SLICE_KEYS)
            total += count
            report(total)
        if data_keys:
            await keys.retire()
        return total

    async def erase(
        self, by: Caller, *, tenant: str | None = None, label: tuple[str, str] | None = None, force: bool = False
    ) -> Erasure:
        """Destroy the data keys of a tenant, or of one value of the label that has data keys (of all tenants, or of this one). With
        `force`, unfinished tasks are cancelled first. Raises NotFound, StillNeeded, UsageError."""
        value = self._value(label)
        if tenant is None and value is None:
            raise UsageError("an erasure needs a tenant, or a label and its value")
        if tenant == "":
            raise UsageError("an erasure needs the name of a tenant; tasks without a tenant are erased by a label")
        subject = _words(tenant, label)
        data_keys = self._store.data_keys
        keys = await data_keys.of(tenant, value)
        if not keys:
            raise NotFound(f"{subject} has no data key: there is nothing encrypted to erase")
        needed = await data_keys.unfinished(keys)
        if needed and not force:
            raise StillNeeded(subject, list(needed), len(needed))
        await data_keys.retire(tenant, value)
        await self._clock.sleep(TTL_S)
        cancelled = await self._cancel_all(keys, subject) if force else 0
        details = {"keys": [row.id for row in keys], "cancelled": cancelled}
        event = AuditEvent("erase", subject, tenant, by.id, by.name, details)
        await data_keys.destroy(keys, by.name, event, subject)
        return Erasure(len(keys), cancelled, await data_keys.plain_tasks(tenant, label))

    def _value(self, label: tuple[str, str] | None) -> str | None:
        if label is None:
            return None
        codec = self._store.codec
        if codec is None or codec.label != label[0]:
            raise UsageError(
                f"values of the label {label[0]!r} have no data keys of their own; ONWARD_ENCRYPTION_LABEL names the label that has"
            )
        return label[1]

    async def _cancel_all(self, keys: list[DataKeyRow], subject: str) -> int:
        """Cancel the unfinished tasks of these keys; how many. Raises StillNeeded for tasks that undo their steps first."""
        cancelled: set[str] = set()
        for _ in range(MAX_ROUNDS):
            needed = await self._store.data_keys.unfinished(keys)
            fresh = [task_id for task_id in needed if task_id not in cancelled]
            if not fresh:
                break
            for task_id in fresh:
                try:
                    await self._cancel(task_id)
                except (StateConflict, NotFound):  # it has ended, or was pruned, meanwhile
                    continue
                finally:
                    cancelled.add(task_id)
        if needed := await self._store.data_keys.unfinished(keys):
            raise StillNeeded(subject, list(needed), len(needed), undoing=True)
        return len(cancelled)


def _words(tenant: str | None, label: tuple[str, str] | None) -> str:
    words = [f"tenant {tenant}"] if tenant is not None else []
    words += [f"label {label[0]}={label[1]}"] if label is not None else []
    return ", ".join(words)
