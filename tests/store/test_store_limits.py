"""limit, with claim, save and submit: never more held than allowed, groups take turns, no task is forgotten."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import pytest

from onward.core.limit import Limit, LimitRow, gate_of
from onward.core.task import State
from onward.store.port.core import Batch, Claimed, Store
from onward.store.postgres import limits as postgres_limits
from tests.kit import Time, claim, completion, join, new, only_postgres, row, sql, submit, together, waiting


async def limited(store: Store, task: str = "work", **numbers: Any) -> None:
    await store.queues.set_limits([LimitRow("task", task, Limit(**numbers))])


async def groups(store: Store, *names: str | None, **over: Any) -> list[str]:
    """Submits a task for each of these groups, together."""
    return await submit(store, *[new(group=name, **over) for name in names])


def with_gates(batch: Batch, *held: Claimed) -> Batch:
    """Adds the gates of the held tasks to the batch, as the writer does."""
    batch.gates = {task.id: task.gate for task in held if task.gate is not None}
    return batch


async def finish(store: Store, *held: Claimed) -> None:
    assert await store.save("w1", with_gates(together(*[completion(task) for task in held]), *held)) == set()


async def reasons(store: Store, *ids: str) -> list[str | None]:
    return [(await store.get(task_id)).reason for task_id in ids]  # type: ignore[union-attr]


# ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_groups_get_their_turns(store: Store) -> None:
    await join(store, "w1")
    heavy = await groups(store, *["a"] * 6)
    light = await groups(store, "b", "b", "c")
    order = [task.id for task in await claim(store)]
    assert set(order[:3]) == {heavy[0], light[0], light[2]}
    assert set(order[3:5]) == {heavy[1], light[1]}
    assert order[5:] == heavy[2:]


async def test_one_by_one_they_get_the_same_turns(store: Store) -> None:
    await join(store, "w1")
    for _ in range(6):
        await groups(store, "a")
    for _ in range(2):
        await groups(store, "b")
    order = [(await store.get(task.id)).group for task in await claim(store)]  # type: ignore[union-attr]
    assert sorted(order[:4]) == ["a", "a", "b", "b"]
    assert order[4:] == ["a"] * 4


async def test_a_late_group_starts_where_the_others_are(store: Store) -> None:
    """It starts neither before them, although they had turns before, nor behind all waiting tasks."""
    await join(store, "w1")
    await groups(store, *["a"] * 20)
    await finish(store, *await claim(store))
    await groups(store, *["b"] * 10)
    order = [(await store.get(task.id)).group for task in await claim(store, room=10)]  # type: ignore[union-attr]
    assert sorted(order) == ["a"] * 5 + ["b"] * 5


async def test_tasks_without_a_group_keep_their_order_and_are_not_held_up_by_a_heavy_one(store: Store) -> None:
    await join(store, "w1")
    await groups(store, *["a"] * 300)
    plain = await submit(store, new(), new())
    order = [task.id for task in await claim(store, room=20)]
    assert [item for item in order if item in plain] == plain


async def test_priority_goes_before_turns(store: Store) -> None:
    await join(store, "w1")
    await groups(store, "a", "a", "b")
    urgent = await groups(store, "a", "a", priority=5)
    assert [task.id for task in await claim(store, room=2)] == urgent


async def test_a_task_knows_its_group_also_after_a_resume(store: Store) -> None:
    await join(store, "w1")
    (task_id,) = await groups(store, "acme")
    assert (await store.get(task_id)).group == "acme"  # type: ignore[union-attr]
    (held,) = await claim(store)
    await store.save("w1", completion(held, state=State.FAILED))
    assert await store.resume(task_id)
    await limited(store, concurrency=1)
    (held,) = await claim(store)
    assert held.gate == gate_of("work", "acme")


async def test_groups_keep_keys_and_answers(store: Store) -> None:
    mine = new(key="k", group="a")
    first = await store.submit([mine])
    again = await store.submit([new(key="k", group="a"), new(group="b")])
    assert first[0].created
    assert (again[0].id, again[0].created, again[1].created) == (mine.id, False, True)
    assert (await store.submit([mine]))[0].id == mine.id, "sent again after a lost answer"


# ── how many at once ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_of_a_group_at_a_time(store: Store) -> None:
    await join(store, "w1")
    await limited(store, concurrency=1)
    web, again, shop = await groups(store, "web", "web", "shop")
    held = await claim(store)
    assert {task.id for task in held} == {web, shop}
    assert await reasons(store, again) == ["quota"]
    assert (await store.get(again)).state is State.PENDING  # type: ignore[union-attr]
    assert await claim(store) == []
    await finish(store, *[task for task in held if task.id == shop])
    assert await claim(store) == [], "that was another group's place"
    await finish(store, *[task for task in held if task.id == web])
    assert await reasons(store, again) == ["queued"], "in the commit that let go"
    assert [task.id for task in await claim(store)] == [again]


async def test_without_a_group_the_limit_is_for_all_of_a_name(store: Store) -> None:
    await join(store, "w1")
    await limited(store, concurrency=2)
    await submit(store, *[new() for _ in range(4)], new("other"))
    held = await claim(store, names=["work", "other"])
    assert sorted(task.task for task in held) == ["other", "work", "work"]
    assert [task.gate for task in held if task.task == "other"] == [None]


async def test_a_limit_of_another_task_or_queue_changes_nothing(store: Store) -> None:
    await join(store, "w1")
    await limited(store, "another", concurrency=1)
    await store.queues.set_limits([LimitRow("queue", "another", Limit(concurrency=1))])
    await groups(store, "a", "a", "a")
    held = await claim(store)
    assert [task.gate for task in held] == [None] * 3


async def test_order_within_a_group_stays(store: Store) -> None:
    await join(store, "w1")
    await limited(store, concurrency=1)
    ids = await groups(store, *["web"] * 5)
    seen: list[str] = []
    for number in itertools.count():
        if not (held := await claim(store)):
            break
        seen += [task.id for task in held]
        if number == 1:
            ids += await groups(store, "web", "web")
        await finish(store, *held)
    assert seen == ids


@pytest.mark.parametrize("reason", ["asleep", "parked"])
async def test_a_task_that_waits_gives_up_its_place(store: Store, time: Time, reason: str) -> None:
    await join(store, "w1", lease=100)
    await limited(store, concurrency=1)
    first, second = await groups(store, "web", "web")
    (held,) = await claim(store)
    await store.save("w1", with_gates(waiting(held, time.now + 5, reason), held))
    assert [task.id for task in await claim(store)] == [second]
    time.move(6)
    assert (await store.wake()).woken
    assert await claim(store) == []
    assert await reasons(store, first) == ["quota"]


async def test_the_dead_free_their_places(store: Store) -> None:
    await join(store, "w1", "w2")
    await limited(store, concurrency=1)
    first, second = await groups(store, "web", "web")
    assert [task.id for task in await claim(store, "w2")] == [first]
    assert await claim(store) == []
    assert await store.workers.rescue(["w2"]) == 1
    (held,) = await claim(store)
    assert held.id == first, "it goes on before others begin"
    await finish(store, held)
    assert [task.id for task in await claim(store)] == [second]


async def test_leaving_and_giving_back_free_places(store: Store) -> None:
    await join(store, "w1", "w2")
    await limited(store, concurrency=1)
    (first,) = await groups(store, "web")
    await claim(store, "w2")
    await store.release("w2", [first], 1e12)
    assert [task.id for task in await claim(store, "w2")] == [first]
    await store.workers.leave("w2")
    assert [task.id for task in await claim(store)] == [first]


@pytest.mark.parametrize("cancelled_index", [0, 1, 2])
async def test_cancelling_frees_the_place_for_the_next(store: Store, cancelled_index: int) -> None:
    """Whether the cancelled task was held, let in, or waiting."""
    await join(store, "w1")
    await limited(store, concurrency=1)
    ids = await groups(store, *["web"] * 4)
    (held,) = await claim(store)
    assert held.id == ids[0]
    if cancelled_index == 1:
        await finish(store, held)
    assert await store.cancel(ids[cancelled_index])
    if cancelled_index == 2:
        await finish(store, held)
    left = [task_id for task_id in ids if task_id not in {ids[0], ids[cancelled_index]}]
    for wanted in left:
        (held,) = await claim(store)
        assert held.id == wanted
        await finish(store, held)
    assert await claim(store) == []
    assert await store.health.census() == []


async def test_a_crowd_that_waits_blocks_no_other_group(store: Store) -> None:
    await join(store, "w1")
    await limited(store, concurrency=1)
    await groups(store, *["web"] * 1500, priority=9)
    behind = await groups(store, "shop", "mail", priority=0)
    held = await claim(store, room=3)
    assert [task.id for task in held[1:]] == behind
    ((ready,),) = await sql(store, "SELECT count(*) FROM onward_queue WHERE worker IS NULL AND due_at IS NULL")
    assert ready == 0, "those that wait are not among the ready ones"
    assert (await store.queues.depth("default")).waiting == 1499, "but a full queue is full"


async def test_a_suspect_stays_behind_its_limit(store: Store) -> None:
    await join(store, "w1")
    await limited(store, concurrency=1)
    suspect, other = await groups(store, "web", "web")
    await sql(store, f"UPDATE onward_queue SET crashes = 3 WHERE task_id = '{suspect}'")
    assert [task.id for task in await claim(store)] == [other]
    assert await claim(store, alone=True) == []
    assert await reasons(store, suspect) == ["quota"]


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_so_many_of_a_queue_at_once(store: Store) -> None:
    await join(store, "w1", "w2")
    await store.queues.set_limits([LimitRow("queue", "gpu", Limit(concurrency=3))])
    await submit(store, *[new(queue="gpu") for _ in range(5)], *[new() for _ in range(5)])
    first = await claim(store, "w1", 2, "gpu")
    second = await claim(store, "w2", 5, "gpu")
    assert (len(first), len(second)) == (2, 1)
    assert [task.gate for task in first + second] == [""] * 3
    assert await claim(store, "w1", 5, "gpu") == []
    assert len(await claim(store)) == 5, "another queue"
    await finish(store, first[0])
    assert len(await claim(store, "w2", 5, "gpu")) == 1
    assert await store.workers.rescue(["w2"]) == 2
    assert len(await claim(store, "w1", 5, "gpu")) == 2


async def test_a_queue_and_a_group_may_both_be_limited(store: Store) -> None:
    await join(store, "w1")
    await store.queues.set_limits(
        [LimitRow("queue", "default", Limit(concurrency=2)), LimitRow("task", "work", Limit(concurrency=1))]
    )
    await groups(store, "a", "a", "b", "c")
    held = await claim(store)
    assert sorted(task.gate or "" for task in held) == [gate_of("work", "a"), gate_of("work", "b")]
    await finish(store, held[0])
    assert [task.gate for task in await claim(store)] == [gate_of("work", "c")]


# ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_rate_lets_a_burst_through_and_then_one_at_a_time(store: Store, time: Time) -> None:
    await join(store, "w1", lease=1000)
    await limited(store, rate="3/m")
    ids = await groups(store, *["web"] * 6)
    others = await groups(store, "shop")
    order = [task.id for task in await claim(store)]
    assert set(order[:2]) == {ids[0], *others}
    assert order[2:] == ids[1:3]
    assert await claim(store) == []
    for number in range(3, 6):
        assert (await store.wake()).next_due_in == pytest.approx(20)
        time.move(19.9)
        assert not (await store.wake()).woken
        time.move(0.1)
        assert (await store.wake()).woken
        assert [task.id for task in await claim(store)] == [ids[number]]
    assert (await store.wake()).next_due_in is None


async def test_the_unused_rate_is_there_later(store: Store, time: Time) -> None:
    """While no worker claimed, the bucket filled again."""
    await join(store, "w1", lease=1000)
    await limited(store, rate="4/m")
    ids = await groups(store, *["web"] * 9)
    assert len(await claim(store)) == 4
    time.move(45.1)
    assert (await store.wake()).woken
    assert [task.id for task in await claim(store)] == ids[4:7]
    time.move(500)
    await store.wake()
    assert [task.id for task in await claim(store)] == ids[7:]


async def test_burst_one_is_evenly_spaced(store: Store, time: Time) -> None:
    await join(store, "w1", lease=1000)
    await limited(store, rate="600/m", burst=1)
    await groups(store, *["web"] * 5)
    started = 0
    for _ in range(5):
        started += len(await claim(store))
        time.move(0.1)
        await store.wake()
    assert started == 5
    assert await claim(store) == []


async def test_only_the_first_start_counts_for_the_rate(store: Store, time: Time) -> None:
    await join(store, "w1", "w2", lease=1000)
    await limited(store, rate="1/h")
    first, second = await groups(store, "web", "web")
    await claim(store, "w2")
    await store.workers.rescue(["w2"])
    (held,) = await claim(store)
    assert held.id == first, "it goes on after a crash, whatever the rate"
    await store.save("w1", with_gates(waiting(held, time.now + 1, "retrying", 2), held))
    time.move(2)
    await store.wake()
    (held,) = await claim(store)
    assert held.id == first, "and is tried again"
    assert await reasons(store, second) == ["quota"]


async def test_rate_and_concurrency_together(store: Store, time: Time) -> None:
    await join(store, "w1", lease=1000)
    await limited(store, concurrency=1, rate="2/m")
    ids = await groups(store, *["web"] * 3)
    (held,) = await claim(store)
    time.move(40)
    await store.wake()
    assert await claim(store) == [], "one at a time"
    await finish(store, held)
    (held,) = await claim(store)
    assert held.id == ids[1]
    await finish(store, held)
    (held,) = await claim(store)
    await finish(store, held)
    await groups(store, "web")
    assert await claim(store) == [], "the bucket was full again after 40 s, and is empty now"
    assert (await store.wake()).next_due_in == pytest.approx(30)


async def test_cancelling_the_one_that_has_a_time(store: Store, time: Time) -> None:
    await join(store, "w1", lease=1000)
    await limited(store, rate="1/m")
    ids = await groups(store, *["web"] * 4)
    await claim(store)
    assert await store.cancel(ids[1])
    assert await claim(store) == []
    time.move(60)
    assert (await store.wake()).woken
    assert [task.id for task in await claim(store)] == [ids[2]]


async def test_a_clock_that_was_set_back_does_not_stop_a_group(store: Store, time: Time) -> None:
    await join(store, "w1", lease=100_000)
    await limited(store, rate="1/m")
    await groups(store, "web")
    assert len(await claim(store)) == 1
    time.move(-36_000)
    await groups(store, "web")
    assert await claim(store) == []
    assert (await store.wake()).next_due_in == pytest.approx(60)


# ── changing limits ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_raised_lowered_and_lifted(store: Store) -> None:
    await join(store, "w1")
    await limited(store, concurrency=1)
    await groups(store, *["web"] * 9)
    held = await claim(store)
    await limited(store, concurrency=3)
    held += await claim(store)
    assert len(held) == 3
    await limited(store, concurrency=2)
    await finish(store, held.pop())
    assert await claim(store) == []
    await finish(store, held.pop())
    assert len(await claim(store)) == 1
    await store.queues.set_limits([LimitRow("task", "work", None)])
    assert len(await claim(store)) == 5
    assert await store.health.census() == []


async def test_tasks_held_already_count_for_a_new_limit(store: Store) -> None:
    await join(store, "w1")
    await groups(store, "web", queue="gpu")
    (held,) = await claim(store, queue="gpu")
    await limited(store, concurrency=1)
    await store.queues.set_limits([LimitRow("queue", "gpu", Limit(concurrency=2))])
    (waits,) = await groups(store, "web")
    assert await claim(store) == []
    assert await reasons(store, waits) == ["quota"]
    await submit(store, *[new("other", queue="gpu") for _ in range(3)])
    assert len(await claim(store, queue="gpu", names=["other"])) == 1
    assert held.gate is None
    await finish(store, held)
    await store.wake()
    assert [task.id for task in await claim(store)] == [waits], "without a nudge, the next look finds it"


async def test_the_same_limit_again_changes_nothing(store: Store) -> None:
    await join(store, "w1")
    await limited(store, concurrency=1, rate="5/s")
    ids = await groups(store, "web", "web")
    await claim(store)
    await limited(store, concurrency=1, rate="5/s")
    assert await reasons(store, *ids) == ["running", "quota"]


async def test_another_program_learns_of_a_limit(store: Store, open_another: Any, url: str) -> None:
    if url == "sqlite://:memory:":
        other = store
    else:
        other = await open_another()
    await join(store, "w1")
    assert await claim(store) == []
    await limited(other, concurrency=1)
    await groups(other, "web", "web")
    assert len(await claim(store)) == 1
    await other.queues.set_limits([LimitRow("task", "work", None)])
    assert len(await claim(store)) == 1


async def test_many_gates_are_looked_at_by_and_by(store: Store) -> None:
    await join(store, "w1")
    await limited(store, concurrency=1)
    names = [f"s{number:03}" for number in range(120)]
    await groups(store, *names, *names)
    held = await claim(store, room=500)
    assert len(held) == 120
    for task in held:
        await store.save("w1", completion(task))  # without gates: the save frees no place
    assert await claim(store) == []
    for _ in range(4):
        await store.wake()
    assert len(await claim(store, room=500)) == 120


# ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def race(stores: list[Store], most: int, queue_most: int) -> tuple[int, list[str]]:
    """Claimers take and finish tasks as fast as they can. Returns the number of finished tasks, and each excess over a limit."""
    faults: list[str] = []
    done = 0
    holding: dict[str, int] = {}

    async def work(number: int, store: Store) -> None:
        nonlocal done
        worker, idle = f"w{number}", 0
        while idle < 20:
            held = await store.claim(worker, "default", ["work"], 3)
            for task in held:
                assert task.gate is not None
                holding[task.gate] = holding.get(task.gate, 0) + 1
                if holding[task.gate] > most:
                    faults.append(f"{holding[task.gate]} behind {task.gate!r}")
            if sum(holding.values()) > queue_most:
                faults.append(f"{sum(holding.values())} in the queue")
            await asyncio.sleep(0.02)
            for task in held:
                holding[task.gate or ""] -= 1
            if held:
                batch = with_gates(together(*[completion(task) for task in held]), *held)
                assert await store.save(worker, batch) == set()
            done += len(held)
            idle = 0 if held else idle + 1
            await asyncio.sleep(0.002)

    await asyncio.gather(*[work(number, store) for number, store in enumerate(stores)])
    return done, faults


async def crowd(store: Store, open_another: Any, *, queue_most: int = 100) -> list[Store]:
    await store.queues.set_limits(
        [LimitRow("task", "work", Limit(concurrency=2)), LimitRow("queue", "default", Limit(concurrency=queue_most))]
    )
    stores = [await open_another() for _ in range(6)]
    for number in range(6):
        await store.workers.join(row(f"w{number}"), 1000)
    await groups(store, *[f"g{number % 4}" for number in range(200)])
    return stores


@pytest.mark.slow
@only_postgres
@pytest.mark.parametrize("queue_most", [100, 5])
async def test_many_claimers_never_exceed_a_limit_and_forget_no_task(
    store: Store, open_another: Any, queue_most: int
) -> None:
    stores = await crowd(store, open_another, queue_most=queue_most)
    done, faults = await race(stores, 2, queue_most)
    assert faults == []
    assert done == 200, "each free place was given to the next, without maintenance"
    assert await store.health.census() == []


@pytest.mark.slow
@only_postgres
async def test_the_race_finds_a_claim_without_the_lock(
    store: Store, open_another: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: claimers count the held tasks without the lock."""

    async def no_lock(*_: Any) -> None:
        await asyncio.sleep(0.01)

    monkeypatch.setattr(postgres_limits, "_lock", no_lock)
    stores = await crowd(store, open_another)
    _, faults = await race(stores, 2, 100)
    assert faults != []


