"""A commit of the journal writer, on PostgreSQL: records, ends and waits of many tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.store.port.core import Batch, End, Wait
from onward.store.postgres import limits
from onward.store.postgres.execute import S, check_heard, record, records, run, tell_parents
from onward.store.postgres.session import MIN_BYTES_PER_S, STATEMENT_TIMEOUT_S
from onward.store.shared import rows
from onward.store.statements import Statement


async def write(connection: Any, batch: Batch) -> None:
    """Write a batch, all or nothing. Most commits are one statement; messages to parents and freed limits make it a few."""
    seconds = batch.patience * STATEMENT_TIMEOUT_S + batch.bytes / MIN_BYTES_PER_S
    if batch.contents:
        async with connection.transaction():
            await connection.execute(S["keep"].sql, *zip(*batch.contents, strict=True), timeout=seconds)
            if batch.entries:
                await write(connection, dataclasses.replace(batch, contents=[]))
        return
    statement, values = _statement(batch)
    child_ends = rows.child_ends(batch)
    with_inbox = [end for end in sorted(batch.ends, key=_by_id) if end.inbox is not None]
    if not (child_ends or batch.gates or with_inbox or batch.unlocks):
        await connection.execute(statement.sql, *statement(**values), timeout=seconds)
        return
    async with connection.transaction():
        touched = {e.id for e in batch.ends} | {w.id for w in batch.waits} | {parent for parent, *_ in child_ends}
        await run(connection, "lock_rows", ids=sorted(touched))
        await check_heard(connection, with_inbox)
        await connection.execute(statement.sql, *statement(**values), timeout=seconds)
        if child_ends:
            await tell_parents(connection, child_ends)
        await limits.release(connection, batch.gates.values())
        if batch.unlocks:
            await run(connection, "lock_buckets_of", ids=[task_id for task_id, _ in batch.unlocks])
            for task_id, key in batch.unlocks:
                await run(connection, "drop_locks_of", id=task_id, key=key)


def _statement(batch: Batch) -> tuple[Statement, dict[str, Any]]:
    """The statement for the records, ends and waits of a batch, and its values. Most batches of a task that runs alone have one record."""
    alone = len(batch.entries) == 1 and len(batch.witnesses) <= 1 and not batch.waits
    values = (record if alone else records)(batch.entries, batch.witnesses, batch.known)
    if not batch.ends and not batch.waits:
        return S["save_one" if alone else "save"], values
    if alone:
        (end,) = batch.ends
        return S["end_one"], values | {"state": end.state.value, "attempt": end.attempt, "end_seq": end.seq}
    ends, waits = sorted(batch.ends, key=_by_id), sorted(batch.waits, key=_by_id)
    return S["settle"], values | {
        "end_ids": [e.id for e in ends],
        "states": [e.state.value for e in ends],
        "end_attempts": [e.attempt for e in ends],
        "end_seqs": [e.seq for e in ends],
        "wait_ids": [w.id for w in waits],
        "due_ats": [w.due_at for w in waits],
        "reasons": [w.reason for w in waits],
        "wait_attempts": [w.attempt for w in waits],
        "inboxes": [w.inbox for w in waits],
    }


def _by_id(ending: End | Wait) -> str:
    return ending.id
