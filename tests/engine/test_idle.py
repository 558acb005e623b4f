"""The cost of an idle worker: statements, connections, and how many workers one task wakes. Counted, not timed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

import apsw
import psycopg
import pytest

from onward import Onward
from onward.core.task import State
from onward.engine.worker.claiming import MAX_IDLE_POLLS
from onward.engine.worker.lease import Lease
from onward.engine.worker.maintenance import MIN_TURN_INTERVAL_S, WATCH_INTERVAL_S, Maintenance
from onward.engine.worker.presence import machine_id
from onward.errors import BadSetting
from onward.store.port.core import Outlook, Store
from onward.store.postgres import pool
from rig.postgres import Postgres
from tests.kit import (
    HandClock,
    Through,
    eventually,
    join,
    new,
    not_memory,
    only_file,
    only_postgres,
    row,
    running,
    sql,
    submit,
)

MAX_STATEMENTS_PER_S = 2
WINDOW_S = 30.0
"""Long enough for the mean: some statements come once in five seconds, and the deletion of old rows once in a minute."""


@pytest.fixture(scope="module")
def counting() -> Iterator[Postgres]:
    """A server that counts statements."""
    settings = {"fsync": "off", "shared_preload_libraries": "pg_stat_statements"}
    with running(Postgres(settings=settings)) as server:
        yield server


async def is_idle(app: Onward) -> None:
    """Waits until the worker has added the counts of the tasks that it ended, and polls as rarely as it can."""

    async def added() -> bool:
        return bool(await app.store.minutes.since(0))

    await eventually(added)
    await asyncio.sleep(app.settings.poll_s * MAX_IDLE_POLLS * 2)


@pytest.mark.slow
async def test_an_idle_worker_asks_at_most_twice_a_second_over_three_connections(
    counting: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 1.0)
    url = counting.database("idle")
    app = Onward(url)

    @app.task
    async def work(ctx: Any) -> int:
        return 1

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_stat_statements")
        async with app.worker():
            handles = [await app.submit(work) for _ in range(20)]
            for handle in handles:
                await handle.result(timeout=60)
            await is_idle(app)
            connection.execute("SELECT pg_stat_statements_reset()")
            await asyncio.sleep(WINDOW_S)
            statements = connection.execute(
                "SELECT calls, query FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat%' ORDER BY calls DESC"
            ).fetchall()
            assert sum(calls for calls, _ in statements) <= MAX_STATEMENTS_PER_S * WINDOW_S, statements

            async def few() -> bool:
                query = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'idle' AND pid <> pg_backend_pid()"
                counted = connection.execute(query).fetchone()
                return counted is not None and counted[0] <= 3

            await eventually(few)


@pytest.mark.slow
@only_file
async def test_an_idle_worker_of_a_file_begins_at_most_two_transactions_a_second(url: str) -> None:
    begun = 0

    def count(_cursor: Any, statement: str, _values: Any) -> bool:
        nonlocal begun
        begun += statement.startswith("BEGIN")
        return True

    def connected(connection: apsw.Connection) -> None:
        connection.set_exec_trace(count)

    apsw.connection_hooks.append(connected)
    try:
        app = Onward(url)

        @app.task
        async def work(ctx: Any) -> int:
            return 1

        async with app.worker():
            await (await app.submit(work)).result(timeout=60)
            await is_idle(app)
            begun = 0
            await asyncio.sleep(WINDOW_S)
            assert 0 < begun <= MAX_STATEMENTS_PER_S * WINDOW_S
    finally:
        apsw.connection_hooks.remove(connected)


# ── nudges ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def crew(url: str, many: int, claims: list[int], **settings: Any) -> AsyncIterator[list[Onward]]:
    """`many` workers, each with a store of its own, as processes have; each claim appends the worker's number to `claims`."""
    async with contextlib.AsyncExitStack() as stack:
        apps = [_counted(url, number, claims, **settings) for number in range(many)]
        for app in apps:
            await stack.enter_async_context(app.worker())
        yield apps


async def quiet(claims: list[int]) -> None:
    """Waits until no worker has claimed for a while: a worker that has just begun to listen looks once."""
    while claims:
        claims.clear()
        await asyncio.sleep(0.5)


def _counted(url: str, number: int, claims: list[int], **settings: Any) -> Onward:
    app = Onward(url, rng=random.Random(number), **{"poll_s": 5.0, **settings})
    plain = app.store.claim

    async def claim(*args: Any, **kwargs: Any) -> Any:
        claims.append(number)
        return await plain(*args, **kwargs)

    app._join(Through(app.store, claim=claim))  # type: ignore[arg-type]

    @app.task
    async def work(ctx: Any) -> int:
        return number

    @app.task
    async def block(ctx: Any) -> int:
        await asyncio.sleep(3600)
        return number

    return app


