"""The tools for users who test their own handlers: a clock that they move, an app in memory, and drain."""

from __future__ import annotations

import asyncio
import time

import pytest

from onward import Context, Onward, Retry, State, StepFailed
from onward.core.views import Ask
from onward.errors import Denied, UsageError
from onward.testing import MovableClock, crashes, drain, memory_app


async def test_sleepers_wake_in_the_order_of_their_moments() -> None:
    clock, woken = MovableClock(), []

    async def sleeper(name: str, *delays: float) -> None:
        for delay in delays:
            await clock.sleep(delay)
            woken.append((name, clock.monotonic()))

    tasks = [asyncio.ensure_future(job) for job in (sleeper("b", 5, 5), sleeper("a", 3, 4), sleeper("c", 60))]
    await clock.move(30)
    assert woken == [("a", 3.0), ("b", 5.0), ("a", 7.0), ("b", 10.0)]
    assert clock.monotonic() == 30
    await clock.move("1h")
    assert woken[-1][0] == "c"
    await asyncio.gather(*tasks)


async def test_a_clock_has_wall_time_and_never_moves_by_itself() -> None:
    clock = MovableClock(start=1000.0)
    await asyncio.sleep(0.01)
    assert (clock.now(), clock.monotonic()) == (1000.0, 0.0)
    await clock.move("1m")
    assert (clock.now(), clock.monotonic()) == (1060.0, 60.0)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = MovableClock()
    task = asyncio.ensure_future(clock.sleep(10))
    await asyncio.sleep(0)
    task.cancel()
    await clock.move(20)
    assert task.cancelled()


async def test_a_month_of_sleep_takes_milliseconds() -> None:
    app = memory_app()
    seen: list[float] = []

    @app.task
    async def remind(ctx: Context, name: str) -> str:
        await ctx.step(lambda: None, name="prepare")
        await ctx.sleep("30d")
        seen.append(await ctx.now())
        await ctx.sleep(0.5)
        return f"sent to {name}"

    async with app:
        start = app.clock.now()
        handle = await app.submit(remind, {"name": "Ada"})
        assert await drain(app) == []
        assert await handle.result(1) == "sent to Ada"
    assert 30 * 86400 <= seen[0] - start < 30 * 86400 + 5


async def test_retries_delays_and_deadlines_come_to_their_end() -> None:
    app = memory_app()
    tries: list[float] = []

    @app.task(retry=Retry(attempts=4, first="10m", cap="1h"))
    async def stubborn(ctx: Context) -> int:
        tries.append(app.clock.now())
        if len(tries) < 4:
            raise ValueError("not yet")
        return len(tries)

    @app.task(deadline="1h", retry=1)
    async def slow(ctx: Context) -> None:
        await ctx.sleep("2h")

    @app.task(retry=1)
    async def hangs(ctx: Context) -> None:
        await ctx.step(asyncio.Event().wait, name="hang", timeout="30s")

    async with app:
        first = await app.submit(stubborn, delay="2d")
        second = await app.submit(slow)
        third = await app.submit(hangs)
        assert await drain(app, patience=0.05) == []
        assert await first.result(1) == 4
        assert "deadline" in (await second.get()).error["message"]
        assert (await third.get()).error["type"] == "StepFailed"


async def test_a_step_that_really_takes_time_is_waited_for() -> None:
    app = memory_app()

    def in_a_thread() -> str:
        time.sleep(0.15)
        return "thread"

    async def on_the_loop() -> str:
        await asyncio.sleep(0.15)
        return "loop"

    @app.task
    async def real(ctx: Context) -> list[str]:
        return [await ctx.step(in_a_thread, timeout="1s"), await ctx.step(on_the_loop, timeout="1s")]

    async with app:
        handle = await app.submit(real)
        assert await drain(app) == []
        assert await handle.result(1) == ["thread", "loop"]
        assert app.clock.monotonic() < 1


async def test_drain_returns_tasks_that_need_another_worker() -> None:
    mine, app = Onward("sqlite://:memory:"), memory_app()

    @mine.task
    async def known(ctx: Context) -> str:
        return "done"

    app = memory_app(mine, slots=2)
    async with app:
        await app.submit(known)
        app.handlers["other"] = app.handlers["known"]
        app._handler_specs["other"] = app._handler_specs["known"]
        await app.submit("other")
        del app.handlers["other"]
        left = await drain(app)
        assert [(task.task, task.state) for task in left] == [("other", State.PENDING)]


