"""The core verbs that both databases share: cancel, pause, resume, messages, forks, and reads of one task. A verb that changes a task is
a few statements of one transaction, which appends records that belong to no shift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onward.core.audit import AuditEvent
from onward.core.record import CANCEL, CANCELLED, RESUMED
from onward.core.task import NEEDS_A_PERSON, SAID, Message, State, Task
from onward.store.port.listing import MAX_BYTES
from onward.store.port.values import ALL_MESSAGES, Sent, Stopped, Submitted
from onward.store.shared import rows
from onward.store.shared.audit import Audit
from onward.store.shared.database import Connection, Database, OverDatabase, seen_by
from onward.store.shared.forks import fork

MAX_PARENTS = 500
"""Parents that one call of `orphans` looks at."""


class CoreVerbs(OverDatabase):
    """See `port.core.Store` for what each verb promises."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.audit: Audit = Audit(database)
        self._orphans_after = ""
        """The parent from which the next call of `orphans` goes on."""

    async def by_key(self, keys: Sequence[str]) -> dict[str, Submitted]:
        tasks = await self._db.fetch("by_key", keys=list(keys))
        return {key: Submitted(task_id, False, fingerprint) for task_id, key, fingerprint in tasks}

    async def get(self, task_id: str, whose: str | None = None, most: int = MAX_BYTES) -> Task | None:
        tasks = await self._db.fetch_named("get", id=task_id, most=most, **seen_by(whose))
        return rows.task(tasks[0]) if tasks else None

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        return {row[0]: row[1] for row in await self._db.fetch("contents", id=task_id, ids=list(ids))}

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
        await self._db.transact(lambda c: fork(c, task_id, origin, at, input, inbox, options, details))

    async def cancel(self, task_id: str) -> Stopped:
        return await self._db.transact(lambda c: _cancel(c, task_id))

    async def resume(self, task_id: str, asker: str | None = None) -> bool:
        return await self._db.transact(lambda c: _resume(c, task_id, asker))

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
        async def job(connection: Connection) -> Sent:
            sent = await send(connection, task_id, message)
            if asker is not None and sent.number is not None and sent.there is None:
                await connection.run("add_asker", id=task_id, asker=asker)
            return await self._audited(connection, sent, event)

        return await self._db.transact(job)

    async def resolve_ended(
        self,
        task_id: str,
        message: Message,
        event: AuditEvent | None = None,
        *,
        undo: str | None = None,
        input: bytes = b"",  # noqa: A002 -- the name of it in the whole API
    ) -> Sent:
        async def job(connection: Connection) -> Sent:
            sent = await _resolve_ended(connection, task_id, message, undo, input)
            return await self._audited(connection, sent, event)

        return await self._db.transact(job)

    async def _audited(self, connection: Connection, sent: Sent, event: AuditEvent | None) -> Sent:
        if event is not None and sent.number is not None and sent.there is None:
            await self.audit.append_within(connection, event)
        return sent

    async def inbox(self, task_id: str, after: int = 0, limit: int = ALL_MESSAGES) -> list[Message]:
        return [Message(*row) for row in await self._db.fetch("inbox", id=task_id, after=after, limit=limit)]


async def _cancel(connection: Connection, task_id: str) -> Stopped:
    (parent,) = await connection.first("parent", id=task_id) or (None,)
    await connection.lock("lock_rows", ids=[task_id] if parent is None else sorted([task_id, parent]))
    row = await connection.first("queue_row", id=task_id)
    if row is None:
        return Stopped(False)
    _, attempt, worker, _, gate = row
    held = worker is not None
    sagas, cancelling, undos = await connection.first("saga_state", id=task_id)
    if (must_undo := sagas + undos > 0) and cancelling > 0:
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
        await connection.tell_parents([(parent, f"{task_id}.{head + 2}", task_id, data)])
    if gate is not None:
        await connection.release_limits([gate])
    return Stopped(True, held=held)


async def _resume(connection: Connection, task_id: str, asker: str | None) -> bool:
    outcome = await connection.first("outcome", id=task_id)
    reason, _, worker, paused, _ = await connection.first("queue_row", id=task_id) or (None,) * 5
    held = False
    if outcome is not None and outcome[0] == State.FAILED:
        await connection.run("drop_outcome", id=task_id)
        await connection.run("reopen", id=task_id)
    elif paused or (reason in NEEDS_A_PERSON and worker is None):
        await connection.run("unpark", id=task_id)
        held = worker is not None
    else:
        return False
    if asker is not None:
        await connection.run("add_asker", id=task_id, asker=asker)
    if held:  # in the middle of a step: a record here would fence the worker
        return True
    head, _ = await connection.first("head", id=task_id)
    await connection.run("outsider_record", id=task_id, seq=head + 1, kind=RESUMED, data=b"{}")
    return True


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


async def _resolve_ended(connection: Connection, task_id: str, message: Message, undo: str | None, data: bytes) -> Sent:
    if await connection.first("outcome", id=task_id) is None:
        return Sent(None)
    if (sent := await sent_before(connection, task_id, message)) is not None:
        return sent
    (number,) = await connection.first("next_number", id=task_id)
    await _post(connection, task_id, message, number)
    if undo is not None:
        head, _ = await connection.first("head", id=task_id)
        await fork(connection, undo, task_id, head, data, number, b"", {"undo": message.ref})
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
