"""Branches that wait side by side: each message is copied into the journal once, and one wait takes it, the one that began first."""

from __future__ import annotations

import asyncio
import collections
import itertools
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from onward.core.control import NotNow
from onward.core.record import Record
from onward.core.task import NEVER, Message, Reason
from tests.kit import eventually, not_memory

pytestmark = not_memory
TIMEOUT_S = 60


async def journal(app: Onward, task_id: str) -> list[Record]:
    records: list[Record] = []
    while page := await app.store.journal(task_id, records[-1].seq if records else 0, 2_000):
        records += page
    return records


async def check_once(app: Onward, task_id: str) -> list[Record]:
    """No message is in the journal twice, and no message ended two waits (an ended child may be asked for more than once)."""
    records = await journal(app, task_id)
    copied = collections.Counter(record.value["n"] for record in records if record.kind == r.MESSAGE)
    assert [n for n, count in copied.items() if count > 1] == []
    children = {record.value["n"] for record in records if record.kind == r.MESSAGE and record.value["kind"] == "child"}
    taken = [record.value["n"] for record in records if record.kind == r.WAITED and "n" in record.value]
    twice = [n for n, count in collections.Counter(taken).items() if count > 1 and n not in children]
    assert twice == []
    return records


async def until_waiting(app: Onward, task_id: str) -> None:
    async def waits() -> bool:
        return (await app.get(task_id)).state == "waiting"

    await eventually(waits)


async def test_one_signal_and_two_branches_that_wait_for_it(app: Onward) -> None:
    async def work(ctx: Any) -> Any:
        waits = [ctx.signal("go", timeout=1.5, default="none") for _ in range(4)]
        return await ctx.gather(ctx.step(asyncio.sleep, 1, name="busy"), *waits)

    app.task(name="work")(work)
    async with app.worker():
        tasks = [await app.submit("work") for _ in range(5)]
        await asyncio.sleep(0.3)
        for task in tasks:
            await app.signal(task.id, "go", "once")
        for task in tasks:
            assert (await task.result(TIMEOUT_S))[1:] == ["once", "none", "none", "none"], "the first to wait has it"
            await check_once(app, task.id)


@pytest.mark.slow
async def test_orders_beside_a_branch_that_waits_for_the_stop(app: Onward) -> None:
    charged: collections.Counter[int] = collections.Counter()

    async def charge(order: int) -> int:
        charged[order] += 1
        return order

    async def orders(ctx: Any) -> list[int]:
        taken: list[int] = []
        while (order := await ctx.signal("order")) is not None:
            taken.append(await ctx.step(charge, order))
        return taken

    async def work(ctx: Any) -> Any:
        busy = ctx.step(asyncio.sleep, 3, name="busy")  # so that the others wait in memory
        return (await ctx.gather(orders(ctx), ctx.signal("stop"), orders(ctx), busy))[:3]

    app.task(name="work")(work)
    async with app.worker():
        task = await app.submit("work")
        for order in range(40):
            await app.signal(task.id, "order", order, id=f"order {order}")
            await asyncio.sleep(0.05 if order % 3 else 0)
        await app.signal(task.id, "stop", "enough")
        for _ in range(2):
            await app.signal(task.id, "order", None)
        first, stop, second = await task.result(TIMEOUT_S)
        assert (sorted(first + second), stop) == (list(range(40)), "enough")
        assert set(charged.values()) == {1}
        await check_once(app, task.id)


async def test_each_child_of_a_map_is_one_message(app: Onward) -> None:
    async def child(_ctx: Any, number: int) -> int:
        await asyncio.sleep(0.002 * (number % 7))
        return number

    async def work(ctx: Any, count: int) -> Any:
        numbers, _ = await ctx.gather(ctx.map("child", range(count)), ctx.step(asyncio.sleep, 2, name="busy"))
        return sum(numbers)

    app.task(name="child")(child)
    app.task(name="work")(work)
    async with app.worker(slots=50):
        task = await app.submit("work", 300)
        assert await task.result(TIMEOUT_S) == sum(range(300))
        records = await check_once(app, task.id)
        assert sum(record.kind == r.MESSAGE for record in records) == 300


@pytest.mark.slow
async def test_the_wait_that_began_first_has_it_whatever_branch_it_is_in(app: Onward) -> None:
    async def late(ctx: Any) -> Any:
        await ctx.sleep(1.2)
        return await ctx.signal("go", timeout=4, default="none")

    async def work(ctx: Any) -> Any:
        return await ctx.gather(late(ctx), ctx.signal("go", timeout=6, default="none"))

    app.task(name="work")(work)
    async with app.worker():
        task = await app.submit("work")

        async def both_wait() -> bool:
            return sum(record.kind == r.SIGNAL for record in await journal(app, task.id)) == 2

        await eventually(both_wait)
        await until_waiting(app, task.id)  # the replay comes to the later wait first
        await app.signal(task.id, "go", "once")
        assert await task.result(TIMEOUT_S) == ["none", "once"]
        await check_once(app, task.id)


