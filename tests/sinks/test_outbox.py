"""The outbox: one row for each subscription and record, whoever writes the record; and whoever has no subscription has no row."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import apsw
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import Fatal, Onward
from onward.core import event
from onward.core import record as r
from onward.core.record import Record
from onward.core.task import State
from onward.errors import UsageError
from onward.store.port.core import Store
from onward.store.port.outbox import Key
from onward.store.sqlite.store import SqliteStore
from tests.kit import Time, claim, completion, eventually, not_memory, only_file, only_postgres, row, sql, together
from tests.sinks.conftest import Office
from tests.sinks.receiver import Receiver

ENDS = ("task.completed", "task.failed", "task.cancelled")


async def missing_and_extra(
    store: Store, subscription: str, kinds: tuple[str, ...] = ()
) -> tuple[list[Any], list[Any]]:
    """The judge: records that a subscription should have been told of and has no row for, and rows that should not be."""
    records = await sql(store, "SELECT task_id, seq, kind FROM onward_journal")
    rows = await sql(store, f"SELECT task_id, seq, kind FROM onward_outbox WHERE subscription = '{subscription}'")
    forks = dict(
        await sql(store, "SELECT task_id, max(seq) FROM onward_journal WHERE kind = 'task.forked' GROUP BY task_id")
    )
    wanted = Counter(one for one in records if (not kinds or one[2] in kinds) and one[1] >= forks.get(one[0], 0))
    there = Counter(rows)
    return sorted((wanted - there).elements()), sorted((there - wanted).elements())


def shop(app: Onward) -> None:
    """Every way a task can end."""

    async def fails() -> None:
        raise Fatal("no")

    @app.task
    async def completes(ctx: Any) -> int:
        return await ctx.step(lambda: 1, name="one")

    @app.task(retry=1)
    async def breaks(ctx: Any) -> None:
        await ctx.step(fails)

    @app.task(retry=2)
    async def retries(ctx: Any) -> None:
        raise ValueError("again")

    @app.task(deadline="100ms")
    async def too_late(ctx: Any) -> None:
        await ctx.sleep("1h")

    @app.task
    async def waits(ctx: Any) -> None:
        await ctx.signal("never")

    @app.task
    async def undoes(ctx: Any) -> None:
        async with ctx.saga():
            await ctx.step(lambda: 1, name="do", undo=lambda *_: None)
            await ctx.signal("never")

    @app.task
    async def parent(ctx: Any) -> None:
        child = await ctx.submit("waits")
        await child.result()


async def lives(app: Onward) -> None:
    """Tasks to their ends, in every way there is."""
    ended = [await app.submit(name) for name in ("completes", "breaks", "retries", "too_late")]
    ended.append(await app.submit("completes", delay="50ms", expires="0.01s"))
    waiting = [await app.submit(name) for name in ("waits", "undoes", "parent")]
    never = await app.submit("completes", delay="1h")
    for task in waiting:
        await eventually(lambda task=task: _waits(app, task.id))
    for task in [*waiting, never]:
        await app.cancel(task.id)
    for task in [*ended, *waiting, never]:
        await app.service.wait(task.id, 20)
    broken = ended[1]
    await app.resume(broken.id)
    await app.service.wait(broken.id, 20)
    fork = await app.fork(ended[0].id, 1)
    await app.service.wait(fork.id, 20)
    children, _ = await app.list(task="waits")
    for child in children:
        await app.service.wait(child.task_id, 20)


async def _waits(app: Onward, task_id: str) -> bool:
    return (await app.get(task_id)).state is State.WAITING


async def test_every_end_is_told_once_however_it_came(app: Onward) -> None:
    shop(app)

    @app.on("*", name="all")
    def hears_all(event: Any) -> None: ...

    @app.on(*ENDS, name="ends")
    def hears_ends(event: Any) -> None: ...

    async with app.worker():
        await lives(app)
    assert await missing_and_extra(app.store, "on:all") == ([], [])
    assert await missing_and_extra(app.store, "on:ends", ENDS) == ([], [])
    kinds = {kind for _, _, kind in await sql(app.store, "SELECT task_id, seq, kind FROM onward_outbox")}
    assert {
        *ENDS,
        r.SUBMITTED,
        r.SHIFT,
        r.STEP_DONE,
        r.STEP_FAILED,
        r.RETRY,
        r.RESUMED,
        r.FORKED,
        r.CANCEL,
        r.DEADLINE,
    } <= kinds


PLANTED = {
    "a kind is forgotten": "DELETE FROM onward_outbox WHERE kind = 'task.cancelled'",
    "one row is lost": "DELETE FROM onward_outbox WHERE kind = 'task.failed' AND seq > 4",
    "a row for nothing": "INSERT INTO onward_outbox (task_id, seq, subscription, kind, lane, at, due_at) VALUES ('x', 1, 'on:ends', 'task.failed', 'l', 0, 0)",
    "a record without a row": "INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) SELECT id, 99, 0, 'task.completed', '', input, 0 FROM onward_tasks LIMIT 1",
}


@pytest.mark.parametrize("fault", PLANTED)
async def test_the_judge_sees_what_is_planted(store: Store, time: Time, fault: str) -> None:
    office = Office(store, time)
    office.app.on(*ENDS, name="ends")(lambda event: None)
    await office.app.save_subscriptions()
    await office.complete()
    cancelled = await office.submit()
    await office.app.cancel(cancelled)
    failed = await office.submit()
    held = await office.begin()
    await store.save("w1", completion(held, state=State.FAILED))
    await office.app.resume(failed)
    again = await office.begin()
    await store.save("w1", completion(again, state=State.FAILED))
    assert await missing_and_extra(store, "on:ends", ENDS) == ([], [])
    if fault == "a record without a row":
        await sql(store, "UPDATE onward_subscriptions SET disabled = 'x'")
    await sql(store, PLANTED[fault])
    assert await missing_and_extra(store, "on:ends", ENDS) != ([], [])


async def test_a_commit_whose_answer_was_lost_is_told_once(office: Office) -> None:
    office.app.on("task.*", name="f")(lambda event: None)
    await office.app.save_subscriptions()
    await office.submit()
    held = await office.begin()
    for _ in range(3):
        assert await office.store.save("w1", completion(held)) == set()
    assert await missing_and_extra(office.store, "on:f", tuple(k for k in event.KINDS if k.startswith("task."))) == (
        [],
        [],
    )


async def test_whoever_is_fenced_tells_nobody(office: Office, receiver: Receiver) -> None:
    task_id = await office.submit(webhook=receiver.url())
    held = await office.begin()
    await office.app.cancel(task_id)
    assert await office.store.save("w1", completion(held)) == {task_id}
    await office.send_all()
    assert [got.json["type"] for got in receiver.got] == ["dev.onward.task.cancelled"]


async def test_many_at_once_each_with_its_own(office: Office, receiver: Receiver) -> None:
    await office.app.submit_many("work", [None] * 5, webhook=receiver.url())
    await office.store.workers.join(row("w1"), 1e9)
    held = await claim(office.store, "w1", 5)
    assert await office.store.save("w1", together(*map(completion, held))) == set()
    await office.send_all()
    assert sorted(got.json["subject"] for got in receiver.got) == sorted(one.id for one in held)


async def test_without_a_subscription_there_is_no_trigger(fresh_url: str) -> None:
    app = Onward(fresh_url)
    app.task(name="work")(lambda ctx: None)
    async with app, app.worker():
        await (await app.submit("work")).result("60s")
        assert await _triggers(app.store) == []
        app.on("task.completed", name="f")(lambda event: None)
        await app.save_subscriptions()
        assert await _triggers(app.store) == ["onward_outbox_tasks"]
        app.on("step.completed", name="g")(lambda event: None)
        await app.save_subscriptions()
        assert await _triggers(app.store) == ["onward_outbox_busy", "onward_outbox_tasks"]
        await app.save_subscriptions()


async def _triggers(store: Any) -> list[str]:
    table = "SELECT tgname FROM pg_trigger WHERE tgname LIKE 'onward_outbox%' ORDER BY 1"
    if isinstance(store, SqliteStore):
        table = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'onward_outbox%' ORDER BY 1"
    return [str(name) for (name,) in await sql(store, table)]


@only_file
async def test_a_trigger_of_another_version_is_made_anew(store: Store) -> None:
    await store.outbox.watch(busy=True)
    await sql(store, "DROP TRIGGER onward_outbox_tasks")
    await sql(store, "CREATE TRIGGER onward_outbox_tasks AFTER INSERT ON onward_journal BEGIN SELECT 1; END")
    await store.outbox.watch(busy=False)
    ((text,),) = await sql(store, "SELECT sql FROM sqlite_master WHERE name = 'onward_outbox_tasks'")
    assert "onward_subscriptions" in text
    assert await _triggers(store) == ["onward_outbox_busy", "onward_outbox_tasks"]


@not_memory
async def test_in_the_transaction_of_somebody_else(office: Office, receiver: Receiver, url: str) -> None:
    """Rolled back, there is neither task nor webhook; committed, there are both. Its connection knows no function of ours."""
    office.app.on("task.submitted", name="f")(lambda event: None)
    await office.app.save_subscriptions()
    path = url.removeprefix("sqlite:///")
    if url.startswith("postgres"):
        connection: Any = psycopg.connect(url)
    else:
        connection = apsw.Connection(path)
        connection.execute("BEGIN")
    try:
        await office.submit(webhook=receiver.url(), connection=connection)
        connection.execute("ROLLBACK")
        assert (await office.app.list())[0] == []
        assert await sql(office.store, "SELECT * FROM onward_outbox") == []
        connection.execute("BEGIN")
        task_id = await office.submit(webhook=receiver.url(), connection=connection)
        connection.execute("COMMIT")
    finally:
        connection.close()
    held = await office.begin()
    await office.store.save("w1", completion(held))
    await office.send_all()
    assert [got.json["subject"] for got in receiver.got] == [task_id]
    assert await missing_and_extra(office.store, "on:f", (r.SUBMITTED,)) == ([], [])


@only_postgres
async def test_a_long_transaction_holds_up_the_first_subscription_and_nobody_else(fresh_url: str) -> None:
    app = Onward(fresh_url)
    app.task(name="work")(lambda ctx: None)
    app.on("task.completed", name="f")(lambda event: None)
    async with app:
        with psycopg.connect(fresh_url) as slow:
            slow.execute("LOCK TABLE onward_journal IN ROW EXCLUSIVE MODE")  # as an insert that is not committed does
            saving = asyncio.create_task(app.save_subscriptions())
            for _ in range(3):
                await app.submit("work")
        await saving
        assert await _triggers(app.store) == ["onward_outbox_tasks"]


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_of_record_is_a_type_of_event() -> None:
    kinds = {value for name, value in vars(r).items() if name.isupper() and isinstance(value, str)}
    assert kinds == event.KINDS
    assert event.known_types(sorted(kinds)) == tuple(sorted(kinds))


@pytest.mark.parametrize("wrong", ["", "task", "task.", "nonsense", "task.done", "*.*", "**", "tool.*", 7, None])
def test_unknown_types_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="events of type"):
        event.known_types([wrong])


def test_no_type_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        event.known_types([])


@given(st.sets(st.sampled_from(sorted(event.KINDS | event.ALIASES.keys() | {"*", "task.*", "step.*"})), min_size=1))
def test_what_the_store_looks_for_is_what_was_asked_for(types: set[str]) -> None:
    """The store lets nothing pass that is not of these types, but for what only a look into a record can tell."""
    found = event.kinds(types)
    for kind in event.KINDS:
        record = Record(5, 2, kind, "key", b"{}", 0.0)
        passes = found == "*" or f"|{kind}|" in found
        told = event.type_of(types, record, first=True)
        assert told is None or passes
        if passes and not types & {"tool.executed", "approval.voted"}:
            assert told is not None


def test_the_words_of_others() -> None:
    tool = Record(5, 2, r.STEP_DONE, "delete", b'{"ms":1,"result":{"id":"a","bytes":3}}', 0.0)
    plain = Record(5, 2, r.STEP_DONE, "delete", b'{"ms":1,"result":{"id":"a","more":3}}', 0.0)
    model = Record(5, 2, r.STEP_DONE, "model", b'{"ms":1,"result":{"id":"a","bytes":3,"asked":1}}', 0.0)
    assert [event.type_of(["tool.executed"], one, first=True) for one in (tool, plain, model)] == [
        "tool.executed",
        None,
        None,
    ]
    assert event.type_of(["tool.executed", "step.*"], tool, first=True) == "step.completed"
    shift = Record(7, 7, r.SHIFT, "", b"{}", 0.0)
    assert event.type_of(["task.started"], shift, first=True) == "task.started"
    assert event.type_of(["task.started"], shift, first=False) is None
    assert event.type_of(["agent.error"], Record(7, 7, r.PARKED, "", b"{}", 0.0), first=True) == "agent.error"


@given(
    st.text(alphabet="abcdefghjkmnpqrstvwxyz0123456789", min_size=1),
    st.integers(1, 10**8),
    st.text(alphabet="abc.:-_0", min_size=1),
)
def test_ids_of_deliveries_can_be_read_back(task_id: str, seq: int, subscription: str) -> None:
    for key in (Key(task_id, seq, subscription), Key(task_id, seq, task_id)):
        assert Key.parse(str(key)) == key
    assert Key.parse("a.b.c") is None
    assert Key.parse("") is None
