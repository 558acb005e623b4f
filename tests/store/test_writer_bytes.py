"""Commits are bounded in bytes: large records go alone and beside the small ones, and one that took too long is halved."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from onward import Onward, Retry
from onward.core import record as r
from onward.core.control import Fenced
from onward.core.task import State
from onward.errors import OnwardError, TooSlow
from onward.store.port.core import Batch, End, Store
from onward.store.postgres import save as postgres_save
from onward.store.postgres import session as postgres_session
from onward.store.sqlite.store import SqliteStore
from onward.store.writer import LARGE_BYTES, MAX_BYTES, MAX_UNSAVED_BYTES, Hold, Writer
from rig.postgres import Postgres
from rig.proxy import Proxy
from tests.kit import Gate, dense, only_memory, only_postgres
from tests.store.test_writer import Desk, desk, fate, step  # noqa: F401 -- a fixture


def write(writer: Writer, hold: Hold, size: int, key: str = "s") -> asyncio.Future[None]:
    return writer.append(hold, r.STEP_DONE, key, b"x" * size)


@pytest.fixture
def gate(desk: Desk) -> Gate:  # noqa: F811
    """Holds the first commit with a large record until it is opened."""
    gate = Gate()

    async def before(batch: Batch) -> None:
        if batch.bytes > LARGE_BYTES:
            await gate()

    desk.before = before
    return gate


async def test_a_commit_has_a_size_in_bytes(desk: Desk) -> None:  # noqa: F811
    holds = await desk.holds(40)
    await asyncio.gather(*[write(desk.writer, hold, 100_000) for hold in holds])
    assert sum(len(batch.entries) for batch in desk.batches) == 40
    assert max(batch.bytes for batch in desk.batches) <= MAX_BYTES


async def test_large_records_go_alone(desk: Desk, store: Store) -> None:  # noqa: F811
    holds = await desk.holds(10)
    sizes = [LARGE_BYTES + 1 if number % 2 else 100 for number in range(10)]
    await asyncio.gather(*[write(desk.writer, hold, size) for hold, size in zip(holds, sizes, strict=True)])
    assert [len(batch.entries) for batch in desk.batches if batch.bytes > LARGE_BYTES] == [1] * 5
    assert sum(len(batch.entries) for batch in desk.batches) == 10


async def test_small_ones_do_not_wait_for_a_large_one(desk: Desk, gate: Gate) -> None:  # noqa: F811
    large, small = await desk.holds(2)
    first = write(desk.writer, large, LARGE_BYTES + 1)
    await gate.reached.wait()
    for number in range(5):
        await asyncio.wait_for(step(desk.writer, small, f"s{number}"), 60)
    assert not first.done()
    gate.opened.set()
    await first


async def test_the_order_within_a_task_stays(desk: Desk, store: Store, gate: Gate) -> None:  # noqa: F811
    """A small record after a large one of the same task waits for it, and a large one for the small ones before it."""
    hold, other = await desk.holds(2)
    futures = [
        step(desk.writer, hold, "a"),
        write(desk.writer, hold, LARGE_BYTES + 1, "b"),
        step(desk.writer, hold, "c"),
        write(desk.writer, hold, LARGE_BYTES + 2, "d"),
    ]
    await gate.reached.wait()
    futures.append(step(desk.writer, hold, "e"))
    assert await fate(step(desk.writer, other)) is None
    assert [record.key for record in await store.journal(hold.id, after=2)] == ["a"]
    gate.opened.set()
    await asyncio.gather(*futures)
    futures.append(desk.writer.settle(hold, r.COMPLETED, b"{}", End(hold.id, State.COMPLETED, 1, 0)))
    await futures[-1]
    assert [record.key for record in await store.journal(hold.id, after=2)] == ["a", "b", "c", "d", "e", ""]
    assert await dense(store, hold.id)
    assert (hold.large, hold.unsaved) == (0, 0)


@only_memory
@pytest.mark.parametrize("seed", range(20))
async def test_journals_are_always_dense_and_in_order(
    desk: Desk,  # noqa: F811
    store: Store,
    seed: int,
) -> None:
    """Appends, mentions, contents and reads of all sizes, with commits that take too long: each journal has the records of its task
    in order, and contents are there with the record they were kept for."""
    rng = random.Random(seed)
    holds = await desk.holds(6)
    written: dict[str, list[str]] = {hold.id: [] for hold in holds}
    kept: list[tuple[Hold, str]] = []

    async def before(batch: Batch) -> None:
        await asyncio.sleep(rng.choice([0, 0, 0.001]))
        if rng.random() < 0.1:
            raise TooSlow("the store", "planted")

    desk.before = before

    async def task(hold: Hold) -> None:
        for number in range(15):
            key, data = f"{number}", b"x" * rng.choice([10, 10, 1000, LARGE_BYTES + 1])
            if rng.random() < 0.3:
                desk.writer.keep(hold, key, b"c" * rng.choice([5, LARGE_BYTES]))
                kept.append((hold, key))
            written[hold.id].append(key)
            match rng.randrange(4):
                case 0:
                    desk.writer.mention(hold, r.PROGRESS, key, data)
                case 1:
                    desk.writer.defer(hold, r.STEP_DONE, key, data)
                case 2:
                    await desk.writer.append(hold, r.STEP_DONE, key, data)
                    assert set(await store.contents(hold.id, names := [k for h, k in kept if h is hold])) == set(names)
                case _:
                    desk.writer.mention(hold, r.PROGRESS, key, data)
                    await desk.writer.flushed(hold)
        await desk.writer.flushed(hold)

    await asyncio.gather(*map(task, holds))
    for hold in holds:
        assert [record.key for record in await store.journal(hold.id, after=2)] == written[hold.id]
        assert (hold.large, hold.unsaved, hold.contents or {}) == (0, 0, {})


async def test_a_lost_hold_loses_its_records_in_both_queues(desk: Desk, store: Store, gate: Gate) -> None:  # noqa: F811
    ahead, lost, fine = await desk.holds(3)
    first = write(desk.writer, ahead, LARGE_BYTES + 1)
    await gate.reached.wait()
    futures = [write(desk.writer, lost, LARGE_BYTES + 1), step(desk.writer, lost)]
    others = write(desk.writer, fine, LARGE_BYTES + 1)
    desk.writer.lose([lost])
    assert [type(await fate(future)) for future in futures] == [Fenced, Fenced]
    gate.opened.set()
    assert [await fate(first), await fate(others)] == [None, None]
    assert len(await store.journal(lost.id)) == 2
    assert (lost.large, lost.unsaved) == (0, 0)


async def test_a_large_record_that_the_database_refuses_gives_its_number_back(desk: Desk, store: Store) -> None:  # noqa: F811
    hold = await desk.hold()

    async def before(batch: Batch) -> None:
        if batch.bytes > LARGE_BYTES:
            raise ValueError("too much")

    desk.before = before
    assert await fate(step(desk.writer, hold, "a")) is None
    assert isinstance(await fate(write(desk.writer, hold, LARGE_BYTES + 1, "b")), OnwardError)
    assert await fate(step(desk.writer, hold, "told instead")) is None
    assert [record.key for record in await store.journal(hold.id, after=2)] == ["a", "told instead"]


async def test_a_commit_that_took_too_long_is_halved_until_it_goes(desk: Desk, store: Store) -> None:  # noqa: F811
    holds = await desk.holds(60)
    most = 4

    async def before(batch: Batch) -> None:
        if len(batch.entries) > most:
            raise TooSlow("the store", "planted")

    desk.before = before
    await asyncio.wait_for(asyncio.gather(*[step(desk.writer, hold) for hold in holds]), 60)
    for hold in holds:
        assert await dense(store, hold.id)
        assert len(await store.journal(hold.id)) == 3
    assert len(desk.batches) < 80, "by halves, not one by one"


async def test_one_task_that_took_too_long_gets_more_time(desk: Desk) -> None:  # noqa: F811
    hold = await desk.hold()

    async def before(batch: Batch) -> None:
        if batch.patience < 4:
            raise TooSlow("the store", "planted")

    desk.before = before
    await asyncio.wait_for(write(desk.writer, hold, LARGE_BYTES + 1), 60)
    assert [batch.patience for batch in desk.batches] == [4.0] * 3, "the same batch, with more time at each try"


async def test_a_task_that_sends_much_waits_before_it_begins_more(app: Onward) -> None:
    """No caller waits for the records of reads: without a bound they would gather in memory for as long as the task runs."""
    most = 0

    @app.task(name="reader", retry=Retry(attempts=1), checkpoint="every_iteration")
    async def reader(ctx: Any, _: Any) -> int:
        nonlocal most
        for number in range(30):
            await ctx.step(read, number, effect="read")
            most = max(most, ctx._host.hold.unsaved)
        return number

    async def read(number: int) -> str:
        return f"{number}" * 500_000

    async with app.worker():
        assert await (await app.submit("reader")).result(timeout=120) == 29
    assert 0 < most < MAX_UNSAVED_BYTES + 3_000_000


# ── a slow line ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@only_postgres
async def test_a_slow_line_slows_down_only_tasks_that_send_much(
    postgres: Postgres, url: str, prove: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of many megabytes over a line of 10 MB/s, which all of them together take longer than a statement may."""
    large, size, patience = (60, 15_000_000, 15.0) if prove else (16, 3_000_000, 2.0)
    monkeypatch.setattr(postgres_session, "STATEMENT_TIMEOUT_S", patience)
    monkeypatch.setattr(postgres_save, "STATEMENT_TIMEOUT_S", patience, raising=False)
    payload = random.Random(1).randbytes(size // 2).hex()
    with Proxy("127.0.0.1", postgres.port) as proxy:
        app = Onward(proxy.url_for(url), lease_s=6.0, heartbeat_s=0.5, poll_s=0.05, slots=large + 20)

        @app.task(name="large", retry=1)
        async def big(ctx: Any, number: int) -> int:
            await ctx.step(make, number)
            return number

        async def make(number: int) -> str:
            return payload + f"{number}"

        @app.task(name="small", retry=1)
        async def little(ctx: Any, number: int) -> int:
            for name in "abc":
                await ctx.step(same, number, name=name)
            return number

        async def same(number: int) -> int:
            return number

        async with app, app.worker() as worker:
            name = worker.id
            proxy.rate = 10_000_000
            tasks = [await app.submit("large", number) for number in range(large)]
            done = 0
            for number in itertools.count():
                assert await (await app.submit("small", number)).result(timeout=60) == number
                states = [(await app.get(task.id)).state for task in tasks]
                done += 1
                if all(state is State.COMPLETED for state in states) or number > 5000:
                    break
            proxy.rate = 0.0
            assert set(states) == {State.COMPLETED}
            assert worker.id == name, "its heartbeat got through"
        assert done > large / 2, "small tasks were done all the while"


@only_postgres
async def test_a_statement_that_takes_too_long_raises_too_slow(store: Any) -> None:
    with pytest.raises(TooSlow, match="did not answer in time"):
        async with store._db.connection() as connection:
            await connection.execute("SELECT pg_sleep(5)", timeout=0.05)
    assert await store.workers.list() == [], "the store goes on with another connection"


# ── other large reads ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_large_journal_is_read_in_parts_and_whole(desk: Desk, store: Any) -> None:  # noqa: F811
    """On a slow line the journal of a task with large results could not be read in the time of a statement: no worker could go on."""
    hold = await desk.hold()
    sizes = [3_000_000, 10, 5_000_000, 10, 10, 2_000_000, 2_000_000, 100]
    for number, size in enumerate(sizes):
        await write(desk.writer, hold, size, f"{number}")
    statements: list[str] = []
    fetch = None if isinstance(store, SqliteStore) else store._db.fetch
    if fetch is not None:

        async def counted(name: str, /, **values: Any) -> Any:
            rows = await fetch(name, **values)
            statements.append(name)
            assert sum(len(row["data"]) for row in rows[:-1]) < 4_000_000
            return rows

        store._db.fetch = counted
    for after, limit in ((0, 1000), (2, 1000), (4, 3), (None, 1000), (9, 1000), (10, 5), (0, 3)):
        records = await store.journal(hold.id, after, limit)
        first = (after or 0) + 1
        assert [record.seq for record in records] == list(range(first, min(first + limit, 11)))
    assert fetch is None or len(statements) > 10


async def test_a_claim_that_took_too_long_is_sent_in_halves(app: Onward) -> None:
    """Inputs have no bound either."""

    @app.task(name="work", retry=1)
    async def work(ctx: Any, number: int) -> int:
        return number

    rooms: list[int] = []
    claim = app.store.claim

    async def slow(worker: str, queue: str, names: Any, room: int, **more: Any) -> Any:
        rooms.append(room)
        if room > 2:
            raise TooSlow("the store", "planted")
        return await claim(worker, queue, names, room, **more)

    app.store.claim = slow  # type: ignore[method-assign]
    tasks = [await app.submit("work", number) for number in range(20)]
    async with app.worker(slots=16):
        assert [await task.result(timeout=60) for task in tasks] == list(range(20))
    assert rooms[:4] == [12, 6, 3, 1]  # a claim takes as many as one tenant may hold: three quarters
