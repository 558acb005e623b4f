"""Schedules as the outside sees them: saved from code, listed, paused, triggered, removed.

A part of the service. Every change names the mark of the schedule that it saw, and looks again when somebody
was quicker: so a pause and a tick at the same time are one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from onward.core import wire
from onward.core.ids import Ids
from onward.core.schedule import Rhythm, ScheduleRow, Timetable
from onward.core.task import NewTask
from onward.errors import ScheduleNotFound
from onward.store.port.core import Store


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as every door shows it. Times are seconds since 1970, UTC; `every` is in seconds."""

    name: str
    task: str
    input: Any
    cron: str | None
    every: float | None
    timezone: str
    missed: str
    queue: str
    priority: int
    deadline: float | None
    labels: dict[str, str]
    next_at: float | None
    """The next tick; None while it is paused."""
    upcoming: tuple[float, ...]
    """The next ticks, that one first: up to three."""
    last_at: float | None
    """The last tick for which a task was submitted."""
    paused: bool


Change = Callable[[ScheduleRow, float], ScheduleRow | None]
"""What becomes of a schedule, at a time of the database; the same row where nothing has to change."""


class Schedules:
    """All verbs about schedules."""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store, self._ids = store, ids

    async def save(self, wanted: Sequence[ScheduleRow]) -> None:
        """Have these in the store as they are here. One that ticks as before keeps its next tick, and one that is paused
        stays paused."""
        table = await self._store.schedules.list()
        for row in wanted:
            while not await self._save(row, table):
                table = await self._store.schedules.list()

    async def _save(self, wanted: ScheduleRow, table: Timetable) -> bool:
        there = next((row for row in table.rows if row.name == wanted.name), None)
        to = _joined(wanted, there, table.now)
        if to == there:
            return True
        mark = None if there is None else there.mark
        return await self._store.schedules.advance(wanted.name, mark, to._replace(mark=self._ids()))

    async def pause(self, name: str) -> Schedule:
        """No tick until it is unpaused. Raises ScheduleNotFound, as the others do."""
        return _view(await self._change(name, lambda row, _: row._replace(paused=True, next_at=None)))

    async def unpause(self, name: str) -> Schedule:
        """Go on with the next tick from now; those of the pause were not missed."""
        return _view(await self._change(name, _unpaused))

    async def remove(self, name: str) -> None:
        """Forget it. Its tasks stay. Where code still declares it, the next worker that starts brings it back."""
        await self._change(name, lambda _row, _now: None)

    async def trigger(self, name: str) -> str:
        """Submit its task now, whatever its next tick, also while it is paused; the task's id."""
        (new,) = await self._store.submit([_found(await self._store.schedules.list(), name).task_at(None, self._ids())])
        self._store.nudge("ready", [new.id])
        return new.id

    async def _change(self, name: str, change: Change) -> ScheduleRow:
        while True:
            table = await self._store.schedules.list()
            row = _found(table, name)
            to = change(row, table.now)
            if to == row:
                return row
            if await self._store.schedules.advance(name, row.mark, to and to._replace(mark=self._ids())):
                return to or row

    async def list(self) -> list[Schedule]:
        """All schedules, by name."""
        return [_view(row) for row in (await self._store.schedules.list()).rows]


def row_of(name: str, rhythm: Rhythm, missed: str, task: NewTask) -> ScheduleRow:
    """A schedule that submits tasks like this one; as it stands in code, without a next tick."""
    return ScheduleRow(
        name=name,
        task=task.task,
        input=task.input,
        options=task.options,
        queue=task.queue,
        priority=task.priority,
        cron=rhythm.cron,
        every=rhythm.every,
        timezone=rhythm.timezone,
        missed=missed,
        next_at=None,
        last_at=None,
        paused=False,
        mark="",
    )


def _joined(wanted: ScheduleRow, there: ScheduleRow | None, now: float) -> ScheduleRow:
    """What code says, with what has happened so far."""
    if there is None:
        return wanted._replace(next_at=wanted.rhythm.after(now))
    next_at = there.next_at if wanted.rhythm == there.rhythm or there.paused else wanted.rhythm.after(now)
    return wanted._replace(next_at=next_at, last_at=there.last_at, paused=there.paused, mark=there.mark)


def _unpaused(row: ScheduleRow, now: float) -> ScheduleRow:
    return row._replace(paused=False, next_at=row.rhythm.after(now)) if row.paused else row


def _found(table: Timetable, name: str) -> ScheduleRow:
    for row in table.rows:
        if row.name == name:
            return row
    raise ScheduleNotFound(name, [row.name for row in table.rows])


def _view(row: ScheduleRow) -> Schedule:
    options = wire.decode(row.options)
    return Schedule(
        name=row.name,
        task=row.task,
        input=wire.decode(row.input),
        cron=row.cron,
        every=row.every,
        timezone=row.timezone,
        missed=row.missed,
        queue=row.queue,
        priority=row.priority,
        deadline=options.get("deadline"),
        labels=options.get("labels", {}),
        next_at=row.next_at,
        upcoming=_upcoming(row),
        last_at=row.last_at,
        paused=row.paused,
    )


def _upcoming(row: ScheduleRow, several: int = 3) -> tuple[float, ...]:
    found: list[float] = []
    tick = row.next_at
    while tick is not None and len(found) < several:
        found.append(tick)
        tick = row.rhythm.after(tick)
    return tuple(found)
