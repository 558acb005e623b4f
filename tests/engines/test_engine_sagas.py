"""Sagas on every engine: finished steps are undone in reverse, each once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward, Retry, State
from tests.engines.kit import Engine

STEPS = 5


def add_build(app: Onward, log: list[str], *, fail_at: int, retry: Any = 1) -> Any:
    """A handler with a saga of five steps, of which one may fail."""

    @app.task(retry=retry)
    async def build(ctx: Any) -> str:
        async def do(number: int) -> int:
            if number == fail_at:
                raise RuntimeError(f"step {number} fails")
            log.append(f"do{number}")
            return number * 10

        async def undo(number: int, result: int) -> None:
            assert result == number * 10
            log.append(f"undo{number}")

        async with ctx.saga():
            for number in range(1, STEPS + 1):
                await ctx.step(do, number, undo=undo)
        return "built"

    return build


def expected(fail_at: int) -> list[str]:
    done = range(1, fail_at)
    return [f"do{n}" for n in done] + [f"undo{n}" for n in reversed(done)]


@pytest.mark.parametrize("fail_at", [1, 4])
async def test_a_saga_that_fails_undoes_its_finished_steps(engine: Engine, fail_at: int) -> None:
    log: list[str] = []
    task = await engine.run(add_build(engine.app, log, fail_at=fail_at))
    assert log == expected(fail_at)
    assert task.state is State.FAILED
    assert task.error is not None
    keys = [f"[saga]do#{n}" if n > 1 else "[saga]do" for n in reversed(range(1, fail_at))]
    assert task.error.get("undone", []) == keys
    assert "not_undone" not in task.error


async def test_a_saga_that_went_well_undoes_nothing(engine: Engine) -> None:
    log: list[str] = []
    task = await engine.run(add_build(engine.app, log, fail_at=99))
    assert task.result == "built"
    assert log == [f"do{n}" for n in range(1, STEPS + 1)]


async def test_a_saga_that_is_retried_runs_anew_under_new_keys(engine: Engine) -> None:
    log: list[str] = []
    task = await engine.run(add_build(engine.app, log, fail_at=3, retry=Retry(attempts=2, first=0.05)))
    assert log == expected(3) * 2
    assert task.error is not None
    assert task.error["undone"] == ["[saga@2]do#2", "[saga@2]do"]


async def test_an_undo_that_fails_is_reported_and_the_others_still_run(engine: Engine) -> None:
    undone: list[str] = []

    @engine.app.task(retry=1)
    async def build(ctx: Any) -> None:
        async def do(name: str) -> str:
            return name

        async def undo(name: str) -> None:
            if name == "b":
                raise TypeError("a bug in the undo")
            undone.append(name)

        async with ctx.saga():
            for name in "abc":
                await ctx.step(do, name, name=name, undo=undo)
            raise ValueError("no more")

    task = await engine.run(build)
    assert undone == ["c", "a"]
    assert task.error is not None
    assert task.error["undone"] == ["[saga]c", "[saga]a"]
    assert task.error["not_undone"] == ["[saga]b"]
    assert task.error["type"] == "ValueError"


async def test_sagas_in_each_other_and_branches_in_sagas(engine: Engine) -> None:
    log: list[str] = []

    @engine.app.task(retry=1)
    async def build(ctx: Any) -> None:
        async def do(name: str) -> str:
            log.append(name)
            return name

        async def undo(name: str) -> None:
            log.append(f"-{name}")

        async def branch(name: str) -> None:
            await ctx.step(do, f"{name}1", undo=undo)
            await ctx.step(do, f"{name}2", undo=undo)

        async with ctx.saga():
            await ctx.step(do, "a", undo=undo)
            async with ctx.saga("inner"):
                await ctx.step(do, "b", undo=undo)
            try:
                async with ctx.saga("optional"):
                    await ctx.step(do, "c", undo=undo)
                    raise ValueError("that did not work")
            except ValueError:
                await ctx.step(do, "d", undo=undo)
            await ctx.gather(branch("x"), branch("y"))
            raise RuntimeError("in the end")

    task = await engine.run(build)
    assert log[:5] == ["a", "b", "c", "-c", "d"]
    done = [name for name in log if not name.startswith("-") and name != "c"]
    undone = [name[1:] for name in log if name.startswith("-") and name != "-c"]
    assert sorted(undone) == sorted(done)
    assert undone[-3:] == ["d", "b", "a"]
    assert task.error is not None
    assert task.error["type"] == "RuntimeError"


async def test_a_plain_function_has_sagas_too(engine: Engine) -> None:
    log: list[str] = []

    @engine.app.task(retry=1)
    def build(ctx: Any) -> None:
        with ctx.saga():
            ctx.step(log.append, "a", name="a", undo=lambda _: log.append("-a"))
            ctx.step(log.append, "b", name="b", undo=lambda _: log.append("-b"))
            raise ValueError("no more")

    task = await engine.run(build)
    assert log == ["a", "b", "-b", "-a"]
    assert task.error is not None
    assert task.error["undone"] == ["[saga]b", "[saga]a"]


@pytest.mark.parametrize("stop", ["cancel", "deadline"])
async def test_cancel_and_deadline_undo_finished_steps(engine: Engine, stop: str) -> None:
    undone: list[str] = []

    @engine.app.task
    async def build(ctx: Any) -> None:
        async def do(name: str) -> str:
            return name

        async def undo(name: str) -> None:
            undone.append(name)

        async with ctx.saga():
            await ctx.step(do, "a", name="a", undo=undo)
            await ctx.step(do, "b", name="b", undo=undo)
            await ctx.signal("never")

    handle = await engine.submit(build, deadline=4 if stop == "deadline" else None)
    if stop == "cancel":
        await engine.waiting(handle, "signal")
        await engine.app.cancel(handle.id)
        await engine.app.cancel(handle.id)  # twice is once
    ended = await engine.ended(handle)
    assert undone == ["b", "a"]
    assert ended.state is (State.CANCELLED if stop == "cancel" else State.FAILED)


async def test_a_crash_in_an_undo_step_repeats_only_that_step(engine: Engine) -> None:
    log: list[str] = []
    stuck = asyncio.Event()

    @engine.app.task(retry=1)
    async def build(ctx: Any) -> None:
        async def do(name: str) -> str:
            log.append(name)
            return name

        async def undo(name: str) -> None:
            log.append(f"-{name}")
            if name == "b" and not stuck.is_set():
                stuck.set()
                await asyncio.Event().wait()

        async with ctx.saga():
            for name in "abc":
                await ctx.step(do, name, name=name, undo=undo)
            raise ValueError("no more")

    handle = await engine.submit(build)
    await stuck.wait()
    await engine.crash()
    await engine.start()
    ended = await engine.ended(handle)
    assert log == ["a", "b", "c", "-c", "-b", "-b", "-a"]
    assert ended.error is not None
    assert ended.error["undone"] == ["[saga]c", "[saga]b", "[saga]a"]
