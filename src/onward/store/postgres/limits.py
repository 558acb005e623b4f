"""Limits on PostgreSQL. A transaction that counts the tasks behind a gate, or frees a place there, holds the lock of the gate until its
commit. It takes that lock after all queue rows, and never waits for a queue row while it holds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onward.core.limit import LimitRow, Room, share
from onward.store.port.core import Claimed
from onward.store.postgres.execute import S, fetch, run
from onward.store.shared.limits import GATES_PER_LOOK, Admission, Round, Rules, followers, freed, numbers, overlooked


async def claim(connection: Any, values: dict[str, Any], rules: Rules, most: int, wide: int) -> Round:
    """One round of a claim; see `Store.claim`. It takes at most `most` tasks and looks at `wide` at least."""
    if rules.queue == 0:
        return Round([])
    if rules.queue is not None:
        await _lock(connection, [f"\n{values['queue']}"])
        ((held,),) = await fetch(connection, "behind_queue", queue=values["queue"])
        most = min(most, rules.queue - held)
        if most <= 0:
            return Round([])
    line_name = "line_of_suspects" if values["alone"] else "line_beside" if values["without"] else "line"
    rows = await fetch(connection, line_name, **values | {"room": max(most, wide)})
    line = [rules.candidate(row["task_id"], row["task"], row["grp"], fresh=row["fresh"]) for row in rows]
    rooms = await _rooms(
        connection, rules, sorted({candidate.gate for candidate in line if candidate.gate is not None})
    )
    taken, refused = share(line, rooms, most)
    claimed = await _take(connection, values, [(candidate.id, rules.mark(candidate.gate)) for candidate in taken])
    if refused:
        ids, gates = zip(*[(candidate.id, candidate.gate) for candidate in sorted(refused)], strict=True)
        await run(connection, "refuse", ids=ids, gates=gates)
    if filled := {gate: room.full_at for gate, room in sorted(rooms.items()) if room.spent}:
        await run(connection, "fill_buckets", gates=list(filled), full_ats=list(filled.values()))
    after = followers(rooms)
    admitted = await admit(connection, after)
    passed_over = len(taken) + len(refused) < len(line)
    timed = any(at is not None for _, _, at in after)
    return Round(claimed, bool(refused) or admitted, passed_over or (admitted and timed))


async def _rooms(connection: Any, rules: Rules, gates: list[str]) -> dict[str, Room]:
    if not gates:
        return {}
    await _lock(connection, gates)
    rows = await fetch(connection, "behind_gates", gates=gates)
    return {row["gate"]: Room(rules.bound(row["gate"]), row["held"], row["full_at"], row["now"]) for row in rows}


async def _take(connection: Any, values: dict[str, Any], wanted: list[tuple[str, str | None]]) -> list[Claimed]:
    if not wanted:
        return []
    ids, gates = zip(*wanted, strict=True)
    rows = await fetch(connection, "claim_these", worker=values["worker"], ids=ids, gates=gates, data=values["data"])
    return [Claimed._make(row) for row in rows]


async def release(connection: Any, gates: Iterable[str]) -> None:
    """Let others follow tasks that are held behind these gates no longer, in the same commit."""
    if after := freed(gates):
        await _lock(connection, [gate for gate, _, _ in after])
        await admit(connection, after)


async def admit(connection: Any, after: Sequence[Admission]) -> bool:
    """Make tasks that wait ready; True when there was one."""
    if not after:
        return False
    gates, counts, ats = zip(*after, strict=True)
    tag = await connection.execute(S["admit"].sql, *S["admit"](gates=gates, counts=counts, ats=ats))
    return not tag.endswith(" 0")


async def look(connection: Any, after: str) -> str:
    """Look at some gates for tasks that wait without a reason; returns where to go on next time."""
    rows = await fetch(connection, "shut_gates", after=after, most=GATES_PER_LOOK)
    await admit(connection, overlooked(rows))
    return rows[-1]["gate"] if len(rows) == GATES_PER_LOOK else ""


async def set_limits(connection: Any, limits: Sequence[LimitRow]) -> None:
    """See `shared.queues.Queues.set_limits`."""
    wanted = sorted((row for row in limits if row.limit is not None), key=lambda row: row[:2])
    lifted_rows = [row for row in limits if row.limit is None]
    bounds = [numbers(row) for row in wanted]
    changed = await fetch(
        connection,
        "set_limits",
        kinds=[row.kind for row in wanted],
        names=[row.name for row in wanted],
        concurrencies=[bound.concurrency for bound in bounds],
        paces=[bound.pace for bound in bounds],
        bursts=[bound.burst for bound in bounds],
    )
    lifted = await fetch(
        connection, "lift_limits", kinds=[row.kind for row in lifted_rows], names=[row.name for row in lifted_rows]
    )
    tasks, queues = ([row["name"] for row in changed if row["kind"] == kind] for kind in ("task", "queue"))
    if changed:
        await run(connection, "count_held", tasks=tasks, queues=queues)
    if changed or lifted:
        await run(connection, "reopen_gates", tasks=tasks + [row["name"] for row in lifted if row["kind"] == "task"])
    await run(connection, "old_buckets")


async def _lock(connection: Any, gates: list[str]) -> None:
    await connection.fetch(S["lock_gates"].sql, gates)
