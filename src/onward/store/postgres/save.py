"""A commit of the journal writer, on PostgreSQL: records, ends and waits of many tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.store.port.core import Batch, End, Wait
from onward.store.postgres import limits
from onward.store.postgres.execute import S, check_heard, records, run, tell_parents
from onward.store.postgres.session import PATIENCE, SLOWEST
from onward.store.shared import rows


async def write(connection: Any, batch: Batch) -> None:
    """All of it, or nothing. Most commits are one statement; parents that are told and gates that open make it a few."""
    seconds = batch.patience * PATIENCE + batch.bytes / SLOWEST
    if batch.contents:
        async with connection.transaction():
            await connection.execute(S["keep"].sql, *zip(*batch.contents, strict=True), timeout=seconds)
            if batch.entries:
                await write(connection, dataclasses.replace(batch, contents=[]))
        return
    if not batch.ends and not batch.waits:
        values = records(batch.entries, batch.witnesses, batch.known)
        await connection.execute(S["save"].sql, *S["save"](**values), timeout=seconds)
        return
    ends, waits = sorted(batch.ends, key=_by_id), sorted(batch.waits, key=_by_id)
    settle = S["settle"](**_values(batch, ends, waits))
    told = rows.tidings(batch)
    heard = [end for end in ends if end.inbox is not None]
    if not (told or batch.gates or heard):
        await connection.execute(S["settle"].sql, *settle, timeout=seconds)
        return
    async with connection.transaction():
        touched = {e.id for e in ends} | {w.id for w in waits} | {parent for parent, *_ in told}
        await run(connection, "lock_rows", ids=sorted(touched))
        await check_heard(connection, heard)
        await connection.execute(S["settle"].sql, *settle, timeout=seconds)
        if told:
            await tell_parents(connection, told)
        await limits.let_go(connection, batch.gates.values())


def _values(batch: Batch, ends: list[End], waits: list[Wait]) -> dict[str, Any]:
    return {
        **records(batch.entries, batch.witnesses, batch.known),
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
