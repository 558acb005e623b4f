"""The core verbs that both databases share: cancel, pause, resume, messages, forks, and reads of one task. A verb that changes a task is
a few statements of one transaction, which appends records that belong to no shift."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.epoch import FIRST, Epoch, Lost
from onward.core.page import Page
from onward.core.record import CANCEL, CANCELLED, RESUMED, Record
from onward.core.task import NEEDS_A_PERSON, SAID, Message, NewTask, State, Task
from onward.errors import TooManyAskers
from onward.store import statements
from onward.store.port.listing import MAX_BYTES
from onward.store.port.values import ALL_MESSAGES, Batch, Claimed, Sent, Stopped, Submitted
from onward.store.shared import rows
from onward.store.shared.audit import Audit
from onward.store.shared.codec import Codec
from onward.store.shared.database import Connection, Database, OverDatabase, seen_by
from onward.store.shared.external_transaction import ADD_DATA_KEY, check_library, run_through
from onward.store.shared.forks import Forking, fork

MAX_PARENTS = 500
"""Parents that one call of `orphans` looks at."""

MAX_ASKERS = 1_000
"""Principals that resumed a task, sent it something, or submitted it again. The next one is refused: an asker that is not recorded could
approve what it asked for."""

_ADD_ASKER, _ASKER_LEFT_OUT = statements.text("add_asker_through"), statements.text("asker_left_out")


class CoreVerbs(OverDatabase, abc.ABC):
    """See `port.core.Store` for what each verb promises."""

    libraries: tuple[str, ...]
    """Libraries whose connections `submit` takes."""
    epoch: Epoch = FIRST

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.audit: Audit = Audit(database)
        self._orphans_after = ""
        """The parent from which the next call of `orphans` goes on."""

    @property
    def codec(self) -> Codec | None:
        return self._db.codec

    async def submit(self, new: Sequence[NewTask], connection: Any = None) -> list[Submitted]:
        codec = self._db.codec
        if codec is None:
            return await self._insert_tasks(new, connection)
        if connection is not None:
            check_library(connection, self.libraries)
        add = None if connection is None else functools.partial(self._add_data_key, connection)
        sealed = await codec.sealed_tasks(new, add)
        return await codec.own_fingerprints(new, sealed, await self._insert_tasks(sealed, connection))

    @abc.abstractmethod
    async def _insert_tasks(self, new: Sequence[NewTask], connection: Any) -> list[Submitted]:
        """Insert tasks as they are; over the connection of the caller when there is one."""

    async def _add_data_key(self, connection: Any, row: Mapping[str, Any]) -> None:
        ((now,),) = await self._db.fetch("now")
        await run_through(connection, ADD_DATA_KEY, {**row, "now": now})

    async def claim(
        self,
        worker: str,
        queue: str,
        names: Sequence[str],
        room: int,
        *,
        alone: bool = False,
        without: Sequence[str] = (),
        version: str = "",
    ) -> list[Claimed]:
        claimed = await self._claim(worker, queue, names, room, alone=alone, without=without, version=version)
        codec = self._db.codec
        return claimed if codec is None or not claimed else await codec.claimed(claimed)

    @abc.abstractmethod
    async def _claim(
        self,
        worker: str,
        queue: str,
        names: Sequence[str],
        room: int,
        *,
        alone: bool = False,
        without: Sequence[str] = (),
        version: str = "",
    ) -> list[Claimed]:
        """Claim tasks, with their inputs as they are stored."""

    async def save(self, worker: str, batch: Batch) -> set[str]:
        codec = self._db.codec
        sealed = batch if codec is None else await codec.sealed_batch(batch, rows.child_ends(batch))
        return await self._save(worker, sealed)

    @abc.abstractmethod
    async def _save(self, worker: str, batch: Batch) -> set[str]:
        """Write a batch as it is."""

    async def journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES
    ) -> Page[Record]:
        records = await self._journal(task_id, after, limit, most)
        # By the stored sizes: a payload that is opened, or cannot be opened, is shorter.
        full = len(records) >= limit or sum([len(record.data) for record in records]) >= most
        codec = self._db.codec
        opened = records if codec is None else await codec.records(task_id, records)
        return Page(opened, str(records[-1].seq) if records and full else None)

    @abc.abstractmethod
    async def _journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES
    ) -> list[Record]:
        """Records as they are stored."""

    async def by_key(
        self, keys: Sequence[str], fingerprints: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Submitted]:
        tasks = await self._db.fetch("by_key", keys=list(keys))
        submitted = {key: Submitted(task_id, False, fingerprint) for task_id, key, fingerprint in tasks}
        codec = self._db.codec
        return submitted if codec is None or not fingerprints else await codec.compared(submitted, fingerprints)

    async def get(self, task_id: str, whose: str | None = None, most: int = MAX_BYTES) -> Task | None:
        tasks = await self._db.fetch_named("get", id=task_id, most=most, **seen_by(whose))
        return rows.task((await rows.opened(self._db.codec, tasks))[0]) if tasks else None

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        contents = {row[0]: row[1] for row in await self._db.fetch("contents", id=task_id, ids=list(ids))}
        codec = self._db.codec
        return contents if codec is None else await codec.contents(task_id, contents)

    async def fork(
        self,
        task_id: str,
        origin: str,
        at: int,
        *,
        input: bytes,  # noqa: A002 -- the name of it in the whole API
        inbox: int,
        options: bytes = b"",
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        forking = await Forking.of(self._db.codec, task_id, origin, input)
        await forking.run(self._db, lambda c: fork(c, forking, at, inbox, options, details))

    async def cancel(self, task_id: str) -> Stopped:
        return await self._db.transact(lambda c: _cancel(c, task_id))

    async def resume(self, task_id: str, asker: str | None = None) -> bool:
        return await self._db.transact(lambda c: _resume(c, task_id, asker, self.epoch))

    async def pause(self, task_id: str) -> bool | None:
        holders = await self._db.write("pause", id=task_id)
        return holders[0][0] is not None if holders else None

    async def unconfirmed_pauses(self, task_ids: Sequence[str]) -> list[str]:
        return [row[0] for row in await self._db.fetch("unconfirmed_pauses", ids=list(task_ids))]

    async def children(self, task_id: str) -> list[str]:
        return [row[0] for row in await self._db.fetch("children", id=task_id)]

    async def orphans(self) -> list[str]:
        orphans = await self._db.fetch("orphans", after=self._orphans_after, most=MAX_PARENTS)
        self._orphans_after = next((parent for _, parent in orphans if parent is not None), "")
        return [task_id for task_id, _ in orphans if task_id is not None]

    async def prioritize(self, task_id: str, priority: int) -> bool:
        return bool(await self._db.write("prioritize", id=task_id, priority=priority))

    async def send(
        self, task_id: str, message: Message, event: AuditEvent | None = None, asker: str | None = None
    ) -> Sent:
        codec = self._db.codec
        stored = message if codec is None else await codec.sealed_message(task_id, message)

        async def job(connection: Connection) -> Sent:
            sent = await send(connection, task_id, stored)
            if (
                asker is not None and sent.number is not None and sent.first
            ):  # also the second that sends the same message
                await add_asker(connection, task_id, asker)
            return await self._audited(connection, sent, event)

        return await self._opened(task_id, await self._db.transact(job))

    async def resolve_ended(
        self,
        task_id: str,
        message: Message,
        event: AuditEvent | None = None,
        *,
        undo: str | None = None,
        input: bytes = b"",  # noqa: A002 -- the name of it in the whole API
    ) -> Sent:
        codec = self._db.codec
        stored = message if codec is None else await codec.sealed_message(task_id, message)
        forking = None if undo is None else await Forking.of(codec, undo, task_id, input)

        async def job(connection: Connection) -> Sent:
            sent = await _resolve_ended(connection, task_id, stored, forking)
            return await self._audited(connection, sent, event)

        sent = await (self._db.transact(job) if forking is None else forking.run(self._db, job))
        return await self._opened(task_id, sent)

    async def _opened(self, task_id: str, sent: Sent) -> Sent:
        """The answer to a message, with the message that counts instead of it opened."""
        codec = self._db.codec
        if codec is None or sent.there is None:
            return sent
        (there,) = await codec.messages(task_id, [sent.there])
        return sent._replace(there=there)

    async def _audited(self, connection: Connection, sent: Sent, event: AuditEvent | None) -> Sent:
        if event is not None and sent.number is not None and sent.there is None:
            await self.audit.append_within(connection, event)
        return sent

    async def inbox(self, task_id: str, after: int = 0, limit: int = ALL_MESSAGES) -> list[Message]:
        messages = [Message(*row) for row in await self._db.fetch("inbox", id=task_id, after=after, limit=limit)]
        codec = self._db.codec
        return messages if codec is None else await codec.messages(task_id, messages)


async def _cancel(connection: Connection, task_id: str) -> Stopped:
    (parent,) = await connection.first("parent", id=task_id) or (None,)
    await connection.lock("lock_rows", ids=[task_id] if parent is None else sorted([task_id, parent]))
    row = await connection.first("queue_row", id=task_id)
    if row is None:
        return Stopped(False)
    reason, attempt, worker, _, gate = row
    held = worker is not None
    stuck = reason in NEEDS_A_PERSON and not held  # for want of code that fits: it tries again
    sagas, cancelling, undos = await connection.first("saga_state", id=task_id)
    if (must_undo := sagas + undos > 0) and cancelling > 0 and not stuck:
        return Stopped(True, requested=True)
    head, _ = await connection.first("head", id=task_id)
    await connection.run("outsider_record", id=task_id, seq=head + 1, kind=CANCEL, data=b"{}")
    if must_undo:
        await connection.run("cancelling", id=task_id)
        return Stopped(True, requested=True, held=held)
    await connection.run("outsider_record", id=task_id, seq=head + 2, kind=CANCELLED, data=b"{}")
    ending = {"state": State.CANCELLED.value, "attempt": attempt, "seq": head + 2}
    await connection.run("outsider_end", id=task_id, **ending)
    await connection.run("drop_queue", id=task_id)
    if parent is not None:
        data = rows.child_end(State.CANCELLED, b"{}")
        await connection.tell_parents([(parent, rows.child_end_id(task_id, head + 2), task_id, data)])
    if gate is not None:
        await connection.release_limits([gate])
    await connection.lock("lock_buckets_of", ids=[task_id])
    await connection.run("drop_locks_of", id=task_id, key="")
    return Stopped(True, held=held)


async def _resume(connection: Connection, task_id: str, asker: str | None, epoch: Epoch) -> bool:
    outcome = await connection.first("outcome", id=task_id)
    reason, _, worker, paused, _ = await connection.first("queue_row", id=task_id) or (None,) * 5
    held, lost = False, None
    if outcome is not None and outcome[0] == State.FAILED:
        if epoch.restored_at is not None:  # it may have been resumed before, after a backup
            since, own_tables = await connection.first("lost_since", at=outcome[2])
            lost = None if since is None else Lost(since, bool(own_tables))
        await connection.run("drop_outcome", id=task_id)
        await connection.run("reopen", id=task_id)
    elif paused or (reason in NEEDS_A_PERSON and worker is None):
        await connection.run("unpark", id=task_id)
        held = worker is not None
    else:
        return False
    if asker is not None:
        await add_asker(connection, task_id, asker)
    if held:  # in the middle of a step: a record here would fence the worker
        return True
    head, _ = await connection.first("head", id=task_id)
    await connection.run(
        "outsider_record",
        id=task_id,
        seq=head + 1,
        kind=RESUMED,
        data=wire.encode({} if lost is None else {"lost": lost.to_json()}),
    )
    return True


async def add_asker(connection: Connection, task_id: str, asker: str) -> None:
    """Make a principal an asker of a task. Raises TooManyAskers."""
    values: dict[str, Any] = {"id": task_id, "asker": asker, "most": MAX_ASKERS}
    if not await connection.run("add_asker", **values) and await connection.first("asker_left_out", **values):
        raise TooManyAskers(task_id, MAX_ASKERS)


async def add_asker_through(connection: Any, task_id: str, asker: str, now: float) -> None:
    """The same with the connection of another program."""
    values = {"id": task_id, "asker": asker, "most": MAX_ASKERS, "now": now}
    await run_through(connection, _ADD_ASKER, values)
    if await run_through(connection, _ASKER_LEFT_OUT, values, rows=True):
        raise TooManyAskers(task_id, MAX_ASKERS)


async def send(connection: Connection, task_id: str, message: Message) -> Sent:
    """See `Store.send`."""
    if (sent := await sent_before(connection, task_id, message)) is not None:
        return sent
    return Sent(await post_message(connection, task_id, message))


async def post_message(connection: Connection, task_id: str, message: Message) -> int | None:
    """Put a message into the inbox of an unfinished task, and wake the task; its number, or None when the task has ended."""
    row = await connection.first("bump_quietly" if message.kind == SAID else "bump", id=task_id)
    if row is None:
        return None
    await _post(connection, task_id, message, row[0])
    return int(row[0])


async def _resolve_ended(connection: Connection, task_id: str, message: Message, undo: Forking | None) -> Sent:
    if await connection.first("outcome", id=task_id) is None:
        return Sent(None)
    if (sent := await sent_before(connection, task_id, message)) is not None:
        return sent
    (number,) = await connection.first("next_number", id=task_id)
    await _post(connection, task_id, message, number)
    if undo is not None:
        head, _ = await connection.first("head", id=task_id)
        await fork(connection, undo, head, number, b"", {"undo": message.ref})
    return Sent(number)


async def sent_before(connection: Connection, task_id: str, message: Message) -> Sent | None:
    """The answer for a message that counts instead of this one: of the same id, or for the same record; None when there is none."""
    row = await connection.first("posted", id=task_id, message=message.id, ref=message.ref)
    if row is None:
        return None
    there = Message(*row)
    return Sent(there.number, there.id == message.id, there)


async def _post(connection: Connection, task_id: str, message: Message, number: int) -> None:
    await connection.run("post", **message._asdict() | {"id": task_id, "message": message.id, "number": number})
