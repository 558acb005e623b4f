"""Limits on SQLite: there is one writer, so it locks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from onward.core.limit import LimitRow, Room, share
from onward.core.record import SHIFT
from onward.core.task import NewTask
from onward.store.port.values import Claimed
from onward.store.shared.limits import GATES_PER_LOOK, Admission, Round, Rules, followers, freed, numbers, overlooked
from onward.store.sqlite.execute import S, first, insert, run


def claim(connection: apsw.Connection, values: dict[str, Any], rules: Rules, most: int, wide: int, now: float) -> Round:
    """One round of a claim; see `Store.claim`. It takes at most `most` tasks and looks at `wide` at least."""
    if rules.queue is not None:
        most = min(most, rules.queue - next(run(connection, "behind_queue", queue=values["queue"]))[0])
        if most <= 0:
            return Round([])
    line_name = "line_of_suspects" if values["alone"] else "line_beside" if values["without"] != "[]" else "line"
    rows = {row[0]: row for row in run(connection, line_name, **values | {"room": max(most, wide)})}
    line = [rules.candidate(row[0], row[3], row[11], fresh=row[9] == 1) for row in rows.values()]
    rooms: dict[str, Room] = {}
    for gate in {candidate.gate for candidate in line if candidate.gate is not None}:
        ((held, full_at),) = run(connection, "behind_gate", gate=gate)
        rooms[gate] = Room(rules.bound(gate), held, full_at, now)
    taken, refused = share(line, rooms, most)
    marks = {candidate.id: rules.mark(candidate.gate) for candidate in taken}
    claimed = _take(connection, values, [(rows[task_id], gate) for task_id, gate in marks.items()], now)
    connection.executemany(S["refuse"].sql, [(candidate.id, candidate.gate) for candidate in refused])
    for gate, room in rooms.items():
        if room.spent:
            run(connection, "fill_bucket", gate=gate, full_at=room.full_at)
    after = followers(rooms)
    admitted = admit(connection, after)
    return Round(claimed, bool(refused) or admitted, admitted and any(at is not None for _, _, at in after))


def _take(
    connection: apsw.Connection, values: dict[str, Any], wanted: list[tuple[tuple[Any, ...], str | None]], now: float
) -> list[Claimed]:
    worker, mark = values["worker"], values["data"]
    insert(connection, "begin_shift", [(row[0], row[9] + 1, row[9] + 1, SHIFT, "", mark, now) for row, _ in wanted])
    connection.executemany(S["take_behind"].sql, [(worker, row[0], gate) for row, gate in wanted])
    return [claimed(row, now, gate) for row, gate in wanted]


def claimed(row: tuple[Any, ...], now: float, gate: str | None = None) -> Claimed:
    """A task from a row of `ready` or `line`."""
    task_id, attempt, crashes, task, input_, options, created_at, parent, inbox, head, tenant = row[:11]
    shift = head + 1
    return Claimed(
        task_id, task, input_, options, shift, attempt, crashes, created_at, now, parent, inbox, gate, tenant
    )


def release(connection: apsw.Connection, gates: Iterable[str]) -> None:
    """Let others follow tasks that are held behind these gates no longer, in the same commit."""
    admit(connection, freed(gates))


def admit(connection: apsw.Connection, after: Sequence[Admission]) -> bool:
    """Make tasks that wait ready; True when there was one."""
    before = connection.total_changes()
    for gate, count, at in after:
        run(connection, "admit", gate=gate, count=count, at=at)
    return connection.total_changes() > before


def look(connection: apsw.Connection, after: str) -> str:
    """Look at some gates for tasks that wait without a reason; returns where to go on next time."""
    rows = list(run(connection, "shut_gates", after=after, most=GATES_PER_LOOK))
    admit(connection, overlooked(rows))
    return rows[-1][0] if len(rows) == GATES_PER_LOOK else ""


def set_limits(connection: apsw.Connection, limits: Sequence[LimitRow]) -> None:
    """See `shared.queues.Queues.set_limits`."""
    for row in limits:
        if row.limit is None:
            run(connection, "lift_limit", kind=row.kind, name=row.name)
        else:
            run(connection, "set_limit", kind=row.kind, name=row.name, **numbers(row)._asdict())
        if connection.changes() == 0:
            continue
        if row.limit is not None:
            run(connection, "count_held", kind=row.kind, name=row.name)
        if row.kind == "task":
            run(connection, "reopen_gates", name=row.name)
    run(connection, "old_buckets")


def turn(connection: apsw.Connection, new: NewTask) -> int | None:
    """The turn of the next task of a group; None when no task waits."""
    row = first(connection, "turn", **new._asdict())
    return None if row is None else row[0]
