"""Schedules. Advancing one is one transaction: the row changes and its tasks are submitted, or neither."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from onward.core.crash import crashpoint
from onward.core.page import Page
from onward.core.schedule import ScheduleRow, Timetable
from onward.core.sealed import CODECS, unreadable
from onward.core.task import NewTask
from onward.store.port.listing import PAGE_BYTES
from onward.store.shared.database import Connection, Database, OverDatabase

PAGE_SCHEDULES = 1_000
"""Schedules of a page."""

SubmitWithin = Callable[[Connection, Sequence[NewTask]], Awaitable[None]]
"""Submits tasks inside the transaction of a connection. A key or id that is taken is left as it is."""


class Schedules(OverDatabase):
    """Schedules, by name. Each has a mark that every change replaces."""

    def __init__(self, database: Database, submit: SubmitWithin) -> None:
        super().__init__(database)
        self._submit = submit

    async def list(self, *, after: str = "", limit: int = PAGE_SCHEDULES) -> Timetable:
        """A page of the schedules by name, after a name, and the time. Their inputs have about `PAGE_BYTES` together. `next` of the rows
        is the name after which the next page begins."""
        return await self._read("schedules", after=after, limit=limit, most=PAGE_BYTES)

    async def soonest(self, limit: int) -> Timetable:
        """So many of the schedules that tick (paused ones do not), in the order of their next tick, and the time."""
        return await self._read("soonest", limit=limit)

    async def get(self, name: str) -> Timetable:
        """The schedule of this name, or none, and the time."""
        return await self._read("schedule", name=name)

    async def _read(self, statement: str, **values: Any) -> Timetable:
        async def job(connection: Connection) -> Timetable:
            (now,) = await connection.first("now")
            return Timetable(now, await _page(connection, statement, **values))

        timetable = await self._db.read(job)
        if (codec := self._db.codec) is None:
            return timetable
        return timetable._replace(rows=Page(await codec.schedules(timetable.rows), timetable.rows.next))

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


async def each_stored(database: Database) -> AsyncIterator[ScheduleRow]:
    """All schedules as they are stored, by name. It reads a page at a time."""
    values: dict[str, Any] = {"after": "", "limit": PAGE_SCHEDULES, "most": PAGE_BYTES}
    while values["after"] is not None:
        rows = await database.read(functools.partial(_page, statement="schedules", **values))
        for row in rows:
            yield row
        values["after"] = rows.next


async def _page(connection: Connection, statement: str, **values: Any) -> Page[ScheduleRow]:
    rows = [schedule_of(row) for row in await connection.fetch(statement, **values)]
    size = sum(len(row.input) + len(row.options) for row in rows)
    full = len(rows) >= values.get("limit", len(rows) + 1) or size >= values.get("most", size + 1)
    return Page(rows, rows[-1].name if rows and full else None)


def schedule_of(row: Sequence[Any]) -> ScheduleRow:
    """A schedule as it is stored."""
    schedule = ScheduleRow(*row)
    return schedule._replace(paused=bool(schedule.paused))
