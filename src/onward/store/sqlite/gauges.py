"""How it stands, on SQLite."""

from __future__ import annotations

from typing import Any

import apsw

from onward.store.port.access import seen_by
from onward.store.port.gauges import QueueSnapshot
from onward.store.port.overview import Unfinished
from onward.store.sqlite.execute import first, run


class SqliteGauges:
    """See `Gauges` for what each verb promises."""

    _reading: Any

    async def standing(self) -> QueueSnapshot:
        standing: QueueSnapshot = await self._reading(_standing)
        return standing


def _standing(connection: apsw.Connection) -> QueueSnapshot:
    ((workers, slots, late),) = run(connection, "crew")
    unfinished = [Unfinished(*row) for row in run(connection, "unfinished")]
    outbox: Any = first(connection, "outbox_depth") if first(connection, "outbox_there") else None
    asks = dict(run(connection, "open_asks_by_kind", **seen_by(None)))
    return QueueSnapshot(unfinished, asks, workers, slots, late, outbox)
