"""How it stands, on PostgreSQL."""

from __future__ import annotations

from typing import Any

from onward.store.port.access import seen_by
from onward.store.port.gauges import QueueSnapshot
from onward.store.port.overview import Unfinished


class PostgresGauges:
    """See `Gauges` for what each verb promises."""

    _fetch: Any

    async def standing(self) -> QueueSnapshot:
        unfinished = [Unfinished(*row) for row in await self._fetch("unfinished")]
        asks = {kind: count for kind, count in await self._fetch("open_asks_by_kind", **seen_by(None))}  # noqa: C416 -- rows are no pairs
        ((workers, slots, late),) = await self._fetch("crew")
        outbox = await self._fetch("outbox_depth") if await self._fetch("outbox_there") else []
        return QueueSnapshot(unfinished, asks, workers, slots, late, tuple(outbox[0]) if outbox else None)
