"""Reading many tasks: lists, relatives, open questions, last records."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from onward.core.page import Page
from onward.core.record import Record
from onward.core.sealed import CODECS, is_sealed
from onward.core.task import Message, Tasks
from onward.store.port.listing import (
    HEAD_BYTES,
    MAX_ASKS,
    MAX_BYTES,
    PAGE_BYTES,
    SLICE_TASKS,
    SMALL_BYTES,
    TINY_BYTES,
    Ask,
    Child,
    Kin,
    Which,
)
from onward.store.shared import rows
from onward.store.shared.asks import START, Position, read_page
from onward.store.shared.codec import Codec
from onward.store.shared.database import Connection, Database, OverDatabase, seen_by
from onward.store.shared.search import IDS_STATEMENTS, listings, newest_ids

Row = Mapping[str, Any]


class Listing(OverDatabase):
    """Reads many tasks. (See `seen_by` for `whose`.)"""

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        """The ids and options of the tasks that `list` returns."""
        statements = listings(limit, before, which)

        async def job(connection: Connection) -> list[tuple[str, bytes]]:
            parts = [await connection.fetch(IDS_STATEMENTS[name], **values) for name, values in statements]
            return newest_ids(parts, limit)

        return await self._db.read(job)

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        """Tasks below the id `before`, the newest first. A search for a text reads all tasks between `before` and `since`."""
        page_bytes = which.get("page_bytes")
        if page_bytes is None:

            async def job(connection: Connection) -> list[Row]:
                return await _newest(connection, limit, before, which)

            page = await self._db.read(job)
        else:
            page = await _bounded_page(self._db, limit, before, which, page_bytes)
        return [rows.task(row) for row in await rows.opened(self._db.codec, page)]

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        """The id of the task that has `count` others between it and `before`; None when there are fewer."""
        matching = await self._db.fetch("floor", before=before or "~", count=count, **seen_by(whose))
        return str(matching[0][0]) if matching else None

    async def kin(self, ids: Sequence[str], *, below: bool = False) -> Sequence[Kin]:
        """These tasks, or (`below`) all their children, in any state."""
        return [Kin(*row) for row in await self._db.fetch("kin_below" if below else "kin", ids=[*ids])]

    async def unfinished_below(self, parents: Sequence[str], most: int) -> Sequence[tuple[str, str]]:
        """The unfinished children of these tasks, and their reasons; at most `most`."""
        return [(row[0], row[1]) for row in await self._db.fetch("unfinished_below", parents=[*parents], most=most)]

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        """The children of these tasks, ended or not; at most `most`."""
        matching = await self._db.fetch("offspring", parents=[*parents], most=most, head=HEAD_BYTES)
        children = [Child(id_, task, bool(ended), head or b"") for id_, task, ended, head in matching]
        codec = self._db.codec
        return children if codec is None else await self._with_heads(codec, children)

    async def _with_heads(self, codec: Codec, children: Sequence[Child]) -> Sequence[Child]:
        """Children with the beginnings of their last records opened. A sealed record can only be opened as a whole."""
        sealed = [child.id for child in children if is_sealed(child.head)]
        heads: dict[str, bytes] = {}
        for start in range(0, len(sealed), SLICE_TASKS):
            whole = await self._db.fetch("last_records", ids=sealed[start : start + SLICE_TASKS])
            pairs = [(row[0], Record(*row[1:])) for row in whole]
            heads |= {task_id: record.data[:HEAD_BYTES] for task_id, record in await codec.tails(pairs)}
        return [child._replace(head=heads.get(child.id, child.head)) for child in children]

    async def asks(
        self,
        task_ids: Sequence[str] | None = None,
        *,
        kind: str | None = None,
        whose: str | None = None,
        limit: int = MAX_ASKS,
        after: Position = START,
        page_bytes: int = PAGE_BYTES,
    ) -> Page[Ask]:
        """A page of the open questions and approvals of all unfinished tasks, or of these; each with the time now. The page has those
        after a position, in the order of the ids of their tasks and then of their numbers. It is sorted, the oldest first. Their data have
        about `page_bytes` together; of the rest the page has the beginnings. A page may have few or none, and a cursor (`next`)."""
        bounds: dict[str, Any] = {"limit": limit, "after": after, "page_bytes": page_bytes}
        return await read_page(self._db, task_ids, kind=kind, whose=whose, **bounds)

    async def is_open(self, task_id: str, seq: int) -> float | None:
        """The time now, when this question or approval is open; else None. One that has expired is open until its task notices."""
        rows = await self._db.fetch("open_ask", id=task_id, seq=seq)
        return None if not rows else float(rows[0][0])

    async def reply(self, task_id: str, seq: int) -> Message | None:
        """The answer, the decision or the verdict about this record of a task; None when there is none."""
        messages = [Message(*row) for row in await self._db.fetch("reply", id=task_id, seq=seq)]
        if (codec := self._db.codec) is not None:
            messages = await codec.messages(task_id, messages)
        return messages[0] if messages else None

    async def replied(self, task_id: str, seqs: Sequence[int]) -> frozenset[int]:
        """Those of these records of a task that have an answer, a decision or a verdict."""
        return frozenset(row[0] for row in await self._db.fetch("replied", id=task_id, seqs=[*seqs]))

    async def ask_size(self, task_id: str, seq: int) -> int:
        """The bytes of a question or an approval, open or not; 0 when there is none."""
        rows = await self._db.fetch("ask_size", id=task_id, seq=seq)
        return int(rows[0][0]) if rows else 0

    async def doubts(self, limit: int, after: str = "") -> Sequence[tuple[str, str]]:
        """Tasks that wait because of an effect in doubt, after this id, in order: id, task."""
        return [(row[0], row[1]) for row in await self._db.fetch("doubts", limit=limit, after=after)]

    async def lost_count(self) -> int:
        """How many unfinished tasks a restore took back to the moment of the backup."""
        return int((await self._db.fetch("lost_count"))[0][0])

    async def lost_tasks(self, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str, str, str | None]]:
        """Unfinished tasks that a restore took back to the moment of the backup, after this id, in order: id, task, reason, worker."""
        return [(*row[:3], row[3]) for row in await self._db.fetch("lost_tasks", after=after, limit=limit)]

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        """The ids of the tasks and the data of those of their steps that may have called a model."""
        pairs = [(row[0], Record(*row[1:])) for row in await self._db.fetch("model_calls", ids=[*task_ids])]
        if (codec := self._db.codec) is not None:
            pairs = [(id_, record) for id_, record in await codec.tails(pairs) if record.data[:1] not in CODECS]
        return [(task_id, record.data) for task_id, record in pairs]

    async def queue_positions(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        """For each of these tasks that could be started now, how many tasks of its queue come before it: counted up to `most` of a
        higher priority, and as many of its own."""
        return {row[0]: row[1] for row in await self._db.fetch("ahead", ids=[*task_ids], most=most)}

    async def recent_records(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        """The last `back` records of each of these tasks that is unfinished, without progress records. Only records that say what a
        task waits for have their data, and only when it is not longer than `most` bytes."""
        matching = await self._db.fetch("lately", ids=[*task_ids], back=back, most=most)
        pairs = [(str(task_id), Record(*record)) for task_id, *record in matching]
        if (codec := self._db.codec) is not None:
            pairs = await codec.tails(pairs)
        by_task = itertools.groupby(pairs, key=lambda pair: pair[0])
        return {task_id: [record for _, record in group] for task_id, group in by_task}


async def _newest(connection: Connection, limit: int, before: str | None, which: Which) -> list[Row]:
    """The rows of the newest tasks."""
    parts = [await connection.fetch_named(name, **values) for name, values in listings(limit, before, which)]
    return sorted(itertools.chain.from_iterable(parts), key=lambda row: str(row["id"]), reverse=True)[:limit]


async def _bounded_page(database: Database, limit: int, before: str | None, which: Which, room: int) -> list[Row]:
    """The rows of a page whose inputs and last records have about `room` bytes together."""
    page: list[Row] = []
    while len(page) < limit:  # each slice by itself: other callers read in between
        part = functools.partial(
            _slice, wanted=min(limit - len(page), SLICE_TASKS), before=before, which=which, room=room
        )
        slice_, room, more = await database.read(part)
        page += slice_
        if not more:
            break
        before = str(slice_[-1]["id"])
    return page


async def _slice(
    connection: Connection, *, wanted: int, before: str | None, which: Which, room: int
) -> tuple[list[Row], int, bool]:
    """A slice of a page whose inputs and last records have about `room` bytes together: its rows, the room that is left, and whether
    there may be more tasks. It reads small values, then larger ones as long as there is room."""
    most = which.get("most") or MAX_BYTES
    small = min(most, SMALL_BYTES if room > 0 else TINY_BYTES)
    page = await _newest(connection, wanted, before, {**which, "most": small})
    room -= sum(len(row["input"] or b"") + len(row["ending"] or b"") for row in page)
    larger = await _larger_values(connection, page, most, room) if small < most and room > 0 else {}
    room -= sum(size for size, _ in larger.values())
    values = [larger[row["id"]][1] if row["id"] in larger else row for row in page]
    return values, room, len(page) == wanted


async def _larger_values(
    connection: Connection, page: Sequence[Row], most: int, room: int
) -> dict[str, tuple[int, Row]]:
    """Of the tasks of which a value was left out, those for whose values there is room: the bytes of the values, and the row with them."""
    ids = [row["id"] for row in page if row["input"] is None or (row["state"] is not None and row["ending"] is None)]
    if not ids:
        return {}
    sizes = dict(await connection.fetch("value_sizes", ids=ids))
    chosen: dict[str, int] = {}
    for task_id in ids:
        if 0 < (size := sizes.get(task_id, 0)) <= room:
            chosen[task_id] = size
            room -= size
    whole = await connection.fetch_named("tasks", ids=[*chosen], most=most) if chosen else []
    return {row["id"]: (chosen[row["id"]], row) for row in whole}
