"""Tails on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.core.journal.progress import Lead
from onward.core.record import Record
from onward.store.port.follow import BYTES, EACH, PAGE, Head, Tail
from onward.store.postgres.execute import S, first


class PostgresTails:
    """See `Tails` for what each verb promises."""

    _fetch: Any
    _from_outside: Any

    async def tails(self, after: Mapping[str, int], limit: int = PAGE) -> list[Tail]:
        asked = {"ids": list(after), "afters": list(after.values()), "each": EACH, "limit": limit, "bytes": BYTES}
        return [Tail(row[0], Record(*tuple(row)[1:])) for row in await self._fetch("tails", **asked)]

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        return {row[0]: Head(row[1], row[2]) for row in await self._fetch("heads", ids=list(ids))}

    async def lead(self, task_id: str, seq: int) -> Lead:
        if seq <= 0:
            return Lead()
        asked = {"id": task_id, "seq": seq}

        async def job(connection: Any) -> Lead:
            count = await first(connection, "lead_steps", **asked)
            last = await first(connection, "lead_last", **asked)
            if last is None:
                return Lead(count[0])
            lately = await connection.fetch(S["lead_lately"].sql, *S["lead_lately"](**asked))
            return Lead(count[0], Record(*last), tuple(Record(*row) for row in lately))

        return await self._from_outside(job)  # type: ignore[no-any-return]
