"""Limits on PostgreSQL. Whoever counts behind a gate, or lets go of a place there, holds that gate's lock until its commit;
it is taken after all queue rows, and whoever holds it never waits for a queue row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from onward.core.limit import LimitRow, Room, share
from onward.store.port.core import Claimed
from onward.store.postgres.execute import S, fetch, run
from onward.store.shared.limits import GATES, Admission, Round, Rules, followers, forgotten, freed, numbers


async def claim(connection: Any, asked: dict[str, Any], rules: Rules, most: int, wide: int) -> Round:
    """One round of a claim; see `Store.claim`."""
    if rules.queue == 0:
        return Round([])
    if rules.queue is not None:
        await _lock(connection, [f"\n{asked['queue']}"])
        ((held,),) = await fetch(connection, "behind_queue", queue=asked["queue"])
        most = min(most, rules.queue - held)
        if most <= 0:
            return Round([])
    line_name = "line_of_suspects" if asked["alone"] else "line"
    found = await fetch(connection, line_name, **asked | {"room": max(most, wide)})
    line = [rules.candidate(row["task_id"], row["task"], row["grp"], fresh=row["fresh"]) for row in found]
    rooms = await _rooms(connection, rules, sorted({one.gate for one in line if one.gate is not None}))
    taken, refused = share(line, rooms, most)
    claimed = await _take(connection, asked["worker"], [(one.id, rules.mark(one.gate)) for one in taken])
    if refused:
        ids, gates = zip(*[(one.id, one.gate) for one in sorted(refused)], strict=True)
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
    found = await fetch(connection, "behind_gates", gates=gates)
    return {row["gate"]: Room(rules.bound(row["gate"]), row["held"], row["full_at"], row["now"]) for row in found}


async def _take(connection: Any, worker: str, wanted: list[tuple[str, str | None]]) -> list[Claimed]:
    if not wanted:
        return []
    ids, gates = zip(*wanted, strict=True)
    mark = json.dumps({"worker": worker}).encode()
    found = await fetch(connection, "claim_these", worker=worker, ids=ids, gates=gates, data=mark)
    return [Claimed._make(row) for row in found]


async def let_go(connection: Any, gates: Iterable[str]) -> None:
    """Tasks that were held behind these gates are gone: others may follow, with this commit."""
    if after := freed(gates):
        await _lock(connection, [gate for gate, _, _ in after])
        await admit(connection, after)


async def admit(connection: Any, after: Sequence[Admission]) -> bool:
    """Let those that wait go on; True when there was one."""
    if not after:
        return False
    gates, counts, ats = zip(*after, strict=True)
    done = await connection.execute(S["admit"].sql, *S["admit"](gates=gates, counts=counts, ats=ats))
    return not done.endswith(" 0")


async def look(connection: Any, after: str) -> str:
    """Look at some gates for somebody who was forgotten; where to go on next time."""
    found = await fetch(connection, "shut_gates", after=after, most=GATES)
    await admit(connection, forgotten(found))
    return found[-1]["gate"] if len(found) == GATES else ""


async def set_limits(connection: Any, limits: Sequence[LimitRow]) -> None:
    """See `Store.limit`."""
    wanted = sorted((row for row in limits if row.limit is not None), key=lambda row: row[:2])
    gone = [row for row in limits if row.limit is None]
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
    lifted = await fetch(connection, "lift_limits", kinds=[row.kind for row in gone], names=[row.name for row in gone])
    tasks, queues = ([row["name"] for row in changed if row["kind"] == kind] for kind in ("task", "queue"))
    if changed:
        await run(connection, "count_held", tasks=tasks, queues=queues)
    if changed or lifted:
        await run(connection, "reopen_gates", tasks=tasks + [row["name"] for row in lifted if row["kind"] == "task"])
    await run(connection, "old_buckets")


async def _lock(connection: Any, gates: list[str]) -> None:
    await connection.fetch(S["lock_gates"].sql, gates)
