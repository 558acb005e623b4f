"""Seals payloads on their way into the database, and opens them on their way out. A store without keys has no codec, and pays nothing.

A verb seals before its transaction, because a key may have to be read or made first, and opens after it. A reader that cannot open a
payload gets a marker of `core/sealed.py` in its place: lists, journals and checks stay whole, and only the decoding of that one payload
raises. Contents are bytes of any form, so the codec raises for them itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from onward.core import wire
from onward.core.encryption import (
    DataKey,
    Subject,
    body_place,
    content_place,
    input_place,
    letter_place,
    letter_reason_place,
    may_be_plain,
    message_place,
    record_place,
    schedule_place,
    seal,
)
from onward.core.encryption import open_ as open_sealed
from onward.core.record import Entry, Record
from onward.core.schedule import ScheduleRow
from onward.core.sealed import DAMAGED, MAGIC, UNREADABLE, key_of, unreadable
from onward.core.task import Message, NewTask
from onward.store.port.values import Batch, ChildEnd, Claimed, Content, Submitted

T = TypeVar("T")

MAX_INLINE_BYTES = 1_000_000
"""More bytes than this are sealed or opened in a thread, so that the event loop serves other tasks."""

AddKey = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Inserts the row of a new data key with the connection of a caller, whose transaction may still be rolled back."""


class Item(NamedTuple):
    """A payload as it is stored, and where."""

    scope: str
    """The id of its task, or the name of another thing with a key of its own."""
    place: bytes
    data: bytes
    kind: str = ""


class KeysNeeded(Exception):
    """Data keys have to be loaded before payloads can be opened inside a transaction."""

    def __init__(self, ids: set[bytes]) -> None:
        self.ids = ids
        super().__init__(f"{len(ids)} data keys are not loaded")


class Ring(Protocol):
    """The data keys of the codec; see `shared.data_keys.DataKeys`."""

    async def load(self, ids: Iterable[bytes]) -> None:
        """Load data keys that are not known, or were not looked at for a while."""
        ...

    def get(self, key_id: bytes) -> DataKey | bytes | None:
        """A loaded data key; the marker for payloads of a key that this process cannot use; None when it is not loaded."""
        ...

    async def for_tasks(self, task_ids: Iterable[str]) -> Mapping[str, DataKey]:
        """The keys that seal new payloads of these tasks. A task that does not exist is left out."""
        ...

    async def for_subject(self, subject: Subject, add: AddKey | None = None) -> DataKey:
        """The key that seals new payloads of a subject. `add` inserts the row of a new key, which then serves this call alone."""
        ...

    async def subjects_of(self, task_ids: Iterable[str]) -> Mapping[str, Subject]:
        """The subjects of these tasks. A task that does not exist is left out."""
        ...

    async def input_keys(self, task_ids: Iterable[str]) -> Mapping[str, DataKey]:
        """The keys with which the inputs of these tasks are sealed, where this process has them."""
        ...

    def loaded_for(self, task_id: str) -> DataKey | None:
        """The key that seals new payloads of a task, when it is known without a query."""
        ...

    def remember(self, task_id: str, subject: Subject) -> None:
        """The subject of a task, so that no query has to ask for it."""
        ...


