"""Schedules on SQLite. A turn is one transaction: the row moves and its tasks are there, or neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import apsw

from onward.core.crash import crashpoint
from onward.core.schedule import ScheduleRow, Timetable
from onward.core.task import NewTask
from onward.store.port.core import Submitted
from onward.store.shared import rows
from onward.store.sqlite.execute import first, run

Submit = Callable[[apsw.Connection, NewTask], Submitted]


def schedules(connection: apsw.Connection, soonest: int | None) -> Timetable:
    """See `Store.schedules`."""
    now = next(run(connection, "now"))[0]
    found = run(connection, "schedules") if soonest is None else run(connection, "soonest", limit=soonest)
    return Timetable(now, [rows.schedule(row) for row in found])


def turn(
    connection: apsw.Connection,
    name: str,
    seen: str | None,
    to: ScheduleRow | None,
    tasks: Sequence[NewTask],
    submit: Submit,
) -> bool:
    """See `Store.turn`."""
    if first(connection, rows.turn(seen, to), **rows.turn_values(name, seen, to)) is None:
        there = first(connection, "schedule_mark", name=name)
        return rows.turned_before(None if there is None else there[0], to)
    if tasks:
        crashpoint("tick.before")
    for task in tasks:
        submit(connection, task)
    return True
