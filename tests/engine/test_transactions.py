"""Transactional steps: the user's writes and the record, both or neither, exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from onward import Onward, Retry
from onward.core import record as r
from onward.core.task import State
from onward.errors import StateConflict, StepFailed, TaskFailed
from onward.testing import crashes, drain
from tests.killer import Killer
from tests.kit import eventually, not_memory, only_postgres, sql


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


@pytest.mark.parametrize("how", ["function", "block"])
async def test_code_with_a_transaction_can_be_checked(shop: Onward, how: str) -> None:
    """A dry run has no lease, and a recorded transaction needs none."""
    selling(shop, how)
    async with shop.worker():
        task = await shop.submit("sale")
        assert await task.result(timeout=60) == 99
    replayed = await shop.replay(task.id)
    assert (replayed.agrees, replayed.detail) == (True, "it returns the same result")
    assert await stock(shop) == 99


@pytest.mark.slow
@not_memory  # which ends with its app
@pytest.mark.parametrize("how", ["function", "block"])
async def test_exactly_once_whatever_is_killed(shop: Onward, url: str, how: str) -> None:
    wanted = {"transaction.before", "transaction.after", None}
    expect, number = 100, 0
    points: list[str | None] = []
    while not wanted <= set(points):  # concurrent writes may come in another order: then once more
        number = 1 if points[-1:] == [None] else number + 1
        app = Onward(url, poll_s=0.05)
        selling(app, how)
        async with app:
            killer = Killer(app, number)
            task = await app.submit("sale")
            left = await killer.until(lambda task=task: task.result(60))  # type: ignore[misc]
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
        assert await shop.store.health.census() == []


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
        await asyncio.wait_for(began.wait(), 60)
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
        assert await app.store.health.census() == [], app.killed_at


@pytest.mark.parametrize("how", ["an artifact cannot be left", "nothing can be kept"])
async def test_an_artifact_is_left_outside_of_it(app: Onward, how: str) -> None:
    """On SQLite the artifact would wait for the very writer that the transaction holds, and block all others. Kept contents go
    with the writer's next commit, which comes after this one."""

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
            await handle.result(timeout=60)


@pytest.mark.parametrize("how", ["function", "block"])
async def test_a_failure_that_the_handler_catches_is_the_same_in_the_replay(shop: Onward, how: str) -> None:
    caught: list[str] = []

    @shop.task(retry=1)
    async def careful(ctx: Any) -> int:
        async def body(connection: Any) -> None:
            await connection.execute("UPDATE stock SET n = 0")
            raise ValueError("sold out")

        try:
            if how == "function":
                await ctx.transaction(body)
            async with ctx.transaction() as connection:
                await body(connection)
        except StepFailed as failed:
            caught.append(str(failed))
        await ctx.signal("go")
        async with ctx.transaction() as connection:
            await connection.execute("UPDATE stock SET n = n - 1")
            return int(await connection.fetchval("SELECT n FROM stock"))

    async with shop.worker():
        task = await shop.submit(careful)
        await eventually(lambda: _waits(shop, task.id))
        await shop.signal(task.id, "go")
        assert await task.result(60) == 99
        records = await shop.service.journal(task.id)
    assert [record.kind for record in records if record.kind.startswith("step.")] == [r.STEP_FAILED, r.STEP_DONE]
    assert len(caught) == 2
    assert len(set(caught)) == 1
    assert "sold out" in caught[0]


async def _waits(app: Onward, task_id: str) -> bool:
    return (await app.get(task_id)).reason == "signal"


@only_postgres  # SQLite checks such constraints only after a pragma
async def test_a_block_whose_commit_fails_is_a_step_that_failed(app: Onward) -> None:
    caught: list[str] = []

    @app.task(retry=1)
    async def late(ctx: Any) -> int:
        try:
            async with ctx.transaction(name="open") as connection:
                await connection.execute("INSERT INTO child VALUES (7)")  # the database checks it at the commit
        except StepFailed as failed:
            caught.append(failed.kind)
        await ctx.signal("go")
        return len(caught)

    async with app.worker():
        await sql(app.store, "DROP TABLE IF EXISTS child")
        await sql(app.store, "DROP TABLE IF EXISTS parent")
        await sql(app.store, "CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        await sql(app.store, "CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
        task = await app.submit(late)
        await eventually(lambda: _waits(app, task.id))
        await app.signal(task.id, "go")
        assert await task.result(60) == 2
        await sql(app.store, "DROP TABLE child")
        await sql(app.store, "DROP TABLE parent")


@pytest.mark.parametrize("how", ["function", "block"])
async def test_a_task_that_is_tried_again_comes_to_the_failed_transaction_anew(shop: Onward, how: str) -> None:
    tries = 0

    @shop.task(retry=Retry(attempts=3, first=0.01))
    async def stubborn(ctx: Any) -> int:
        async def body(connection: Any) -> int:
            nonlocal tries
            tries += 1
            await connection.execute("UPDATE stock SET n = n - 1")
            if tries < 3:
                raise ValueError("not yet")
            return int(await connection.fetchval("SELECT n FROM stock"))

        if how == "function":
            return int(await ctx.transaction(body))
        async with ctx.transaction() as connection:
            return await body(connection)

    async with shop.worker():
        assert await (await shop.submit(stubborn)).result(60) == 99
        assert await stock(shop) == 99
    assert tries == 3


async def test_a_statement_that_fails_fails_its_block_whatever_that_catches(shop: Onward) -> None:
    """The journal has no answer of the statement, so a replay could not come to the same place."""

    @shop.task(retry=1)
    async def sly(ctx: Any) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("UPDATE stock SET n = 0")
            with contextlib.suppress(Exception):
                await connection.execute("UPDATE no_such_table SET n = 0")

    async with shop.worker():
        ended = await shop.service.wait((await shop.submit(sly)).id, 20)
        assert ended.state is State.FAILED
        assert "no_such_table" in ended.error["message"]  # type: ignore[index]
        assert await stock(shop) == 100


def test_pydantic_is_not_imported_while_a_transaction_is_open() -> None:
    program = """
        import asyncio, dataclasses, sys
        from onward import Onward
        from onward.errors import UsageError

        app = Onward("sqlite://:memory:")
        seen = []

        @dataclasses.dataclass
        class Row:
            n: int

        async def refused(connection) -> int:
            try:
                await ctx_of[0].artifact("text")
            except UsageError as error:
                return "pydantic" in sys.modules

        async def row(connection) -> list[Row]:
            seen.append("pydantic" in sys.modules)
            return [Row(1)]

        ctx_of = []

        @app.task
        async def work(ctx):
            ctx_of.append(ctx)
            imported = await ctx.transaction(refused)
            rows = await ctx.transaction(row)
            return [imported, *seen, rows]

        async def main():
            async with app.worker():
                print(await (await app.submit(work)).result(timeout=30))

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[False, True, [{'n': 1}]]", done.stderr
