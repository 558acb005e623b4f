"""Tasks after a restore: effects that may have happened since the backup are in doubt, all others go on."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import pytest

from onward.brokers.intake import Intake, IntakeSpec, _Item
from onward.brokers.message import Received
from onward.brokers.publishing import Brokers
from onward.core import record as r
from onward.core.epoch import Epoch
from onward.core.event import Origin, event
from onward.engine.worker.sinks import Outgoing, SendResult, Urls
from onward.store.migrate import EPOCHS, State
from onward.store.port.outbox import Key, Taken
from onward.store.shared import epochs
from onward.testing import MemoryApp, drain, memory_app
from tests.kit import sql

RESTORE = "the database was restored from a backup"


async def begin_epoch(app: MemoryApp, *, own_tables: bool = True, id_: str | None = None) -> None:
    """As a restore does, and then the process is a new one."""
    store: Any = app.store
    now = app.clock.now()
    epoch = Epoch(store.epoch.number + 1, id_ or f"e{store.epoch.number + 1}", now - 60, now, own_tables)
    await store._db.transact(lambda connection: epochs.begin(connection, epoch))
    await store._enter_epoch(State(frozenset({EPOCHS})))


async def take_back(app: MemoryApp, task_id: str, seq: int, *, own_tables: bool = True) -> None:
    """Put the task back to the moment of this record, as a backup has it, and restore."""
    await sql(app.store, f"DELETE FROM onward_journal WHERE task_id = '{task_id}' AND seq > {seq}")
    await sql(app.store, f"DELETE FROM onward_outcomes WHERE task_id = '{task_id}'")
    await sql(app.store, f"DELETE FROM onward_queue WHERE task_id = '{task_id}'")
    await sql(
        app.store,
        "INSERT INTO onward_queue (task_id, queue, task, priority, reason, inbox) SELECT id, queue, task, priority, 'queued', "
        f"(SELECT COALESCE(max(number), 0) FROM onward_inbox WHERE task_id = onward_tasks.id) FROM onward_tasks WHERE id = '{task_id}'",
    )
    await begin_epoch(app, own_tables=own_tables)


def shop() -> tuple[MemoryApp, list[str]]:
    """A handler with an effect of each kind; the world notes what happens to it."""
    app, world = memory_app(), list[str]()

    @app.task
    async def sell(ctx: Any) -> list[str]:
        async def read() -> str:
            world.append("read")
            return "price"

        async def book() -> str:
            world.append(f"book {ctx.key}")
            return "booked"

        async def mail() -> str:
            world.append("mail")
            return "mailed"

        async def was_mailed() -> str | None:
            world.append("asked")
            return "mailed" if "mail" in world else None

        async def pay() -> str:
            world.append("pay")
            return "paid"

        async def ship() -> str:
            world.append("ship")
            return "shipped"

        return [
            await ctx.step(read, effect="read"),
            await ctx.step(book, effect="idempotent"),
            await ctx.step(mail, reconcile=was_mailed),
            await ctx.step(pay, effect="once"),
            await ctx.step(ship, effect="once"),
        ]

    return app, world


DONE = ["price", "booked", "mailed", "paid", "shipped"]


async def test_at_every_moment_of_a_backup_no_effect_is_repeated_silently() -> None:
    app, world = shop()
    async with app:
        whole = await app.submit("sell")
        await drain(app)
        last = len(await app.service.journal(whole.id))
        for seq in range(1, last):
            world.clear()
            task = await app.submit("sell")
            await drain(app)
            assert (await task.result()) == DONE
            happened = {name: world.count(name) for name in ("mail", "pay", "ship")}
            await take_back(app, task.id, seq)
            asked = []
            while left := await drain(app):
                assert left[0].reason == "in_doubt", (seq, left[0])
                (doubt,) = await app.doubts(task.id)
                asked.append(doubt.step)
                await app.resolve(task.id, "happened", "paid" if doubt.step == "pay" else "shipped", step=doubt.step)
            assert (await task.result()) == DONE, seq
            assert {name: world.count(name) for name in happened} == happened, seq
            assert len({entry for entry in world if entry.startswith("book")}) == 1, "the same key as before"
            kinds = [record.kind for record in await app.service.journal(task.id)]
            recorded = [r_.key for r_ in (await app.service.journal(task.id))[:seq] if r_.kind == r.STEP_DONE]
            assert asked == [name for name in ("pay", "ship") if name not in recorded], seq
            assert kinds.count(r.RESTORED) == 1


@pytest.mark.parametrize(
    ("verdict", "again", "asked"),
    [("not_happened", ["pay", "ship"], 2), ("nothing_happened", ["pay", "ship"], 1), ("happened", [], 2)],
)
async def test_the_verdicts(verdict: str, again: list[str], asked: int) -> None:
    app, world = shop()
    async with app:
        task = await app.submit("sell")
        await drain(app)
        await take_back(app, task.id, 1)
        world.clear()
        count = 0
        while await drain(app):
            (doubt,) = await app.doubts(task.id)
            assert doubt.reason.startswith(RESTORE)
            assert "may have happened after that" in doubt.reason
            await app.resolve(task.id, verdict, "x", step=doubt.step)
            count += 1
        assert count == asked
        assert [name for name in world if name in {"pay", "ship"}] == again
        assert (await app.store.listing.doubts(10)) == []


async def test_a_verdict_from_before_the_restore_is_void() -> None:
    """The worker may have done the step again because of it, after the backup."""
    app, world = memory_app(), list[str]()

    @app.task
    async def pay(ctx: Any) -> str:
        async def charge() -> str:
            world.append("charge")
            if len(world) == 1:
                raise TimeoutError("no answer")
            return "paid"

        return str(await ctx.step(charge, effect="once"))

    async with app:
        task = await app.submit(pay)
        await drain(app)
        await app.resolve(task.id, "not_happened")
        (message,) = await sql(app.store, f"SELECT number, ref FROM onward_inbox WHERE task_id = '{task.id}'")
        asked_at = message[1]
        await drain(app)
        assert len(world) == 2
        records = await app.service.journal(task.id)
        for seq in (max(n for n in (r_.seq for r_ in records if r_.kind == r.DOUBTED)), len(records) - 1):
            await take_back(app, task.id, seq)
            await drain(app)
            (doubt,) = await app.doubts(task.id)
            assert len(world) == 2, "it is not done again without a question"
            assert doubt.seq >= asked_at
        await app.resolve(task.id, "happened", "paid")
        await drain(app)
        assert await task.result() == "paid"
        assert len(world) == 2


async def test_a_checkpoint_keeps_the_doubt() -> None:
    app, world = memory_app(), list[str]()

    @app.task
    async def sell(ctx: Any) -> str:
        if ctx.restored is None:
            await ctx.checkpoint("half")
        await ctx.sleep(60)
        return str(await ctx.step(pay, effect="once"))

    async def pay() -> str:
        world.append("pay")
        return "paid"

    async with app:
        task = await app.submit(sell)
        await drain(app)
        await take_back(app, task.id, 1)
        await drain(app)
        assert len(world) == 1
        assert len(await app.doubts(task.id)) == 1


async def test_a_child_that_may_have_run_before_is_in_doubt_too() -> None:
    app, world = memory_app(), list[str]()

    @app.task
    async def child(ctx: Any) -> str:
        async def pay() -> str:
            world.append("pay")
            return "paid"

        return str(await ctx.step(pay, effect="once"))

    @app.task
    async def parent(ctx: Any) -> str:
        started = await ctx.submit(child)
        return str(await started.result())

    async with app:
        task = await app.submit(parent)
        await drain(app)
        assert await task.result() == "paid"
        for table, column in (("tasks", "id"), ("journal", "task_id"), ("outcomes", "task_id"), ("queue", "task_id")):
            await sql(app.store, f"DELETE FROM onward_{table} WHERE {column} <> '{task.id}'")
        await sql(app.store, "DELETE FROM onward_inbox")
        await take_back(app, task.id, 1)
        await drain(app)
        ((other, _),) = await app.store.listing.doubts(10)
        assert other != task.id
        assert world == ["pay"]


async def test_a_tick_of_the_lost_time_is_in_doubt_and_a_later_one_is_not() -> None:
    app, world = memory_app(), list[str]()

    @app.task
    async def bill(ctx: Any) -> str:
        async def pay() -> str:
            world.append("pay")
            return "paid"

        return str(await ctx.step(pay, effect="once"))

    app.schedule("hourly", bill, every="1h", missed="all")
    async with app:
        await drain(app)
        await app.clock.move("1h")
        await begin_epoch(app)
        await drain(app)
        assert len(await app.store.listing.doubts(10)) == 1
        assert world == []


async def test_a_dead_letter_that_is_tried_again_after_the_restore() -> None:
    """It may have been a task after the backup before. One that died later was none."""
    app, world = memory_app(), list[str]()

    @app.task
    async def pay(ctx: Any, order: int) -> str:
        async def charge() -> str:
            world.append(f"charge {order}")
            return "paid"

        return str(await ctx.step(charge, effect="once"))

    async with app:
        spec = IntakeSpec("orders", "redis", "orders", {"*": "pay"})
        intake = Intake(spec, lambda: None, app.service, app.store, app.clock, app._ids)  # type: ignore[arg-type,return-value]

        async def bury(order: int) -> None:
            received = Received({"id": f"m{order}"}, str(order).encode(), "1", f"m{order}")
            await intake._bury([_Item(received, None, "no handler")])

        await bury(1)
        await app.clock.move("1m")
        await begin_epoch(app)
        await app.clock.move("1m")
        await bury(2)
        await app.dead_letters.redrive(intake="orders")
        broker: Any = types.SimpleNamespace(hold=lambda _: asyncio.sleep(0))
        await intake._redrive_some(broker)
        (left,) = await drain(app)
        assert left.reason == "in_doubt"
        assert world == ["charge 2"]


async def test_a_task_that_a_step_or_an_event_function_submits_again() -> None:
    """It is gone with the backup, and may have run. One with a cause after the restore has not."""
    app, world = memory_app(), list[str]()

    @app.task
    async def pay(ctx: Any, why: str) -> str:
        async def charge() -> str:
            world.append(why)
            return "paid"

        return str(await ctx.step(charge, effect="once"))

    @app.task
    async def order(ctx: Any) -> None:
        async def begin() -> None:
            await app.submit(pay, "step", key=ctx.key)

        await ctx.step(begin)

    @app.task
    async def quiet(ctx: Any) -> None: ...

    @app.on("task.completed")
    async def done(event: Any) -> None:
        if event.task == "quiet":
            await app.submit(pay, f"event {event.data['labels']['n']}", key=event.id)

    async def relay() -> None:
        async with app.relay(), asyncio.timeout(60):
            while await sql(app.store, "SELECT 1 FROM onward_outbox WHERE state = 'pending'"):
                await app.clock.move("100ms")
                await asyncio.sleep(0.001)

    async with app:
        await app.save_subscriptions()
        await app.submit(quiet, labels={"n": "before"})
        task = await app.submit(order)
        await drain(app)
        await relay()
        await drain(app)
        assert sorted(world) == ["event before", "step"]
        await take_back(app, task.id, 1)
        await sql(
            app.store,
            "UPDATE onward_outbox SET state = 'pending', due_at = 0, attempts = 0, done_at = NULL, holder = NULL",
        )
        await sql(app.store, "DELETE FROM onward_tasks WHERE task = 'pay'")
        for table in ("journal", "queue", "outcomes", "outbox"):
            await sql(app.store, f"DELETE FROM onward_{table} WHERE task_id NOT IN (SELECT id FROM onward_tasks)")
        world.clear()
        await app.clock.move("1s")
        await app.submit(quiet, labels={"n": "after"})
        await drain(app)
        await relay()
        left = await drain(app)
        assert [row.reason for row in left] == ["in_doubt", "in_doubt"]
        assert world == ["event after"]


async def test_a_transaction_is_in_doubt_where_the_tables_of_the_application_did_not_go_back() -> None:
    for own_tables, calls in ((True, 2), (False, 1)):
        app = memory_app()
        count = [0]

        @app.task
        async def take(ctx: Any, count: list[int] = count) -> int:
            async def work(connection: Any) -> int:
                count[0] += 1
                return 7

            return int(await ctx.transaction(work))

        async with app:
            task = await app.submit("take")
            await drain(app)
            await take_back(app, task.id, 1, own_tables=own_tables)
            left = await drain(app)
            assert count[0] == calls
            if not own_tables:
                assert left[0].reason == "in_doubt"
                await app.resolve(task.id, "happened", 7)
                await drain(app)
                assert count[0] == 1
            assert await task.result() == 7


async def test_a_second_restore_may_leave_the_tables_of_the_application_where_the_first_did_not() -> None:
    for first, second in ((True, False), (False, True)):
        app = memory_app()
        calls: list[int] = []

        @app.task
        async def take(ctx: Any, calls: list[int] = calls) -> int:
            async def work(connection: Any) -> int:
                calls.append(1)
                return 7

            return int(await ctx.transaction(work))

        async with app:
            task = await app.submit("take")
            await drain(app)
            await take_back(app, task.id, 1, own_tables=first)
            await take_back(app, task.id, 2, own_tables=second)
            (left,) = await drain(app)
            assert left.reason == "in_doubt", (first, second)
            assert len(calls) == 1


async def test_a_failed_task_keeps_the_doubt_of_all_restores_since_its_end() -> None:
    """A person resumed it after the backup of the first restore, which left the tables of the application; a second one took them back."""
    app = memory_app()
    calls: list[int] = []

    @app.task(retry=1)
    async def take(ctx: Any) -> int:
        async def work(connection: Any) -> int:
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("refused")
            return 7

        return int(await ctx.transaction(work, retry=1))

    async with app:
        task = await app.submit(take)
        await drain(app)
        await begin_epoch(app, own_tables=False)
        await app.clock.move("1h")
        await begin_epoch(app, own_tables=True)
        await app.resume(task.id)
        (left,) = await drain(app)
        assert left.reason == "in_doubt"
        assert len(calls) == 1


async def test_a_failed_task_that_is_resumed_after_the_restore() -> None:
    """It may have been resumed after the backup before."""
    app, world = memory_app(), list[str]()

    @app.task(retry=1)
    async def pay(ctx: Any) -> str:
        async def charge() -> str:
            world.append("charge")
            if len(world) == 1:
                raise ValueError("refused")
            return "paid"

        return str(await ctx.step(charge, effect="once"))

    async with app:
        task = await app.submit(pay)
        await drain(app)
        await begin_epoch(app)
        await app.resume(task.id)
        left = await drain(app)
        assert left[0].reason == "in_doubt"
        assert world == ["charge"]


def test_an_event_of_a_later_epoch_has_an_id_of_its_own() -> None:
    """The record of the same number that the restore took back was another one, and may have been sent."""
    record = r.Record(7, 2, r.COMPLETED, "", b'{"result":1}', 5.0)
    first, later = (event("t", record, r.COMPLETED, Origin("pay", 1.0, epoch=epoch)) for epoch in ("", "e1f3a9c2b"))
    assert (first.id, later.id) == ("t.7", "t.7.e1f3a9c2b")


async def test_receivers_get_the_id_of_the_later_epoch() -> None:
    """The header `webhook-id` and the id at a broker, by which receivers drop repeats."""
    record = r.Record(7, 2, r.COMPLETED, "", b'{"result":1}', 5.0)
    sent: list[str] = []

    class Receiver:
        async def send(self, *values: Any) -> Any:
            sent.extend([one.id for one in values[0]] if isinstance(values[0], list) else [values[2]])
            return [SendResult(True, "")] if isinstance(values[0], list) else SendResult(True, "")

    receiver: Any = Receiver()
    brokers = Brokers({"audit": "redis://localhost"})
    brokers._publishers["broker:audit/events"] = receiver
    for epoch in ("", "e1f3a9c2b"):
        for sink, lane, subscription in (
            (Urls(lambda: receiver), "x", "s"),
            (brokers, "broker:audit/events", "publish:a"),
        ):
            origin = Origin("pay", 1.0, epoch=epoch)
            row = Taken(Key("t", 7, subscription), 1, ("*",), "", record, origin, None, 1)
            await sink.send(lane, [Outgoing(row, event("t", record, r.COMPLETED, origin), b"{}")])
    assert sent == ["t.7.s", "t.7.publish:a", "t.7.s.e1f3a9c2b", "t.7.publish:a.e1f3a9c2b"]


async def test_the_id_of_an_event_after_a_restore_names_the_approval() -> None:
    app = memory_app()

    @app.task
    async def ask(ctx: Any) -> str:
        await ctx.approve("refund 10")
        return "refunded"

    ids: list[str] = []

    @app.on("approval.requested")
    async def told(event: Any) -> None:
        ids.append(event.id)

    async with app:
        await app.save_subscriptions()
        await begin_epoch(app, id_="0123456789")
        task = await app.submit(ask)
        await drain(app)
        async with app.relay():
            async with asyncio.timeout(20):
                while not ids:
                    await app.clock.move("1s")
                    await asyncio.sleep(0)
        assert ids[0].endswith(".e01234567")
        await app.decide(ids[0], "approve")
        await drain(app)
        assert await task.result() == "refunded"


async def test_doubts_of_all_tasks_have_pages() -> None:
    app = memory_app()

    @app.task(retry=1)
    async def pay(ctx: Any) -> None:
        async def charge() -> None:
            raise ConnectionResetError("lost")

        await ctx.step(charge, effect="once")

    async with app:
        tasks = [await app.submit(pay) for _ in range(5)]
        await drain(app)
        listed, after, pages = [], "", 0
        while True:
            page = await app.in_doubt(limit=2, after=after)
            listed += [(doubt.task_id, doubt.task, doubt.step) for doubt in page.doubts]
            pages += 1
            if page.next is None:
                break
            after = page.next
    assert listed == [(task.id, "pay", "charge") for task in sorted(tasks, key=lambda task: task.id)]
    assert pages == 3
