"""Sagas: finished steps are undone in reverse, each once, whatever fails and whichever worker dies on the way."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward, Retry
from onward.core import record as r
from onward.core.task import State
from onward.errors import TaskFailed
from onward.testing import MemoryApp, crashes, drain, memory_app
from tests.killer import Killer

STEPS = 5


class Outside:
    """A world outside that remembers the effect keys of its events."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self.order: list[str] = []

    def happen(self, event: str, key: str) -> None:
        if self.seen.setdefault(key, event) != event:
            raise AssertionError(f"one key for {self.seen[key]} and {event}")
        if self.order.count(f"{event} {key}") == 0:
            self.order.append(f"{event} {key}")

    def event_names(self) -> list[str]:
        return [event.partition(" ")[0] for event in self.order]


def saga_app(outside: Outside, *, fail_at: int, app: Any = None, retry: int = 1) -> Any:
    app = app if app is not None else memory_app()

    @app.task(retry=retry)
    async def build(ctx: Any) -> str:
        async def do(number: int) -> int:
            if number == fail_at:
                raise RuntimeError(f"step {number} fails")
            outside.happen(f"do{number}", ctx.key)
            return number * 10

        async def undo(number: int, result: int) -> None:
            assert result == number * 10
            outside.happen(f"undo{number}", ctx.key)

        async with ctx.saga():
            for number in range(1, STEPS + 1):
                await ctx.step(do, number, undo=undo)
        return "built"

    return app


def expected(fail_at: int) -> list[str]:
    done = range(1, fail_at)
    return [f"do{n}" for n in done] + [f"undo{n}" for n in reversed(done)]


@pytest.mark.parametrize("fail_at", [1, 4, *[pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 5)]])
async def test_a_crash_at_every_point_of_the_way_forward_and_back(fail_at: int) -> None:
    points = 0
    outside = Outside()
    async for app in crashes(saga_app(outside, fail_at=fail_at)):
        outside.__init__()  # type: ignore[misc]
        task = await app.submit("build")
        assert await drain(app) == []
        assert outside.event_names() == expected(fail_at), app.killed_at
        ended = await task.get()
        assert ended.state is State.FAILED
        assert ended.error is not None
        assert ended.error.get("undone", []) == [_key("do", n) for n in reversed(range(1, fail_at))]
        assert "not_undone" not in ended.error
        points += 1
    assert points > 3 * fail_at


def _key(name: str, number: int) -> str:
    return f"[saga]{name}" + (f"#{number}" if number > 1 else "")


@pytest.mark.slow
@pytest.mark.parametrize("fail_at", [1, 3, 5])
async def test_the_same_on_every_store(url: str, fail_at: int) -> None:
    number = 0
    while True:
        number += 1
        outside = Outside()
        app = saga_app(outside, fail_at=fail_at, app=Onward(url, poll_s=0.05))
        async with app:
            killer = Killer(app, number)
            task = await app.submit("build")
            with pytest.raises(TaskFailed, match=f"step {fail_at} fails"):
                await killer.until(lambda task=task: task.result(60))  # type: ignore[misc]
            assert outside.event_names() == expected(fail_at), killer.killed_at
            assert await app.store.health.census() == []
        if killer.killed_at is None:
            break
    assert number > 2 * fail_at


async def test_a_saga_that_is_retried_runs_anew_under_new_keys() -> None:
    outside = Outside()
    app = saga_app(outside, fail_at=3, retry=2)
    task = await _drained(app)
    assert outside.event_names() == expected(3) * 2
    assert len(outside.seen) == 8, "every effect of the second round has a key of its own"
    assert {key.partition("]")[0].partition("[")[2] for key in outside.seen} == {
        "saga",
        "saga/undo",
        "saga@2",
        "saga@2/undo",
    }
    assert task.error is not None
    assert task.error["undone"] == ["[saga@2]do#2", "[saga@2]do"]


async def _drained(app: MemoryApp, name: str = "build", **options: Any) -> Any:
    async with app:
        task = await app.submit(name, **options)
        await drain(app)
        return await task.get()


async def test_an_undo_is_retried_and_sees_the_result() -> None:
    app, seen = memory_app(), []

    @app.task(retry=1)
    async def build(ctx: Any) -> None:
        async def do() -> dict[str, int]:
            return {"id": 7}

        def undo(result: dict[str, int]) -> None:
            seen.append(result)
            if len(seen) < 3:
                raise OSError("not yet")

        async with ctx.saga():
            await ctx.step(do, undo=undo)
            raise ValueError("no more")

    task = await _drained(app)
    assert seen == [{"id": 7}] * 3
    assert task.error["undone"] == ["[saga]do"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["cancel", "deadline"])
async def test_cancel_and_deadline_undo_finished_steps(stop: str) -> None:
    """Stopped in the middle of a saga, with a crash at every point before and after that."""
    log: list[str] = []
    app = memory_app()

    @app.task
    async def build(ctx: Any) -> None:
        async def do(name: str) -> str:
            return name

        async def undo(name: str) -> None:
            if f"{name} {ctx.key}" not in log:
                log.append(f"{name} {ctx.key}")

        async with ctx.saga():
            await ctx.step(do, "a", name="a", undo=undo)
            await ctx.step(do, "b", name="b", undo=undo)
            await ctx.signal("never")

    points = 0
    async for copy in crashes(app):
        log.clear()
        task = await copy.submit("build", deadline="1h" if stop == "deadline" else None)
        left = await drain(copy)
        if stop == "cancel":
            assert [task.reason for task in left] == ["signal"]
            assert (await copy.cancel(task.id)).reason == "cancelling"
            assert (await copy.cancel(task.id)).task_id == task.id, "twice is once"
            await drain(copy)
        ended = await task.get()
        assert [line.split()[0] for line in log] == ["b", "a"], copy.killed_at
        assert ended.state is (State.CANCELLED if stop == "cancel" else State.FAILED)
        (end,) = [
            record.value for record in await copy.service.journal(task.id) if record.kind in {r.FAILED, r.CANCELLED}
        ]
        assert end.get("error", end)["undone"] == ["[saga]b", "[saga]a"]
        points += 1
    assert points > 10


async def test_retry_of_the_undo_policy_is_its_own() -> None:
    """The retry of a step does not hold for its undo, which has a retry of its own."""
    app, tries = memory_app(), []

    @app.task(retry=1)
    async def build(ctx: Any) -> None:
        async def do() -> None: ...

        async def undo() -> None:
            tries.append(1)
            raise OSError("never")

        async with ctx.saga():
            await ctx.step(do, undo=undo, retry=Retry(attempts=2))
            raise ValueError("no more")

    task = await _drained(app)
    assert len(tries) == 6
    assert task.error["not_undone"] == ["[saga]do"]
