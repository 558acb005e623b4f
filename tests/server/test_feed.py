"""The feed: each follower gets every record of its tasks once and in order, however slow it is and whenever it comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onward.core.clock import SystemClock
from onward.errors import TooManyStreams
from onward.server.live import feed as feeds
from onward.server.live.feed import Closed, Feed, Follower
from onward.store.port.core import Batch, Claimed, Store
from tests.kit import claim, entry, eventually, join, new, only_memory, submit


def feed_of(store: Store, **over: Any) -> Feed:
    return Feed(store.tails, SystemClock(), **{"streams": 100, "closing": asyncio.Event()} | over)


async def begun(store: Store, count: int) -> list[Claimed]:
    await join(store, "w1")
    await submit(store, *[new() for _ in range(count)])
    return await claim(store, room=count)


async def write(
    store: Store, held: list[Claimed], records: int, rng: random.Random, data: bytes = b'{"result":1}'
) -> None:
    """So many records of each, a few at a time, as a worker's commits do."""
    at = dict.fromkeys((task.id for task in held), 0)
    while any(seq < records for seq in at.values()):
        batch = Batch()
        for task in rng.sample(held, rng.randint(1, len(held))):
            for _ in range(min(rng.randint(1, 9), records - at[task.id])):
                at[task.id] += 1
                batch.entries.append(entry(task, at[task.id], data=data))
        if batch.entries:
            assert await store.save("w1", batch) == set()
            store.tails.announce()
        await asyncio.sleep(rng.choice([0, 0, 0.002, 0.01]))


Read = Callable[[Follower], Awaitable[Any]]


async def follow(
    feed: Feed, after: dict[str, int], until: int, rng: random.Random, lazy: float
) -> dict[str, list[int]]:
    """The records that a follower got that leaves and comes back now and then, until it has record `until` of each task."""
    seen: dict[str, list[int]] = {task_id: [] for task_id in after}
    last = dict(after)
    while any(seq < until for seq in last.values()):
        async with feed.follow(last) as follower:
            for _ in range(rng.randint(1, 40)):
                for task_id, record in await follower.next(0.05):
                    seen[task_id].append(record.seq)
                    last[task_id] = record.seq
                if follower.idle and all(seq >= until for seq in follower.last.values()):
                    return seen  # it thinks that it has seen all of it
                await asyncio.sleep(rng.random() * lazy)
    return seen


async def race(
    store: Store, seed: int, records: int = 100, readers: int = 8
) -> list[tuple[dict[str, int], dict[str, list[int]]]]:
    rng = random.Random(seed)
    held, feed = await begun(store, 4), feed_of(store)
    writing = asyncio.create_task(write(store, held, records, random.Random(seed + 1)))
    cursors = [{task.id: rng.choice([0, 1, 2]) for task in rng.sample(held, rng.randint(1, 4))} for _ in range(readers)]
    until = records + 2
    results = await asyncio.gather(
        *(
            follow(feed, after, until, random.Random(seed + n), rng.choice([0, 0.01, 0.05]))
            for n, after in enumerate(cursors)
        )
    )
    await writing
    assert feed.followers == set()
    assert feed._live == {}
    assert feed._seen == {}
    return list(zip(cursors, results, strict=True))


def wrong(results: list[tuple[dict[str, int], dict[str, list[int]]]], until: int = 102) -> list[str]:
    """Records that are missing, doubled or out of order."""
    return [
        f"{task_id} after {after[task_id]}: {numbers}"
        for after, seen in results
        for task_id, numbers in seen.items()
        if numbers != list(range(after[task_id] + 1, until + 1))
    ]


@pytest.mark.parametrize("seed", range(2))
async def test_every_follower_gets_every_record_once_and_in_order(store: Store, seed: int) -> None:
    assert wrong(await race(store, seed)) == []


