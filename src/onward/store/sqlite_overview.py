"""Overviews on SQLite. A count here reads an index from end to end, and the other readers wait for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onward.store import overview
from onward.store.overview import Ended, Kin, Standing
from onward.store.sqlite_run import first, run, views


class SqliteOverview:
    """See `Overview` for what each verb promises."""

    _reading: Any
    _writing: Any

    async def standings(self) -> list[Standing]:
        found: list[Standing] = await self._reading(lambda c: [Standing(*row) for row in run(c, "standings")])
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

    async def kin(self, parents: Sequence[str], most: int) -> list[Kin]:
        asked = {"parents": json.dumps(list(parents)), "most": most, "head": overview.HEAD}
        rows = await self._reading(lambda c: list(run(c, "kin", **asked)))
        return [Kin(id_, task, bool(ended), head or b"") for id_, task, ended, head in rows]

    async def floor(self, before: str | None, count: int) -> str | None:
        row = await self._reading(lambda c: first(c, "floor", before=before or "~", count=count))
        return None if row is None else str(row[0])