class Codec:
    """Seals and opens the payloads of one store."""

    def __init__(self, ring: Ring, *, label: str = "", refuse_plain: bool = False, inline: bool = False) -> None:
        self._ring, self._refuse_plain, self._inline = ring, refuse_plain, inline
        self.label: str = label
        """The label whose values have data keys of their own; empty for none."""

    def subject(self, tenant: str | None, options: bytes) -> Subject:
        """The subject of a task without a parent."""
        value = wire.decode(options).get("labels", {}).get(self.label, "") if self.label else ""
        return Subject(tenant or "", value)

    # ── sealing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def sealed_tasks(self, new: Sequence[NewTask], add: AddKey | None = None) -> list[NewTask]:
        """Tasks with their inputs sealed, and with fingerprints that tell nothing about them. A child has the subject of its parent."""
        parents = await self._ring.subjects_of({task.parent for task in new if task.parent is not None})
        keys: dict[Subject, DataKey] = {}
        sealed = []
        for task in new:
            subject = parents.get(task.parent or "") or self.subject(task.tenant, task.options)
            if subject not in keys:
                keys[subject] = await self._ring.for_subject(subject, add)
            self._ring.remember(task.id, subject)
            key = keys[subject]
            data = _seal(key, task.id, input_place(task.id, task.task), task.input)
            tagged = key.tag(task.fingerprint) if task.fingerprint else ""
            sealed.append(task._replace(input=data, fingerprint=tagged))
        return sealed

    async def own_fingerprints(
        self, new: Sequence[NewTask], sealed: Sequence[NewTask], submitted: Sequence[Submitted]
    ) -> list[Submitted]:
        """The answers to a submit of sealed tasks, with the fingerprint of the caller where the stored one is of the same request."""
        others = [
            answer.id for task, answer in zip(sealed, submitted, strict=True) if answer.fingerprint != task.fingerprint
        ]
        keys = await self._ring.input_keys(others) if others else {}

        def own(task: NewTask, tagged: NewTask, answer: Submitted) -> Submitted:
            key = keys.get(answer.id)
            same = answer.fingerprint == tagged.fingerprint or (
                key is not None and key.tag(task.fingerprint) == answer.fingerprint
            )
            return answer._replace(fingerprint=task.fingerprint) if same else answer

        return [own(*row) for row in zip(new, sealed, submitted, strict=True)]

    async def compared(
        self, submitted: Mapping[str, Submitted], fingerprints: Mapping[str, str]
    ) -> dict[str, Submitted]:
        """Tasks by their idempotency keys, with the fingerprint of the caller where the stored one is of the same request."""
        keys = await self._ring.input_keys([answer.id for answer in submitted.values()])
        return {
            name: answer._replace(fingerprint=fingerprints[name])
            if answer.id in keys and keys[answer.id].tag(fingerprints[name]) == answer.fingerprint
            else answer
            for name, answer in submitted.items()
        }

    async def key_for_fork(self, task_id: str, origin: str) -> DataKey:
        """The key of a fork, which has the subject of its origin."""
        subject = (await self._ring.subjects_of([origin])).get(origin, Subject(""))
        self._ring.remember(task_id, subject)
        return await self._ring.for_subject(subject)

    def input_of_fork(self, key: DataKey, task_id: str, task: str, data: bytes) -> bytes:
        """The sealed input of a fork."""
        return _seal(key, task_id, input_place(task_id, task), data)

    async def sealed_batch(self, batch: Batch, child_ends: Sequence[ChildEnd]) -> Batch:
        """A batch of the writer with all its payloads sealed, and with the messages to parents."""
        plain = [may_be_plain(entry[5], entry[3]) for entry in batch.entries]
        tasks = {entry[0] for entry, is_plain in zip(batch.entries, plain, strict=True) if not is_plain}
        keys = await self._keys_for(tasks.union([c.task_id for c in batch.contents], [end[2] for end in child_ends]))

        def work() -> Batch:
            return dataclasses.replace(
                batch,
                entries=[
                    entry if is_plain else _sealed_entry(keys[entry[0]], entry)
                    for entry, is_plain in zip(batch.entries, plain, strict=True)
                ],
                contents=[_sealed_content(keys[content.task_id], content) for content in batch.contents],
                child_ends=[_sealed_end(keys[end[2]], end) for end in child_ends],
            )

        return await self._off_loop(batch.bytes, work)

    async def sealed_entry(self, entry: Entry) -> Entry:
        """A record that is written inside a transaction of the caller, where no other connection may be waited for."""
        if may_be_plain(entry[5], entry[3]):
            return entry
        key = self._ring.loaded_for(entry[0]) or (await self._keys_for([entry[0]]))[entry[0]]
        return _sealed_entry(key, entry)

    async def sealed_message(self, task_id: str, message: Message) -> Message:
        """A message to a task."""
        return message if may_be_plain(message.data) else (await self.message_sealer(task_id))(message)

    async def message_sealer(self, task_id: str) -> Callable[[Message], Message]:
        """Seals messages to a task that are made inside a transaction, where no other connection may be waited for."""
        key = (await self._keys_for([task_id]))[task_id]

        def sealed(message: Message) -> Message:
            return message._replace(data=_seal(key, task_id, _place_of(task_id, message), message.data))

        return sealed

    async def sealed_content(self, task_id: str, content_id: str, data: bytes) -> bytes:
        """The bytes of an artifact that is stored outside the database."""
        key = (await self._keys_for([task_id]))[task_id]
        place = content_place(task_id, content_id)
        return await self._off_loop(len(data), lambda: _seal(key, task_id, place, data))

    async def sealed_bodies(self, rows: Sequence[tuple[tuple[str, int, str], bytes]]) -> list[bytes]:
        """The bodies of deliveries, each with its task, record and subscription."""
        keys = await self._keys_for({task_id for (task_id, _, _), _ in rows})
        return [_seal(keys[key[0]], key[0], body_place(*key), body) for key, body in rows]

    async def sealed_schedule(self, row: ScheduleRow) -> ScheduleRow:
        """A schedule with its input sealed. Its tasks have the same subject."""
        options = wire.decode(row.options)
        key = await self._ring.for_subject(self.subject(options.get("tenant"), row.options))
        return row._replace(input=_seal(key, f"schedule {row.name}", schedule_place(row.name), row.input))

    async def sealed_items(self, task_id: str, items: Sequence[Item]) -> list[bytes]:
        """Plain payloads of a task, sealed for the places that they have; those that are never sealed, as they are."""
        key = (await self._keys_for([task_id]))[task_id]
        return await self._off_loop(
            sum([len(item.data) for item in items]),
            lambda: [
                item.data if may_be_plain(item.data, item.kind) else _seal(key, task_id, item.place, item.data)
                for item in items
            ],
        )

    async def sealed_input(self, task_id: str, task: str, data: bytes, fingerprint: str) -> tuple[bytes, str]:
        """The plain input of a task, sealed, and its fingerprint, keyed."""
        key = (await self._keys_for([task_id]))[task_id]
        return _seal(key, task_id, input_place(task_id, task), data), key.tag(fingerprint) if fingerprint else ""

    async def sealed_letters(self, letters: Sequence[tuple[str, str | None, bytes]]) -> list[bytes]:
        """The data of dead letters, each with its id and its tenant."""
        keys = {tenant: await self._ring.for_subject(Subject(tenant or "")) for tenant in {item[1] for item in letters}}

        def work() -> list[bytes]:
            return [_seal(keys[tenant], f"letter {id_}", letter_place(id_), data) for id_, tenant, data in letters]

        return await self._off_loop(sum([len(data) for _, _, data in letters]), work)

    async def sealed_reasons(self, reasons: Sequence[tuple[str, str, str | None, bytes]]) -> list[bytes]:
        """The reasons of dead letters, each with the intake, the identity of the message, and the tenant."""
        keys = {tenant: await self._ring.for_subject(Subject(tenant or "")) for tenant in {item[2] for item in reasons}}
        return [
            _seal(keys[tenant], _reason_scope(identity), letter_reason_place(intake, identity), data)
            for intake, identity, tenant, data in reasons
        ]

    async def sealed_documents(self, tenant: str, documents: Sequence[Item]) -> list[bytes]:
        """Documents of a tenant."""
        key = await self._ring.for_subject(Subject(tenant))
        size = sum([len(item.data) for item in documents])
        return await self._off_loop(size, lambda: [_seal(key, item.scope, item.place, item.data) for item in documents])

    async def _keys_for(self, task_ids: Iterable[str]) -> Mapping[str, DataKey]:
        ids = set(task_ids)
        keys = await self._ring.for_tasks(ids)
        if gone := ids - keys.keys():  # pruned: the store refuses the write, or it has no effect
            spare = await self._ring.for_subject(Subject(""))
            return {**keys, **dict.fromkeys(gone, spare)}
        return keys

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, items: Sequence[Item]) -> list[bytes]:
        """The payloads of these items; a marker in place of one that cannot be opened."""
        if ids := {key_of(item.data) for item in items if item.data[:4] == MAGIC}:
            await self._ring.load(ids)
        return await self._off_loop(sum([len(item.data) for item in items]), lambda: self.open_now(items))

    def open_now(self, items: Sequence[Item]) -> list[bytes]:
        """The same inside a transaction. Raises KeysNeeded."""
        opened, needed = [], set()
        for scope, place, data, kind in items:
            if data[:4] != MAGIC:
                refused = self._refuse_plain and not may_be_plain(data, kind)
                opened.append(DAMAGED if refused else data)
                continue
            key = self._ring.get(key_of(data))
            if key is None:
                needed.add(key_of(data))
            else:
                opened.append(key if isinstance(key, bytes) else open_sealed(key.cipher(scope), place, data))
        if needed:
            raise KeysNeeded(needed)
        return opened

    async def load(self, needed: KeysNeeded) -> None:
        """Load the keys that a transaction needs."""
        await self._ring.load(needed.ids)

    async def records(self, task_id: str, records: Sequence[Record]) -> list[Record]:
        """Records of one task, opened."""
        return [record for _, record in await self.tails([(task_id, record) for record in records])]

    async def tails(self, pairs: Sequence[tuple[str, Record]]) -> list[tuple[str, Record]]:
        """Records of several tasks, opened."""
        datas = await self.open([record_item(task_id, record) for task_id, record in pairs])
        return [
            (task_id, record if data is record.data else dataclasses.replace(record, data=data))
            for (task_id, record), data in zip(pairs, datas, strict=True)
        ]

    async def claimed(self, tasks: Sequence[Claimed]) -> list[Claimed]:
        """Claimed tasks with their inputs opened."""
        inputs = await self.open([Item(task.id, input_place(task.id, task.task), task.input) for task in tasks])
        return [task._replace(input=data) for task, data in zip(tasks, inputs, strict=True)]

    async def messages(self, task_id: str, messages: Sequence[Message]) -> list[Message]:
        """Messages to one task, opened."""
        datas = await self.open([message_item(task_id, message) for message in messages])
        return [message._replace(data=data) for message, data in zip(messages, datas, strict=True)]

    async def contents(self, task_id: str, contents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Contents of one task, opened. Raises DataErased, EncryptionKeyMissing, PayloadDamaged. The name of a content is its hash, so
        plain bytes that look like sealed ones are not taken for them."""
        size = sum([len(data) for data in contents.values() if data[:4] == MAGIC])
        sealed = await self._off_loop(
            size, lambda: {n: d for n, d in contents.items() if d[:4] != MAGIC or wire.content_id(d) != n}
        )
        opened = await self.open([Item(task_id, content_place(task_id, name), data) for name, data in sealed.items()])
        for name, before, data in zip(sealed, sealed.values(), opened, strict=True):
            if data is not before and data[:1] == UNREADABLE and wire.content_id(data) != name:
                raise unreadable(data, f"the content {name} of task {task_id}")
        return {**contents, **dict(zip(sealed, opened, strict=True))}

    async def schedules(self, rows: Sequence[ScheduleRow]) -> list[ScheduleRow]:
        """Schedules with their inputs opened."""
        items = [Item(f"schedule {row.name}", schedule_place(row.name), row.input) for row in rows]
        return [row._replace(input=data) for row, data in zip(rows, await self.open(items), strict=True)]

    async def letters(self, letters: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """The data of dead letters, each with its id; a marker in place of data that cannot be opened."""
        return await self.open([Item(f"letter {id_}", letter_place(id_), data) for id_, data in letters])

    async def reasons(self, reasons: Sequence[tuple[str, str, bytes]]) -> list[bytes]:
        """The reasons of dead letters, each with the intake and the identity; a marker in place of one that cannot be opened."""
        return await self.open(
            [
                Item(_reason_scope(identity), letter_reason_place(intake, identity), data)
                for intake, identity, data in reasons
            ]
        )

    # ── inside a transaction ─────────────────────────────────────────────────────────────────────────────────────

    async def with_keys(self, transaction: Callable[[], Awaitable[T]]) -> T:
        """Run a transaction that opens payloads, again when a key was missing. Each turn loads keys that were not loaded before."""
        while True:
            try:
                return await transaction()
            except KeysNeeded as needed:
                await self.load(needed)

    def moved(self, key: DataKey, old: Sequence[Item], new: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Payloads for other places, given by scope and place: those of a fork. Raises KeysNeeded, and what a payload that cannot be
        opened raises."""
        moved = []
        for item, data, (scope, place) in zip(old, self.open_now(old), new, strict=True):
            if data[:1] == UNREADABLE:
                raise unreadable(data, f"a payload of task {item.scope}")
            moved.append(data if may_be_plain(data, item.kind) else _seal(key, scope, place, data))
        return moved

    async def _off_loop(self, size: int, work: Callable[[], T]) -> T:
        return work() if self._inline or size < MAX_INLINE_BYTES else await asyncio.to_thread(work)


def message_item(task_id: str, message: Message) -> Item:
    """A message as an item."""
    return Item(task_id, _place_of(task_id, message), message.data)


def record_item(task_id: str, record: Record) -> Item:
    """A record as an item."""
    return Item(task_id, record_place(task_id, record.seq, record.kind, record.key), record.data, record.kind)


def _seal(key: DataKey, scope: str, place: bytes, data: bytes) -> bytes:
    return seal(key.cipher(scope), key.header, place, data)


def _reason_scope(identity: str) -> str:
    return f"letter reason {identity}"


def _sealed_entry(key: DataKey, entry: Entry) -> Entry:
    task_id, seq, shift, kind, step, data, at = entry
    return task_id, seq, shift, kind, step, _seal(key, task_id, record_place(task_id, seq, kind, step), data), at


def _sealed_content(key: DataKey, content: Content) -> Content:
    place = content_place(content.task_id, content.id)
    return content._replace(data=_seal(key, content.task_id, place, content.data))


def _sealed_end(key: DataKey, end: ChildEnd) -> ChildEnd:
    parent, message, child, data = end
    return parent, message, child, _seal(key, parent, message_place(parent, message, "child", child, None), data)


def _place_of(task_id: str, message: Message) -> bytes:
    return message_place(task_id, message.id, message.kind, message.name, message.ref)
