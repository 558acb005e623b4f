"""Pages of a journal with encrypted payloads: a payload that is opened, or cannot be, is shorter than the stored one that bounds the page."""

from __future__ import annotations

import pytest

from onward.core.audit import AuditEvent
from onward.store.port import follow, paging
from onward.store.port.core import Store
from onward.store.port.paging import journal_pages
from onward.store.shared import follow as shared_follow
from tests.kit import Batch, begun, completion, entry

RECORDS, RECORD_BYTES, PAGE_BYTES = 35, 990, 10_000


async def written(store: Store) -> str:
    """A task with so many records that its journal has several pages, and whose payloads just miss the bytes of a page when they are opened."""
    held = await begun(store)
    data = b'{"result":"%s"}' % (b"x" * (RECORD_BYTES - 13))
    await store.save("w1", Batch([entry(held, n, data=data) for n in range(1, RECORDS + 1)]))
    await store.save("w1", completion(held, RECORDS + 1))
    return str(held.id)


async def seqs(store: Store, task_id: str) -> list[int]:
    return [record.seq async for page in journal_pages(store.journal, task_id) for record in page]


async def test_a_reader_of_pages_misses_no_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", PAGE_BYTES)
    task_id = await written(store)
    whole = [record.seq for record in await store.journal(task_id)]
    assert len(whole) == RECORDS + 3
    page = await store.journal(task_id, 0, 1000, PAGE_BYTES)
    assert len(page) < len(whole)
    assert page.next == str(page[-1].seq)
    assert await seqs(store, task_id) == whole


async def test_the_same_after_an_erasure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", PAGE_BYTES)
    task_id = await written(store)
    await store.data_keys.destroy(await store.data_keys.of("", None), "root", AuditEvent("erase", "all"), "all")
    assert await seqs(store, task_id) == list(range(1, RECORDS + 4))


async def test_a_follower_learns_that_there_is_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_follow, "PAGE_BYTES", PAGE_BYTES)
    task_id = await written(store)
    page = await store.tails.read({task_id: 0})
    assert sum(len(tail.record.data) for tail in page) < PAGE_BYTES, "opened, they are less than a page"
    assert page.next == task_id
    rest = await store.tails.read({task_id: RECORDS + 2})
    assert (len(rest), rest.next) == (1, None)
    assert follow.PAGE_BYTES > PAGE_BYTES
