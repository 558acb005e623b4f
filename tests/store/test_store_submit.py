"""submit: tasks, queue rows and first records; all or none; a known key or id returns the task it belongs to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core.task import State
from onward.store.port.core import Store, Submitted
from tests.kit import Time, begun, claim, completion, crashes, join, kinds, new, not_memory, sql, submit, waiting


async def counts(store: Store) -> tuple[int, ...]:
    rows = await sql(
        store,
        "SELECT (SELECT count(*) FROM onward_tasks), (SELECT count(*) FROM onward_queue), (SELECT count(*) FROM onward_journal)",
    )
    return tuple(rows[0])


async def test_a_task_is_there_with_its_queue_row_and_its_first_record(store: Store, time: Time) -> None:
    wanted = new(input=b'{"service":"web"}', options=b'{"labels":{"team":"a"}}', queue="deploys", priority=7, key="k")
    assert await store.submit([wanted]) == [Submitted(wanted.id, created=True, fingerprint="f1")]
    task = await store.get(wanted.id)
    assert task is not None
    assert (task.task, task.input, task.labels, task.queue, task.priority, task.key) == (
        "work",
        {"service": "web"},
        {"team": "a"},
        "deploys",
        7,
        "k",
    )
    assert (task.state, task.reason, task.attempt, task.worker) == (State.PENDING, "queued", 1, None)
    assert task.created_at == task.updated_at == time.now
    assert (task.result, task.error, task.finished_at, task.due_at, task.deadline_at) == (None,) * 5
    (record,) = await store.journal(wanted.id)
    assert (record.seq, record.shift, record.kind, record.data, record.at) == (1, 0, "task.submitted", b"{}", time.now)
    assert await store.health.census() == []


async def test_many_in_one_commit_in_their_order(store: Store) -> None:
    tasks = [new(input=b"%d" % n) for n in range(300)]
    answers = await store.submit(tasks)
    assert [a.id for a in answers] == [t.id for t in tasks]
    assert all(a.created for a in answers)
    await join(store, "w1")
    assert [c.input for c in await claim(store, room=300)] == [t.input for t in tasks]


async def test_all_or_none(store: Store) -> None:
    """The last of them cannot be written; the others must not be there either."""
    tasks = [new(), new(), new()._replace(input=None)]  # type: ignore[arg-type]
    with pytest.raises(Exception):  # noqa: B017 -- each database has its own word for it
        await store.submit(tasks)
    assert await counts(store) == (0, 0, 0)


async def test_nothing_is_submitted_by_an_empty_list(store: Store) -> None:
    assert await store.submit([]) == []
    assert await counts(store) == (0, 0, 0)


async def test_a_key_gives_the_task_it_belongs_to(store: Store) -> None:
    first, again, other = new(key="k"), new(key="k"), new(key="k", fingerprint="f2")
    await store.submit([first])
    assert await store.submit([again]) == [Submitted(first.id, created=False, fingerprint="f1")]
    (answer,) = await store.submit([other])
    assert (answer.id, answer.created) == (first.id, False)
    assert answer.fingerprint != other.fingerprint, "the caller compares"
    assert await counts(store) == (1, 1, 1)


async def test_a_key_twice_in_one_submit(store: Store) -> None:
    task, two, free = new(key="k"), new(key="k"), new()
    assert [(a.id, a.created) for a in await store.submit([task, two, free])] == [
        (task.id, True),
        (task.id, False),
        (free.id, True),
    ]
    assert await counts(store) == (2, 2, 2)


async def test_old_and_new_keys_in_one_submit(store: Store) -> None:
    old, fresh, plain = new(key="old"), new(key="fresh"), new()
    await store.submit([old])
    answers = await store.submit([new(key="old"), fresh, plain])
    assert [(a.id, a.created) for a in answers] == [(old.id, False), (fresh.id, True), (plain.id, True)]


async def test_a_key_stays_with_its_task_after_the_end(store: Store) -> None:
    wanted = new(key="k")
    await store.submit([wanted])
    await join(store, "w1")
    (held,) = await claim(store)
    await store.save("w1", completion(held))
    assert await store.submit([new(key="k")]) == [Submitted(wanted.id, created=False, fingerprint="f1")]
    assert await counts(store) == (1, 0, 3)


async def test_an_id_sent_again_is_the_same_task(store: Store) -> None:
    """A submit whose answer was lost is sent again, as it was."""
    wanted = new()
    first = await store.submit([wanted])
    assert await store.submit([wanted]) == first == [Submitted(wanted.id, created=True, fingerprint="f1")]
    assert await counts(store) == (1, 1, 1)


async def test_an_id_sent_again_when_its_task_runs_or_has_ended_changes_nothing(store: Store) -> None:
    wanted = new(key="k")
    await store.submit([wanted])
    await join(store, "w1")
    (held,) = await claim(store)
    await store.submit([wanted])
    assert (await store.get(wanted.id)).state is State.RUNNING  # type: ignore[union-attr]
    await store.save("w1", completion(held))
    assert [a.id for a in await store.submit([wanted])] == [wanted.id]
    assert (await store.get(wanted.id)).state is State.COMPLETED  # type: ignore[union-attr]
    assert await store.health.census() == []


async def test_a_hundred_at_once_with_one_key_are_one_task(store: Store, open_another: Any, kind: str) -> None:
    doors = [store] if kind == "sqlite memory" else [store, await open_another(), await open_another()]
    answers = await asyncio.gather(*[doors[n % len(doors)].submit([new(key="k")]) for n in range(100)])
    assert len({answer.id for (answer,) in answers}) == 1
    assert sum(answer.created for (answer,) in answers) == 1
    assert await counts(store) == (1, 1, 1)


async def test_many_at_once_with_keys_in_other_orders(store: Store, open_another: Any, kind: str) -> None:
    """Two bulk submits that share keys in opposite orders would wait for each other if each locked in its own order."""
    other = store if kind == "sqlite memory" else await open_another()

    async def send(door: Store, order: list[str]) -> list[str]:
        return [a.id for a in await door.submit([new(key=key) for key in order])]

    for turn in range(4):
        keys = [f"{turn}-{n}" for n in range(300)]
        forward, backward = await asyncio.gather(send(store, keys), send(other, keys[::-1]))
        assert forward == backward[::-1]
    assert await counts(store) == (1200, 1200, 1200)


async def test_a_delayed_task_waits_for_its_time(store: Store, time: Time) -> None:
    (later,) = await submit(store, new(delay=60.0))
    task = await store.get(later)
    assert task is not None
    assert (task.state, task.reason, task.due_at) == (State.PENDING, "delayed", time.now + 60)
    await join(store, "w1", lease=1000)
    assert await claim(store) == []
    time.move(59)
    await store.wake()
    assert await claim(store) == []
    time.move(1)
    await store.wake()
    assert [c.id for c in await claim(store)] == [later]


async def test_payloads_come_back_byte_for_byte(store: Store) -> None:
    every = bytes(range(32, 256)) * 3
    wanted = new(
        input=b'"\x00' + every + b'"',
        options=b"{ }",
        key="schl\u00fcssel \U0001f600",
        queue="k\u00f6",
        task="\u4efb\u52a1",
    )
    await store.submit([wanted])
    await join(store, "w1")
    (held,) = await claim(store, queue="k\u00f6", names=["\u4efb\u52a1"])
    assert (held.input, held.options, held.task) == (wanted.input, wanted.options, wanted.task)
    (again,) = await store.submit([new(key="schl\u00fcssel \U0001f600")])
    assert again.id == wanted.id


async def test_depth_counts_the_tasks_that_wait_for_a_start(store: Store, time: Time) -> None:
    assert (await store.queues.depth("default")).waiting == 0
    await join(store, "w1", "w2", lease=1000)
    held = await begun(store, "w1")
    await submit(store, new(), new(), new(delay=100.0), new(queue="other"))
    await store.save("w1", waiting(held, time.now + 50, "asleep"))
    depth = await store.queues.depth("default")
    assert depth.waiting == 3, "two ready and one delayed; a task that called sleep does not wait for a start"
    assert (await store.queues.depth("other")).waiting == 1
    assert depth.rate == 0
    await store.workers.heartbeat("w1", 10, 5.0)
    await store.workers.heartbeat("w2", 10, 2.5)
    assert (await store.queues.depth("default")).rate == 7.5


@not_memory
async def test_another_process_sees_a_submitted_task(store: Store, open_another: Any) -> None:
    (task_id,) = await submit(store)
    other = await open_another()
    assert (await other.get(task_id)).state is State.PENDING
    assert await kinds(other, task_id) == ["task.submitted"]
    assert await crashes(other, task_id) == 0
