"""Tails on SQLite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from onward.core.journal.progress import Lead
from onward.core.record import Record
from onward.store.port.follow import BYTES, EACH, PAGE, Head, Tail
from onward.store.sqlite.execute import first, run


class SqliteTails:
    """See `Tails` for what each verb promises."""

    _reading: Any

    async def tails(self, after: Mapping[str, int], limit: int = PAGE) -> list[Tail]:
        asked = {"after": json.dumps(dict(after)), "each": EACH, "limit": limit, "bytes": BYTES}
        found: list[Tail] = await self._reading(
            lambda c: [Tail(row[0], Record(*row[1:])) for row in run(c, "tails", **asked)]
        )
        return found

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        asked = json.dumps(list(ids))
        found: dict[str, Head] = await self._reading(
            lambda c: {row[0]: Head(row[1], row[2]) for row in run(c, "heads", ids=asked)}
        )
        return found

    async def lead(self, task_id: str, seq: int) -> Lead:
        def job(connection: apsw.Connection) -> Lead:
            asked = {"id": task_id, "seq": seq}
            ((steps,),) = run(connection, "lead_steps", **asked)
            last = first(connection, "lead_last", **asked)
            if last is None:
                return Lead(steps)
            lately = [Record(*row) for row in run(connection, "lead_lately", **asked)]
            return Lead(steps, Record(*last), tuple(lately))

        if seq <= 0:
            return Lead()
        found: Lead = await self._reading(job)
        return found