@pytest.mark.slow
@only_memory
@pytest.mark.parametrize("fault", ["the cursor is dropped", "off by one", "resume from the head", "no gap is seen"])
async def test_the_test_finds_a_planted_fault(store: Store, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails for a feed that loses its place."""
    whole = Feed.follow

    def forgetful(self: Feed, after: dict[str, int]) -> Follower:
        moved = {"the cursor is dropped": lambda _: 0, "off by one": lambda seq: seq + 1 if seq > 9 else seq}
        if fault in moved:
            after = {task_id: moved[fault](seq) for task_id, seq in after.items()}
        return whole(self, after)

    own = Follower._read

    async def hasty(self: Follower) -> Any:
        heads = await self._feed.store.heads(list(self._behind))
        self.last |= {task_id: max(self.last[task_id], head.seq) for task_id, head in heads.items()}
        return await own(self)

    def trusting(self: Follower, tail: Any) -> None:
        if len(self._buffer) < feeds.MAX_BUFFERED_RECORDS:  # records beyond the buffer are dropped
            self._buffer.append(tail)
            self._bytes += len(tail.record.data)
            self.last[tail.task_id] = tail.record.seq
        self.wake()

    monkeypatch.setattr(Feed, "follow", forgetful)
    if fault == "resume from the head":
        monkeypatch.setattr(Follower, "_read", hasty)
    if fault == "no gap is seen":
        monkeypatch.setattr(Follower, "put", trusting)
        monkeypatch.setattr(feeds, "MAX_BUFFERED_RECORDS", 5)
    assert wrong(await race(store, 1)) != []


async def test_a_follower_without_room_reads_on_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_BUFFERED_RECORDS", 10)
    held, feed = await begun(store, 1), feed_of(store)
    task_id = held[0].id
    async with feed.follow({task_id: 0}) as slow, feed.follow({task_id: 0}) as quick:
        assert [tail.record.seq for tail in await slow.next(5)] == [1, 2]
        quickly: list[int] = []

        async def read() -> None:
            while len(quickly) < 202:
                quickly.extend(tail.record.seq for tail in await quick.next(5))

        await asyncio.gather(read(), write(store, held, 200, random.Random(1)))
        assert quickly == list(range(1, 203)), "the neighbour is not held up"
        count, _ = slow.buffered
        assert count <= 10
        got: list[int] = []
        while len(got) < 200:
            got.extend(tail.record.seq for tail in await slow.next(5))
        assert got == list(range(3, 203))
        assert slow.idle


async def test_the_buffer_is_bounded_in_bytes_too(store: Store) -> None:
    held, feed = await begun(store, 1), feed_of(store)
    async with feed.follow({held[0].id: 2}) as slow:
        assert await slow.next(0.01) == []
        await write(store, held, 40, random.Random(1), b'"' + b"x" * 20_000 + b'"')
        await eventually(lambda: _true(slow._behind))
        count, size = slow.buffered
        assert size <= feeds.MAX_BUFFERED_BYTES + 20_002
        assert count <= 8


async def _true(value: Any) -> bool:
    return bool(value)


async def test_all_followers_share_one_query(store: Store) -> None:
    held, feed = await begun(store, 5), feed_of(store)
    reads: list[int] = []
    tails = store.tails.read

    async def counted(after: Any, limit: int = 500) -> Any:
        answer = await tails(after, limit)
        reads.append(len(after))  # afterwards: a read that began before the save may be the one that sees it
        return answer

    store.tails.read = counted  # type: ignore[method-assign]
    followers = [feed.follow({task.id: 2}) for task in held for _ in range(20)]
    for follower in followers:
        assert await follower.next(0) == []
    reads.clear()
    await store.save("w1", Batch([entry(task) for task in held]))
    store.tails.announce()
    for follower in followers:
        assert [tail.record.seq for tail in await follower.next(60)] == [3]
    assert len(reads) <= 3, reads
    assert max(reads) == 5
    for follower in followers:
        feed.remove(follower)


async def test_followers_end_when_the_server_stops(store: Store) -> None:
    closing = asyncio.Event()
    held, feed = await begun(store, 1), feed_of(store, closing=closing)
    async with feed.follow({held[0].id: 2}) as follower:
        assert await follower.next(0) == []
        waiting = asyncio.create_task(_next(follower))
        await asyncio.sleep(0.05)
        closing.set()
        assert await asyncio.wait_for(waiting, 60) == "closed"


async def _next(follower: Follower) -> Any:
    try:
        return await follower.next(600)
    except Closed:
        return "closed"


async def test_the_number_of_followers_has_a_limit(store: Store) -> None:
    feed = feed_of(store, streams=2)
    feed.check_room()
    first, _ = feed.follow({}), feed.follow({})
    with pytest.raises(TooManyStreams, match="2 streams are open") as refused:
        feed.check_room()
    assert refused.value.status == 503
    feed.remove(first)
    feed.check_room()
