"""Transactional steps: the user's writes and the record, both or neither, exactly once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from onward.core.task import State
from onward.errors import StateConflict, TaskFailed
from onward.testing import crashes, drain
from tests.killer import Killer
from tests.kit import not_memory, sql


@pytest.fixture
async def shop(app: Onward) -> Onward:
    async with app:
        await sql(app.store, "DROP TABLE IF EXISTS stock")
        await sql(app.store, "CREATE TABLE stock (item TEXT, n INTEGER)")
        await sql(app.store, "INSERT INTO stock VALUES ('apple', 100)")
    return app


async def stock(app: Onward) -> int:
    return int((await sql(app.store, "SELECT n FROM stock"))[0][0])


def selling(app: Onward, how: str) -> None:
    async def sell(connection: Any, item: str) -> int:
        await connection.execute("UPDATE stock SET n = n - 1 WHERE item = $1", item)
        return int(await connection.fetchval("SELECT n FROM stock WHERE item = $1", item))

    @app.task(retry=1)
    async def sale(ctx: Any) -> int:
        async def before() -> None: ...

        await ctx.step(before)
        if how == "function":
            left = await ctx.transaction(sell, "apple")
        else:
            async with ctx.transaction() as connection:
                await connection.execute("UPDATE stock SET n = n - 1 WHERE item = $1", "apple")
                left = await connection.fetchval("SELECT n FROM stock")
        await ctx.step(before)
        return int(left)


@pytest.mark.slow
@not_memory  # which ends with its app
@pytest.mark.parametrize("how", ["function", "block"])
async def test_exactly_once_whatever_is_killed(shop: Onward, url: str, how: str) -> None:
    wanted = {"transaction.before", "transaction.after", None}
    expect, number = 100, 0
    points: list[str | None] = []
    while not wanted <= set(points):  # what is written at the same time comes in another order now and then: then again
        number = 1 if points[-1:] == [None] else number + 1
        app = Onward(url, poll_s=0.05)
        selling(app, how)
        async with app:
            killer = Killer(app, number)
            task = await app.submit("sale")
            left = await killer.until(lambda task=task: task.result(30))  # type: ignore[misc]
            expect -= 1
            assert await stock(app) == expect == left, killer.killed_at
        points.append(killer.killed_at)
    assert len(points) > 4


@pytest.mark.parametrize("how", ["function", "block"])
async def test_a_failure_leaves_nothing(shop: Onward, how: str) -> None:
    @shop.task(retry=1)
    async def fails(ctx: Any) -> None:
        async def body(connection: Any) -> None:
            await connection.execute("UPDATE stock SET n = 0")
            raise ValueError("never mind")

        if how == "function":
            await ctx.transaction(body)
        async with ctx.transaction() as connection:
            await body(connection)

    async with shop.worker():
        task = await shop.submit(fails)
        ended = await shop.service.wait(task.id, 20)
        assert ended.state is State.FAILED
        assert "never mind" in ended.error["message"]  # type: ignore[index]
        assert await stock(shop) == 100
        assert await shop.store.census() == []


async def test_a_cancel_in_the_middle_wins_and_leaves_nothing(shop: Onward) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @shop.task(retry=1)
    async def slow(ctx: Any) -> None:
        async def body(connection: Any) -> None:
            await connection.execute("UPDATE stock SET n = 0")
            began.set()
            await go.wait()

        await ctx.transaction(body)

    async with shop.worker():
        task = await shop.submit(slow)
        await asyncio.wait_for(began.wait(), 10)
        cancel = asyncio.ensure_future(shop.cancel(task.id))  # on SQLite it has to wait for the writer
        await asyncio.sleep(0.05)
        go.set()
        with contextlib.suppress(StateConflict):  # it was quicker
            await cancel
        written = any(record.kind == r.STEP_DONE for record in await shop.service.journal(task.id))
        assert (await task.get()).ended
        assert await stock(shop) == (0 if written else 100), "the write and its record, or neither"


async def test_inside_a_transaction_the_context_is_busy(shop: Onward) -> None:
    @shop.task(retry=1)
    async def nested(ctx: Any) -> None:
        async def other() -> None: ...

        async with ctx.transaction() as connection:
            await connection.execute("UPDATE stock SET n = 0")
            await ctx.step(other)

    async with shop.worker():
        task = await shop.submit(nested)
        ended = await shop.service.wait(task.id, 20)
        assert "while step 'transaction' of the same task was still running" in ended.error["message"]  # type: ignore[index]
        assert await stock(shop) == 100


async def test_too_long_is_rolled_back(url: str) -> None:
    app = Onward(url, lease_s=0.9, heartbeat_s=0.2, poll_s=0.05)

    @app.task(retry=1)
    async def slow(ctx: Any) -> None:
        async def body(connection: Any) -> None:
            await connection.execute("INSERT INTO slow_ones VALUES (1)")
            await asyncio.sleep(30)

        await ctx.transaction(body)

    async with app.worker():
        await sql(app.store, "DROP TABLE IF EXISTS slow_ones")
        await sql(app.store, "CREATE TABLE slow_ones (n INTEGER)")
        task = await app.submit(slow)
        ended = await app.service.wait(task.id, 20)
        assert ended.error is not None
        assert "took longer than its timeout of 0.3 s" in ended.error["message"]
        assert await sql(app.store, "SELECT count(*) FROM slow_ones") == [(0,)]


async def test_killed_anywhere_news_from_inside_leave_no_gap_in_the_journal() -> None:
    async for app in crashes():

        @app.task
        async def tells(ctx: Any) -> str:
            async def body(_: Any) -> str:
                ctx.progress("half of it")
                return "done"

            return str(await ctx.transaction(body))

        handle = await app.submit(tells)
        await drain(app)
        assert await handle.result(timeout=1) == "done", app.killed_at
        assert await app.store.census() == [], app.killed_at


@pytest.mark.parametrize("how", ["an artifact cannot be left", "nothing can be kept"])
async def test_an_artifact_is_left_outside_of_it(app: Onward, how: str) -> None:
    """On SQLite it would wait for the very writer that the transaction holds, and everybody with it. And what is kept goes with
    the next commit of the writer: after this one."""

    @app.task(retry=1)
    async def leaves(ctx: Any) -> str:
        async def body(_: Any) -> str:
            if how == "nothing can be kept":
                return str(ctx.keep("text"))
            return str((await ctx.artifact("text")).artifact_id)

        return str(await ctx.transaction(body))

    async with app.worker():
        handle = await app.submit(leaves)
        with pytest.raises(TaskFailed, match=rf"UsageError: {how} inside ctx\.transaction"):
            await handle.result(timeout=20)
