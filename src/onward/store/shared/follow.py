"""Reading the journals of many tasks at once, for those that follow tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from onward.core.journal.progress import Lead
from onward.core.page import Page
from onward.core.record import Record
from onward.store.port.follow import PAGE_BYTES, PAGE_RECORDS, PAGE_RECORDS_EACH, Head, Tail
from onward.store.shared.database import Connection, Database, OverDatabase


class Nudges(Protocol):
    """Hints that records were committed, as a store sends and receives them."""

    def announce(self) -> None: ...

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]: ...


class Tails(OverDatabase):
    """See `port.follow.Tails` for what each verb promises."""

    def __init__(self, database: Database, nudges: Nudges) -> None:
        super().__init__(database)
        self.announce, self.follow = nudges.announce, nudges.follow

    async def read(self, after: Mapping[str, int], limit: int = PAGE_RECORDS) -> Page[Tail]:
        cursors = {"after": dict(after), "ids": list(after), "afters": list(after.values())}
        rows = await self._db.fetch("tails", **cursors, each=PAGE_RECORDS_EACH, limit=limit, bytes=PAGE_BYTES)
        pairs = [(task_id, Record(*record)) for task_id, *record in rows]
        # By the stored sizes: a payload that is opened, or cannot be opened, is shorter.
        full = len(pairs) >= min(PAGE_RECORDS_EACH, limit) or sum(len(record.data) for _, record in pairs) >= PAGE_BYTES
        if (codec := self._db.codec) is not None:
            pairs = await codec.tails(pairs)
        return Page([Tail(*pair) for pair in pairs], pairs[-1][0] if pairs and full else None)

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        return {task_id: Head(seq, kind) for task_id, seq, kind in await self._db.fetch("heads", ids=list(ids))}

    async def lead(self, task_id: str, seq: int) -> Lead:
        if seq <= 0:
            return Lead()
        lead = await self._db.read(lambda c: _lead(c, task_id, seq))
        if (codec := self._db.codec) is None or lead.last is None:
            return lead
        last, *lately = await codec.records(task_id, [lead.last, *lead.lately])
        return lead._replace(last=last, lately=tuple(lately))


async def _lead(connection: Connection, task_id: str, seq: int) -> Lead:
    (steps,) = await connection.first("lead_steps", id=task_id, seq=seq)
    last = await connection.first("lead_last", id=task_id, seq=seq)
    if last is None:
        return Lead(steps)
    rows = await connection.fetch("lead_lately", id=task_id, seq=seq)
    return Lead(steps, Record(*last), tuple(Record(*row) for row in rows))
