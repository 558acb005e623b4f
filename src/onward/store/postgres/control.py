"""What outsiders do to a task, on PostgreSQL: cancel, resume, messages. Each is a few statements of one transaction; one
that meets a number which is taken is begun anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg

from onward.core.control import Unheard
from onward.core.record import CANCEL, CANCELLED, RESUMED, Entry
from onward.core.task import NEEDS_A_PERSON, SAID, Message, State
from onward.store.port.core import End, Foreign, Sent, Stopped
from onward.store.postgres import limits as postgres_limits
from onward.store.postgres.execute import S, first, records, run
from onward.store.postgres.fork import fork
from onward.store.shared import rows

REFUSED = (asyncpg.UniqueViolationError, asyncpg.NotNullViolationError)
"""A record whose number is taken, and one whose predecessor is not there."""


async def cancel(connection: Any, task_id: str) -> Stopped:
    """See `Store.cancel`."""
    parent = (await first(connection, "parent", id=task_id) or {"parent": None})["parent"]
    await run(connection, "lock_rows", ids=[task_id] if parent is None else sorted([task_id, parent]))
    row = await first(connection, "lock_queue_row", id=task_id)
    if row is None:
        return Stopped(False)
    held = row["worker"] is not None
    state = await first(connection, "saga_state", id=task_id)
    owed = state["sagas"] + state["undos"]
    if owed > 0 and state["cancelling"] > 0:
        return Stopped(True, requested=True)
    head = (await first(connection, "head", id=task_id))["seq"]
    if owed > 0:
        await run(connection, "outsider_record", id=task_id, seq=head + 1, kind=CANCEL, data=b"{}")
        await run(connection, "cancelling", id=task_id)
        return Stopped(True, requested=True, held=held)
    await run(connection, "outsider_record", id=task_id, seq=head + 1, kind=CANCEL, data=b"{}")
    await run(connection, "outsider_record", id=task_id, seq=head + 2, kind=CANCELLED, data=b"{}")
    await run(
        connection,
        "outsider_end",
        id=task_id,
        state=State.CANCELLED.value,
        attempt=row["attempt"],
        seq=head + 2,
    )
    await run(connection, "drop_queue", id=task_id)
    if parent is not None:
        told = rows.tiding(State.CANCELLED, b"{}")
        await tell(connection, [(parent, f"{task_id}.{head + 2}", task_id, told)])
    if row["gate"] is not None:
        await postgres_limits.let_go(connection, [row["gate"]])
    return Stopped(True, held=held)


async def resume(connection: Any, task_id: str) -> bool:
    """See `Store.resume`."""
    outcome = await first(connection, "lock_outcome", id=task_id)
    row = await first(connection, "lock_queue_row", id=task_id)
    if outcome is not None and outcome["state"] == State.FAILED:
        await run(connection, "drop_outcome", id=task_id)
        await run(connection, "reopen", id=task_id)
    elif row is not None and (row["paused"] or (row["reason"] in NEEDS_A_PERSON and row["worker"] is None)):
        await run(connection, "unpark", id=task_id)
        if (
            row["worker"] is not None
        ):  # it is in the middle of a step: nothing is reopened, and nothing of it may be refused
            return True
    else:
        return False
    head = (await first(connection, "head", id=task_id))["seq"]
    await run(connection, "outsider_record", id=task_id, seq=head + 1, kind=RESUMED, data=b"{}")
    return True


async def send(connection: Any, task_id: str, message: Message) -> Sent:
    """See `Store.send`."""
    found = await first(connection, "posted", id=task_id, message=message.id, ref=message.ref)
    if found is not None:
        there = Message(*found.values())
        return Sent(there.number, there.id == message.id, there)
    bumped = await first(connection, "bump_quietly" if message.kind == SAID else "bump", id=task_id)
    if bumped is None:
        return Sent(None)
    values = message._asdict() | {"id": task_id, "message": message.id, "number": bumped["inbox"]}
    await run(connection, "post", **values)
    return Sent(bumped["inbox"])


async def resolve_ended(connection: Any, task_id: str, message: Message, undo: str | None, data: bytes) -> Sent:
    """See `Store.resolve_ended`."""
    if await first(connection, "lock_outcome", id=task_id) is None:
        return Sent(None)
    found = await first(connection, "posted", id=task_id, message=message.id, ref=message.ref)
    if found is not None:
        there = Message(*found.values())
        return Sent(there.number, there.id == message.id, there)
    number = (await first(connection, "next_number", id=task_id))["number"]
    await run(connection, "post", **message._asdict() | {"id": task_id, "message": message.id, "number": number})
    if undo is not None:
        head = (await first(connection, "head", id=task_id))["seq"]
        await fork(connection, undo, task_id, head, data, number, b"", {"undo": message.ref})
    return Sent(number)


async def check_heard(connection: Any, ends: Sequence[End]) -> None:
    """Raises Unheard when a task that is about to end, and whose queue row is locked, has got a message that it has not read."""
    for end in ends:
        if (row := await first(connection, "inbox_of", id=end.id)) and row["inbox"] > (end.inbox or 0):
            raise Unheard(end.id)


async def tell(connection: Any, told: list[tuple[str, str, str, bytes]]) -> None:
    """The ends of children are messages for their parents."""
    parents, ids, children, datas = zip(*told, strict=True)
    await run(connection, "tell_parents", parents=parents, ids=ids, children=children, datas=datas)


class Taken(Exception):
    """The record is refused, its number is taken or its predecessor gone: what was written beside it must go."""


async def record_with(connection: Any, body: Callable[[Any], Awaitable[Entry]], known: float | None) -> None:
    """What the body writes, and the record that it returns."""
    try:
        entry = await body(connection)
    except Exception as error:
        raise Foreign(error) from error
    try:
        await connection.execute(S["save"].sql, *S["save"](**records([entry], [], {entry[0]: known})))
    except REFUSED:
        raise Taken from None