@pytest.mark.slow
@not_memory
async def test_one_task_wakes_few_of_many_idle_workers(url: str) -> None:
    claims: list[int] = []
    async with crew(url, 8, claims, poll_s=300.0), Onward(url) as client:
        for _ in range(5):
            await quiet(claims)
            handle = await client.submit("work")
            assert await handle.result(timeout=60) in claims
            assert len(set(claims)) <= 3, "one for the task, one to spare, and one that happened to look"


@not_memory
async def test_many_tasks_wake_all_workers(url: str) -> None:
    claims: list[int] = []
    async with crew(url, 3, claims, slots=1, poll_s=300.0), Onward(url) as client:
        await quiet(claims)
        handles = await client.submit_many("work", [None] * 60)
        for handle in handles:
            await handle.result(timeout=60)
        assert set(claims) == {0, 1, 2}


@pytest.mark.slow
@not_memory
async def test_a_full_worker_passes_a_nudge_on(url: str) -> None:
    """The nudge chooses workers without knowing whether they have room. With three of four full, the idle one still receives it long
    before it polls. The tasks come fast, so that full workers have to pass on more nudges than they may send at once."""
    claims: list[int] = []
    async with crew(url, 4, claims, slots=1, grace_s=0.0, poll_s=300.0), Onward(url) as client:
        for _ in range(3):
            await client.submit("block")

        async def all_held() -> bool:
            tasks, _ = await client.list(state=State.RUNNING)
            return len(tasks) == 3

        await eventually(all_held)
        for _ in range(20):
            await (await client.submit("work")).result(timeout=60)


@not_memory
async def test_polling_alone_is_enough(url: str) -> None:
    """With every nudge lost, an idle worker finds a task after MAX_IDLE_POLLS polls at the latest."""
    async with _deaf(url).worker(), _deaf(url) as client:
        await asyncio.sleep(1)
        assert await (await client.submit("work")).result(timeout=60) == 1


def _deaf(url: str) -> Onward:
    app = Onward(url, poll_s=0.1)
    app._join(Through(app.store, nudge=lambda *_: None))  # type: ignore[arg-type]

    @app.task
    async def work(ctx: Any) -> int:
        return 1

    return app


@not_memory
async def test_a_task_with_a_delay_is_started_in_time_by_idle_workers(url: str) -> None:
    """A nudge tells one worker when the task is due; no worker polls before."""
    claims: list[int] = []
    async with crew(url, 3, claims, poll_s=300.0), Onward(url) as client:
        await quiet(claims)
        await (await client.submit("work", delay=1.0)).result(timeout=60)


@only_postgres
async def test_the_end_of_a_task_wakes_only_processes_that_wait_for_one(url: str) -> None:
    async with Onward(url) as idle, Onward(url) as waiting, Onward(url) as ending:
        topics: dict[str, list[str]] = {"idle": [], "waiting": []}
        for name, app in (("idle", idle), ("waiting", waiting)):
            nudges = app.store._nudges  # type: ignore[attr-defined]
            nudges.hub.heard = topics[name].append
            app.store.listen("outbox", lambda *_: None)

        async def listens(name: str, topic: str) -> bool:
            return topic in topics[name]

        await eventually(lambda: listens("idle", "ready"))
        waiting.store.listen("ended", lambda *_: None)
        await eventually(lambda: listens("waiting", "ended"))  # nudges before it listened may have been missed
        topics["waiting"].clear()
        ending.store.nudge("ended")
        ending.store.nudge("outbox")
        await eventually(lambda: listens("waiting", "ended"))
        await eventually(lambda: listens("idle", "outbox"))
        assert "ended" not in topics["idle"]


@only_postgres
async def test_a_look_that_takes_long_delays_no_nudged_claim(url: str) -> None:
    """The look reads the schedules, and a claim does not: a lock on them stops the look alone."""
    app = Onward(url)

    @app.task
    async def work(ctx: Any) -> int:
        return 1

    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as witness:
        async with app.worker():
            assert await (await app.submit(work)).result(timeout=20) == 1
            other.execute("LOCK TABLE onward_schedules IN ACCESS EXCLUSIVE MODE")

            async def waits() -> bool:
                blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
                return (witness.execute(blocked).fetchone() or (0,))[0] > 0

            await eventually(waits)
            for _ in range(3):
                assert await (await app.submit(work)).result(timeout=10) == 1
            assert await waits(), "VOID: the look was not stopped"
            other.rollback()


