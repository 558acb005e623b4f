"""Schedules: saves them from code, lists, pauses, triggers and removes them. A part of the service.

Every change names the mark of the schedule that it read, and reads again when another change came first. So a pause and a tick at the
same time happen one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onward.core import wire
from onward.core.ids import Ids
from onward.core.page import Page, check_limit, every_item
from onward.core.schedule import Rhythm, ScheduleRow
from onward.core.task import NewTask
from onward.core.view_json import from_row
from onward.core.views import Schedule
from onward.errors import ScheduleNotFound
from onward.service.engine import Engine
from onward.store.port.core import Store
from onward.store.shared.schedules import PAGE_SCHEDULES

Change = Callable[[ScheduleRow, float], ScheduleRow | None]
"""Makes the new row of a schedule, at a time of the database: the same row where nothing has to change, None to remove it."""

UPCOMING_TICKS = 3

NAMED_SCHEDULES = 20
"""Schedules that an error names."""


class Schedules:
    """Saves, lists and changes schedules."""

    def __init__(self, store: Store, engine: Engine, ids: Ids) -> None:
        self._store, self._engine, self._ids = store, engine, ids

    async def save(self, wanted: Sequence[ScheduleRow]) -> None:
        """Write the schedules that code declares. A schedule with the same rhythm keeps its next tick, and a paused one stays paused."""
        for row in wanted:
            while not await self._save(row):
                pass

    async def _save(self, wanted: ScheduleRow) -> bool:
        table = await self._store.schedules.get(wanted.name)
        stored = table.rows[0] if table.rows else None
        merged = _merge(wanted, stored, table.now)
        if merged == stored:
            return True
        mark = None if stored is None else stored.mark
        return await self._store.schedules.advance(wanted.name, mark, merged._replace(mark=self._ids()))

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule: it has no tick until it is unpaused. Raises ScheduleNotFound, as the other verbs do."""
        return _view(await self._change(name, lambda row, _: row._replace(paused=True, next_at=None)))

    async def unpause(self, name: str) -> Schedule:
        """Go on with the next tick from now. Ticks during the pause do not count as missed."""
        return _view(await self._change(name, _unpaused))

    async def remove(self, name: str) -> None:
        """Remove a schedule. Its tasks stay. If code still declares it, the next worker that starts saves it again."""
        await self._change(name, lambda _row, _now: None)

    async def trigger(self, name: str, asker: str | None = None) -> str:
        """Submit its task now, beside its ticks, also while it is paused; the task's id. `asker` is the principal that triggers it."""
        _, row = await self._find(name)
        if asker is not None:
            row = row._replace(options=wire.encode({"askers": [asker], **wire.decode(row.options)}))
        (submitted,) = await self._engine.submit([row.task_at(None, self._ids())])
        self._store.nudge("ready", [submitted.id])
        return submitted.id

    async def _change(self, name: str, change: Change) -> ScheduleRow:
        while True:
            now, row = await self._find(name)
            changed = change(row, now)
            if changed == row:
                return row
            if await self._store.schedules.advance(name, row.mark, changed and changed._replace(mark=self._ids())):
                return changed or row

    async def _find(self, name: str) -> tuple[float, ScheduleRow]:
        """The time, and the schedule of this name. Raises ScheduleNotFound."""
        now, rows = await self._store.schedules.get(name)
        if not rows:
            known = (await self._store.schedules.list(limit=NAMED_SCHEDULES)).rows
            raise ScheduleNotFound(name, [row.name for row in known])
        return now, rows[0]

    async def page(self, *, limit: int = PAGE_SCHEDULES, cursor: str | None = None) -> Page[Schedule]:
        """A page of the schedules, by name; `next` is the cursor of the next page. Their inputs have about 4 MB together, so a page may have
        fewer than `limit`."""
        check_limit(limit, PAGE_SCHEDULES)
        _, rows = await self._store.schedules.list(after=cursor or "", limit=limit)
        return Page([_view(row) for row in rows], rows.next)

    async def list(self) -> list[Schedule]:
        """All schedules, by name, of all pages."""
        return await every_item(lambda cursor: self.page(cursor=cursor))


def row_of(name: str, rhythm: Rhythm, missed: str, task: NewTask) -> ScheduleRow:
    """The row of a schedule that submits tasks like this one, as code declares it: without a next tick."""
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


def _merge(wanted: ScheduleRow, stored: ScheduleRow | None, now: float) -> ScheduleRow:
    """The row that code declares, with the ticks and the pause of the stored one."""
    if stored is None:
        return wanted._replace(next_at=wanted.rhythm.after(now))
    next_at = stored.next_at if wanted.rhythm == stored.rhythm or stored.paused else wanted.rhythm.after(now)
    return wanted._replace(next_at=next_at, last_at=stored.last_at, paused=stored.paused, mark=stored.mark)


def _unpaused(row: ScheduleRow, now: float) -> ScheduleRow:
    return row._replace(paused=False, next_at=row.rhythm.after(now)) if row.paused else row


def _view(row: ScheduleRow) -> Schedule:
    options = wire.decode(row.options)
    return from_row(
        Schedule,
        row,
        input=wire.decode(row.input),
        deadline=options.get("deadline"),
        labels=options.get("labels", {}),
        upcoming=_upcoming(row),
    )


def _upcoming(row: ScheduleRow) -> tuple[float, ...]:
    ticks: list[float] = []
    tick = row.next_at
    while tick is not None and len(ticks) < UPCOMING_TICKS:
        ticks.append(tick)
        tick = row.rhythm.after(tick)
    return tuple(ticks)
