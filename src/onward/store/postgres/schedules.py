"""Schedules on PostgreSQL. A turn is one transaction: the row moves and its tasks are there, or neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.core.crash import crashpoint
from onward.core.schedule import ScheduleRow, Timetable
from onward.core.task import NewTask
from onward.store.postgres.execute import S, first, run
from onward.store.shared import rows


async def schedules(connection: Any, soonest: int | None) -> Timetable:
    """See `Store.schedules`."""
    now = (await first(connection, "now"))["now"]
    name, values = ("schedules", {}) if soonest is None else ("soonest", {"limit": soonest})
    found = await connection.fetch(S[name].sql, *S[name](**values))
    return Timetable(now, [rows.schedule(tuple(row)) for row in found])


async def turn(connection: Any, name: str, seen: str | None, to: ScheduleRow | None, tasks: Sequence[NewTask]) -> bool:
    """See `Store.turn`. Whoever comes second waits for the row, and finds another mark."""
    if await first(connection, rows.turn(seen, to), **rows.turn_values(name, seen, to)) is None:
        there = await first(connection, "schedule_mark", name=name)
        return rows.turned_before(None if there is None else there["mark"], to)
    if tasks:
        crashpoint("tick.before")
        await run(connection, "submit", **rows.submit_values(tasks))
    return True
