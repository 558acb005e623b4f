"""Overviews on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from onward.core.task import Tasks
from onward.store import overview, rows
from onward.store.access import seen_by
from onward.store.overview import Child, Ended, Unfinished, Which, listing


class PostgresOverview:
    """See `Overview` for what each verb promises."""

    _fetch: Any
    _execute: Any

    async def unfinished(self) -> list[Unfinished]:
        return [Unfinished(*row) for row in await self._fetch("unfinished")]

    async def held(self) -> tuple[float, dict[str, int]]:
        (now,) = await self._fetch("now")
        return float(now[0]), dict(await self._fetch("held_by"))

    async def queue_limits(self) -> dict[str, tuple[int | None, bool]]:
        return overview.queue_limits(await self._fetch("limits"))

    async def pause_queue(self, queue: str, *, paused: bool) -> None:
        await self._execute("pause_queue" if paused else "unpause_queue", name=queue)

    async def ended(self, most: int) -> Ended:
        (row,) = await self._fetch("ended", most=most)
        (estimate,) = await self._fetch("ended_estimate")
        return overview.ended(row, most, estimate[0])

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        found = await self._fetch("offspring", parents=list(parents), most=most, head=overview.HEAD)
        return [Child(id_, task, ended, head or b"") for id_, task, ended, head in found]

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        found = await self._fetch("floor", before=before or "~", count=count, **seen_by(whose))
        return str(found[0][0]) if found else None

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        name, values = listing(limit, before, which)
        return [rows.task(row) for row in await self._fetch(name, **values)]
