"""Schedules. Advancing one is one transaction: the row changes and its tasks are submitted, or neither."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onward.core.crash import crashpoint
from onward.core.schedule import ScheduleRow, Timetable
from onward.core.sealed import CODECS, unreadable
from onward.core.task import NewTask
from onward.store.shared.database import Connection, Database, OverDatabase

SubmitWithin = Callable[[Connection, Sequence[NewTask]], Awaitable[None]]
"""Submits tasks inside the transaction of a connection. A key or id that is taken is left as it is."""


class Schedules(OverDatabase):
    """Schedules, by name. Each has a mark that every change replaces."""

    def __init__(self, database: Database, submit: SubmitWithin) -> None:
        super().__init__(database)
        self._submit = submit

    async def list(self, *, soonest: int | None = None) -> Timetable:
        """All schedules by name, and the time. With `soonest`, so many of those that tick (paused ones do not), in the order of their
        next tick."""

        async def job(connection: Connection) -> Timetable:
            (now,) = await connection.first("now")
            rows = await connection.fetch("schedules" if soonest is None else "soonest", limit=soonest)
            return Timetable(now, [schedule_of(row) for row in rows])

        timetable = await self._db.read(job)
        codec = self._db.codec
        return timetable if codec is None else timetable._replace(rows=await codec.schedules(timetable.rows))

    async def advance(self, name: str, seen: str | None, to: ScheduleRow | None, tasks: Sequence[NewTask] = ()) -> bool:
        """Replace a schedule that still has the mark `seen` by `to`, and submit these tasks: both in one transaction, or neither.
        `seen` None adds a schedule, `to` None removes it. False, and nothing is written, when the schedule has another mark: of
        several callers with the same mark, one succeeds. A task whose key is taken is left out."""
        for data in [row.input for row in (to, *tasks) if row is not None]:
            if data[:1] in CODECS:
                raise unreadable(data, f"the input of schedule {name}")
        if (codec := self._db.codec) is not None:
            tasks = await codec.sealed_tasks(tasks) if tasks else ()
            to = None if to is None else await codec.sealed_schedule(to)

        async def job(connection: Connection) -> bool:
            statement = "schedule_drop" if to is None else "schedule_add" if seen is None else "schedule_turn"
            values: dict[str, Any] = ({} if to is None else to._asdict()) | {"name": name, "seen": seen}
            if await connection.first(statement, **values) is None:
                (mark,) = await connection.first("schedule_mark", name=name) or (None,)
                return bool(mark == (None if to is None else to.mark))  # an earlier call did it, its answer was lost
            if tasks:
                crashpoint("tick.before")
                await self._submit(connection, tasks)
            return True

        done = await self._db.transact(job)
        if tasks:
            crashpoint("tick.after")
        return done


def schedule_of(row: Sequence[Any]) -> ScheduleRow:
    """A schedule as it is stored."""
    schedule = ScheduleRow(*row)
    return schedule._replace(paused=bool(schedule.paused))
