"""A worker survives any exception of a handler, stops, and cancellations."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onward import Onward, Retry, State
from onward.core import record as r
from tests.kit import (
    KINDS,
    HandClock,
    Lab,
    calm,
    crashes,
    eventually,
    kinds,
    value,
)

# ── whatever a handler raises ────────────────────────────────────────────────────────────────────────────────────────


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("you will not read me")

    __repr__ = __str__


class Rude(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Own(BaseException):
    pass


class Hostile(Exception):
    @property
    def retry_after(self) -> float:
        raise RuntimeError("do not ask me when")


def recursive() -> Exception:
    error = ValueError()
    error.args = (error, [error])
    return error


RAISED: dict[str, Any] = {
    "SystemExit": lambda: SystemExit(1),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "TimeoutError": TimeoutError,
    "unpicklable arguments": lambda: ValueError(lambda: 1, threading.Lock()),
    "recursive arguments": recursive,
    "a __str__ that raises": Mute,
    "a __str__ that exits": Rude,
    "a retry_after that raises": Hostile,
    "a BaseException of one's own": Own,
    "a group": lambda: BaseExceptionGroup("two", [ValueError(), KeyboardInterrupt()]),
}


async def _raise_later(name: str) -> None:
    await asyncio.sleep(0)
    error = RAISED[name]()
    raise error


def _raise(name: str) -> None:
    error = RAISED[name]()
    raise error


@pytest.mark.parametrize(
    "where",
    [
        "async step",
        "plain step",
        "async step with a timeout",
        "plain step with a timeout",
        "async handler",
        "plain handler",
        "async handler with a deadline",
        "async step under a deadline",
        "plain handler with a deadline",
    ],
)
@pytest.mark.parametrize("name", RAISED)
def test_a_worker_survives_whatever_is_raised(name: str, where: str) -> None:
    """In a loop of its own, because an exception that escapes must not end the test run."""
    failure = ""
    try:
        asyncio.run(_survives(name, where))
    except BaseException as got_out:  # reported by its type: printing some of these raises again
        failure = (
            str(got_out) if isinstance(got_out, AssertionError) else f"{type(got_out).__name__} got out of the loop"
        )
    if failure:
        pytest.fail(failure, pytrace=False)


async def _survives(name: str, where: str) -> None:
    clock = HandClock()
    lab = Lab(clock)
    app = lab.app
    limit: dict[str, Any] = {"deadline": 1000} if "deadline" in where else {}
    within: dict[str, Any] = {"timeout": 1000} if "timeout" in where else {}
    function = _raise if "plain" in where else _raise_later

    @app.task(name="steps", retry=1, **limit)
    async def steps(ctx: Any) -> Any:
        return await ctx.step(function, name, **within)

    @app.task(name="async", retry=1, **limit)
    async def handler(ctx: Any) -> None:
        await _raise_later(name)

    @app.task(name="plain", retry=1, **limit)
    def plain(ctx: Any) -> None:
        _raise(name)

    @app.task
    async def good(ctx: Any) -> str:
        return str(await ctx.step(lambda: "fine", name="fine"))

    async with app:
        await lab.start(slots=3)
        bad = await lab.submit("steps" if "step" in where else where.split(maxsplit=1)[0])
        task = await lab.ended(bad, 60)
        assert (task.state, task.attempt) == (State.FAILED, 1)
        assert task.error is not None
        assert task.error["message"].isprintable()
        if "step" in where:
            assert r.STEP_FAILED in await lab.kinds(bad)
        assert (await lab.run(good)).result == "fine"
        assert await lab.store.health.census() == []
        await lab.stop()


@pytest.mark.parametrize("name", ["SystemExit", "CancelledError", "a __str__ that raises", "MemoryError"])
async def test_any_exception_is_recorded_and_tried_again_like_a_failure(lab: Lab, name: str) -> None:
    @lab.app.task(retry=Retry(attempts=2))
    async def work(ctx: Any) -> Any:
        if ctx.attempt == 1:
            await ctx.step(_raise_later, name, name="bad", retry=2)
        return "well again"

    # The step fails twice, the task is tried again, and does not ask for the step any more.
    task = await lab.run(work)
    assert task.result == "well again"
    errors = [value(x)["error"] for x in await lab.store.journal(task.task_id) if x.kind == r.STEP_FAILED]
    assert [error["type"] for error in errors] == [type(RAISED[name]()).__name__]


# ── being stopped ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_stop_hands_back_at_the_next_step_without_burning_an_attempt(app: Onward) -> None:
    """As with SIGTERM: a running task ends its step, and another worker goes on after it."""
    began, ran = asyncio.Event(), []  # type: ignore[var-annotated]

    @app.task
    async def work(ctx: Any) -> Any:
        for n in range(4):
            await ctx.step(append_number, n)
        return [ctx.attempt, ran]

    async def append_number(n: int) -> None:
        ran.append(n)
        began.set()
        await asyncio.sleep(0.05)

    first = app._make_worker()
    await first.start()
    handle = await app.submit(work)
    await began.wait()
    await first.stop(grace=10)
    task = await handle.get()
    assert (task.state, task.reason, task.attempt, task.worker) == (State.PENDING, "queued", 1, None)
    assert (await kinds(app.store, handle.id))[-1] == r.HANDED_BACK
    assert await crashes(app.store, handle.id) == 0
    assert await app.store.workers.list() == []
    async with app.worker():
        assert await handle.result(timeout=60) == [1, [0, 1, 2, 3]]
    assert ran == [0, 1, 2, 3], "no step was run twice"


@pytest.mark.parametrize(
    ("kind", "stubborn"), [*[(kind, False) for kind in KINDS], ("sqlite memory", True)], indirect=["kind"]
)
async def test_stop_does_not_wait_for_a_step_beyond_its_grace(app: Onward, stubborn: bool) -> None:
    release, began = asyncio.Event(), asyncio.Event()

    @app.task
    async def work(ctx: Any) -> Any:
        await ctx.step(hang)
        return ctx.attempt

    async def hang() -> str:
        began.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        return "released"

    worker = app._make_worker()
    await worker.start()
    handle = await app.submit(work)
    await began.wait()
    async with asyncio.timeout(60):
        await worker.stop(grace=0.1)
    task = await handle.get()
    assert (task.state, task.attempt) == (State.PENDING, 1)
    before = await kinds(app.store, handle.id)
    release.set()
    await asyncio.sleep(0.05)
    assert await kinds(app.store, handle.id) == before, "the step left behind writes no record"
    async with app.worker():
        assert await handle.result(timeout=60) == 1


async def test_stop_of_a_worker_with_a_plain_handler_that_hangs(app: Onward) -> None:
    release, began = threading.Event(), threading.Event()
    raised: list[str] = []

    @app.task
    def work(ctx: Any) -> Any:
        began.set()
        if not raised:
            release.wait(20)
            try:
                ctx.step(lambda: raised.append("ran"), name="after")
            except BaseException as error:
                raised.append(type(error).__name__)
                raise
        return ctx.attempt

    worker = app._make_worker()
    await worker.start()
    handle = await app.submit(work)
    await asyncio.to_thread(began.wait, 10)
    await worker.stop(grace=0.1)
    assert (await handle.get()).state is State.PENDING
    release.set()
    await eventually(lambda: _is(bool(raised)))
    assert raised == ["HandBack"], "its next step raises that its worker has stopped"
    assert (await kinds(app.store, handle.id))[-1] == r.HANDED_BACK


async def _is(value: bool) -> bool:
    return value


async def test_stopping_twice_and_before_the_start(app: Onward) -> None:
    app.task(_nothing, name="nothing")
    worker = app._make_worker()
    await worker.stop()
    await worker.stop()
    other = app._make_worker()
    await other.start()
    await other.stop()
    await other.stop()


async def _nothing(ctx: Any) -> None:
    pass


# ── cancelled while it runs ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["in a step", "between steps"])
async def test_cancel_stops_a_running_task_within_a_heartbeat(app: Onward, where: str) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()
    after: list[str] = []

    @app.task
    async def work(ctx: Any) -> None:
        try:
            if where == "in a step":
                await ctx.step(hang)
            else:
                await hang()
        finally:
            stopped.set()
        await ctx.step(lambda: after.append("must not run"), name="after")

    async def hang() -> None:
        began.set()
        await asyncio.sleep(30)

    async with app.worker() as worker:
        handle = await app.submit(work)
        await began.wait()
        assert (await handle.cancel()).state is State.CANCELLED
        await asyncio.wait_for(stopped.wait(), 60)
        await eventually(lambda: _is(worker.running == 0))
        assert (await kinds(app.store, handle.id))[-1] == r.CANCELLED
        assert not after
        app.task(_nothing, name="nothing")
        await (await app.submit("nothing")).result(timeout=60)


async def test_cancel_is_noticed_at_the_next_step(lab: Lab) -> None:
    after: list[str] = []

    @lab.app.task
    async def work(ctx: Any) -> None:
        await ctx.step(lab.app.cancel, ctx.task_id, name="cancel myself")
        after.append("must not be reached")

    task = await lab.run(work)
    assert task.state is State.CANCELLED
    await calm()
    assert not after
