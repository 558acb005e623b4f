"""Starts and stops of workers: nothing begins after a stop, nothing is left behind, and every wait has an end.

Two former faults: a claim answered in the middle of a stop began a shift whose writer had ended; a shift that was cancelled while it
released its task took the cancellation for done, and waited for that writer for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

import pytest

from onward import Context, Onward, testing
from onward.core import record as r
from onward.core.clock import SystemClock
from onward.core.control import Fenced
from onward.core.task import State
from onward.engine.shift.timeout import run_with_timeout
from onward.engine.worker import worker as workers
from onward.errors import UsageError
from onward.store.writer import Hold, Writer
from onward.testing import MemoryApp, crashes, drain, memory_app
from tests.kit import Gate, eventually, not_memory, only_file
from tests.kit import crashes as crash_count
from tests.sim.planted import PLANTED


async def _nothing(value: Any = None) -> Any:
    await asyncio.sleep(0)
    return value


def _handlers(app: Onward) -> None:
    @app.task
    async def plain(ctx: Context) -> None:
        for number in range(3):
            await ctx.step(_nothing, number, name=f"s{number}")

    @app.task
    async def branches(ctx: Context) -> None:
        async def line(number: int) -> None:
            await ctx.step(_nothing, number, name="a")
            await ctx.step(_nothing, number, name="b")

        await ctx.gather(*[line(number) for number in range(4)], limit=2)

    @app.task
    async def children(ctx: Context) -> None:
        await ctx.map("plain", [{}, {}])

    @app.task(deadline=1)
    async def late(ctx: Context) -> None:
        await ctx.step(_nothing, name="a")
        await ctx.step(asyncio.Event().wait, name="b", timeout=0.3)

    @app.task
    async def undone(ctx: Context) -> None:
        async with ctx.saga():
            await ctx.step(_nothing, name="a", undo=_nothing)
            raise ValueError("taken back")


# ── killed ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _killed_at(app: MemoryApp, turn: int) -> list[str]:
    """Kills the worker of this app after `turn` turns of the loop; returns the names of the tasks that go on after that."""
    tasks: list[asyncio.Task[Any]] = []

    def keep(coroutine: Any, name: str) -> asyncio.Task[Any]:
        tasks.append(testing._spawn(coroutine, name))
        return tasks[-1]

    worker = app._make_worker(spawn=keep)
    await worker.start()
    for number in range(turn):
        await asyncio.sleep(0)
        if number % 40 == 39:
            await app.clock.move(0.3)
    dying = [*tasks, *([worker._heart._task] if worker._heart._task else [])]
    for task in dying:
        task.cancel()  # once: a task that swallows the cancellation must end by itself
    for _ in range(100):
        if all(task.done() for task in dying):
            break
        await app.clock.move(1)
        await asyncio.sleep(0.001)
    left = [task.get_name() for task in dying if not task.done()]
    for _ in range(5 if left else 0):
        for task in dying:
            task.cancel()
        await asyncio.sleep(0)
    return left


TURNS = 60


async def _killed_in_every_turn(name: str) -> dict[int, list[str]]:
    like = Onward("sqlite://:memory:")
    _handlers(like)
    left_by_turn: dict[int, list[str]] = {}
    for turn in range(TURNS):
        app = memory_app(like)
        async with app:
            await app.submit(name)
            if left := await _killed_at(app, turn):
                left_by_turn[turn] = left
    return left_by_turn


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "branches", "children", "undone"])
async def test_a_worker_that_is_killed_in_any_turn_of_the_loop_leaves_no_shift_behind(name: str) -> None:
    assert await _killed_in_every_turn(name) == {}


@pytest.mark.slow
async def test_that_kill_finds_the_planted_fault() -> None:
    with PLANTED["stop-begins-shifts"].patches():
        assert await _killed_in_every_turn("children")


async def test_crashes_names_the_point_when_a_handler_does_not_die(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "KILL_TIMEOUT_S", 0.3)
    like, over = Onward("sqlite://:memory:"), False

    @like.task
    async def undying(ctx: Context) -> None:
        try:
            await ctx.step(_nothing, name="a")
        except BaseException:
            while not over:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            raise

    with pytest.raises(UsageError, match=r"killed at save.*onward-task-.*CancelledError"):
        async for app in crashes(like):
            await app.submit(undying)
            await drain(app, patience=0.05)
    over = True
    await asyncio.sleep(0.05)


# ── a writer that has ended ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_writer_that_has_ended_refuses_new_and_pending_appends(inline_store: Any) -> None:
    gate = Gate()

    class Slow:
        apart = True

        async def save(self, *_: Any) -> set[str]:
            await gate()
            return set()

    writer = Writer(Slow(), SystemClock(), lambda: 0.0, random.Random(1))  # type: ignore[arg-type]
    running = asyncio.ensure_future(writer.run())
    flying = writer.append(Hold("a", 2, 2), r.STEP_DONE, "s", b"{}")
    await gate.reached.wait()
    later, other = writer.append(Hold("b", 2, 2), r.STEP_DONE, "s", b"{}"), Hold("c", 2, 2)
    writer.mention(other, r.STEP_STARTED, "s", b"{}")
    flushing = asyncio.ensure_future(writer.flushed(other))
    await asyncio.sleep(0)
    running.cancel()
    for future in (flying, later, flushing):
        with pytest.raises(Fenced):
            await asyncio.wait_for(future, 60)
    with pytest.raises(Fenced):
        await writer.append(Hold("d", 2, 2), r.STEP_DONE, "s", b"{}")
    with pytest.raises(Fenced):
        await writer.flushed(Hold("e", 2, 2))


async def test_a_cancellation_while_late_work_is_abandoned_reaches_the_caller() -> None:
    gate, over = Gate(), False

    async def stubborn() -> None:
        while not over:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                gate.reached.set()

    working = asyncio.ensure_future(run_with_timeout(stubborn(), SystemClock(), 0.01, lambda: TimeoutError("late")))
    await gate.reached.wait()
    over = True
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


@only_file
async def test_a_cancelled_gather_begins_no_other_branch(app: Onward) -> None:
    begun: list[int] = []

    @app.task
    async def many(ctx: Context) -> None:
        async def line(number: int) -> None:
            begun.append(number)
            await asyncio.sleep(60)

        await ctx.gather(*[line(number) for number in range(6)], limit=2)

    async with app.worker():
        await app.submit(many)
        await eventually(lambda: _nothing(len(begun) == 2))
    assert begun == [0, 1]


# ── stopped ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def slow(url: str) -> Any:
    app = Onward(url, lease_s=2.0, heartbeat_s=0.2, poll_s=0.02, grace_s=1.0, slots=5)
    async with app:
        yield app


@not_memory
async def test_a_claim_that_is_answered_after_the_stop_began_is_given_back(
    slow: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, ran, claim = Gate(), [], slow.store.claim

    async def late(*args: Any, **options: Any) -> Any:
        claimed = await claim(*args, **options)
        if claimed:
            await gate()
        return claimed

    monkeypatch.setattr(slow.store, "claim", late)

    @slow.task
    async def work(ctx: Context) -> str:
        ran.append(ctx.task_id)
        return "done"

    handle = await slow.submit(work)
    worker = slow._make_worker()
    await worker.start()
    await asyncio.wait_for(gate.reached.wait(), 60)
    stopping = asyncio.ensure_future(worker.stop(30))
    await asyncio.sleep(0.05)
    assert not stopping.done(), "it does not wait for the claim"
    gate.opened.set()
    await asyncio.wait_for(stopping, 60)
    assert ran == []
    task = await handle.get()
    assert (task.state, task.reason, task.worker) == (State.PENDING, "queued", None)
    assert await crash_count(slow.store, handle.id) == 0
    monkeypatch.setattr(slow.store, "claim", claim)
    async with slow.worker():
        assert await handle.result(60) == "done"


@not_memory
async def test_a_stop_logs_its_waits_and_goes_on(
    slow: Onward, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler swallows its cancellation, a claim gets no answer, and the store does not answer when the worker leaves."""
    monkeypatch.setattr(workers, "CANCEL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(workers, "STOP_TIMEOUT_S", 0.2)
    begun, over, claim = asyncio.Event(), False, slow.store.claim

    @slow.task
    async def deaf(ctx: Context) -> None:
        begun.set()
        while not over:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def silent(*args: Any, **options: Any) -> Any:
        return await (asyncio.Event().wait() if begun.is_set() else claim(*args, **options))

    async def no_answer(_worker: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(slow.store, "claim", silent)
    monkeypatch.setattr(slow.store.workers, "leave", no_answer)
    handle = await slow.submit(deaf)
    worker = slow._make_worker()
    await worker.start()
    await asyncio.wait_for(begun.wait(), 60)
    try:
        await slow.submit(deaf)  # so that the worker claims again
        await eventually(lambda: _nothing(worker._claiming.under_way))
        with caplog.at_level(logging.WARNING):
            await asyncio.wait_for(worker.stop(0.1), 60)
    finally:
        over = True
    log = caplog.text
    assert f"for task {handle.id} (deaf)" in log
    assert "for the answer to a claim" in log
    assert f"for onward-task-{handle.id} to end" in log
    assert "could not leave the store" in log
    await asyncio.sleep(0.05)


@not_memory
async def test_a_stop_in_the_middle_of_a_start_begins_nothing(slow: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, join = Gate(), slow.store.workers.join

    async def late(*args: Any) -> Any:
        await gate()
        return await join(*args)

    monkeypatch.setattr(slow.store.workers, "join", late)
    _handlers(slow)
    before = asyncio.all_tasks()
    worker = slow._make_worker()
    starting = asyncio.ensure_future(worker.start())
    await asyncio.wait_for(gate.reached.wait(), 60)
    await worker.stop()
    gate.opened.set()
    await asyncio.wait_for(starting, 60)
    assert _left(before) == []
    assert await slow.store.workers.list() == []


def _left(before: set[asyncio.Task[Any]]) -> list[str]:
    return sorted(name for task in asyncio.all_tasks() - before if (name := task.get_name()).startswith("onward-task"))


async def _stress(app: Onward, rounds: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start and stop workers at random moments, with random work and a slow database; returns the faults seen."""
    claim, ids, faults = app.store.claim, [], []
    stopped: set[str] = set()

    async def slowly(*args: Any, **options: Any) -> Any:
        await asyncio.sleep(rng.random() * 0.004)
        claimed = await claim(*args, **options)
        await asyncio.sleep(rng.random() * 0.012)
        return claimed

    monkeypatch.setattr(app.store, "claim", slowly)

    async def step() -> None:
        await asyncio.sleep(rng.random() * 0.003)
        if workers.CURRENT_WORKER.get().id in stopped:
            faults.append("a step went on after its worker had stopped")

    @app.task
    async def work(ctx: Context) -> None:
        if workers.CURRENT_WORKER.get().stopping:
            faults.append("a handler was begun after the stop of its worker")
        for number in range(2):
            await ctx.step(step, name=f"s{number}")

    @app.on("task.completed")
    async def on_completed(_event: Any) -> None:
        await asyncio.sleep(rng.random() * 0.01)

    for number in range(rounds):
        before = asyncio.all_tasks()
        worker = app._make_worker()
        await worker.start()
        name = worker.id
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(rng.random() * 0.01)
            ids.append((await app.submit(work)).id)
        await asyncio.sleep(rng.random() * 0.02)
        try:
            await asyncio.wait_for(worker.stop(rng.choice([0, 0.005, 1])), 60)
        except TimeoutError:
            faults.append(f"stop {number} did not come to its end")
        stopped.add(name)
        if left := _left(before):
            faults.append(f"stop {number} left behind: {left}")
        if faults:
            await _cancel_leftovers(before)
            return faults
    monkeypatch.setattr(app.store, "claim", claim)
    async with app.worker():
        for task_id in ids:
            await app.handle(task_id).result(60)
    assert len(ids) > rounds / 2, "VOID: there was no work"
    return faults


async def _cancel_leftovers(before: set[asyncio.Task[Any]]) -> None:
    """Cancels the asyncio tasks that a planted fault left behind, again and again, or the test itself would never end."""
    for _ in range(50):
        for task in asyncio.all_tasks() - before:
            if task.get_name().startswith("onward-task"):
                task.cancel()
        await asyncio.sleep(0.005)


@pytest.mark.slow
@not_memory
async def test_starts_and_stops_at_random_moments(slow: Onward, monkeypatch: pytest.MonkeyPatch, prove: bool) -> None:
    assert await _stress(slow, 500 if prove else 40, random.Random(13), monkeypatch) == []


@not_memory
async def test_those_starts_and_stops_find_the_planted_fault(slow: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    with PLANTED["stop-begins-shifts"].patches():
        assert await _stress(slow, 40, random.Random(13), monkeypatch)
