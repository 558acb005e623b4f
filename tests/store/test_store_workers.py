"""join, beat, leave, rescue, release: one row carries the lease of all tasks of a worker; another worker that finds it dead frees them."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from onward.core import record as r
from onward.core.task import State
from onward.store.port.core import Batch, Store
from tests.kit import (
    Time,
    begun,
    claim,
    completion,
    crashes,
    entry,
    eventually,
    join,
    kinds,
    new,
    only_postgres,
    row,
    sql,
    submit,
    waiting,
)


async def test_a_worker_row_comes_back_as_it_was_written(store: Store, time: Time) -> None:
    joined = row(
        "w1",
        machine="boot/pid:[1]",
        host="büro",
        pid=77,
        slots=5,
        names=("a", "b"),
        queues=("q",),
        address="udp:9",
        version="1.2",
    )
    assert await store.workers.join(joined, 10) == time.now
    (known,) = await store.workers.list()
    for name in ("id", "machine", "host", "pid", "slots", "names", "queues", "address", "version"):
        assert getattr(known, name) == getattr(joined, name)
    assert (known.started_at, known.lease_until, known.rate) == (time.now, time.now + 10, 0.0)


async def test_joining_twice_is_joining_once(store: Store, time: Time) -> None:
    await join(store, "w1")
    await join(store, "w1")
    assert [w.id for w in await store.workers.list()] == ["w1"]


async def test_a_heartbeat_prolongs_the_lease_and_returns_the_held_tasks(store: Store, time: Time) -> None:
    held = await begun(store)
    await submit(store)
    time.move(6)
    beat = await store.workers.heartbeat("w1", 20, 1.5)
    assert (beat.alive, beat.now, beat.held) == (True, time.now, frozenset({held.id}))
    (known,) = await store.workers.list()
    assert (known.lease_until, known.rate) == (time.now + 20, 1.5)


async def test_a_late_heartbeat_still_counts_before_a_rescue(store: Store, time: Time) -> None:
    await begun(store)
    time.move(1000)
    assert (await store.workers.heartbeat("w1", 10, 0)).alive
    assert await store.workers.rescue([], 5) == 0


async def test_a_heartbeat_of_the_dead(store: Store) -> None:
    held = await begun(store)
    await store.workers.rescue(["w1"])
    beat = await store.workers.heartbeat("w1", 10, 0)
    assert (beat.alive, beat.held) == (False, frozenset())
    assert await store.workers.list() == []
    assert not (await store.workers.heartbeat("never joined", 10, 0)).alive
    assert (await store.get(held.id)).state is State.PENDING  # type: ignore[union-attr]


async def test_leave_gives_everything_back_and_counts_nothing(store: Store) -> None:
    held = await begun(store)
    await join(store, "w2")
    (other,) = await submit(store)
    await claim(store, "w2")
    await store.workers.leave("w1")
    assert [w.id for w in await store.workers.list()] == ["w2"]
    task = await store.get(held.id)
    assert task is not None
    assert (task.state, task.reason, task.attempt) == (State.PENDING, "queued", 1)
    assert await crashes(store, held.id) == 0
    assert (await store.get(other)).worker == "w2"  # type: ignore[union-attr]
    await store.workers.leave("w1")


# ── rescue ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_rescue_frees_the_tasks_of_the_dead_alone(store: Store) -> None:
    tasks = [await begun(store, worker) for worker in ("w1", "w2", "w1")]
    assert await store.workers.rescue(["w1", "unknown"]) == 2
    assert [(await store.get(o.id)).state for o in tasks] == [State.PENDING, State.RUNNING, State.PENDING]  # type: ignore[union-attr]
    assert [w.id for w in await store.workers.list()] == ["w2"]
    assert await store.workers.rescue(["w1"]) == 0
    assert await store.health.census() == []


async def test_rescue_of_ended_leases(store: Store, time: Time) -> None:
    await join(store, "late", lease=10)
    await join(store, "alive", lease=100)
    await submit(store, new(), new())
    await claim(store, "late", 1)
    await claim(store, "alive", 1)
    time.move(9)
    assert await store.workers.rescue([], 5) == 0
    time.move(2)
    assert await store.workers.rescue([]) == 0, "no worker is named, and leases are judged only with `lease`"
    assert await store.workers.rescue([], 5) == 1
    assert [w.id for w in await store.workers.list()] == ["alive"]


@only_postgres
async def test_a_lease_that_ended_while_the_database_was_down_is_left_alone(store: Store, time: Time) -> None:
    """No worker could prolong it then. An ended lease counts only when the database has been up for a lease."""
    await begun(store)
    ((up,),) = await sql(store, "SELECT onward_now() - extract(epoch FROM pg_postmaster_start_time())::float8")
    time.move(11)
    assert await store.workers.rescue([], up + 20) == 0
    assert await store.workers.rescue([], up + 1) == 1


async def test_rescue_counts_a_crash_when_the_shift_left_nothing(store: Store) -> None:
    (task_id,) = await submit(store)
    for n in range(3):
        await join(store, f"w{n}")
        await claim(store, f"w{n}")
        await store.workers.rescue([f"w{n}"])
        assert await crashes(store, task_id) == n + 1
    assert (await store.get(task_id)).attempt == 1, "a crash is no failure"  # type: ignore[union-attr]


@pytest.mark.parametrize("news", [r.STEP_STARTED, r.STEP_RETRY, r.STEP_WAITS, r.ARTIFACT, r.PROGRESS])
async def test_news_are_no_progress(store: Store, news: str) -> None:
    held = await begun(store)
    await store.save("w1", Batch([entry(held, 1, news)]))
    await store.workers.rescue(["w1"])
    assert await crashes(store, held.id) == 1


@pytest.mark.parametrize("done", [r.STEP_DONE, r.STEP_FAILED, r.SLEEP])
async def test_a_shift_that_got_something_done_has_not_crashed_for_nothing(store: Store, done: str) -> None:
    held = await begun(store, "w1")
    await store.workers.rescue(["w1"])
    await join(store, "w2")
    (held,) = await claim(store, "w2")
    await store.save("w2", Batch([entry(held, 1, done)]))
    assert await crashes(store, held.id) == 1
    await store.workers.rescue(["w2"])
    assert await crashes(store, held.id) == 0, "the count is of crashes in a row"


async def test_a_shift_that_got_something_done_and_then_began_a_long_step(store: Store) -> None:
    """The port: a crash counts for each task that had no new record in its shift. This one had; that its last record is
    the announcement of the next step does not matter. Otherwise a task of long steps whose worker is killed once in each
    of them would be quarantined, although it gets on every time."""
    held = await begun(store)
    await store.save("w1", Batch([entry(held, 1), entry(held, 2, r.STEP_STARTED), entry(held, 3, r.PROGRESS)]))
    await store.workers.rescue(["w1"])
    assert await crashes(store, held.id) == 0


async def test_progress_of_an_earlier_shift_does_not_count_for_this_one(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", Batch([entry(held, 1)]))
    await store.workers.rescue(["w1"])
    for n in range(2):
        await join(store, f"x{n}")
        await claim(store, f"x{n}")
        await store.workers.rescue([f"x{n}"])
        assert await crashes(store, held.id) == n + 1


async def test_orphans_are_found_by_the_next_rescue(store: Store) -> None:
    """Tasks of a worker without a row: it claimed in the very moment in which it was declared dead."""
    held = await begun(store)
    await sql(store, "DELETE FROM onward_workers")
    assert await store.health.census() == [(held.id, "is held by a worker that does not exist")]
    assert await store.workers.rescue([]) == 1
    assert await store.health.census() == []


async def test_rescue_against_settle(store: Store, open_another: Any, kind: str) -> None:
    """A worker that is declared dead while it settles: either it has settled, or another worker may go on; never both."""
    other = store if kind == "sqlite memory" else await open_another()
    await join(store, "next")
    for n in range(30):
        held = await begun(store, f"w{n}")
        refused, freed = await asyncio.gather(store.save(f"w{n}", completion(held)), other.workers.rescue([f"w{n}"]))
        assert refused == set(), "no other worker wrote to its journal"
        assert freed in {0, 1}
        assert (await store.get(held.id)).state is State.COMPLETED  # type: ignore[union-attr]
        assert await claim(store, "next") == []
    assert await store.health.census() == []


async def test_rescue_against_claim(store: Store, open_another: Any, kind: str) -> None:
    """A worker that claims while it is declared dead: the task is either not claimed or freed by this rescue or the next."""
    other = store if kind == "sqlite memory" else await open_another()
    for n in range(30):
        await join(store, f"w{n}")
        (task_id,) = await submit(store)
        await asyncio.gather(claim(store, f"w{n}"), other.workers.rescue([f"w{n}"]))
        await store.workers.rescue([])
        assert (await store.get(task_id)).state is State.PENDING  # type: ignore[union-attr]
        await store.cancel(task_id)
    assert await store.health.census() == []


async def test_many_rescue_at_once(store: Store, open_another: Any, kind: str) -> None:
    other = store if kind == "sqlite memory" else await open_another()
    await join(store, "w1")
    ids = await submit(store, *[new() for _ in range(50)])
    await claim(store, "w1", 50)
    freed = await asyncio.gather(*[door.workers.rescue(["w1"]) for door in (store, other) for _ in range(5)])
    assert sum(freed) == 50
    assert [await crashes(store, task_id) for task_id in ids] == [1] * 50


async def test_a_zombie_may_write_until_another_worker_claims(store: Store) -> None:
    """Declared dead, but no worker has claimed since: its number is still the next one, so its record is kept."""
    held = await begun(store)
    await store.workers.rescue(["w1"])
    assert await store.save("w1", Batch([entry(held)])) == set()
    await join(store, "w2")
    (again,) = await claim(store, "w2")
    assert again.shift == 4
    assert await store.save("w1", Batch([entry(held, 2)])) == {held.id}


# ── release ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_release_gives_back_the_tasks_of_this_worker_only(store: Store, time: Time) -> None:
    mine, kept = await begun(store, "w1"), await begun(store, "w1")
    theirs = await begun(store, "w2")
    asleep = await begun(store, "w1")
    await store.save("w1", waiting(asleep, time.now + 5, "asleep"))
    await store.release("w1", [mine.id, theirs.id, asleep.id, "nobody"], time.now)
    assert [(await store.get(x.id)).state for x in (mine, kept, theirs, asleep)] == [  # type: ignore[union-attr]
        State.PENDING,
        State.RUNNING,
        State.RUNNING,
        State.WAITING,
    ]
    assert await crashes(store, mine.id) == 0
    await store.release("w1", [], time.now)
    (again,) = await claim(store, "w2")
    assert (again.id, again.attempt) == (mine.id, 1)


async def test_a_release_that_comes_late_frees_nothing_that_was_claimed_again(store: Store, time: Time) -> None:
    held, seen = await begun(store), time.now
    time.move(1)
    await store.release("w1", [held.id], seen)
    assert [again.id for again in await claim(store)] == [held.id]
    await store.release("w1", [held.id], seen)
    assert (await store.get(held.id)).state is State.RUNNING  # type: ignore[union-attr]
    time.move(-0.5)
    await store.release("w1", [held.id], seen)
    assert (await store.get(held.id)).state is State.PENDING, "the clock was set back, and it is old"  # type: ignore[union-attr]


# ── handlers, nudges, presence ───────────────────────────────────────────────────────────────────────────────────────


async def test_handlers_are_registered_and_updated(store: Store) -> None:
    assert await store.handlers.registered() == {}
    await store.handlers.register([("b", b"1"), ("a", b"2")])
    await store.handlers.register([("b", b"3")])
    assert await store.handlers.registered() == {"a": b"2", "b": b"3"}
    await store.handlers.register([])
    await asyncio.gather(
        *[store.handlers.register([("x", b"1"), ("y", b"1")][:: 1 if n % 2 else -1]) for n in range(20)]
    )
    assert set(await store.handlers.registered()) == {"a", "b", "x", "y"}


async def test_a_nudge_reaches_the_listeners_of_its_topic(store: Store) -> None:
    topics: list[str] = []
    stop = store.listen("ready", lambda: topics.append("ready"))
    store.listen("ended", lambda: topics.append("ended"))
    await asyncio.sleep(0.2)  # the listener on PostgreSQL calls once when it has connected
    topics.clear()
    store.nudge("ready")
    assert topics == ["ready"], "in this process at once"
    stop()
    topics.clear()
    store.nudge("ready")
    assert topics == []


@pytest.mark.parametrize("kind", ["sqlite file", "postgres"], indirect=True)
async def test_a_nudge_reaches_other_processes(store: Store, open_another: Any) -> None:
    other = await open_another()
    nudged = asyncio.Event()
    address = await other.workers.attend("w9")
    assert address
    await other.workers.join(row("w9", address=address), 10)
    other.listen("ready", nudged.set)
    await asyncio.sleep(0.2)
    nudged.clear()
    store.nudge("ready")
    await asyncio.wait_for(nudged.wait(), 60)


@only_postgres
async def test_a_presence_lock_that_is_free_is_seen(store: Any, open_another: Any) -> None:
    other = await open_another()
    assert await other.workers.attend("w1") == "lock"
    await store.workers.join(row("w1", address="lock"), 10)
    await store.workers.join(row("w2", address=""), 10)
    await store.workers.join(row("gone", address="lock"), 10)
    assert await store.workers.absent(0.0) == {"gone"}, "w2 never had one"
    assert await store.workers.absent(1e9) == set(), "a database that has just restarted knows nothing about presence"
    await other.close()

    async def seen() -> bool:
        return bool(await store.workers.absent(0.0) == {"gone", "w1"})

    await eventually(seen)


@only_postgres
async def test_several_workers_of_one_process_are_all_present(store: Any, open_another: Any) -> None:
    other = await open_another()
    names = ["w1", "w2", "w3"]
    for name in names:
        assert await other.workers.attend(name) == "lock"
        await store.workers.join(row(name, address="lock"), 10)
    assert await store.workers.absent(0.0) == set()
    await sql(
        store, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onward listener'"
    )

    async def all_back() -> bool:
        await asyncio.sleep(0.1)
        return bool(await store.workers.absent(0.0) == set())

    await eventually(all_back)
    await other.workers.leave("w2")
    await store.workers.join(row("w2", address="lock"), 10)
    assert await store.workers.absent(0.0) == {"w2"}, "the lock of a worker that left is free"


@only_postgres
async def test_presence_survives_a_server_that_ends_in_mid_sentence(
    store: Any, open_another: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.store.postgres.listener.CHECK_EVERY_S", 0.05)
    other = await open_another()
    assert await other.workers.attend("w1") == "lock"
    await store.workers.join(row("w1", address="lock"), 10)
    listener, sessions = other._nudges._listener, []
    ask = listener._run_statement

    async def broken_once(name: str, *values: Any) -> None:
        if not sessions:
            sessions.append(listener._connection)
            raise asyncpg.InternalClientError("another operation is in progress")
        await ask(name, *values)

    monkeypatch.setattr(listener, "_run_statement", broken_once)

    async def anew() -> bool:
        return bool(sessions and listener._ready.is_set() and listener._connection is not sessions[0])

    await eventually(anew)
    assert await store.workers.absent(0.0) == set()


async def test_a_file_or_memory_leaves_presence_to_the_kernel(store: Store, kind: str) -> None:
    await join(store, "w1")
    if kind != "postgres":
        assert await store.workers.absent(1.0) == set()
    assert store.one_machine == (kind != "postgres")


async def test_a_worker_leaves_its_mark_in_each_shift(store: Store) -> None:
    held = await begun(store, "w1")
    await store.save("w1", waiting(held, None, "queued"))
    await join(store, "w2")
    (again,) = await claim(store, "w2")
    await store.save("w2", completion(again))
    assert await kinds(store, held.id) == [r.SUBMITTED, r.SHIFT, r.HANDED_BACK, r.SHIFT, r.COMPLETED]
    assert [x.value["worker"] for x in await store.journal(held.id) if x.kind == r.SHIFT] == ["w1", "w2"]
