"""prune: ended trees are forgotten as a whole, on every store, and their numbers stay taken for workers that slept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core import record as r
from onward.core.task import Message, State
from onward.errors import CannotFork, TaskNotFound
from onward.store.port.core import Batch, Claimed, Content, Store
from onward.store.port.pruning import CHILD, RECENT, UNFINISHED, UNKNOWN, UNTOLD
from tests.kit import Time, begun, claim, completion, entry, join, kinds, new, next_id, only_postgres, sql, submit

PRUNE_AGE_S = 100.0
TABLES = ("tasks", "outcomes", "inbox", "contents", "purses", "outbox", "subscriptions", "queue", "journal")


async def _left(store: Store, *ids: str) -> dict[str, int]:
    """The number of rows of these tasks by table, without the empty ones."""
    counts = {}
    named = ", ".join(f"'{task_id}'" for task_id in ids)
    for table in TABLES:
        column = "id" if table == "tasks" else "task_id"
        ((rows,),) = await sql(store, f"SELECT count(*) FROM onward_{table} WHERE {column} IN ({named})")
        if rows:
            counts[table] = int(rows)
    return counts


async def _ended(store: Store, state: State = State.COMPLETED, **over: Any) -> str:
    """An ended task with a message, a content and records."""
    (task_id,) = await submit(store, new(**over))
    (held,) = await claim(store)
    await store.send(held.id, Message("m1", "signal", "go", None, b"1"))
    await store.save("w1", Batch([entry(held, 1)], contents=[Content(held.id, "a" * 32, b"bytes")]))
    await store.save("w1", completion(held, 2, state))
    return task_id


async def _tree(store: Store) -> tuple[str, str, str, Claimed]:
    """A parent that has ended, an ended child of it, and a grandchild that goes on."""
    parent = await _ended(store)
    child = await _ended(store, parent=parent)
    (grandchild,) = await submit(store, new(parent=child))
    (held,) = await claim(store)
    return parent, child, grandchild, held


async def _prune(store: Store, *ids: str, age: float = PRUNE_AGE_S) -> Any:
    return await store.pruning.prune(ids, age)


async def test_nothing_is_left_of_a_task(store: Store, time: Time) -> None:
    await join(store, "w1")
    task_id, other = await _ended(store, key="order-7"), await _ended(store)
    time.move(PRUNE_AGE_S)
    result = await _prune(store, task_id)
    assert (result.gone, result.kept) == ([task_id], {})
    assert await _left(store, task_id) == {}
    assert await store.get(task_id) is None
    assert await store.journal(task_id) == []
    assert (await store.get(other)).state is State.COMPLETED  # type: ignore[union-attr]
    assert await store.by_key(["order-7"]) == {}
    assert await store.health.census() == []
    again = await _prune(store, task_id)
    assert (again.gone, again.kept) == ([], {task_id: UNKNOWN})


async def test_a_young_task_stays(store: Store, time: Time) -> None:
    await join(store, "w1")
    task_id = await _ended(store)
    time.move(PRUNE_AGE_S - 1)
    assert (await _prune(store, task_id)).kept == {task_id: RECENT}
    time.move(1)
    assert (await _prune(store, task_id)).gone == [task_id]


async def test_a_tree_goes_as_a_whole_or_stays(store: Store, time: Time) -> None:
    await join(store, "w1", lease=10_000)
    parent, child, grandchild, held = await _tree(store)
    time.move(PRUNE_AGE_S)
    result = await _prune(store, parent, child, grandchild)
    assert result.kept == {parent: UNFINISHED, child: CHILD, grandchild: CHILD}
    await store.save("w1", completion(held))
    assert (await _prune(store, parent)).kept == {parent: RECENT}
    time.move(PRUNE_AGE_S)
    result = await _prune(store, grandchild, parent, child)
    assert (result.gone, result.kept) == (sorted([parent, child, grandchild]), {})
    assert await _left(store, parent, child, grandchild) == {}
    assert await store.health.census() == []


@pytest.mark.parametrize("how", ["failed and resumed", "ready"])
async def test_an_unfinished_task_stays(store: Store, time: Time, how: str) -> None:
    await join(store, "w1")
    if how == "ready":
        (task_id,) = await submit(store, new())
    else:
        task_id = await _ended(store, State.FAILED)
        time.move(PRUNE_AGE_S)
        await store.resume(task_id)
    time.move(PRUNE_AGE_S)
    before = await store.journal(task_id)
    assert (await _prune(store, task_id)).kept == {task_id: UNFINISHED}
    assert await store.journal(task_id) == before
    assert await store.health.census() == []


async def test_a_task_with_undelivered_events_stays(store: Store, time: Time) -> None:
    await join(store, "w1")
    task_id = await _ended(store)
    await sql(
        store,
        "INSERT INTO onward_outbox (task_id, seq, subscription, kind, lane, at, due_at) "
        f"VALUES ('{task_id}', 4, 's', 'task.completed', 'l', 0, 0)",
    )
    time.move(PRUNE_AGE_S)
    assert (await _prune(store, task_id)).kept == {task_id: UNTOLD}
    await sql(store, "UPDATE onward_outbox SET state = 'delivered', done_at = 1")
    assert (await _prune(store, task_id)).gone == [task_id]
    assert await _left(store, task_id) == {}


async def _taken_over(store: Store, time: Time) -> tuple[str, Claimed]:
    """A task of which the first worker was declared dead, and which the second ended; and the hold of the first."""
    await join(store, "w1")
    asleep = await begun(store, "w1")
    await store.save("w1", Batch([entry(asleep, 1)]))
    await store.workers.rescue(["w1"])
    await join(store, "w2")
    (second,) = await claim(store, "w2")
    await store.save("w2", completion(second))
    time.move(PRUNE_AGE_S)
    return asleep.id, asleep


async def test_a_worker_that_slept_through_it_finds_the_number_taken(store: Store, time: Time) -> None:
    task_id, asleep = await _taken_over(store, time)
    assert (await _prune(store, task_id)).gone == [task_id]
    assert await _left(store, task_id) == {"journal": 2}, "the fence"
    assert await store.save("w1", Batch([entry(asleep, 2)])) == {task_id}
    assert await store.save("w1", completion(asleep, 2)) == {task_id}
    assert await _left(store, task_id) == {"journal": 2}
    assert await store.journal(task_id) == []
    assert await store.journal(task_id, None) == []
    assert await store.tails.heads([task_id]) == {}
    assert await store.health.census() == []


async def test_without_the_fence_it_would_go_on(store: Store, time: Time) -> None:
    """The proof that the test above can fail."""
    task_id, asleep = await _taken_over(store, time)
    await _prune(store, task_id)
    await sql(store, f"DELETE FROM onward_journal WHERE seq = {asleep.shift + 2}")
    assert await store.save("w1", Batch([entry(asleep, 2)])) == set()
    assert [fault for _, fault in await store.health.census()] != []


async def test_where_not_even_the_fence_is_left_its_predecessor_is_missing(store: Store, time: Time) -> None:
    task_id, asleep = await _taken_over(store, time)
    await _prune(store, task_id)
    await sql(store, "DELETE FROM onward_journal")
    assert await store.save("w1", Batch([entry(asleep, 2)])) == {task_id}
    assert await store.health.census() == []


async def test_a_worker_whose_task_was_cancelled_finds_the_number_taken(store: Store, time: Time) -> None:
    await join(store, "w1")
    asleep = await begun(store, "w1")
    await store.cancel(asleep.id)
    time.move(PRUNE_AGE_S)
    assert (await _prune(store, asleep.id)).gone == [asleep.id]
    assert await store.save("w1", Batch([entry(asleep, 1)])) == {asleep.id}
    assert await _left(store, asleep.id) == {"journal": 2}


async def test_a_worker_that_sends_a_written_record_again_finds_the_number_taken(store: Store, time: Time) -> None:
    task_id, asleep = await _taken_over(store, time)
    await _prune(store, task_id)
    assert await store.save("w1", Batch([entry(asleep, 1)])) == {task_id}, "its last record, of which it got no answer"
    assert await store.journal(task_id) == []


async def test_a_pruned_task_gets_no_children(store: Store, time: Time) -> None:
    await join(store, "w1")
    parent = await _ended(store)
    await _ended(store, parent=parent, key=f"{parent}:step")
    time.move(PRUNE_AGE_S)
    assert len((await _prune(store, parent)).gone) == 2
    for group in (None, "g"):
        for child in (
            [new(parent=parent, key=f"{parent}:step", group=group)],
            [new(parent=parent, group=group) for _ in range(2)],
        ):
            with pytest.raises(TaskNotFound):
                await store.submit(child)
    assert await sql(store, "SELECT count(*) FROM onward_tasks") == [(0,)]
    assert await store.health.census() == []


async def test_a_fork_stays_whole_and_a_pruned_task_has_no_forks(store: Store, time: Time) -> None:
    await join(store, "w1")
    origin, fork = await _ended(store), next_id()
    await store.fork(fork, origin, 3, input=b"null", inbox=0)
    time.move(PRUNE_AGE_S)
    before = await store.journal(fork)
    await _prune(store, origin)
    assert await store.journal(fork) == before
    assert await store.contents(fork, ["a" * 32]) == {"a" * 32: b"bytes"}
    with pytest.raises(TaskNotFound):
        await store.fork(next_id(), origin, 3, input=b"null", inbox=0)
    assert await store.health.census() == []


async def test_the_old_ones_are_found_in_order(store: Store, time: Time) -> None:
    await join(store, "w1", lease=10_000)
    parent, _, _, _ = await _tree(store)
    old = [parent, *[await _ended(store) for _ in range(3)]]
    time.move(PRUNE_AGE_S)
    await _ended(store)
    assert await store.pruning.prunable(PRUNE_AGE_S, "", "z", 10) == sorted(old)
    assert await store.pruning.prunable(PRUNE_AGE_S, old[1], "z", 1) == [old[2]]
    assert await store.pruning.prunable(PRUNE_AGE_S, "", old[2], 10) == old[:2]


@only_postgres
async def test_a_key_that_is_pruned_while_it_is_submitted_again(
    store: Any, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The insert meets the key, and the lookup after it finds no such key any more."""
    await join(store, "w1")
    task_id = await _ended(store, key="k")
    time.move(PRUNE_AGE_S)
    look = store._submitted

    async def pruned_first(*args: Any) -> Any:
        await _prune(store, task_id)
        return await look(*args)

    monkeypatch.setattr(store, "_submitted", pruned_first)
    task = new(key="k")
    ((submitted_id, created, _),) = await store.submit([task])
    assert (submitted_id, created) == (task.id, True)
    assert await store.get(task_id) is None
    assert await store.health.census() == []


@only_postgres
@pytest.mark.parametrize("turn", range(20))
async def test_against_resume_and_fork_a_prune_leaves_no_half_task(
    store: Store, time: Time, turn: int, open_another: Any
) -> None:
    await join(store, "w1")
    other = await open_another()
    task_id = await _ended(store, State.FAILED)
    time.move(PRUNE_AGE_S)
    fork = next_id()
    calls = [_prune(store, task_id), other.resume(task_id), other.fork(fork, task_id, 3, input=b"null", inbox=0)]
    answers = await asyncio.wait_for(asyncio.gather(*(calls if turn % 2 else calls[::-1]), return_exceptions=True), 60)
    assert all(not isinstance(item, Exception) or isinstance(item, TaskNotFound | CannotFork) for item in answers), (
        answers
    )
    assert await store.health.census() == []
    if await store.get(task_id) is None:
        assert await _left(store, task_id) == {}
    else:
        assert (await kinds(store, task_id))[-1] == r.RESUMED
    if await store.get(fork) is not None:
        assert len(await store.journal(fork)) == 4
