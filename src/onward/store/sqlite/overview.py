"""Overviews on SQLite. A count here reads an index from end to end, and the other readers wait for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Unpack

from onward.core.record import Record
from onward.core.task import Tasks
from onward.store.port import overview
from onward.store.port.access import seen_by
from onward.store.port.overview import IDS, Child, Ended, Unfinished, Which, by_task, listings, newest, newest_ids
from onward.store.shared import rows
from onward.store.sqlite.execute import first, run, views


class SqliteOverview:
    """See `Overview` for what each verb promises."""

    _reading: Any
    _writing: Any

    async def unfinished(self) -> list[Unfinished]:
        found: list[Unfinished] = await self._reading(lambda c: [Unfinished(*row) for row in run(c, "unfinished")])
        return found

    async def held(self) -> tuple[float, dict[str, int]]:
        def job(connection: Any) -> tuple[float, dict[str, int]]:
            ((now,),) = run(connection, "now")
            return now, dict(run(connection, "held_by"))

        found: tuple[float, dict[str, int]] = await self._reading(job)
        return found

    async def queue_limits(self) -> dict[str, tuple[int | None, bool]]:
        return overview.queue_limits(await self._reading(lambda c: list(run(c, "limits"))))

    async def pause_queue(self, queue: str, *, paused: bool) -> None:
        await self._writing(lambda c: run(c, "pause_queue" if paused else "unpause_queue", name=queue))

    async def ended(self, most: int) -> Ended:
        def job(connection: Any) -> Ended:
            (row,) = views(run(connection, "ended", most=most))
            ((estimate,),) = run(connection, "ended_estimate")
            return overview.ended(row, most, estimate)

        found: Ended = await self._reading(job)
        return found

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        asked = {"parents": json.dumps(list(parents)), "most": most, "head": overview.HEAD}
        found = await self._reading(lambda c: list(run(c, "offspring", **asked)))
        return [Child(id_, task, bool(ended), head or b"") for id_, task, ended, head in found]

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        row = await self._reading(lambda c: first(c, "floor", before=before or "~", count=count, **seen_by(whose)))
        return None if row is None else str(row[0])

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        asked = [(name, listed(values)) for name, values in listings(limit, before, which)]
        found = await self._reading(lambda c: [views(run(c, name, **values)) for name, values in asked])
        return newest(([rows.task(row) for row in part] for part in found), limit)

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        asked = [(IDS[name], listed(values)) for name, values in listings(limit, before, which)]
        return newest_ids(await self._reading(lambda c: [list(run(c, n, **values)) for n, values in asked]), limit)

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        asked = json.dumps(list(task_ids))
        found: list[tuple[str, bytes]] = await self._reading(lambda c: list(run(c, "model_calls", ids=asked)))
        return found

    async def size(self) -> int:
        return int((await self._reading(lambda c: first(c, "size")))[0])

    async def ahead(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        asked = {"ids": json.dumps(list(task_ids)), "most": most}
        found: dict[str, int] = await self._reading(lambda c: dict(run(c, "ahead", **asked)))
        return found

    async def lately(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        asked = {"ids": json.dumps(list(task_ids)), "back": back, "most": most}
        return by_task(await self._reading(lambda c: list(run(c, "lately", **asked))))


def listed(values: dict[str, Any]) -> dict[str, Any]:
    """Values as this database takes them: a list is JSON."""
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in values.items()}
