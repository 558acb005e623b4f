"""Reads a whole journal, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from onward.core.record import Record

PAGE_RECORDS = 1000

ReadJournal = Callable[[str, int | None, int], Awaitable[list[Record]]]
"""`Store.journal`, or a function like it: task id, the number after which to read (None: from the last checkpoint on), most records."""


async def journal_pages(
    read: ReadJournal, task_id: str, after: int | None = 0, size: int = PAGE_RECORDS
) -> AsyncIterator[list[Record]]:
    """The records after a number in pages, up to the end that the journal has when its last page is read."""
    while page := await read(task_id, after, size):
        yield page
        if len(page) < size:
            return
        after = page[-1].seq


async def whole_journal(
    read: ReadJournal, task_id: str, after: int | None = 0, size: int = PAGE_RECORDS
) -> list[Record]:
    """The records after a number in one list; with None, from the last checkpoint on."""
    return [record async for page in journal_pages(read, task_id, after, size) for record in page]
