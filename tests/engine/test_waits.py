"""Waiting beside crashes, races and branches: no message is missed. (`tests/engines/` has the rest of waiting.)"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from onward.core.task import State
from onward.engine.shift.shift import Shift
from onward.errors import AlreadyDecided, StateConflict, TaskFailed
from onward.testing import MemoryApp, crashes, drain, memory_app
from tests.kit import eventually


def with_task(handler: Any, **options: Any) -> MemoryApp:
    app = memory_app()
    app.task(name="work", retry=1, **options)(handler)
    return app


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_a_crash_at_every_point_of_waiting() -> None:
    async def work(ctx: Any) -> Any:
        async def step() -> str:
            return "s"

        return [
            await ctx.ask("?"),
            await ctx.step(step),
            await ctx.signal("x"),
            await ctx.signal("y", timeout=9, default=0),
        ]

    async for app in crashes(with_task(work)):
        task = await app.submit("work")
        await app.signal(task.id, "x", "early")
        await drain(app)
        (ask,) = await app.asks()
        await app.answer(ask.id, "a")
        assert await drain(app) == [], app.killed_at
        assert (await task.get()).result == ["a", "s", "early", 0]


# ── no message is missed ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_hundred_signals_race_with_the_falling_asleep(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, count: int) -> list[Any]:
        return [await ctx.signal("n") for _ in range(count)]

    async with app.worker():
        tasks = [await app.submit(work, 10) for _ in range(10)]

        async def send(task: Any) -> None:
            for number in range(10):
                await asyncio.sleep(0.001 * (number % 3))
                await app.signal(task.id, "n", number)

        await asyncio.gather(*[send(task) for task in tasks])
        for task in tasks:
            assert await task.result(60) == list(range(10))
    assert await app.store.health.census() == []


async def test_twenty_people_answer_at_once_and_one_wins(app: Onward) -> None:
    @app.task
    async def work(ctx: Any) -> Any:
        return await ctx.ask("who?")

    async with app.worker():
        task = await app.submit(work)
        while not (asks := await app.asks()):  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.01)
        results = await asyncio.gather(*[app.answer(asks[0].id, n) for n in range(20)], return_exceptions=True)
        (winner,) = [number for number, answer in enumerate(results) if answer is None]
        assert all(
            isinstance(a, AlreadyDecided) and a.said == str(winner) for n, a in enumerate(results) if n != winner
        )
        assert await task.result(60) == winner


# ── children and branches ────────────────────────────────────────────────────────────────────────────────────────────


def family() -> MemoryApp:
    app = memory_app()

    @app.task(retry=1)
    async def child(ctx: Any, n: int) -> int:
        await ctx.sleep(n)
        if n == 13:
            raise ValueError("unlucky")
        return n * 2

    @app.task(retry=1)
    async def parent(ctx: Any, numbers: list[int]) -> Any:
        children = [await ctx.submit(child, n) for n in numbers]
        return await ctx.gather(*children)

    @app.task(retry=1)
    async def mapped(ctx: Any, numbers: list[int]) -> Any:
        return await ctx.map("child", numbers, limit=2)

    return app


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parent", "mapped"])
async def test_children_are_started_once_whatever_crashes(name: str) -> None:
    async for app in crashes(family()):
        task = await app.submit(name, {"numbers": [3, 1, 2]})
        assert await drain(app) == [], app.killed_at
        assert (await task.get()).result == [6, 2, 4]
        tasks, _ = await app.list()
        assert len(tasks) == 4, app.killed_at
        assert {item.parent for item in tasks if item.task == "child"} == {task.id}


async def test_a_child_that_fails_or_is_cancelled() -> None:
    app = family()
    async with app:
        task = await app.submit("parent", {"numbers": [1, 13]})
        await drain(app)
        ended = await task.get()
        assert ended.error is not None
        assert ended.error["type"] == TaskFailed.__name__
        assert "unlucky" in ended.error["message"]
        other = await app.submit("parent", {"numbers": [50]})
        async with app.worker():
            while not [item for item in (await app.list(task="child"))[0] if item.reason == "asleep"]:
                await app.clock.move(0.1)
            (young,) = [item for item in (await app.list(task="child"))[0] if not item.ended]
            await app.cancel(young.task_id)
            while not (await other.get()).ended:
                await app.clock.move(0.1)
        assert (await other.get()).error["type"] == "TaskCancelled"  # type: ignore[index]


async def test_cancel_reaches_the_whole_tree(app: Onward) -> None:
    @app.task
    async def tree(ctx: Any, depth: int) -> None:
        if depth:
            await ctx.gather(*[await ctx.submit(tree, depth - 1) for _ in range(3)])
        await ctx.signal("never")

    async with app.worker(slots=50):
        root = await app.submit(tree, 2)
        while len((await app.list(state="waiting"))[0]) < 13:  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.02)
        cancelled = await app.cancel(root.id)
        assert cancelled.in_flight == 0
        tasks, _ = await app.list()
        assert {item.state for item in tasks} == {State.CANCELLED}
        assert len(tasks) == 13
    assert await app.store.health.census() == []


async def test_branches_with_steps_of_one_name_get_their_own_results_at_every_crash() -> None:
    app = memory_app()

    @app.task(retry=1)
    async def work(ctx: Any) -> Any:
        async def branch(letter: str) -> str:
            async def step(number: int) -> str:
                return f"{letter}{number}"

            return await ctx.step(step, 1) + await ctx.step(step, 2) + await ctx.step(step, 3)

        return await ctx.gather(branch("a"), branch("b"))

    async for copy in crashes(app):
        task = await copy.submit("work")
        assert await drain(copy) == []
        assert (await task.get()).result == ["a1a2a3", "b1b2b3"], copy.killed_at


async def test_the_bound_of_a_map_holds() -> None:
    app, now, most = memory_app(), [0], [0]

    @app.task(retry=1)
    async def work(ctx: Any) -> Any:
        async def step(n: int) -> int:
            now[0] += 1
            most[0] = max(most[0], now[0])
            await asyncio.sleep(0.002)
            now[0] -= 1
            return n

        return await ctx.map(step, range(20), limit=3)

    async with app:
        task = await app.submit("work")
        await drain(app)
        assert (await task.get()).result == list(range(20))
        assert most == [3]


async def test_a_raw_gather_is_refused_with_the_name_of_ours() -> None:
    app = memory_app()

    @app.task(retry=1)
    async def work(ctx: Any) -> None:
        async def step() -> None:
            await asyncio.sleep(0.01)

        await asyncio.gather(ctx.step(step), ctx.step(step))

    async with app:
        task = await app.submit("work")
        await drain(app)
        assert "ctx.gather runs several at once" in (await task.get()).error["message"]  # type: ignore[index]


async def test_one_branch_works_while_another_waits() -> None:
    """A wait stays in memory while another branch works, and messages reach it there too."""
    app = memory_app()

    @app.task(retry=1)
    async def work(ctx: Any) -> Any:
        async def slow() -> str:
            await app.signal(ctx.task_id, "go", "heard")
            await app.clock.sleep(5)
            return "worked"

        return await ctx.gather(ctx.signal("go"), ctx.step(slow))

    async with app:
        task = await app.submit("work")
        assert await drain(app) == []
        assert (await task.get()).result == ["heard", "worked"]
        kinds = [record.kind for record in await app.service.journal(task.id)]
        assert kinds.count(r.SHIFT) == 1


# ── pause ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_pause_and_resume_of_a_tree(app: Onward) -> None:
    ran: list[str] = []

    @app.task
    async def leaf(ctx: Any) -> str:
        async def tick(n: int) -> None:
            ran.append(f"{ctx.task_id}-{n}")
            await asyncio.sleep(0.02)

        for number in range(100):
            await ctx.step(tick, number)
        return "done"

    @app.task
    async def root(ctx: Any) -> list[str]:
        return await ctx.gather(*[await ctx.submit(leaf) for _ in range(3)])

    async with app.worker():
        task = await app.submit(root)
        while len({line.split("-")[0] for line in ran}) < 3:  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.01)
        paused = await app.pause(task.id)
        assert paused.in_flight in {3, 4}  # the leaves, and perhaps the root
        tasks: list[Any] = []
        while not tasks or any(item.reason != "paused" for item in tasks):
            await asyncio.sleep(0.05)
            tasks = (await app.list())[0]
        count = len(ran)
        await asyncio.sleep(0.1)
        assert len(ran) == count, "nothing runs"
        assert await app.store.health.census() == []
        await app.resume(task.id)
        assert await task.result(60) == ["done"] * 3
        assert len(ran) == len(set(ran)) == 300, "and nothing ran twice"


async def test_pause_of_a_sleeper_and_of_one_that_has_ended() -> None:
    async def work(ctx: Any) -> str:
        await ctx.signal("go", timeout="1d", default=None)
        return "done"

    app = with_task(work)
    async with app:
        task = await app.submit("work")
        assert (await app.pause(task.id)).reason == "paused"
        (left,) = await drain(app)
        assert left.reason == "paused", "time does not wake it"
        await app.resume(task.id)
        assert await drain(app) == []
        with pytest.raises(StateConflict, match="cannot be paused"):
            await app.pause(task.id)


async def test_a_task_that_goes_to_sleep_leaves_no_circle_in_memory(app: Onward) -> None:
    @app.task
    async def nap(ctx: Any) -> None:
        await ctx.sleep("1h")

    async with app.worker() as worker:

        async def idle() -> bool:
            return worker.finished == 20 and not worker.running

        gc.collect()
        gc.freeze()  # the objects of earlier tests: a long run has many of them
        gc.disable()
        try:
            await app.submit_many(nap, [None] * 20)
            await eventually(idle)
            await asyncio.sleep(0.05)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert [item for item in gc.garbage if isinstance(item, Shift)] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
            gc.enable()
