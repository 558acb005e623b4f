"""Data keys: which exist, which this process has unwrapped, and which were destroyed.

A process keeps unwrapped keys in memory, and looks at their rows again after `TTL_S` seconds. So a key that another process destroyed or
retired is used for that long at most. A key that was wrapped anew by a master key that this process lacks stays usable here: it is still
the same key.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.clock import Clock, SystemClock
from onward.core.crash import crashpoint
from onward.core.encryption import DataKey, MasterKeys, Subject, context, new_data_key
from onward.core.sealed import DAMAGED, ERASED, MAGIC, is_sealed, key_of, locked
from onward.errors import EncryptionKeyMissing, OnwardError, PayloadDamaged, StillNeeded, StoreUnavailable
from onward.store.shared.audit import Audit
from onward.store.shared.codec import AddKey, Codec
from onward.store.shared.database import Connection, Database, OverDatabase
from onward.store.shared.schedules import each_stored

T = TypeVar("T")
K = TypeVar("K")

TTL_S = 30.0
"""Seconds for which a process uses a data key before it looks at its row again."""

MAX_KEYS = 20_000
"""Data keys that a process keeps in memory."""

MAX_TASKS = 100_000
"""Tasks whose subjects a process keeps in memory."""

MAX_NAMED = 1_000
"""Tasks that an erasure reads, or counts."""


class DataKeyRow(NamedTuple):
    """A data key as it is stored. A destroyed one has no `wrapped` bytes any more: its row is a tombstone."""

    id: str
    tenant: str
    value: str
    wrapped: bytes | None
    master: str
    created_at: float
    retired_at: float | None
    erased_at: float | None
    erased_by: str | None

    @property
    def subject(self) -> Subject:
        """The owner of the key."""
        return Subject(self.tenant, self.value)


Keys = list[DataKeyRow]
"""An alias for a class that has a verb named `list`."""


@dataclasses.dataclass(slots=True)
class _Known:
    """A data key in memory, or the marker for payloads of a key that cannot be used."""

    key: DataKey | bytes
    subject: Subject | None
    checked_at: float


class DataKeys(OverDatabase):
    """The data keys of a store, and the `Ring` of its codec."""

    def __init__(self, database: Database, audit: Audit, clock: Clock | None = None) -> None:
        super().__init__(database)
        self._audit, self._clock = audit, clock or SystemClock()
        self._master: MasterKeys | None = None
        self._options: dict[str, Any] = {}
        self._known: collections.OrderedDict[bytes, _Known] = collections.OrderedDict()
        self._current: collections.OrderedDict[Subject, tuple[DataKey, float]] = collections.OrderedDict()
        self._subjects: collections.OrderedDict[str, Subject] = collections.OrderedDict()
        self._creating: asyncio.Lock | None = None

    @property
    def on(self) -> bool:
        """Whether this process encrypts new payloads."""
        return self._db.codec is not None

    def use(self, master: MasterKeys, *, label: str = "", refuse_plain: bool = False, inline: bool = False) -> None:
        """Encrypt with these master keys from now on. `label` names the label whose values have data keys of their own."""
        self._master, self._options = master, {"label": label, "refuse_plain": refuse_plain, "inline": inline}
        self._db.codec = Codec(self, label=label, refuse_plain=refuse_plain, inline=inline)

    def use_same(self, other: DataKeys) -> None:
        """Encrypt as another store does, with the connections of this one: the event loop of the other one may be blocked."""
        if other._master is not None:
            self.use(other._master, **other._options)

    @property
    def master(self) -> MasterKeys:
        """The master keys. Raises EncryptionKeyMissing when this process has none."""
        if self._master is None:
            raise EncryptionKeyMissing("any", "the store")
        return self._master

    # ── the ring of the codec ────────────────────────────────────────────────────────────────────────────────────

    async def load(self, ids: Iterable[bytes]) -> None:
        """See `Ring`."""
        if stale := [key_id for key_id in ids if not self._is_fresh(key_id)]:
            rows = await self._fetch("data_keys", ids=[key_id.hex() for key_id in stale])
            by_id = {row.id: row for row in rows}
            for key_id in stale:
                await self._learn(key_id, by_id.get(key_id.hex()))

    def get(self, key_id: bytes) -> DataKey | bytes | None:
        """See `Ring`."""
        known = self._known.get(key_id)
        return None if known is None else known.key

    async def for_tasks(self, task_ids: Iterable[str]) -> Mapping[str, DataKey]:
        """See `Ring`."""
        subjects = await self.subjects_of(task_ids)
        keys = {subject: await self.for_subject(subject) for subject in set(subjects.values())}
        return {task_id: keys[subject] for task_id, subject in subjects.items()}

    async def for_subject(self, subject: Subject, add: AddKey | None = None) -> DataKey:
        """See `Ring`. Raises EncryptionKeyMissing when the subject has a key that this process cannot unwrap."""
        current = self._current.get(subject)
        if current is not None and self._clock.monotonic() - current[1] < TTL_S:
            return current[0]
        key = await self._usable(await self._fetch("data_keys_of", tenant=subject.tenant, value=subject.value))
        if key is None and add is not None:
            row, key = await self._new(subject)
            await add(row)
            return key
        key = key or await self._create(subject)
        _keep(self._current, subject, (key, self._clock.monotonic()), MAX_KEYS)
        return key

    async def subjects_of(self, task_ids: Iterable[str]) -> Mapping[str, Subject]:
        """See `Ring`."""
        subjects: dict[str, Subject] = {}
        unknown = []
        for task_id in task_ids:
            subject = self._subjects.get(task_id)
            if subject is None:
                unknown.append(task_id)
            else:
                subjects[task_id] = subject
        if unknown:
            for task_id, subject in (await self._read_subjects(unknown)).items():
                self.remember(task_id, subject)
                subjects[task_id] = subject
        return subjects

    async def input_keys(self, task_ids: Iterable[str]) -> Mapping[str, DataKey]:
        """See `Ring`."""
        rows = await self._db.fetch("sealed_with", ids=list(task_ids))
        heads = {row[0]: key_of(bytes(row[1])) for row in rows if is_sealed(bytes(row[1]))}
        await self.load(set(heads.values()))
        keys = {task_id: self.get(key_id) for task_id, key_id in heads.items()}
        return {task_id: key for task_id, key in keys.items() if isinstance(key, DataKey)}

    def loaded_for(self, task_id: str) -> DataKey | None:
        """See `Ring`."""
        subject = self._subjects.get(task_id)
        current = None if subject is None else self._current.get(subject)
        return None if current is None else current[0]

    def remember(self, task_id: str, subject: Subject) -> None:
        """See `Ring`."""
        _keep(self._subjects, task_id, subject, MAX_TASKS)

    async def _read_subjects(self, task_ids: Sequence[str]) -> dict[str, Subject]:
        """The subject of a task with a sealed input is that of its key. Another one, which is from before encryption was on, has that of
        its parent, or follows from its tenant and labels."""
        codec = self._db.codec
        assert codec is not None
        rows = await self._db.fetch("sealed_with", ids=list(task_ids))
        heads = {row[0]: key_of(bytes(row[1])) for row in rows if is_sealed(bytes(row[1]))}
        await self.load(set(heads.values()))
        owners = {task_id: known.subject for task_id, key in heads.items() if (known := self._known.get(key))}
        above = {row[4] for row in rows if row[4] is not None and owners.get(row[0]) is None}
        parents = await self.subjects_of(above) if above else {}
        return {
            task_id: owners.get(task_id) or parents.get(parent or "") or codec.subject(tenant, bytes(options))
            for task_id, _, tenant, options, parent in rows
        }

    def _is_fresh(self, key_id: bytes) -> bool:
        known = self._known.get(key_id)
        return known is not None and self._clock.monotonic() - known.checked_at < TTL_S

    async def _learn(self, key_id: bytes, row: DataKeyRow | None) -> DataKey | bytes:
        """Remember the key of a row, or why it cannot be used."""
        known = self._known.get(key_id)
        before = None if known is None or isinstance(known.key, bytes) else known.key
        key: DataKey | bytes
        if row is None:
            key = locked(f"data key {key_id.hex()}")
        elif row.wrapped is None:
            key = ERASED
            self._drop_current(row.subject)
        else:
            key = before or await self._unwrap(key_id, row)
        _keep(self._known, key_id, _Known(key, row and row.subject, self._clock.monotonic()), MAX_KEYS)
        return key

    async def _unwrap(self, key_id: bytes, row: DataKeyRow) -> DataKey | bytes:
        assert row.wrapped is not None
        try:
            secret = await self.master.unwrap(row.master, row.wrapped, context(key_id, row.subject))
        except KeyError:
            return locked(row.master)
        except PayloadDamaged:
            return DAMAGED
        except OnwardError:
            raise
        except Exception as error:
            raise StoreUnavailable(f"the master key {row.master!r} does not answer: {error}") from error
        return DataKey(key_id, row.subject, secret)

    async def _usable(self, rows: Sequence[DataKeyRow]) -> DataKey | None:
        """The first key that is neither retired nor destroyed; None when there is none. Raises EncryptionKeyMissing."""
        for row in rows:
            if row.wrapped is not None and row.retired_at is None:
                key = await self._learn(bytes.fromhex(row.id), row)
                if isinstance(key, bytes):
                    raise EncryptionKeyMissing(row.master, f"the data key {row.id}")
                return key
        return None

    async def _create(self, subject: Subject) -> DataKey:
        self._creating = self._creating or asyncio.Lock()
        async with self._creating:  # many tasks of a new subject begin at once, and need one key
            current = self._current.get(subject)
            if current is not None and self._clock.monotonic() - current[1] < TTL_S:
                return current[0]
            values, _ = await self._new(subject)

            async def job(connection: Connection) -> list[Any]:
                of = {"tenant": subject.tenant, "value": subject.value}
                rows = [DataKeyRow(*row) for row in await connection.fetch("data_keys_of", **of)]
                if not any(row.wrapped is not None and row.retired_at is None for row in rows):
                    await connection.run("data_key_add", **values)
                return await connection.fetch("data_keys_of", **of)

            rows = [DataKeyRow(*row) for row in await self._db.transact(job)]
            key = await self._usable(rows)
            assert key is not None
            _keep(self._current, subject, (key, self._clock.monotonic()), MAX_KEYS)
            return key

    async def _new(self, subject: Subject) -> tuple[dict[str, Any], DataKey]:
        """The row of a new key, and the key."""
        key_id, secret = new_data_key()
        try:
            wrapped = await self.master.wrap(secret, context(key_id, subject))
        except OnwardError:
            raise
        except Exception as error:
            raise StoreUnavailable(f"the master key {self.master.current!r} does not answer: {error}") from error
        values = {"id": key_id.hex(), "tenant": subject.tenant, "value": subject.value}
        return values | {"wrapped": wrapped, "master": self.master.current}, DataKey(key_id, subject, secret)

    def _drop_current(self, subject: Subject) -> None:
        self._current.pop(subject, None)

    async def _fetch(self, name: str, **values: Any) -> list[DataKeyRow]:
        return [DataKeyRow(*row) for row in await self._db.fetch(name, **values)]

    # ── for people ───────────────────────────────────────────────────────────────────────────────────────────────

    async def list(self, after: str = "", limit: int = 1000) -> Sequence[DataKeyRow]:
        """Data keys, also destroyed ones, by their ids."""
        return await self._fetch("data_keys_after", after=after, limit=limit)

    async def masters(self) -> Mapping[str, int]:
        """The ids of the master keys that wrap data keys now, and how many each wraps."""
        return {row[0]: row[1] for row in await self._db.fetch("data_key_masters")}

    async def check(self) -> None:
        """Raise EncryptionKeyMissing when data keys are wrapped by a master key that this process lacks."""
        for master in await self.masters():
            if self._master is None:
                raise EncryptionKeyMissing(master, "data of this database")
            for row in await self._fetch("data_key_wrapped_by", master=master):
                if isinstance(await self._learn(bytes.fromhex(row.id), row), bytes):
                    raise EncryptionKeyMissing(master, "data of this database")

    async def rewrap(self, after: str, limit: int) -> tuple[str | None, int]:
        """Wrap up to `limit` data keys after an id anew with the current master key. The last id that it looked at (None: there are no
        more), and how many keys it wrapped. Raises EncryptionKeyMissing when a key cannot be unwrapped."""
        rows = await self.list(after, limit)
        count = 0
        for row in rows:
            if row.wrapped is None or row.master == self.master.current:
                continue
            key_id = bytes.fromhex(row.id)
            try:
                secret = await self.master.unwrap(row.master, row.wrapped, context(key_id, row.subject))
            except KeyError:
                raise EncryptionKeyMissing(row.master, f"the data key {row.id}") from None
            wrapped = await self.master.wrap(secret, context(key_id, row.subject))
            values = {"id": row.id, "seen": row.wrapped, "wrapped": wrapped, "master": self.master.current}
            count += len(await self._db.write("data_key_rewrap", **values))
            crashpoint("rotate.wrapped")
        return (rows[-1].id if len(rows) == limit else None), count

    async def retire(self, tenant: str | None = None, value: str | None = None) -> int:
        """Let no process seal new payloads with the data keys of a tenant (None: of all) and of a value of the label (None: of all); how
        many keys that were. Other processes follow within `TTL_S` seconds. What the keys have sealed stays readable."""
        retired = await self._db.write("data_keys_retire", **_filters(tenant, value))
        self._current.clear()
        return len(retired)

    async def of(self, tenant: str | None, value: str | None) -> Keys:
        """The data keys of a tenant (None: of all), and of a value of the label (None: of all), that are not destroyed."""
        return await self._fetch("data_keys_live", **_filters(tenant, value))

    async def plain_tasks(self, tenant: str | None, label: tuple[str, str] | None) -> int:
        """How many tasks have an input that is not sealed: of a tenant (None: of all), with a label (None: with any), up to a bound."""
        text = (
            b"" if label is None else json.dumps(label[0], ensure_ascii=False).encode() + b":" + wire.encode(label[1])
        )
        filters = {"tenant": tenant, "any_tenant": tenant is None, "label": text, "any_label": label is None}
        ((count,),) = await self._db.fetch("plain_tasks", limit=MAX_NAMED, **filters)
        return int(count)

    async def unfinished(self, keys: Sequence[DataKeyRow], tenant: str | None, value: str | None) -> Sequence[str]:
        """Unfinished tasks whose inputs these keys sealed; and those of a tenant (None: of all) and of a value of the label (None: of
        all) whose inputs are plain, because the records that they write now are sealed. Up to a bound."""
        task_ids = await self._db.read(lambda c: _unfinished(c, keys))
        after = ""
        filters = {"tenant": tenant or "", "any_tenant": tenant is None}
        while len(task_ids) < MAX_NAMED:
            rows = await self._db.fetch("plain_unfinished", after=after, limit=MAX_NAMED, **filters)
            ids = [row[0] for row in rows]
            subjects = await self.subjects_of(ids) if ids else {}
            task_ids += [task_id for task_id in ids if task_id in subjects and _owns(subjects[task_id], tenant, value)]
            if len(ids) < MAX_NAMED:
                break
            after = ids[-1]
        return task_ids[:MAX_NAMED]

    async def schedules(self, keys: Sequence[DataKeyRow], tenant: str | None, value: str | None) -> Sequence[str]:
        """The names of schedules whose inputs these keys sealed, or whose tasks have such a subject."""
        codec = self._db.codec
        assert codec is not None
        ids = {bytes.fromhex(row.id) for row in keys}
        return [
            row.name
            async for row in each_stored(self._db)
            if (is_sealed(row.input) and key_of(row.input) in ids)
            or _owns(codec.subject(wire.decode(row.options).get("tenant"), row.options), tenant, value)
        ]

    async def destroy(self, keys: Sequence[DataKeyRow], by: str, event: AuditEvent, subject: str) -> None:
        """Destroy data keys, and add the audit event, in one transaction. Raises StillNeeded when an unfinished task needs one."""

        async def job(connection: Connection) -> None:
            if task_ids := await _unfinished(connection, keys):
                raise StillNeeded(subject, task_ids, len(task_ids))
            for row in keys:
                await connection.run("data_key_destroy", id=row.id, by=by)
            await self._audit.append_within(connection, event)

        await self._db.transact(job)
        for row in keys:
            _keep(self._known, bytes.fromhex(row.id), _Known(ERASED, row.subject, self._clock.monotonic()), MAX_KEYS)
        self._current.clear()


def _owns(subject: Subject, tenant: str | None, value: str | None) -> bool:
    return tenant in (None, subject.tenant) and value in (None, subject.value)


def _filters(tenant: str | None, value: str | None) -> dict[str, Any]:
    return {"tenant": tenant or "", "value": value or "", "any_tenant": tenant is None, "any_value": value is None}


async def _unfinished(connection: Connection, keys: Sequence[DataKeyRow]) -> list[str]:
    task_ids: list[str] = []
    for row in keys:
        if (room := MAX_NAMED - len(task_ids)) <= 0:
            break
        header = MAGIC + bytes.fromhex(row.id)
        task_ids += [task[0] for task in await connection.fetch("sealed_unfinished", header=header, limit=room)]
    return task_ids


def _keep(cache: collections.OrderedDict[K, T], name: K, value: T, most: int) -> None:
    """Add to a cache, and forget the entries that were added first."""
    cache[name] = value
    while len(cache) > most:
        cache.popitem(last=False)