@pytest.mark.slow
@only_postgres
async def test_claims_and_cancels_at_once(store: Store, open_another: Any) -> None:
    stores = await crowd(store, open_another)
    ids = [task_id for (task_id,) in await sql(store, "SELECT task_id FROM onward_queue ORDER BY task_id")]

    async def cancel() -> int:
        stopped = 0
        for task_id in ids[::3]:
            stopped += (await stores[0].cancel(task_id)).won
            await asyncio.sleep(0)
        return stopped

    async def work(number: int) -> int:
        done, idle = 0, 0
        while idle < 30:
            held = await claim(stores[number], f"w{number}", 3)
            if held:
                batch = with_gates(together(*[completion(task) for task in held]), *held)
                done += len(held) - len(await stores[number].save(f"w{number}", batch))
            idle = 0 if held else idle + 1
            await asyncio.sleep(0.002)
        return done

    stopped, *done = await asyncio.gather(cancel(), *[work(number) for number in range(1, 5)])
    assert stopped + sum(done) == 200
    assert await store.health.census() == []


@pytest.mark.slow
@only_postgres
async def test_with_many_ready_rows_a_claim_and_a_submit_use_their_indexes(store: Any) -> None:
    from onward.store.postgres.execute import S

    await sql(
        store,
        "INSERT INTO onward_queue (task_id, queue, task, priority, reason, grp, turn_group, turn) "
        "SELECT 'x' || n, 'default', 'work', n % 3, 'queued', CASE WHEN n % 2 = 0 THEN 'g' || n % 50 END, "
        "CASE WHEN n % 4 = 0 THEN 'tenant' || n % 20 END, CASE WHEN n % 2 = 0 THEN n * 7 END "
        "FROM generate_series(1, 100000) n",
    )
    await sql(store, "ANALYZE onward_queue")
    params = {"worker": "w1", "queue": "default", "names": ["work"], "room": 10, "alone": False}
    turn = {"queue": "default", "group": "g4", "priority": 1, "turn_group": None}
    turn_of_tenant = turn | {"turn_group": "tenant4"}
    async with store._db.connection() as connection:
        for name, values, index in (
            ("claim", params | {"data": b""}, "onward_queue_name"),
            ("line", params, "onward_queue_name"),
            ("turn", turn, "onward_queue_group"),
            ("turn", turn_of_tenant, "onward_queue_turns"),
        ):
            await connection.execute(f"PREPARE looked_at AS {S[name].sql}")
            given = ", ".join(_literal(value) for value in S[name](**values))
            plan = "\n".join(r[0] for r in await connection.fetch(f"EXPLAIN EXECUTE looked_at({given})"))
            await connection.execute("DEALLOCATE looked_at")
            assert index in plan, plan
            assert name != "turn" or "onward_queue_ready" in plan, plan
            assert not re.search(r"Sort Key: q.priority.*\n\s+->  \w+ (Heap )?Scan", plan), plan
            assert "Seq Scan on onward_queue" not in plan, plan


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "ARRAY[" + ", ".join(_literal(item) for item in value) + "]"
    return str(value) if isinstance(value, bool | int) else "''" if isinstance(value, bytes) else f"'{value}'"
