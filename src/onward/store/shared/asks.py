"""Reads open questions and approvals in pages that are bounded in number and bytes.

A page follows the ids of the tasks, and not the times of asking: the indexes of unfinished tasks and of tasks that asked both have that
order, so the cost of a page does not grow with ended tasks, nor with the questions on other pages.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence

from onward.core.encryption import record_place
from onward.core.page import Page
from onward.core.sealed import is_sealed
from onward.store.port.listing import (
    ASK_HEAD_BYTES,
    MAX_ASKED_TASKS,
    MAX_ASKS,
    PAGE_BYTES,
    SLICE_ASKS,
    SMALL_BYTES,
    Ask,
)
from onward.store.shared.codec import Item
from onward.store.shared.database import Connection, Database, seen_by

Position = tuple[str, int]
"""A task and the number of a record: a page begins behind it."""

START: Position = ("", 0)

LAST_SEQ = 10**15 - 1
"""No record has a higher number. The position after all questions of a task has it."""


async def read_page(
    database: Database,
    task_ids: Sequence[str] | None = None,
    *,
    kind: str | None = None,
    whose: str | None = None,
    limit: int = MAX_ASKS,
    after: Position = START,
    page_bytes: int = PAGE_BYTES,
) -> Page[Ask]:
    """See `Listing.asks`."""
    tasks = _tasks_that_asked(database, after[0], whose) if task_ids is None else _slices(task_ids, after[0])
    page: list[Ask] = []
    looked_at, cursor = 0, None
    async for ids, last in tasks:
        looked_at += SLICE_ASKS
        while ids:
            wanted = min(limit + 1 - len(page), SLICE_ASKS)
            room = page_bytes - sum(len(ask.data) for ask in page)
            slice_ = functools.partial(_read_slice, ids=ids, kind=kind, after=after, wanted=wanted, room=room)
            asks = await database.read(slice_)  # each slice by itself: other callers read in between
            page += asks
            if len(asks) < wanted or len(page) > limit:
                break
            after = asks[-1].task_id, asks[-1].seq
            ids = [task_id for task_id in ids if task_id >= after[0]]
        if len(page) > limit:
            page, cursor = page[:limit], page[limit - 1].id
            break
        if looked_at >= MAX_ASKED_TASKS:
            cursor = f"{last}.{LAST_SEQ}"
            break
    return Page(sorted(await _opened(database, page), key=lambda ask: (ask.at, ask.task_id, ask.seq)), cursor)


async def _tasks_that_asked(
    database: Database, from_id: str, whose: str | None
) -> AsyncIterator[tuple[Sequence[str], str]]:
    """Slices of the unfinished tasks of this tenant that asked at some time, each with the last id that was looked at."""
    while asked := await database.fetch("asked", from_id=from_id, hops=SLICE_ASKS, **seen_by(whose)):
        last = str(asked[-1][0])
        yield [task_id for task_id, shown in asked if shown], last
        if len(asked) < SLICE_ASKS:
            return
        from_id = f"{last}!"  # the lowest id above the last: no character of an id is lower


async def _slices(task_ids: Sequence[str], from_id: str) -> AsyncIterator[tuple[Sequence[str], str]]:
    """Slices of these tasks, in the order of their ids."""
    ids = sorted({task_id for task_id in task_ids if task_id >= from_id})
    for begin in range(0, len(ids), SLICE_ASKS):
        part = ids[begin : begin + SLICE_ASKS]
        yield part, part[-1]


async def _read_slice(
    connection: Connection, *, ids: Sequence[str], kind: str | None, after: Position, wanted: int, room: int
) -> list[Ask]:
    """Open questions and approvals of these tasks, in the order of the page. It reads small ones and the beginnings of the others, and
    then all of the others as long as there is room."""
    small = SMALL_BYTES if room > 0 else ASK_HEAD_BYTES
    rows = await connection.fetch(
        "asks",
        ids=[*ids],
        any_kind=kind is None,
        kind=kind or "",
        after=after[0],
        seq=after[1],
        small=small,
        head=ASK_HEAD_BYTES,
        limit=wanted,
    )
    asks = [Ask(*row)._replace(whole=row[-1] <= small) for row in rows]
    room -= sum(len(ask.data) for ask in asks)
    chosen: list[Ask] = []
    for ask in asks:
        if not ask.whole and ask.size <= room:
            chosen.append(ask)
            room -= ask.size
    if not chosen:
        return asks
    tasks = sorted({ask.task_id for ask in chosen})
    datas = dict(await connection.fetch("ask_data", tasks=tasks, ids=[ask.id for ask in chosen]))
    return [ask._replace(data=datas[ask.id], whole=True) if ask.id in datas else ask for ask in asks]


async def _opened(database: Database, asks: Sequence[Ask]) -> Sequence[Ask]:
    """The same with their data opened. The beginning of sealed data cannot be opened."""
    asks = [ask if ask.whole or not is_sealed(ask.data) else ask._replace(data=b"") for ask in asks]
    if (codec := database.codec) is None:
        return asks
    places = [number for number, ask in enumerate(asks) if ask.whole]
    items = [Item(ask.task_id, record_place(*ask[:4]), ask.data, ask.kind) for ask in asks if ask.whole]
    opened = list(asks)
    for number, data in zip(places, await codec.open(items), strict=True):
        opened[number] = opened[number]._replace(data=data)
    return opened
