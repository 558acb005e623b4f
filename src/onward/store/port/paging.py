"""Reads a journal page by page. A page is bounded in records and bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from onward.core.page import Page
from onward.core.record import Record

PAGE_RECORDS = 1000

PAGE_BYTES = 4_000_000
"""Bytes of the records of a page, about."""

ReadJournal = Callable[[str, int | None, int, int], Awaitable[Page[Record]]]
"""`Store.journal`, or a function like it: task id, the number after which to read (None: from the last checkpoint on), most records, most
bytes."""


async def journal_pages(
    read: ReadJournal, task_id: str, after: int | None = 0, size: int = PAGE_RECORDS
) -> AsyncIterator[Page[Record]]:
    """The records after a number in pages, up to the end that the journal has when its last page is read."""
    while page := await read(task_id, after, size, PAGE_BYTES):
        yield page
        if page.next is None:
            return
        after = page[-1].seq


async def whole_journal(
    read: ReadJournal, task_id: str, after: int | None = 0, size: int = PAGE_RECORDS
) -> list[Record]:
    """The records after a number in one list; with None, from the last checkpoint on. It is for a replay, which needs all of them: other
    readers go through the pages."""
    return [record async for page in journal_pages(read, task_id, after, size) for record in page]
