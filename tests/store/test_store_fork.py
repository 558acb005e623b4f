"""fork: one transaction, on every store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onward.core import record as r
from onward.core.task import Message, State
from onward.store.port.core import Batch, Store
from tests.kit import begun, claim, completion, dense, entry, kinds, new, next_id, sql, submit


async def _origin(store: Store) -> str:
    """Submitted, claimed, two steps, a message read and one unread, completed."""
    held = await begun(store)
    for number in (1, 2):
        await store.send(held.id, Message(f"m{number}", "signal", "go", None, b"1"))
    message = json.dumps({"n": 1, "kind": "signal", "name": "go", "ref": None, "value": 1}).encode()
    entries = [entry(held, 1), entry(held, 2, r.MESSAGE, "", message), entry(held, 3, key="t")]
    await store.save("w1", Batch(entries))
    await store.save("w1", completion(held, 4))
    return held.id


async def test_a_fork_has_the_first_records_then_its_own(store: Store) -> None:
    origin = await _origin(store)
    fork = next_id()
    await store.fork(fork, origin, 4, input=b'{"n":1}', inbox=1)
    journal_of_origin, journal_of_fork = await store.journal(origin), await store.journal(fork)
    assert journal_of_fork[:4] == journal_of_origin[:4]
    assert (journal_of_fork[4].seq, journal_of_fork[4].shift, journal_of_fork[4].kind, journal_of_fork[4].value) == (
        5,
        0,
        r.FORKED,
        {"from": origin, "at": 4},
    )
    assert len(journal_of_fork) == 5
    task, old = await store.get(fork), await store.get(origin)
    assert task is not None
    assert old is not None
    assert (task.state, task.reason, task.attempt, task.parent) == (State.PENDING, "queued", 1, None)
    assert (task.task, task.queue, task.input) == (old.task, old.queue, old.input)
    assert task.created_at >= old.created_at
    assert old.state is State.COMPLETED
    assert await store.health.census() == []


async def test_messages_that_were_read_are_there_and_the_next_has_the_next_number(store: Store) -> None:
    origin, fork = await _origin(store), next_id()
    await store.fork(fork, origin, 4, input=b"null", inbox=1)
    assert [message.id for message in await store.inbox(fork)] == ["m1"]
    (held,) = await claim(store, "w1")
    assert (held.id, held.shift, held.inbox) == (fork, 6, 1)
    assert (await store.send(fork, Message("m1", "signal", "go", None, b"9"))).first, (
        "the same message again is that message"
    )
    assert (await store.send(fork, Message("m3", "signal", "go", None, b"9"))).number == 2
    await store.save("w1", completion(held, 1, State.FAILED))
    assert await store.resume(fork)
    assert (await store.send(fork, Message("m4", "signal", "go", None, b"9"))).number == 3


async def test_a_fork_that_is_sent_again_is_there_once(store: Store) -> None:
    origin, fork = await _origin(store), next_id()
    await asyncio.gather(*[store.fork(fork, origin, 3, input=b"null", inbox=0) for _ in range(8)])
    assert await kinds(store, fork) == [r.SUBMITTED, r.SHIFT, r.STEP_DONE, r.FORKED]
    assert await dense(store, fork)
    ((rows,),) = await sql(store, f"SELECT count(*) FROM onward_queue WHERE task_id = '{fork}'")
    assert rows == 1


async def test_all_or_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the record `task.forked` cannot be written, no row of the fork is."""
    origin, fork = await _origin(store), next_id()
    monkeypatch.setattr("onward.store.shared.forks.FORKED", None)
    with pytest.raises(Exception, match=r"(?i)null"):
        await store.fork(fork, origin, 3, input=b"null", inbox=0)
    assert await store.get(fork) is None
    assert await store.journal(fork) == []


async def test_a_fork_of_a_delayed_child_with_options(store: Store) -> None:
    (parent,) = await submit(store, new(options=b'{"deadline":60.0,"labels":{"a":"b"}}', priority=7, queue="other"))
    fork = next_id()
    await store.fork(fork, parent, 1, input=b"2", inbox=0)
    task = await store.get(fork)
    assert task is not None
    options: dict[str, Any] = {
        "priority": task.priority,
        "queue": task.queue,
        "labels": task.labels,
        "input": task.input,
    }
    assert options == {"priority": 7, "queue": "other", "labels": {"a": "b"}, "input": 2}
