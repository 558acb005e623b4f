"""Behind PgBouncer in transaction mode: without sessions, prepared statements and LISTEN the store still works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from onward import Onward, State
from onward.app.connect import open_store
from onward.brokers.bell import make_bell
from onward.core import record as r
from onward.core.clock import SystemClock
from onward.core.limit import Limit, LimitRow
from onward.store.port.core import Batch, Store
from onward.store.postgres import nudges
from onward.store.postgres.session import SESSION
from rig.nats import Nats
from rig.pgbouncer import PgBouncer
from rig.postgres import Postgres
from rig.server import Unavailable
from rig.valkey import Valkey
from tests.kit import begun, claim, completion, entry, eventually, join, kinds, new, running, sql, submit, waiting
from tests.store.test_store_migrate import NEXT, open_and_close, plus_one

pytestmark = [pytest.mark.parametrize("kind", ["postgres"], indirect=True), pytest.mark.owner]


@pytest.fixture(scope="module")
def bouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    with running(PgBouncer(postgres.url, settings={"default_pool_size": "6"})) as bouncer:
        yield bouncer


@pytest.fixture
async def pooled(bouncer: PgBouncer, url: str) -> AsyncIterator[Store]:
    # The database was emptied, and the connections that PgBouncer had to it were ended with that.
    with psycopg.connect(bouncer.url_for(url).rsplit("/", 1)[0] + "/pgbouncer", autocommit=True) as admin:
        admin.execute("RECONNECT")
    store = open_store(bouncer.url_for(url))
    await store.open()
    yield store
    await store.close()


async def test_it_is_recognised(pooled: Any, url: str) -> None:
    assert pooled._db.pooled
    assert await pooled.workers.attend("w1") == "", "there is no session to hold a lock in"
    assert (
        "connection",
        True,
        "through a pooler: no LISTEN, polling instead (a bell is faster: set ONWARD_BELL)",
    ) in await pooled.health.doctor()
    direct: Any = open_store(url)
    await direct.open()
    assert not direct._db.pooled
    await direct.close()


async def test_each_transaction_has_the_limits_that_a_session_has_elsewhere(pooled: Any, url: str) -> None:
    async with pooled._db.connection() as connection:
        for name, value in SESSION.items():
            if name != "default_transaction_isolation":
                assert await connection.fetchval(f"SHOW {name}") == value
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
        async with connection.transaction():
            assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "5s"
    async with pooled._db.connection() as connection:
        await connection.execute("COMMIT")
        assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "0", "and leaves none behind"
        await connection.execute("BEGIN")


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.01])
async def test_a_caller_that_is_cancelled_again_and_again_loses_no_connection(pooled: Any, pause_s: float) -> None:
    """The second cancellation comes while the connection ends its transaction."""

    async def sleep() -> None:
        async with pooled._db.connection() as connection:
            await connection.fetch("SELECT pg_sleep(60)")

    for _ in range(3):
        callers = [asyncio.create_task(sleep()) for _ in range(pooled._db.pool._size)]
        await asyncio.sleep(0.2)
        while not all(caller.done() for caller in callers):
            for caller in callers:
                caller.cancel()
            await asyncio.sleep(pause_s)
    assert await asyncio.wait_for(pooled.overview.ended(10), 5) is not None


async def test_every_write_of_the_store(pooled: Store) -> None:
    held = await begun(pooled)
    assert await pooled.save("w1", Batch([entry(held, 1), entry(held, 2)])) == set()
    assert await pooled.save("w1", Batch([entry(held, 1), entry(held, 2)])) == set(), "it knows its own"
    assert await pooled.save("w1", waiting(held, None, "queued", ahead=3)) == set()
    (again,) = await claim(pooled)
    assert await pooled.save("w1", Batch([entry(held, 4)])) == {held.id}
    assert await pooled.save("w1", completion(again)) == set()
    (other,) = await submit(pooled, new(key="k"))
    known, _ = await pooled.submit([new(key="k"), new()])
    assert known.id == other
    assert await pooled.cancel(other)
    assert not await pooled.resume(other)
    assert (await pooled.workers.heartbeat("w1", 10, 1.0)).alive
    assert (await pooled.wake()).queues == ("default",)
    await pooled.workers.leave("w1")
    assert await pooled.migrate() == []
    assert await pooled.health.census() == []


async def test_many_at_once(pooled: Store) -> None:
    await join(pooled, *[f"w{n}" for n in range(8)])
    ids = await submit(pooled, *[new() for _ in range(80)])
    claims = await asyncio.gather(*[claim(pooled, f"w{n % 8}", 5) for n in range(24)])
    got = [held.id for batch in claims for held in batch]
    assert len(set(got)) == len(got)
    assert set(got) <= set(ids)
    refused = await asyncio.gather(*[pooled.save("w", completion(held)) for batch in claims for held in batch])
    assert not any(refused)
    assert await pooled.health.census() == []


@pytest.mark.slow
async def test_a_whole_round_trip_with_a_worker(bouncer: PgBouncer, pooled: Store, url: str) -> None:
    app = Onward(bouncer.url_for(url), lease_s=1.0, heartbeat_s=0.2, poll_s=0.05)
    tries: list[int] = []

    @app.task(retry=2)
    async def work(ctx: Any, n: int) -> int:
        first = await ctx.step(lambda: n + 1, name="one")
        if n == 0 and not tries:
            tries.append(1)
            raise ConnectionError("once")
        await ctx.sleep(1.2)
        return int(await ctx.step(lambda: first * 2, name="two"))

    async with app.worker(slots=20):
        handles = await app.submit_many(work, list(range(30)))
        assert await asyncio.gather(*[h.result(timeout=60) for h in handles]) == [(n + 1) * 2 for n in range(30)]
        stuck = await app.submit(work, 99, delay=100)
        assert (await stuck.cancel()).state is State.CANCELLED
    assert (await kinds(pooled, handles[0].id)).count(r.RETRY) == 1
    assert await pooled.health.census() == []
    assert await pooled.workers.list() == []


async def test_a_bouncer_that_is_away_for_a_while(bouncer: PgBouncer, pooled: Store, url: str) -> None:
    app = Onward(bouncer.url_for(url), lease_s=2.0, heartbeat_s=0.2, poll_s=0.05)

    @app.task
    async def work(ctx: Any, n: int) -> int:
        return int(await ctx.step(lambda: n, name="one"))

    async with app.worker():
        assert await (await app.submit(work, 1)).result(timeout=60) == 1
        bouncer.kill()
        await asyncio.sleep(0.3)
        bouncer.start()

        async def submitted() -> Any:
            try:
                return await app.submit(work, 2, key="again")
            except Exception:
                return None

        handle = await eventually(submitted)
        assert await handle.result(timeout=60) == 2


async def test_limits_hold_behind_it(pooled: Store) -> None:
    await join(pooled, "w1")
    await pooled.queues.set_limits([LimitRow("task", "work", Limit(concurrency=1))])
    ids = await submit(pooled, *[new(group="web") for _ in range(3)])
    seen = []
    while held := await claim(pooled):
        seen += [task.id for task in held]
        batch = completion(held[0])
        batch.gates = {task.id: task.gate for task in held if task.gate is not None}
        await pooled.save("w1", batch)
    assert seen == ids


async def test_a_migration_with_an_index(bouncer: PgBouncer, fresh_url: str) -> None:
    await open_and_close(fresh_url)
    through = bouncer.url_for(fresh_url)
    script = "ALTER TABLE onward_tasks ADD COLUMN extra text;\nCREATE INDEX onward_extra ON onward_tasks (extra);"
    stores: list[Any] = [plus_one(open_store(through), script) for _ in range(2)]
    await asyncio.gather(*[store.open(migrate=True) for store in stores])
    for store in stores:
        assert store._db.pooled
        assert await store.version() == (NEXT, NEXT)
        assert await sql(store, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'onward_extra'::regclass") == [
            (True,)
        ]
        await store.close()


@pytest.fixture(params=["redis", "nats"])
def ringer(request: pytest.FixtureRequest) -> Iterator[Valkey | Nats]:
    """A broker that carries nudges."""
    try:
        broker = (Valkey() if request.param == "redis" else Nats()).start()
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield broker
    broker.close()


async def test_a_bell_carries_nudges_past_the_pooler(pooled: Any, ringer: Valkey | Nats) -> None:
    other: Any = open_store(pooled.url)
    for store in (pooled, other):
        store.bell = make_bell("shop", {"shop": ringer.url}, SystemClock())
    await other.open()
    heard: list[str] = []
    try:
        assert not pooled.receives_nudges
        pooled.listen("ready", lambda *_: heard.append("ready"))
        pooled.listen("ended", lambda *_: heard.append("ended"))
        await eventually(lambda: _now(pooled.receives_nudges), 10)
        await asyncio.sleep(0.1)
        heard.clear()
        other.nudge("ready", ["t1"])
        other.nudge("ended")
        await eventually(lambda: _now({"ready", "ended"} <= set(heard)), 10)
        await asyncio.to_thread(ringer.kill)
        await eventually(lambda: _now(not pooled.receives_nudges), 10)
        await asyncio.to_thread(ringer.start)
        heard.clear()
        await eventually(lambda: _now(pooled.receives_nudges), 20)
        assert "ready" in heard, "a nudge may have been missed"
    finally:
        await other.close()


async def test_doctor_says_whether_the_bell_rings(
    pooled: Any, ringer: Valkey | Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connection() -> tuple[bool | None, str]:
        ((_, fine, text),) = [check for check in await pooled.health.doctor() if check[0] == "connection"]
        return fine, text

    pooled.bell = make_bell("shop", {"shop": ringer.url}, SystemClock())
    pooled.listen("ready", lambda *_: None)
    assert await connection() == (True, "through a pooler: no LISTEN, the bell rings instead")
    await asyncio.to_thread(ringer.kill)
    await eventually(lambda: _now(not pooled.receives_nudges), 10)
    monkeypatch.setattr(nudges, "BELL_TIMEOUT_S", 0.1)
    fine, text = await connection()
    assert fine is None
    assert "the broker of the bell does not answer" in text


async def test_a_follower_sees_records_by_the_bell(pooled: Any, ringer: Valkey | Nats) -> None:
    other: Any = open_store(pooled.url)
    for store in (pooled, other):
        store.bell = make_bell("shop", {"shop": ringer.url}, SystemClock())
    await other.open()
    news: list[int] = []
    try:
        other.listen("ready", lambda *_: None)  # as a worker does
        stop = pooled.tails.follow(lambda: news.append(1))
        await eventually(lambda: _now(other.receives_nudges and pooled.receives_nudges), 10)

        async def announced() -> bool:
            news.clear()
            other.tails.announce()
            await asyncio.sleep(0.05)
            return bool(news)

        await eventually(announced, 10)
        stop()
    finally:
        await other.close()


async def _now(value: Any) -> Any:
    return value
