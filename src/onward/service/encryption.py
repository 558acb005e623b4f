"""Encryption of payloads: which keys there are, a new master key, the sealing of old payloads, and the erasure of a tenant or a person. A
part of the service.

An erasure destroys data keys. It first retires them, so that no process seals anything new with them, and waits until every process has
noticed. Only then it looks for unfinished tasks that need them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from onward.artifacts.keeper import Artifacts
from onward.core.audit import AuditEvent
from onward.core.caller import Caller
from onward.core.clock import Clock
from onward.errors import NotFound, StateConflict, StillNeeded, UsageError
from onward.service.schedules import Schedules
from onward.store.port.core import Store
from onward.store.shared.data_keys import TTL_S, DataKeyRow

SLICE_KEYS = 100
"""Data keys that are wrapped anew between two reports of progress."""

SLICE_TASKS = 100
"""Tasks whose payloads are sealed between two reports of progress."""

MAX_ROUNDS = 10
"""How often an erasure cancels the tasks that are unfinished then. New ones come from processes that had not noticed it."""

Keys = list[DataKeyRow]
Report = Callable[[int], None]
SealReport = Callable[["SealedPayloads"], None]


@dataclasses.dataclass(frozen=True, slots=True)
class SealedPayloads:
    """How far the sealing of plain payloads is."""

    tasks: int
    """Tasks that were looked at."""
    payloads: int
    """Payloads that were sealed."""
    last: str
    """The id of the last of these tasks."""


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
    """Tasks of the subject whose input was written before there was encryption. An erasure leaves them; prune or seal them."""
    schedules: tuple[str, ...] = ()
    """Schedules that submitted tasks of the subject, and were removed for it. Code that still declares one saves it again."""


class Encryption:
    """Reports on keys, wraps data keys anew, and erases."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cancel: Callable[[str], Awaitable[object]],
        schedules: Schedules,
        artifacts: Artifacts,
    ) -> None:
        self._store, self._clock, self._cancel = store, clock, cancel
        self._schedules, self._artifacts = schedules, artifacts

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

    async def seal(self, report: SealReport, *, after: str = "") -> SealedPayloads:
        """Seal the payloads that were written before encryption was on, of all tasks after an id, and of all schedules and documents. Tasks may run
        meanwhile. Interrupted, it is called again, or goes on after the last task that it reported. Raises UsageError."""
        tasks, payloads = 0, await self._store.sealing.seal_schedules() + await self._store.documents.seal()
        while True:
            part = await self._store.sealing.seal(after, SLICE_TASKS)
            if not part.task_ids:
                return SealedPayloads(tasks, payloads, after)
            on_shelf = sum([await self._artifacts.seal(task_id) for task_id in part.task_ids])
            tasks, payloads, after = tasks + len(part.task_ids), payloads + part.payloads + on_shelf, part.task_ids[-1]
            report(SealedPayloads(tasks, payloads, after))

    async def erase(
        self, by: Caller, *, tenant: str | None = None, label: tuple[str, str] | None = None, force: bool = False
    ) -> Erasure:
        """Destroy the data keys of a tenant, or of one value of the label that has data keys (of all tenants, or of this one). With
        `force`, unfinished tasks are cancelled and schedules removed first. Raises NotFound, StillNeeded, UsageError."""
        value = self._value(label)
        if tenant is None and value is None:
            raise UsageError("an erasure needs a tenant, or a label and its value")
        if tenant == "":
            raise UsageError("an erasure needs the name of a tenant; tasks without a tenant are erased by a label")
        subject = _words(tenant, label)
        data_keys = self._store.data_keys
        keys = await data_keys.of(tenant, value)
        if not keys:
            plain = await data_keys.plain_tasks(tenant, label)
            left = f"; {plain:,} or more tasks of it are plain: `onward encryption seal` seals them" if plain else ""
            raise NotFound(f"{subject} has no data key: there is nothing encrypted to erase{left}")
        needed = _Needed(self._store, keys, tenant, value, subject)
        schedules = await data_keys.schedules(keys, tenant, value)
        if not force:
            await needed.check(schedules)
        for name in schedules:  # first, so that no tick submits anything with a new key
            await self._remove_schedule(name)
        await data_keys.retire(tenant, value)
        await self._clock.sleep(TTL_S)
        cancelled = await self._cancel_all(needed) if force else 0
        await needed.check()
        details = {"keys": [row.id for row in keys], "cancelled": cancelled, "schedules": list(schedules)}
        event = AuditEvent("erase", subject, tenant, by.id, by.name, details)
        await data_keys.destroy(keys, by.name, event, subject)
        plain = await data_keys.plain_tasks(tenant, label)
        return Erasure(len(keys), cancelled, plain, tuple(schedules))

    def _value(self, label: tuple[str, str] | None) -> str | None:
        if label is None:
            return None
        codec = self._store.codec
        if codec is None or codec.label != label[0]:
            raise UsageError(
                f"values of the label {label[0]!r} have no data keys of their own; ONWARD_ENCRYPTION_LABEL names the label that has"
            )
        return label[1]

    async def _cancel_all(self, needed: _Needed) -> int:
        """Cancel the unfinished tasks of a subject; how many. Raises StillNeeded for tasks that undo their steps first."""
        cancelled: set[str] = set()
        for _ in range(MAX_ROUNDS):
            fresh = [task_id for task_id in await needed.task_ids() if task_id not in cancelled]
            if not fresh:
                break
            for task_id in fresh:
                try:
                    await self._cancel(task_id)
                except (StateConflict, NotFound):  # it has ended, or was pruned, meanwhile
                    continue
                finally:
                    cancelled.add(task_id)
        await needed.check(undoing=True)
        return len(cancelled)

    async def _remove_schedule(self, name: str) -> None:
        with contextlib.suppress(NotFound):  # another caller was quicker
            await self._schedules.remove(name)


class _Needed(NamedTuple):
    """The unfinished tasks of a subject that is to be erased."""

    store: Store
    keys: Keys
    tenant: str | None
    value: str | None
    subject: str

    async def task_ids(self) -> Sequence[str]:
        return await self.store.data_keys.unfinished(self.keys, self.tenant, self.value)

    async def check(self, schedules: Sequence[str] = (), *, undoing: bool = False) -> None:
        """Raises StillNeeded when there are such tasks, or schedules."""
        task_ids = await self.task_ids()
        if task_ids or schedules:
            raise StillNeeded(self.subject, list(task_ids), len(task_ids), undoing=undoing, schedules=schedules)


def _words(tenant: str | None, label: tuple[str, str] | None) -> str:
    words = [f"tenant {tenant}"] if tenant is not None else []
    words += [f"label {label[0]}={label[1]}"] if label is not None else []
    return ", ".join(words)