async def test_the_wait_that_began_first_has_it_although_another_is_reached_first_after_a_restart(app: Onward) -> None:
    """A replay needs more turns of the loop for one branch than for another. The other does not take its message meanwhile."""

    async def late(ctx: Any) -> Any:
        await ctx.step(asyncio.sleep, 0.5, name="late")
        return await ctx.signal("go")

    async def deep(ctx: Any) -> Any:
        await asyncio.sleep(0.05)  # in a replay, too
        return await ctx.signal("go")

    @app.task
    async def work(ctx: Any) -> Any:
        return await ctx.gather(late(ctx), deep(ctx))

    async with app.worker():
        task = await app.submit(work)
        await until_waiting(app, task.id)
        await app.signal(task.id, "go", "first")

        async def one_taken() -> bool:
            return sum(record.kind == r.WAITED for record in await journal(app, task.id)) == 1

        await eventually(one_taken)
        await app.signal(task.id, "go", "second")
        assert await task.result(timeout=TIMEOUT_S) == ["second", "first"]
    await check_once(app, task.id)


async def test_a_message_is_not_kept_for_a_branch_that_does_not_come_back(app: Onward) -> None:
    """The wait that began first belongs to a branch that the new shift does not start: the next wait takes the message."""
    starts, taken = 0, asyncio.Event()

    async def first(ctx: Any) -> Any:
        if starts > 1:
            await asyncio.sleep(3600)
        return await ctx.signal("go")

    async def busy(ctx: Any) -> Any:
        await ctx.step(asyncio.sleep, 0.05, name="short")
        await ctx.signal("go")
        taken.set()

    @app.task
    async def work(ctx: Any) -> Any:
        nonlocal starts
        starts += 1
        return await ctx.gather(first(ctx), busy(ctx))

    async with app.worker():
        task = await app.submit(work)
        await until_waiting(app, task.id)
        await app.signal(task.id, "go", "only")
        await asyncio.wait_for(taken.wait(), TIMEOUT_S)
        await task.cancel()


async def test_messages_that_two_branches_ask_for(app: Onward) -> None:
    async def listen(ctx: Any) -> list[Any]:
        messages: list[Any] = []
        for _ in range(12):
            messages += await ctx.messages()
            await ctx.step(asyncio.sleep, 0.02, name="busy")
        return messages

    async def work(ctx: Any) -> Any:
        return await ctx.gather(*(listen(ctx) for _ in range(4)))

    app.task(name="work")(work)
    async with app.worker():
        task = await app.submit("work")
        for number in range(10):
            await app.signal(task.id, "message", number)
            await asyncio.sleep(0.01)
        messages = await task.result(TIMEOUT_S)
        assert sorted(itertools.chain(*messages)) == list(range(10))
        await check_once(app, task.id)


async def test_more_budget_is_for_all_branches_that_lack_some(app: Onward) -> None:
    enough: list[bool] = []

    async def spend(name: str) -> str:
        if not enough:
            raise NotNow(Reason.BUDGET, NEVER, "there is nothing left")
        return name

    async def work(ctx: Any) -> Any:
        steps = [ctx.step(spend, name, name=name) for name in "abc"]
        return await ctx.gather(ctx.step(asyncio.sleep, 2, name="busy"), *steps)

    app.task(name="work")(work)
    async with app.worker():
        task = await app.submit("work")

        async def all_lack() -> bool:
            return sum(record.kind == r.STEP_WAITS for record in await journal(app, task.id)) == 3

        await eventually(all_lack)
        enough.append(True)
        await app.store.send(task.id, Message("more", "budget", "", None, b"null"))
        assert (await task.result(TIMEOUT_S))[1:] == ["a", "b", "c"]
        await check_once(app, task.id)


@pytest.mark.parametrize("order", ["answers first", "answers last"])
async def test_answers_beside_each_other(app: Onward, order: str) -> None:
    async def work(ctx: Any) -> Any:
        questions = [ctx.ask(f"number {number}?") for number in range(6)]
        return await ctx.gather(ctx.step(asyncio.sleep, 0.8, name="busy"), *questions)

    app.task(name="work")(work)
    async with app.worker():
        task = await app.submit("work")

        async def all_asked() -> Any:
            asks = await app.asks()
            return asks if len(asks) == 6 else None

        asks = await eventually(all_asked)
        if order == "answers last":
            await until_waiting(app, task.id)
        for ask in reversed(asks):
            await app.answer(ask.id, ask.text)
        assert (await task.result(TIMEOUT_S))[1:] == [f"number {number}?" for number in range(6)]
        await check_once(app, task.id)
