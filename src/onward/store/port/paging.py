"""Reads a whole journal, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from onward.core.record import Record

if TYPE_CHECKING:
    from onward.store.port.core import Store

PAGE_RECORDS = 1000

PAGE_BYTES = 4_000_000
"""Bytes of the records of a page, about, for readers that bound them."""

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


def is_full(page: Sequence[Record], limit: int) -> bool:
    """Whether more records may follow a page of `journal` with this limit and `most=PAGE_BYTES`."""
    return len(page) >= limit or sum(len(record.data) for record in page) >= PAGE_BYTES


async def bounded_pages(store: Store, task_id: str) -> AsyncIterator[list[Record]]:
    """All records, in pages of a bounded number of bytes."""
    after, more = 0, True
    while more and (page := await store.journal(task_id, after, PAGE_RECORDS, PAGE_BYTES)):
        yield page
        after, more = page[-1].seq, is_full(page, PAGE_RECORDS)


async def whole_journal(
    read: ReadJournal, task_id: str, after: int | None = 0, size: int = PAGE_RECORDS
) -> list[Record]:
    """The records after a number in one list; with None, from the last checkpoint on."""
    return [record async for page in journal_pages(read, task_id, after, size) for record in page]
