"""Messages, children and the cancel of a task that has something to undo: the verbs of the programming model."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from onward.core import record as r
from onward.core.task import HEARS, Message, Reason, State
from onward.store.port.core import Batch, Claimed, End, Sent, Stopped, Store, Wait
from tests.kit import (
    Time,
    begun,
    claim,
    completion,
    dense,
    entry,
    join,
    kinds,
    new,
    next_id,
    only_postgres,
    sql,
    submit,
    together,
    waiting,
)


def message(
    id_: str = "m1", ref: int | None = None, kind: str = "signal", name: str = "go", data: bytes = b"1"
) -> Message:
    return Message(id_, kind, name, ref, data)


def waits(held: Claimed, reason: str, inbox: int, due_at: float = math.inf) -> Batch:
    """A settle into waiting, by a shift that has read `inbox` messages."""
    entries = [entry(held, 1, r.HANDED_BACK, "", b"{}")]
    return Batch(entries, waits=[Wait(held.id, due_at, reason, held.attempt, inbox)])


def asking(held: Claimed, kind: str = r.QUESTION) -> Batch:
    """A question, and the settle of a task that waits for the answer."""
    ask = entry(held, 1, kind, "question", b'{"question":"?"}')
    end = entry(held, 2, r.HANDED_BACK, "", b"{}")
    return Batch([ask, end], waits=[Wait(held.id, math.inf, "question", held.attempt, held.inbox)])


def end(held: Claimed, state: State = State.COMPLETED) -> Batch:
    """An end that is sent to the parent."""
    batch = completion(held, state=state)
    return Batch(batch.entries, [item._replace(parent=held.parent) for item in batch.ends])


async def reason(store: Store, task_id: str) -> str | None:
    task = await store.get(task_id)
    assert task is not None
    return task.reason or task.state.value


async def counter(store: Store, task_id: str) -> int:
    ((count,),) = await sql(store, f"SELECT inbox FROM onward_queue WHERE task_id = '{task_id}'")
    return int(count)


async def doors(store: Store, open_another: Any, kind: str) -> tuple[Store, Store]:
    """Two connections to one database, where it can have two."""
    return store, store if kind == "sqlite memory" else await open_another()


# ── send and inbox ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_messages_are_numbered_in_the_order_of_their_arrival(store: Store) -> None:
    (task_id,) = await submit(store)
    assert await store.inbox(task_id) == []
    for number in (1, 2, 3):
        assert await store.send(task_id, message(f"m{number}", data=b"%d" % number)) == Sent(number)
    assert await store.inbox(task_id) == [
        Message(f"m{number}", "signal", "go", None, b"%d" % number, number) for number in (1, 2, 3)
    ]
    assert [m.number for m in await store.inbox(task_id, 1)] == [2, 3]
    assert await store.inbox(task_id, 3) == []
    assert await store.inbox("nobody") == []
    assert await counter(store, task_id) == 3
    assert await reason(store, task_id) == "queued"
    assert await kinds(store, task_id) == [r.SUBMITTED], "only the holder writes the journal"


async def test_a_claim_brings_the_number_of_messages(store: Store) -> None:
    (task_id,) = await submit(store)
    await store.send(task_id, message())
    await join(store, "w1")
    (held,) = await claim(store)
    assert held.inbox == 1


async def test_the_same_message_twice_is_one(store: Store) -> None:
    (task_id,) = await submit(store)
    assert await store.send(task_id, message()) == Sent(1)
    again = await store.send(task_id, message(data=b"2"))
    assert (again.number, again.first) == (1, True)
    assert again.there == Message("m1", "signal", "go", None, b"1", 1)
    assert await counter(store, task_id) == 1
    (other,) = await submit(store)
    assert await store.send(other, message()) == Sent(1), "ids are of one task"


async def test_of_two_answers_the_first_counts(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", asking(held))
    assert await store.send(held.id, message("a", ref=3, kind="answer", data=b'"yes"')) == Sent(1)
    second = await store.send(held.id, message("b", ref=3, kind="answer", data=b'"no"'))
    assert (second.number, second.first) == (1, False)
    assert second.there == Message("a", "answer", "go", 3, b'"yes"', 1)
    third = await store.send(held.id, message("c", ref=4, kind="answer"))
    assert third == Sent(2), "another question is another matter"
    assert [m.id for m in await store.inbox(held.id)] == ["a", "c"]


async def test_signals_have_no_ref_and_never_stand_in_each_others_way(store: Store) -> None:
    (task_id,) = await submit(store)
    assert [(await store.send(task_id, message(f"m{n}"))).first for n in range(3)] == [True] * 3


async def test_twenty_answers_at_once_from_two_connections(store: Store, open_another: Any, kind: str) -> None:
    """All twenty get the same winner."""
    both = await doors(store, open_another, kind)
    for turn in range(5):
        (task_id,) = await submit(store)
        sends = [both[n % 2].send(task_id, message(f"{turn}.{n}", ref=7, data=b"%d" % n)) for n in range(20)]
        random.Random(turn).shuffle(sends)
        answers = await asyncio.wait_for(asyncio.gather(*sends), 60)
        (kept,) = await store.inbox(task_id)
        assert sum(answer.first for answer in answers) == 1
        assert {answer.number for answer in answers} == {1}
        assert {answer.there for answer in answers if not answer.first} == {kept}
        assert await counter(store, task_id) == 1


async def test_twenty_signals_at_once_from_two_connections(store: Store, open_another: Any, kind: str) -> None:
    both = await doors(store, open_another, kind)
    (task_id,) = await submit(store)
    sends = [both[n % 2].send(task_id, message(f"m{n // 2}")) for n in range(40)]  # each of them twice
    answers = await asyncio.wait_for(asyncio.gather(*sends), 60)
    assert sorted({answer.number for answer in answers}) == list(range(1, 21))
    assert [m.number for m in await store.inbox(task_id)] == list(range(1, 21))
    assert await counter(store, task_id) == 20


@pytest.mark.parametrize("ended", [State.COMPLETED, State.FAILED, State.CANCELLED])
async def test_a_task_that_has_ended_gets_no_message(store: Store, ended: State) -> None:
    held = await begun(store)
    assert await store.send(held.id, message("before", ref=3)) == Sent(1)
    if ended is State.CANCELLED:
        await store.cancel(held.id)
    else:
        await store.save("w1", completion(held, state=ended))
    assert await store.send(held.id, message("after")) == Sent(None)
    assert (await store.send(held.id, message("before", ref=3))).number == 1, (
        "but a message that was sent before is known"
    )
    assert (await store.send(held.id, message("later", ref=3))).first is False
    assert await store.send("nobody", message()) == Sent(None)
    assert [m.id for m in await store.inbox(held.id)] == ["before"]


async def test_a_resumed_task_goes_on_counting(store: Store) -> None:
    held = await begun(store)
    await store.send(held.id, message("m1"))
    await store.send(held.id, message("m2"))
    await store.save("w1", completion(held, state=State.FAILED))
    assert await store.resume(held.id)
    assert await counter(store, held.id) == 2
    assert await store.send(held.id, message("m3")) == Sent(3)


# ── wakes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("why", sorted(HEARS))
@pytest.mark.parametrize("due", ["at a time", "never"])
async def test_a_message_wakes_a_task_that_waits_for_one(store: Store, time: Time, why: str, due: str) -> None:
    task = await begun(store)
    await store.save("w1", waits(task, why, 0, math.inf if due == "never" else time.now + 60))
    assert await claim(store) == []
    assert await reason(store, task.id) == why
    await store.send(task.id, message())
    assert await reason(store, task.id) == "queued"
    (held,) = await claim(store)
    assert (held.id, held.inbox) == (task.id, 1)
    assert await store.health.census() == []


@pytest.mark.parametrize("why", ["asleep", "retrying", "delayed", "parked", "quarantined", "paused"])
async def test_a_message_lets_a_sleeper_sleep(store: Store, time: Time, why: str) -> None:
    held = await begun(store)
    due = math.inf if why in {"parked", "quarantined", "paused"} else time.now + 60
    await store.save("w1", waiting(held, due, why))
    assert await store.send(held.id, message()) == Sent(1)
    task = await store.get(held.id)
    assert task is not None
    assert (task.reason, task.due_at) == (why, due)
    assert await claim(store) == []
    assert await counter(store, held.id) == 1, "but it is counted"


async def test_a_message_leaves_the_holder_alone(store: Store) -> None:
    held = await begun(store)
    await store.send(held.id, message())
    assert await reason(store, held.id) == "running"
    assert (await store.workers.heartbeat("w1", 10, 0)).held == {held.id}
    assert await store.save("w1", Batch([entry(held)])) == set()


# ── settle into waiting ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_wait_that_has_not_read_all_messages_is_none(store: Store) -> None:
    task = await begun(store)
    await store.send(task.id, message())
    assert await store.save("w1", waits(task, "signal", 0)) == set()
    assert await reason(store, task.id) == "queued", "a message came while it was being settled"
    (held,) = await claim(store)
    assert held.inbox == 1
    await store.save("w1", waits(held, "signal", 1))
    assert await reason(store, task.id) == "signal"
    assert await claim(store) == []


async def test_many_waits_in_one_batch_are_judged_one_by_one(store: Store) -> None:
    held = [await begun(store) for _ in range(6)]
    for task in held[::2]:
        await store.send(task.id, message())
    await store.save("w1", together(*[waits(task, "approval", 0) for task in held]))
    assert [await reason(store, task.id) for task in held] == ["queued", "approval"] * 3


async def test_a_wait_without_a_number_does_not_care(store: Store, time: Time) -> None:
    held = await begun(store)
    await store.send(held.id, message())
    await store.save("w1", waiting(held, time.now + 10, "asleep"))
    assert await reason(store, held.id) == "asleep"


async def test_send_against_settle(store: Store, open_another: Any, kind: str) -> None:
    """Whichever is first: the task is never left asleep with a message that it has not read."""
    both = await doors(store, open_another, kind)
    for turn in range(30):
        task = await begun(store)
        calls = [both[0].save("w1", waits(task, "signal", 0)), both[1].send(task.id, message())]
        await asyncio.gather(*(calls if turn % 2 else calls[::-1]))
        assert await reason(store, task.id) == "queued"
        (held,) = await claim(store)
        assert held.inbox == 1
        await store.save("w1", completion(held))


# ── asks and doubts ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_asks_are_the_unanswered_questions_the_oldest_first(store: Store) -> None:
    assert await store.listing.asks() == []
    first, second, third = [await begun(store) for _ in range(3)]
    entries = [
        (first.id, 3, 2, r.QUESTION, "question", b'{"question":"a"}', 30.0),
        (second.id, 3, 2, r.APPROVAL, "approval", b'{"what":"b"}', 10.0),
        (second.id, 4, 2, r.QUESTION, "[gather.1]question", b'{"question":"c"}', 20.0),
        (third.id, 3, 2, r.SIGNAL, "signal go", b'{"signal":"go"}', 5.0),
    ]
    await store.save("w1", Batch(entries))
    asks = await store.listing.asks()
    assert [(a.task_id, a.seq, a.kind, a.key, a.data, a.at, a.task) for a in asks] == [
        (second.id, 3, r.APPROVAL, "approval", b'{"what":"b"}', 10.0, "work"),
        (second.id, 4, r.QUESTION, "[gather.1]question", b'{"question":"c"}', 20.0, "work"),
        (first.id, 3, r.QUESTION, "question", b'{"question":"a"}', 30.0, "work"),
    ]
    await store.send(second.id, message("x", ref=3))
    assert [(a.task_id, a.seq) for a in await store.listing.asks()] == [(second.id, 4), (first.id, 3)]
    await store.cancel(second.id)
    assert [(a.task_id, a.seq) for a in await store.listing.asks()] == [(first.id, 3)], "an ended task asks nothing"


@pytest.mark.parametrize(
    ("saga", "void", "open_"),
    [
        ("saga", ["[saga]question", "[saga@2]question", "[saga/gather.0]question#2"], ["question", "[sagas]question"]),
        ("[gather.1]trip#2", ["[gather.1/trip#2]question"], ["[gather.1]question", "[gather.11/trip#2]question"]),
    ],
)
async def test_a_question_of_a_saga_that_was_given_up_is_no_ask(
    store: Store, saga: str, void: list[str], open_: list[str]
) -> None:
    held = await begun(store)
    keys = [*void, *open_]
    await store.save("w1", Batch([entry(held, n, r.QUESTION, key, b"{}") for n, key in enumerate(keys, 1)]))
    assert [ask.key for ask in await store.listing.asks()] == keys
    rest = [entry(held, len(keys) + 1, r.UNDOING, saga, b"{}"), entry(held, len(keys) + 2, r.QUESTION, void[0], b"{}")]
    await store.save("w1", Batch(rest))
    assert [ask.key for ask in await store.listing.asks()] == [*open_, void[0]], (
        "but a question that is asked again is an ask"
    )


async def test_a_task_that_is_being_cancelled_asks_nothing(store: Store) -> None:
    task = await in_a_saga(store)
    await store.save("w1", Batch([entry(task, 2, r.QUESTION, "question", b"{}")]))
    assert len(await store.listing.asks()) == 1
    assert (await store.cancel(task.id)).requested
    assert await store.listing.asks() == []
    assert await store.listing.asks([task.id]) == []


@pytest.mark.parametrize("stop", [r.CANCEL, r.DEADLINE])
async def test_a_task_that_is_being_stopped_asks_nothing_until_it_is_resumed(store: Store, stop: str) -> None:
    """A cancel or a deadline stops it, and the undo parks. After the resume it waits for the same answer as before."""
    task = await in_a_saga(store)
    await store.save("w1", Batch([entry(task, 2, r.QUESTION, "question", b"{}"), entry(task, 3, stop, "", b"{}")]))
    assert await store.listing.asks() == []
    ended = entry(task, 4, r.PARKED, "", b'{"reason":"?"}')
    await store.save("w1", Batch([ended], waits=[Wait(task.id, math.inf, "parked", task.attempt)]))
    assert await store.listing.asks() == []
    assert await store.resume(task.id)
    assert [ask.key for ask in await store.listing.asks()] == ["question"]


async def test_the_asks_of_one_task_and_the_time(store: Store, time: Time) -> None:
    first, second = [await begun(store) for _ in range(2)]
    for task in (first, second):
        await store.save("w1", Batch([entry(task, 1, r.QUESTION, "question", b"{}")]))
    time.move(7)
    (ask,) = await store.listing.asks([second.id])
    assert (ask.task_id, ask.now) == (second.id, time.now)
    assert len(await store.listing.asks()) == 2
    assert await store.listing.asks(["nobody"]) == []


async def test_doubts_are_the_tasks_that_wait_in_doubt(store: Store) -> None:
    assert await store.listing.doubts(10) == []
    held = [await begun(store) for _ in range(3)]
    for task in held[:2]:
        await store.save("w1", waits(task, "in_doubt", 0))
    assert [task_id for task_id, _ in await store.listing.doubts(10)] == sorted(task.id for task in held[:2])
    first, second = sorted(task.id for task in held[:2])
    assert [task_id for task_id, _ in await store.listing.doubts(1)] == [first]
    assert [task_id for task_id, _ in await store.listing.doubts(10, first)] == [second]
    await store.send(held[0].id, message(ref=3, kind="resolve", name="happened"))
    await store.cancel(held[1].id)
    assert await store.listing.doubts(10) == []


# ── children ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def family(store: Store, children: int, worker: str = "w1") -> tuple[Claimed, list[Claimed]]:
    """A parent that a worker holds, and its children, claimed too."""
    parent = await begun(store, worker)
    await submit(store, *[new(parent=parent.id, key=f"{parent.id}:{n}") for n in range(children)])
    return parent, await claim(store, worker, children)


async def child_messages(store: Store, parent: str) -> list[tuple[str, str, Any]]:
    """The messages of a parent: kind, child, and the end of the child."""
    return [(m.kind, m.name, json.loads(m.data)) for m in await store.inbox(parent)]


async def test_children_are_the_unfinished_ones(store: Store) -> None:
    parent, held = await family(store, 3)
    assert all(task.parent == parent.id for task in held)
    assert await store.children(parent.id) == sorted(task.id for task in held)
    await store.save("w1", end(held[0]))
    await store.cancel(held[1].id)
    assert await store.children(parent.id) == [held[2].id]
    assert await store.children(held[2].id) == []
    assert await store.children("nobody") == []
    child = await store.get(held[2].id)
    assert child is not None
    assert child.parent == parent.id


async def test_a_child_without_a_key_is_a_child_too(store: Store) -> None:
    parent = await begun(store)
    (child,) = await submit(store, new(parent=parent.id))
    assert await store.children(parent.id) == [child]
    assert [task.parent for task in await claim(store)] == [parent.id]


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
async def test_the_end_of_a_child_is_a_message_to_its_parent(store: Store, state: State) -> None:
    parent, (child,) = await family(store, 1)
    await store.save("w1", waits(parent, "child", 0))
    assert await store.save("w1", end(child, state)) == set()
    ending = {"result": 42} if state is State.COMPLETED else {"error": {"type": "E", "message": "m"}}
    assert await child_messages(store, parent.id) == [("child", child.id, {"state": state.value, **ending})]
    assert await reason(store, parent.id) == "queued", "and wakes it"
    (held,) = await claim(store)
    assert (held.id, held.inbox) == (parent.id, 1)
    assert await store.health.census() == []


async def test_the_cancel_of_a_child_is_a_message_to_its_parent(store: Store) -> None:
    parent, (child,) = await family(store, 1)
    await store.save("w1", waits(parent, "child", 0))
    assert await store.cancel(child.id) == Stopped(True, held=True)
    assert await child_messages(store, parent.id) == [("child", child.id, {"state": "cancelled"})]
    assert await reason(store, parent.id) == "queued"


async def test_several_children_of_one_parent_in_one_batch(store: Store) -> None:
    parent, held = await family(store, 5)
    other, strangers = await family(store, 2)
    await store.save("w1", together(waits(parent, "child", 0), waits(other, "child", 0)))
    await store.send(parent.id, message("before"))
    ends = [*map(end, held), *map(end, strangers)]
    random.Random(3).shuffle(ends)
    assert await store.save("w1", together(*ends)) == set()
    inbox = await store.inbox(parent.id)
    assert [m.number for m in inbox] == [1, 2, 3, 4, 5, 6]
    assert {m.name for m in inbox[1:]} == {task.id for task in held}
    assert {name for _, name, _ in await child_messages(store, other.id)} == {task.id for task in strangers}
    assert (await counter(store, parent.id), await counter(store, other.id)) == (6, 2)
    assert sorted(task.id for task in await claim(store)) == sorted([parent.id, other.id])
    assert await store.health.census() == []


async def test_parent_and_child_settled_in_one_batch(store: Store) -> None:
    """A parent that goes to wait for its child in the very commit in which that ends."""
    parent, (child,) = await family(store, 1)
    assert await store.save("w1", together(waits(parent, "child", 0), end(child))) == set()
    assert await reason(store, parent.id) == "queued"
    assert await counter(store, parent.id) == 1
    (held,) = await claim(store)
    assert held.inbox == 1


async def test_parent_and_child_that_end_in_one_batch(store: Store) -> None:
    parent, (child,) = await family(store, 1)
    assert await store.save("w1", together(end(child), completion(parent))) == set()
    assert [await reason(store, task.id) for task in (parent, child)] == ["completed", "completed"]
    assert await store.health.census() == []


@pytest.mark.parametrize("ended", [State.COMPLETED, State.CANCELLED])
async def test_a_child_may_end_after_its_parent(store: Store, ended: State) -> None:
    parent, held = await family(store, 2)
    if ended is State.CANCELLED:
        await store.cancel(parent.id)
    else:
        await store.save("w1", completion(parent))
    assert await store.save("w1", end(held[0])) == set()
    assert await store.cancel(held[1].id)
    assert await child_messages(store, parent.id) == []
    assert [await reason(store, task.id) for task in held] == ["completed", "cancelled"]
    assert await store.health.census() == []


async def test_a_child_that_ends_twice_sends_two_messages(store: Store) -> None:
    """It failed, was resumed, and has now completed. A commit that is sent again sends no second message."""
    parent, (child,) = await family(store, 1)
    for _ in range(2):
        assert await store.save("w1", end(child, State.FAILED)) == set()
    assert await store.resume(child.id)
    (child,) = await claim(store)
    assert child.parent == parent.id
    for _ in range(2):
        assert await store.save("w1", end(child)) == set()
    assert [(name, value["state"]) for _, name, value in await child_messages(store, parent.id)] == [
        (child.id, "failed"),
        (child.id, "completed"),
    ]
    assert await counter(store, parent.id) == 2
    assert await store.health.census() == []


async def test_a_refused_end_sends_no_message(store: Store) -> None:
    """The worker was declared dead and another has the child: the store refuses its end."""
    parent, held = await family(store, 2)
    await store.workers.rescue(["w1"])
    await join(store, "w2")
    again = {task.id: task for task in await claim(store, "w2")}
    assert await store.save("w1", together(*map(end, held))) == {task.id for task in held}
    assert await child_messages(store, parent.id) == []
    assert await store.save("w2", together(end(again[held[0].id]), waits(again[parent.id], "child", 0))) == set()
    assert len(await child_messages(store, parent.id)) == 1


async def test_orphans_are_unfinished_children_of_a_cancelled_parent(store: Store) -> None:
    assert await store.orphans() == []
    cancelled, (left, done) = await family(store, 2)
    completed, _ = await family(store, 1)
    await family(store, 1)
    await store.save("w1", end(done))
    await store.save("w1", completion(completed))
    assert await store.orphans() == []
    await store.cancel(cancelled.id)
    assert await store.orphans() == [left.id], "not those of a parent that came to its own end"
    await store.cancel(left.id)
    assert await store.orphans() == []


# ── cancel of a task that has something to undo ──────────────────────────────────────────────────────────────────────


async def in_a_saga(store: Store, worker: str = "w1") -> Claimed:
    held = await begun(store, worker)
    await store.save(worker, Batch([entry(held, 1, r.SAGA, "saga", b"{}")]))
    return held


async def test_cancel_of_a_held_task_with_an_open_saga_is_a_request(store: Store) -> None:
    held_task = await in_a_saga(store)
    assert await store.cancel(held_task.id) == Stopped(True, requested=True, held=True)
    task = await store.get(held_task.id)
    assert task is not None
    assert (task.state, task.reason, task.worker) == (State.PENDING, "cancelling", None)
    assert (await kinds(store, held_task.id))[-1] == r.CANCEL
    assert await store.save("w1", Batch([entry(held_task, 2)])) == {held_task.id}, "the worker that has it is fenced"
    assert (await store.workers.heartbeat("w1", 10, 0)).held == frozenset()
    assert [
        held_task.task_id
        for held_task in await store.listing.list(state=State.PENDING, task=None, queue=None, limit=9, before=None)
    ]
    assert await store.listing.list(state=State.WAITING, task=None, queue=None, limit=9, before=None) == []
    assert await store.cancel(held_task.id) == Stopped(True, requested=True), "a second cancel changes nothing"
    assert (await kinds(store, held_task.id)).count(r.CANCEL) == 1
    (held,) = await claim(store)
    assert held.id == held_task.id
    undone = entry(held, 1, r.UNDONE, "saga", b"{}")
    final = entry(held, 2, r.CANCELLED, "", b'{"undone":["a"]}')
    await store.save("w1", Batch([undone, final], [End(held.id, State.CANCELLED, 1, held.shift + 2)]))
    assert await reason(store, held_task.id) == "cancelled"
    assert await store.cancel(held_task.id) == Stopped(False)
    assert await store.health.census() == []


@pytest.mark.parametrize("why", ["signal", "approval", "in_doubt", "asleep", "retrying", "parked", "quarantined"])
async def test_cancel_of_a_waiting_task_with_an_open_saga_makes_it_ready(store: Store, time: Time, why: str) -> None:
    held_task = await in_a_saga(store)
    due = time.now + 60 if why in {"asleep", "retrying"} else math.inf
    await store.save("w1", waiting(held_task, due, why, ahead=2))
    assert await store.cancel(held_task.id) == Stopped(True, requested=True)
    task = await store.get(held_task.id)
    assert task is not None
    assert (task.state, task.reason, task.due_at) == (State.PENDING, "cancelling", None)
    (held,) = await claim(store)
    assert held.id == held_task.id
    assert await store.health.census() == []


@pytest.mark.parametrize("why", ["signal", "approval", "in_doubt", "child", "parked", "quarantined"])
async def test_cancel_of_a_waiting_task_without_a_saga_ends_it(store: Store, why: str) -> None:
    held = await begun(store)
    await store.save("w1", waiting(held, math.inf, why))
    assert await store.cancel(held.id) == Stopped(True)
    assert await reason(store, held.id) == "cancelled"
    assert (await kinds(store, held.id))[-2:] == [r.CANCEL, r.CANCELLED]


@pytest.mark.parametrize("closed", [r.SAGA_DONE, r.UNDONE])
async def test_a_saga_that_is_over_owes_nothing(store: Store, closed: str) -> None:
    task = await in_a_saga(store)
    await store.save("w1", Batch([entry(task, 2, closed, "saga", b"{}")]))
    assert await store.cancel(task.id) == Stopped(True, held=True)
    assert await reason(store, task.id) == "cancelled"


async def test_one_of_two_sagas_is_open(store: Store) -> None:
    task = await in_a_saga(store)
    await store.save("w1", Batch([entry(task, 2, r.SAGA, "inner", b"{}"), entry(task, 3, r.SAGA_DONE, "inner", b"{}")]))
    assert (await store.cancel(task.id)).requested


async def test_many_cancels_of_an_open_saga_at_once(store: Store, open_another: Any, kind: str) -> None:
    both = await doors(store, open_another, kind)
    task = await in_a_saga(store)
    answers = await asyncio.gather(*[both[n % 2].cancel(task.id) for n in range(20)])
    assert all(answer.requested for answer in answers)
    assert sum(answer.held for answer in answers) == 1, "one of them stopped it"
    assert (await kinds(store, task.id)).count(r.CANCEL) == 1
    assert await dense(store, task.id)


async def test_a_message_to_a_task_that_undoes_does_not_hold_it_up(store: Store) -> None:
    task = await in_a_saga(store)
    await store.cancel(task.id)
    await store.send(task.id, message())
    assert await reason(store, task.id) == "cancelling"
    assert [held.id for held in await claim(store)] == [task.id]


async def test_the_cancel_of_an_open_child_is_sent_when_it_has_ended(store: Store) -> None:
    parent, (child,) = await family(store, 1)
    await store.save("w1", Batch([entry(child, 1, r.SAGA, "saga", b"{}")]))
    assert (await store.cancel(child.id)).requested
    assert await child_messages(store, parent.id) == []
    (held,) = await claim(store)
    final = entry(held, 1, r.CANCELLED, "", b'{"undone":["a"]}')
    await store.save("w1", Batch([final], [End(held.id, State.CANCELLED, 1, held.shift + 1, held.parent)]))
    assert await child_messages(store, parent.id) == [("child", child.id, {"state": "cancelled", "undone": ["a"]})]


def test_the_reasons_in_core_are_those_that_the_statements_wake() -> None:
    """The list stands in core and in three statements; all must be the same."""
    from onward.store import statements

    for dialect, names in (("sqlite", ["bump"]), ("postgres", ["bump", "tell_parents"])):
        for name in names:
            text = statements.load(dialect)[name].sql
            assert {why for why in Reason if f"'{why}'" in text} - {Reason.QUEUED} == HEARS


# ── locks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def locks_in_order(store: Any, other: Any, low: str, high: str, settle: Any) -> None:
    """Another session holds the row of `low` and then wants that of `high`, as one that settles a child of each. `settle`
    locks both meanwhile, and must not hold `high` and wait for `low`."""
    async with other._db.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT 1 FROM onward_queue WHERE task_id = $1 FOR UPDATE", low)
        settling = asyncio.ensure_future(settle)
        await asyncio.sleep(0.1)
        try:
            await connection.execute("SELECT 1 FROM onward_queue WHERE task_id = $1 FOR UPDATE NOWAIT", high)
        finally:
            await transaction.rollback()
            await settling


@only_postgres
@pytest.mark.parametrize("ending", ["end and wait", "ends", "waits", "leave", "rescue", "release"])
async def test_parents_are_locked_in_their_order(store: Any, open_another: Any, ending: str) -> None:
    """With their rows in both orders on the disk, so that no plan has the right order by chance."""
    other = await open_another()
    for turn in range(2):
        worker = f"w{ending}{turn}"
        await join(store, worker)
        ids = sorted(next_id() for _ in range(2))
        await submit(store, *[new(id=task_id) for task_id in (ids if turn else ids[::-1])])
        held = {task.id: task for task in await claim(store, worker)}
        low, high = (held[task_id] for task_id in ids)
        await submit(store, new(parent=low.id), new(parent=high.id))
        calls = {
            "end and wait": lambda: store.save(worker, together(completion(high), waits(low, "child", 0))),
            "ends": lambda: store.save(worker, together(completion(high), completion(low))),
            "waits": lambda: store.save(worker, together(waits(high, "child", 0), waits(low, "child", 0))),
            "leave": lambda: store.workers.leave(worker),
            "rescue": lambda: store.workers.rescue([worker]),
            "release": lambda: store.release(worker, [high.id, low.id], 1e12),
        }
        await locks_in_order(store, other, low.id, high.id, calls[ending]())


@only_postgres
async def test_a_message_in_the_moment_of_a_rescue(store: Any, open_another: Any) -> None:
    """The rescue reads a row again that changed while the rescue waited for it."""
    other = await open_another()
    held = await begun(store, "w9")
    async with other._db.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("UPDATE onward_queue SET inbox = inbox + 1 WHERE task_id = $1", held.id)
        rescuing = asyncio.ensure_future(store.workers.rescue(["w9"]))
        await asyncio.sleep(0.1)
        await transaction.commit()
    assert await asyncio.wait_for(rescuing, 60) == 1
    assert (await reason(store, held.id), await counter(store, held.id)) == ("queued", 1)


@only_postgres
async def test_leaving_against_being_declared_dead(store: Any, open_another: Any) -> None:
    both = await doors(store, open_another, "postgres")
    for turn in range(15):
        worker = f"w{turn}"
        held = await claimed(store, worker, [new() for _ in range(30)], turn)
        calls = [both[0].workers.leave(worker), both[1].workers.rescue([worker])]
        await asyncio.wait_for(asyncio.gather(*(calls if turn % 2 else calls[::-1])), 60)
        assert {await reason(store, task.id) for task in held} == {"queued"}


@pytest.mark.slow
async def test_workers_that_settle_parents_and_children_at_once_never_wait_for_each_other(
    store: Any, open_another: Any, kind: str
) -> None:
    """One worker settles parents, one their children, in large batches; others cancel, send, and declare a worker dead."""
    first, second = await doors(store, open_another, kind)
    await join(store, "w1", "w2", "w3")
    for turn in range(12):
        rng = random.Random(turn)
        parents = await claimed(first, "w1", [new() for _ in range(12)], turn)
        offspring = [new(parent=rng.choice(parents).id) for _ in range(24)]
        children = await claimed(second, "w2", offspring, turn)
        lost = await claimed(first, f"gone{turn}", [new(parent=rng.choice(parents).id) for _ in range(4)], turn)
        settles: list[Batch] = [
            completion(task) if rng.random() < 0.3 else waits(task, "child", 0, math.inf) for task in parents
        ]
        ends = [end(task) for task in children]
        rng.shuffle(settles)
        rng.shuffle(ends)
        work: list[Any] = [
            first.save("w1", together(*settles[:6])),
            first.save("w1", together(*settles[6:])),
            second.save("w2", together(*ends[:12])),
            second.save("w2", together(*ends[12:])),
            *[rng.choice((first, second)).cancel(task.id) for task in rng.sample(children, 4)],
            *[rng.choice((first, second)).cancel(task.id) for task in rng.sample(parents, 2)],
            *[rng.choice((first, second)).send(task.id, message()) for task in rng.sample(parents, 4)],
            second.workers.rescue([f"gone{turn}"]),
        ]
        rng.shuffle(work)
        answers = await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 60)
        assert [answer for answer in answers if isinstance(answer, BaseException)] == [], "a deadlock raises"
        assert await first.health.census() == []
        await all_ends_received(first, parents, [*children, *lost])


async def claimed(store: Store, worker: str, tasks: Sequence[Any], turn: int) -> list[Claimed]:
    await join(store, worker)
    queue = f"{worker}.{turn}"
    await submit(store, *[task._replace(queue=queue) for task in tasks])
    return await claim(store, worker, len(tasks), queue=queue)


async def all_ends_received(store: Store, parents: Sequence[Claimed], children: Sequence[Claimed]) -> None:
    """Every unfinished parent has one message of every child that has ended."""
    for parent in parents:
        if not (await store.get(parent.id)).ended:  # type: ignore[union-attr]
            received = [name for kind, name, _ in await child_messages(store, parent.id) if kind == "child"]
            ended = [task.id for task in children if task.parent == parent.id and (await store.get(task.id)).ended]  # type: ignore[union-attr]
            assert sorted(received) == sorted(ended)
            assert await counter(store, parent.id) == len(await store.inbox(parent.id))
