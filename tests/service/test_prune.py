"""Pruning of ended tasks: by hand, by the workers when the tasks are old, and beside other work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.errors import BadSetting, ResultTimeout, StateConflict, StoreUnavailable, TaskNotFound
from tests.kit import HandClock, Lab, eventually, inline_app
from tests.service.letters import bury

DAY = 86_400.0


async def test_a_task_is_pruned_with_its_artifacts_and_its_key(tmp_path: Path, clock: HandClock) -> None:
    app = inline_app(clock, artifacts=f"file://{tmp_path}/shelf")

    @app.task
    async def work(ctx: Any) -> str:
        return str((await ctx.artifact(b"x" * 100)).artifact_id)

    async with app, app.worker():
        first = await clock.until(app.submit("work", key="once"))
        await clock.until(first.result())
        assert _files(tmp_path) != []
        with pytest.raises(StateConflict, match="try again in a minute"):
            await app.prune(first.id)
        assert (await app.submit("work", key="once")).id == first.id
        clock.jump(61)
        assert await app.prune(first.id) == 1
        assert _files(tmp_path) == []
        with pytest.raises(TaskNotFound):
            await app.prune(first.id)
        with pytest.raises(TaskNotFound):
            await app.get(first.id)
        with pytest.raises(TaskNotFound):
            await first.result(1)
        again = await app.submit("work", key="once")
        assert again.id != first.id
        await clock.until(again.result())


async def test_an_artifact_store_that_is_away_is_logged_and_blocks_no_prune(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = inline_app(clock, artifacts=f"file://{tmp_path}/shelf")

    @app.task
    async def work(ctx: Any) -> None:
        await ctx.artifact(b"x" * 100)

    async with app, app.worker():
        tasks = [await app.submit("work") for _ in range(3)]
        for task in tasks:
            await clock.until(task.result())
        clock.jump(61)
        dropped: list[str] = []

        def drop(task_id: str) -> None:
            if task_id == tasks[0].id:
                raise StoreUnavailable("the bucket is away")
            dropped.append(task_id)

        monkeypatch.setattr(app.service.artifacts._shelf, "drop", drop)
        assert len((await app.service.pruner.prune_all([task.id for task in tasks])).gone) == 3
        assert dropped == [task.id for task in tasks[1:]]
        assert tasks[0].id in caplog.text
        assert "the bucket is away" in caplog.text


async def test_children_go_with_the_task_that_started_them(lab: Lab) -> None:
    @lab.app.task
    async def child(ctx: Any) -> int:
        return 1

    @lab.app.task
    async def parent(ctx: Any) -> int:
        child = await ctx.submit("child")
        return int(await child.result())

    await lab.start()
    task = await lab.run(parent)
    (below,), _ = await lab.app.list(parent=task.task_id)
    lab.app._clock.jump(61)  # type: ignore[attr-defined]
    with pytest.raises(StateConflict, match="is a child and cannot be pruned; it goes with the task that started it"):
        await lab.app.prune(below.task_id)
    assert await lab.app.prune(task.task_id) == 2
    assert await lab.app.list() == ([], None)
    assert await lab.store.health.census() == []


async def test_an_unfinished_task_is_not_pruned(lab: Lab) -> None:
    @lab.app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    await lab.start()
    task_id = await lab.submit(waits)
    await lab.settled(task_id)
    with pytest.raises(StateConflict, match="is not ended and cannot be pruned; cancel it first"):
        await lab.app.prune(task_id)


async def test_a_worker_prunes_old_tasks(clock: HandClock) -> None:
    app = inline_app(clock, prune_after_s=DAY)

    @app.task
    async def quick(ctx: Any) -> int:
        return 1

    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    async with app, app.worker():
        old = [await app.submit("quick") for _ in range(250)]
        stays = await app.submit("waits")
        await clock.until(old[-1].result())
        clock.jump(DAY / 2)
        young = await app.submit("quick")
        await clock.until(young.result())
        clock.jump(DAY / 2 + 200)

        async def pruned() -> bool:
            return len((await app.list(limit=500))[0]) == 2

        async def until_gone() -> None:
            while not await pruned():
                await clock.sleep(1)

        await clock.until(until_gone())
        assert {task.task_id for task in (await app.list())[0]} == {young.id, stays.id}
        await app.signal(stays.id, "go", 7)
        assert await clock.until(stays.result()) == 7
        assert await app.store.health.census() == []


async def test_a_task_that_cannot_be_pruned_blocks_no_other(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    app = inline_app(clock)

    @app.task
    async def quick(ctx: Any) -> int:
        return 1

    async with app, app.worker():
        tasks = [await app.submit("quick") for _ in range(5)]
        for task in tasks:
            await clock.until(task.result())
        clock.jump(DAY)
        prune, large = app.store.pruning.prune, tasks[2].id  # type: ignore[attr-defined]

        async def too_long(ids: Any, age: float) -> Any:
            if large in ids:
                raise StoreUnavailable("it took too long")
            return await prune(ids, age)

        monkeypatch.setattr(app.store.pruning, "prune", too_long)
        assert await app.service.pruner.prune_old(100) == 4
        assert [task.task_id for task in (await app.list())[0]] == [large]


async def test_without_a_setting_workers_prune_old_letters_and_no_task(clock: HandClock) -> None:
    app = inline_app(clock)
    assert app.settings.prune_after_s == 0

    @app.task
    async def work(ctx: Any) -> None: ...

    async def no_letters() -> bool:
        return not (await app.dead_letters.list())[0]

    async with app:
        task = await app.submit("work")
        await bury(app, b"{}")
        async with app.worker():
            await clock.until(task.result())
            clock.jump(29 * DAY)
            await asyncio.sleep(0.05)
            assert not await no_letters()
            clock.jump(2 * DAY)
            await clock.until(eventually(no_letters))
        assert (await app.get(task.id)).ended
    with pytest.raises(BadSetting, match="ONWARD_PRUNE_AFTER_S is -1"):
        Onward("sqlite://:memory:", prune_after_s=-1)


async def test_all_matching_tasks_are_pruned_and_the_others_name_the_reason(app: Onward) -> None:
    """On real time no task is old enough, so the test lowers the minimum age."""

    @app.task
    async def quick(ctx: Any) -> int:
        return 1

    @app.task
    async def boss(ctx: Any) -> int:
        return int(await (await ctx.submit("quick")).result())

    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    async with app.worker():
        ended = [await app.submit("boss") for _ in range(3)]
        await asyncio.gather(*[handle.result(60) for handle in ended])
        waiting = await app.submit("waits")
        with pytest.raises(ResultTimeout):
            await waiting.result(0.1)
    many, service = app.service.bulk, app.service
    ids = await many.find("prune", 10, task=["boss", "quick", "waits"])
    young = await many.act("prune", ids)
    assert (young.matched, young.done) == (7, 0)
    assert {refused.code for refused in young.refused} == {"state_conflict"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)
        acted = await service.bulk.act("prune", ids)
    assert (acted.matched, acted.done) == (7, 6), "children are pruned with their parents"
    assert [refused.task_id for refused in acted.refused] == [waiting.id]
    assert [task.task_id for task in (await app.list())[0]] == [waiting.id]


async def test_constant_pruning_strands_no_task(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees grow and end while every ended task is pruned at once: no parent misses a child, and no task is left over."""
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)

    @app.task
    async def leaf(ctx: Any, n: int) -> int:
        return int(await ctx.step(lambda: n, name="n"))

    @app.task
    async def tree(ctx: Any, n: int) -> int:
        children = [await ctx.submit("leaf", {"n": number}) for number in range(n)]
        return sum([int(await child.result()) for child in children])

    seen: dict[str, int] = {}
    stop = asyncio.Event()

    async def watch(task: Any, n: int) -> None:
        try:
            seen[task.id] = await task.result(60)
            assert seen[task.id] == sum(range(n))
        except TaskNotFound:
            seen[task.id] = -1  # ended, and pruned before the test looked

    async def prune() -> int:
        pruned = 0
        while not stop.is_set():
            pruned += await app.service.pruner.prune_old(0.0)
            await asyncio.sleep(0.01)
        return pruned + await app.service.pruner.prune_old(0.0)

    async with app.worker():
        pruning = asyncio.ensure_future(prune())
        tasks = [(await app.submit("tree", {"n": n % 5}), n % 5) for n in range(60)]
        await asyncio.gather(*[watch(task, n) for task, n in tasks])
        await eventually(lambda: _idle(app))
        await asyncio.sleep(0.05)
        stop.set()
        pruned = await pruning
    assert pruned == 60 + sum(n for _, n in tasks)
    assert await app.list() == ([], None)
    assert await app.store.health.census() == []


def _files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


async def _idle(app: Onward) -> bool:
    return (await app.list(state=["pending", "running", "waiting"]))[0] == []