async def test_drain_stops_where_people_are_asked() -> None:
    app = memory_app()

    @app.task(deadline="30d")
    async def ship(ctx: Context, timeout: str | None) -> str:
        await ctx.approve("Ship it?", timeout=timeout, default="deny")
        return "shipped"

    @app.task(deadline="10d")
    async def order(ctx: Context) -> str:
        return str(await (await ctx.submit(ship, None)).result())

    @app.task
    async def nap(ctx: Context, length: str) -> str:
        await ctx.sleep(length)
        return "awake"

    async with app:
        start = app.clock.now()
        tasks = [await app.submit(ship, "20d"), await app.submit(ship, None), await app.submit(order)]
        short, long = await app.submit(nap, "1d"), await app.submit(nap, "11d")
        left = await drain(app)
        assert sorted(task.reason or "" for task in left) == ["approval", "approval", "approval", "asleep", "child"]
        assert await short.result(1) == "awake"
        assert app.clock.now() - start < 2 * 86400, "the clock passed the moment at which a deadline ends an order"
        for ask in await app.approvals():
            await app.decide(ask.id, "approve")
        assert await drain(app) == []
        assert [await task.result(1) for task in (*tasks, long)] == ["shipped", "shipped", "shipped", "awake"]


async def test_the_clock_that_a_test_moves_expires_what_people_are_asked() -> None:
    app = memory_app()

    @app.task
    async def ship(ctx: Context) -> str:
        try:
            await ctx.approve("Ship it?", timeout="1d", default="deny")
        except Denied as denied:
            return f"kept, expired {denied.expired}, by {denied.by}"
        return "shipped"

    async with app:
        task = await app.submit(ship)
        assert [left.reason for left in await drain(app)] == ["approval"]
        await app.clock.move("1d")
        assert await drain(app) == []
        assert await task.result(1) == "kept, expired True, by None"
        task = await app.submit(ship)
        await drain(app)
        await app.decide((await app.approvals())[0].id, "deny", by="ada")
        await drain(app)
        assert await task.result(1) == "kept, expired False, by ada"


async def test_a_sleep_beside_an_approval_goes_on() -> None:
    app = memory_app()
    slept: list[float] = []

    @app.task
    async def both(ctx: Context) -> str:
        async def nap() -> None:
            await ctx.sleep("1d")
            slept.append(app.clock.monotonic())

        await ctx.gather(ctx.approve("Go?", timeout="2d", default="deny"), nap())
        return "gone"

    async with app:
        task = await app.submit(both)
        assert [left.reason for left in await drain(app)] == ["approval"]
        assert slept, "the branch that only sleeps came to its end"
        await app.decide((await app.approvals())[0].id, "approve")
        assert await drain(app) == []
        assert await task.result(1) == "gone"


async def test_drain_decides_in_the_place_of_people() -> None:
    app = memory_app()

    @app.task
    async def ship(ctx: Context, what: str) -> str:
        try:
            await ctx.approve(f"Ship {what}?", timeout="1d", default="deny")
        except Denied:
            return f"{what} stays"
        return f"{what} to {await ctx.ask('Where to?')}"

    async def decide(ask: Ask) -> str | None:
        if ask.kind == "question":
            return "the moon"
        return {"Ship tea?": "approve", "Ship sand?": "deny"}.get(ask.text)

    async for again in crashes(app):
        tea, sand, gold = [await again.submit("ship", what) for what in ("tea", "sand", "gold")]
        left = await drain(again, decide=decide)
        assert [task.task_id for task in left] == [gold.id], again.killed_at
        assert (await tea.result(1), await sand.result(1)) == ("tea to the moon", "sand stays"), again.killed_at


async def test_drain_names_a_task_without_end() -> None:
    app = memory_app()

    @app.task
    async def forever(ctx: Context) -> None:
        while True:
            await ctx.sleep("1d")

    async with app:
        await app.submit(forever)
        with pytest.raises(UsageError, match="forever"):
            await drain(app, within="20d")


async def test_failed_steps_are_seen_as_in_production() -> None:
    app = memory_app()

    async def broken() -> None:
        raise ConnectionError("no line")

    @app.task
    async def careful(ctx: Context) -> str:
        try:
            await ctx.step(broken, retry=3)
        except StepFailed as error:
            return f"{error.kind} after {error.attempts}"
        return "fine"

    async with app:
        handle = await app.submit(careful)
        await drain(app)
        assert await handle.result(1) == "ConnectionError after 3"
        kinds = [record.kind async for record in handle.tail()]
    assert kinds.count("step.retry") == 2
    assert kinds[-1] == "task.completed"


async def test_two_drains_write_the_same_journal() -> None:
    async def story() -> list[tuple[str, float]]:
        app = memory_app()

        @app.task(retry=Retry(attempts=3, first=5))
        async def shaky(ctx: Context) -> float:
            if ctx.attempt < 3:
                raise ValueError("again")
            await ctx.sleep(100)
            return await ctx.random()

        async with app:
            handle = await app.submit(shaky)
            await drain(app)
            return [(record.kind, record.at) async for record in handle.tail()]

    assert await story() == await story()