# ── upkeep ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def upkeep_of(worker: str, store: Any, clock: HandClock) -> Maintenance:
    """The maintenance of a worker that begins nothing."""
    services: Any = types.SimpleNamespace(
        id=worker,
        store=store,
        clock=clock,
        rng=random.Random(worker),
        lease=Lease(clock, 10.0),
        now=clock.now,
        spawn=lambda work, _: work.close(),
    )
    return Maintenance(services, lambda _: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("many", [2, 3, 5, 8])
async def test_workers_of_several_machines_take_turns_at_looking_for_absent_ones(many: int) -> None:
    """In every half second one of them looks, and never two at once; each at most once a second."""
    clock = HandClock()
    rows = [row(f"w{n}", machine=f"m{n}", address="lock") for n in range(many)]
    crews = []

    async def workers() -> Any:
        return rows

    for number in range(many):
        store: Any = Through(None, one_machine=False, inline=False, **{"workers.list": workers})
        upkeep = upkeep_of(f"w{number}", store, clock)
        await upkeep._check_workers(Outlook(False, (), None, (), (many, 1.0)))
        crews.append(upkeep)
    took: list[tuple[float, int]] = []
    for _ in range(400):
        clock.jump(0.05)
        took += [(clock.time, n) for n, upkeep in enumerate(crews) if upkeep.takes_turn() is not None]
    gaps = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(took)]
    assert max(gaps) <= max(WATCH_INTERVAL_S, MIN_TURN_INTERVAL_S if many == 1 else 0) + 0.1
    assert min(gaps) >= WATCH_INTERVAL_S - 0.1
    assert {n for _, n in took} == set(range(many))


async def test_where_the_kernel_watches_no_worker_takes_turns() -> None:
    clock = HandClock()

    async def workers() -> Any:
        return [row("w0", machine=machine_id(), pid=1, address="lock"), row("w1", address="")]

    store: Any = Through(None, one_machine=False, inline=False, **{"workers.list": workers})
    upkeep = upkeep_of("w1", store, clock)
    await upkeep._check_workers(Outlook(False, (), None, (), (2, 1.0)))
    assert upkeep.takes_turn() is None
    upkeep.close()


async def test_a_look_returns_the_work_of_maintenance(store: Store, time: Any) -> None:
    first = await store.wake()
    assert (first.crew[0], first.lost, first.children, first.next_tick_in) == (0, False, False, None)
    await join(store, "w1")
    second = await store.wake()
    assert second.crew != first.crew
    assert not second.lost
    (parent,) = await submit(store)
    await submit(store, new(parent=parent))
    assert (await store.wake()).children
    time.move(11)
    assert (await store.wake()).lost, "its lease has ended"
    await store.workers.heartbeat("w1", 10, 0)
    assert not (await store.wake()).lost
    await store.claim("w1", "default", ["work"], 1)
    assert not (await store.wake()).lost
    await sql(store, "DELETE FROM onward_workers")
    assert (await store.wake()).lost, "a task is held by a worker that does not exist"


async def test_a_look_names_the_queues_with_work_for_these_handlers(store: Store) -> None:
    await submit(store, new("a", queue="q1"), new("b", queue="q2"), new("a", queue="q3"), new("c", queue="q3"))
    assert (await store.wake()).queues == ("q1", "q2", "q3")
    assert (await store.wake(["a"])).queues == ("q1", "q3")
    assert (await store.wake(["b", "c"])).queues == ("q2", "q3")
    assert (await store.wake([])).queues == ()


@only_postgres
async def test_orphans_are_found_from_parent_to_parent(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some parents at a time; every orphan is found after a few calls."""
    monkeypatch.setattr("onward.store.shared.tasks.MAX_PARENTS", 3)
    parents = await submit(store, *[new() for _ in range(10)])
    children = [new(parent=parent) for parent in parents for _ in range(2)]
    await submit(store, *children)
    await store.cancel(parents[8])
    orphans: set[str] = set()
    for _ in range(4):
        orphans |= set(await store.orphans())
    assert orphans == {child.id for child in children if child.parent == parents[8]}


def test_the_number_of_connections_is_a_setting() -> None:
    app = Onward("postgresql://nobody@127.0.0.1/none", connections=5)
    assert app.store._db._max_connections == 3, "beside the heartbeat's and the one that listens"  # type: ignore[attr-defined]
    with pytest.raises(BadSetting, match="4 or more"):
        Onward("sqlite://:memory:", connections=3)
