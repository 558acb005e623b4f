"""Tails: many journals in one bounded query; and the news that there are new records."""

from __future__ import annotations

import asyncio
from typing import Any

from onward.core import record as r
from onward.store.nudge import FOLLOWED_S, Hub, News
from onward.store.port import follow as bounds
from onward.store.port.core import Batch, Store
from tests.kit import begun, claim, completion, entry, eventually, join, new, not_memory, only_postgres, submit


async def filled(store: Store, count: int, records: int, data: bytes = b'{"result":1}') -> list[str]:
    """`count` tasks with `records` records each, beside their first two."""
    await join(store, "w1")
    ids = await submit(store, *[new() for _ in range(count)])
    held = await claim(store, room=count)
    batch = Batch([entry(task, ahead, data=data) for task in held for ahead in range(1, records + 1)])
    assert await store.save("w1", batch) == set()
    return sorted(ids)


async def test_records_of_many_tasks_come_by_task_and_in_order(store: Store) -> None:
    ids = await filled(store, 3, 4)
    tails = await store.tails.read({ids[0]: 0, ids[1]: 4, ids[2]: 6, "nobody": 0})
    assert [(tail.task_id, tail.record.seq) for tail in tails] == [
        *((ids[0], seq) for seq in range(1, 7)),
        *((ids[1], seq) for seq in (5, 6)),
    ]
    journal = await store.journal(ids[0])
    assert [tail.record for tail in tails if tail.task_id == ids[0]] == journal
    assert await store.tails.read({}) == []


async def test_an_answer_is_bounded_and_the_next_goes_on(store: Store) -> None:
    ids = await filled(store, 2, bounds.PAGE_RECORDS_EACH + 50)
    (first, *_), after = ids, dict.fromkeys(ids, 0)
    page = await store.tails.read(after)
    assert len(page) == 2 * bounds.PAGE_RECORDS_EACH
    assert len(await store.tails.read(after, 7)) == 7
    seen: dict[str, list[int]] = {task_id: [] for task_id in ids}
    while page := await store.tails.read(after, 90):
        for task_id, record in page:
            seen[task_id].append(record.seq)
            after[task_id] = record.seq
    assert seen == {task_id: list(range(1, bounds.PAGE_RECORDS_EACH + 53)) for task_id in ids}, first


async def test_large_records_come_one_after_the_other(store: Store) -> None:
    (task_id,) = await filled(store, 1, 4, b'"' + b"x" * (bounds.PAGE_BYTES - 10) + b'"')
    after, pages = 0, []
    while page := await store.tails.read({task_id: after}):
        pages.append(len(page))
        after = page[-1].record.seq
    assert after == 6
    assert max(pages) <= 4, "two small ones, and two of the large"
    assert len(pages) >= 2


async def test_heads(store: Store) -> None:
    held = await begun(store)
    assert await store.tails.heads([held.id, "nobody"]) == {held.id: bounds.Head(2, r.SHIFT)}
    await store.save("w1", completion(held))
    assert await store.tails.heads([held.id]) == {held.id: bounds.Head(3, r.COMPLETED)}
    assert await store.tails.heads([]) == {}


# ── news ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_commit_is_announced_in_the_same_process(store: Store) -> None:
    calls: list[int] = []
    stop = store.tails.follow(lambda: calls.append(1))
    before = len(calls)
    store.tails.announce()
    assert len(calls) > before
    store.nudge("ended")
    assert len(calls) > before + 1, "records of callers outside are announced by their nudges"
    stop()
    after = len(calls)
    store.tails.announce()
    assert len(calls) == after


async def _is_followed(store: Any) -> bool:
    return bool(store._nudges.news._until > 0)


@not_memory
async def test_a_commit_is_announced_to_another_process(store: Store, open_another: Any) -> None:
    held = await begun(store)
    await store.workers.attend("w1")  # as a worker does
    far = await open_another()
    called = asyncio.Event()
    stop = far.tails.follow(called.set)
    if store.receives_nudges:
        await eventually(lambda: _is_followed(store))
    for ahead in range(1, 6):
        await asyncio.sleep(0.1)  # the first announcements are over
        called.clear()
        await store.save("w1", Batch([entry(held, ahead)]))
        store.tails.announce()
        await asyncio.wait_for(called.wait(), 60)
    stop()


@only_postgres
async def test_news_are_sent_only_while_another_process_follows(store: Store, open_another: Any) -> None:
    """A store sends news only while another process follows. A store that opens later learns that one does."""
    sent: list[set[str]] = []
    await store.workers.attend("w1")
    store._nudges.news._out = Hub(lambda topics: sent.append(set(topics)))  # type: ignore[attr-defined]
    store.tails.announce()
    assert sent == []
    far = await open_another()
    stop = far.tails.follow(lambda: None)
    await eventually(lambda: _is_followed(store))
    store.tails.announce()
    assert sent == [{"news"}]
    late = await open_another()
    await late.workers.attend("w2")
    await eventually(lambda: _is_followed(late))  # a store that opens later asks for followers
    stop()


@only_postgres
async def test_behind_a_pooler_a_follower_polls_often(store: Any) -> None:
    store._db.pooled = True
    called = asyncio.Event()
    stop = store.tails.follow(called.set)
    for _ in range(3):
        called.clear()
        await asyncio.wait_for(called.wait(), 60)
    stop()
    assert store._nudges._listener is None, "there is no session that could LISTEN"


async def test_news_are_sent_at_most_fifty_times_a_second_and_only_for_a_while() -> None:
    hub, sent = Hub(), list[set[str]]()
    news = News(hub, sent.append)
    for _ in range(1000):
        news.tell()
    assert sent == []
    hub.heard("follow")
    for _ in range(1000):
        news.tell()
    assert len(sent) == 1, "the first at once, the others together"
    news._until -= FOLLOWED_S
    await asyncio.sleep(0.03)
    news.tell()
    assert len(sent) == 2, "the pending announcement, and none since"
    news.close()
