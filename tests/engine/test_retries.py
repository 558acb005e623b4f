"""Retries of steps and tasks, deadlines across restarts, timeouts: how long things may take, and how often."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from onward import Fatal, Onward, Retry, RetryLater, State, StepFailed
from onward.core import record as r
from onward.engine.shift import timeout
from onward.errors import TaskFailed
from tests.kit import Lab, calm, value


class Moments:
    """The moments of calls, on the clock of the lab."""

    def __init__(self, lab: Lab) -> None:
        self.clock, self.at = lab.clock, []  # type: ignore[var-annotated]

    def note(self) -> int:
        self.at.append(self.clock.time)
        return len(self.at)

    async def later(self) -> int:
        """Async, so in the loop: a thread would not run on this clock."""
        return self.note()

    @property
    def pauses(self) -> list[float]:
        return [round(b - a, 1) for a, b in zip(self.at, self.at[1:], strict=False)]


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_is_tried_again_after_one_two_and_four_seconds(lab: Lab) -> None:
    moments = Moments(lab)

    @lab.app.task(retry=Retry(attempts=4, jitter=0))
    async def bad(ctx: Any) -> None:
        assert ctx.attempt == moments.note()
        raise ConnectionError("down")

    task = await lab.run(bad)
    assert moments.pauses == pytest.approx([1, 2, 4], abs=0.15)
    assert (task.state, task.attempt) == (State.FAILED, 4)
    assert task.error == {"type": "ConnectionError", "message": "down (attempt 4 of the task)", "attempts": 4}
    assert await lab.kinds(task.task_id) == [r.SUBMITTED, *[r.SHIFT, r.RETRY] * 3, r.SHIFT, r.FAILED]


async def test_between_attempts_a_task_holds_no_slot(lab: Lab) -> None:
    @lab.app.task(retry=Retry(attempts=2, first=8, jitter=0))
    async def bad(ctx: Any) -> int:
        if ctx.attempt == 1:
            raise ConnectionError
        return ctx.attempt  # type: ignore[no-any-return]

    await lab.start()
    task_id = await lab.submit(bad)
    task = await lab.settled(task_id)
    assert (task.state, task.reason, task.attempt, lab.worker.running) == (State.PENDING, "retrying", 2, 0)
    assert task.due_at == pytest.approx(lab.clock.time + 8, abs=1)
    assert (await lab.ended(task_id)).result == 2


async def test_retry_after_is_obeyed_by_tasks_and_steps(lab: Lab) -> None:
    moments = Moments(lab)

    @lab.app.task
    async def busy(ctx: Any) -> None:
        async def call() -> None:
            if moments.note() % 2:
                raise RetryLater("429", retry_after=9)

        await ctx.step(call, retry=2)
        if ctx.attempt == 1:
            raise RetryLater("503", retry_after=6)
        await ctx.step(call, retry=2, name="again")

    assert (await lab.run(busy)).state is State.COMPLETED
    assert moments.pauses == pytest.approx([9, 6, 9], abs=0.5)


@pytest.mark.parametrize("error", [Fatal("never"), TypeError("a mistake"), KeyError("k"), NotImplementedError("todo")])
async def test_a_fatal_error_is_tried_once(lab: Lab, error: Exception) -> None:
    moments = Moments(lab)

    @lab.app.task(retry=Retry(attempts=3, jitter=0))
    async def bad(ctx: Any) -> None:
        moments.note()
        raise error

    task = await lab.run(bad)
    assert len(moments.at) == (3 if isinstance(error, KeyError) else 1)
    assert task.error["type"] == type(error).__name__  # type: ignore[index]


async def test_a_failed_task_on_every_store(app: Onward) -> None:
    calls: list[int] = []

    @app.task(retry=Retry(attempts=3, first=0.02))
    async def bad(ctx: Any) -> int:
        calls.append(await ctx.step(lambda: len(calls), name="kept"))
        if ctx.attempt < 3:
            raise ConnectionError("again")
        return ctx.attempt  # type: ignore[no-any-return]

    @app.task(retry=Retry(attempts=2, first=0.02))
    async def worse(ctx: Any) -> None:
        raise ConnectionError("always")

    async with app.worker():
        good, lost = await app.submit(bad), await app.submit(worse)
        assert await good.result(timeout=60) == 3
        with pytest.raises(TaskFailed, match=r"always \(attempt 2 of the task\)"):
            await lost.result(timeout=60)
    assert calls == [0, 0, 0]
    assert await app.store.health.census() == []


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_has_attempts_of_its_own(lab: Lab) -> None:
    moments = Moments(lab)

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        async def flaky() -> str:
            if moments.note() < 4:
                raise ConnectionError("not yet")
            return "now"

        return [await ctx.step(flaky, retry=Retry(attempts=5, jitter=0)), ctx.attempt]

    task = await lab.run(work)
    assert task.result == ["now", 1], "the task itself has not failed"
    assert moments.pauses == pytest.approx([1, 2, 4], abs=0.15)
    records = await lab.store.journal(task.task_id)
    assert [value(x)["attempt"] for x in records if x.kind == r.STEP_RETRY] == [1, 2, 3]
    assert value(next(x for x in records if x.kind == r.STEP_DONE))["attempts"] == 4


async def test_a_step_that_fails_for_good_names_its_attempts_and_its_last_cause(lab: Lab) -> None:
    @lab.app.task(retry=1)
    async def work(ctx: Any) -> None:
        async def flaky() -> None:
            raise ConnectionError("still down")

        await ctx.step(flaky, retry=Retry(attempts=3, first=0.1))

    task = await lab.run(work)
    assert task.error["message"] == "step 'flaky' was tried 3 times and failed: ConnectionError: still down"  # type: ignore[index]
    assert task.error["type"] == "StepFailed"  # type: ignore[index]


async def test_a_failed_step_has_its_cause(lab: Lab) -> None:
    @lab.app.task(retry=1)
    async def work(ctx: Any) -> None:
        def late() -> None:
            raise TimeoutError

        with pytest.raises(StepFailed, match="step 'late' was tried once and failed: TimeoutError") as failure:
            await ctx.step(late)
        assert isinstance(failure.value.__cause__, TimeoutError)

    assert (await lab.run(work)).state is State.COMPLETED


async def test_a_task_that_is_tried_again_comes_back_to_the_failed_step(lab: Lab) -> None:
    moments, others = Moments(lab), Moments(lab)

    @lab.app.task(retry=Retry(attempts=3, jitter=0))
    async def work(ctx: Any) -> int:
        async def flaky() -> int:
            if moments.note() < 5:
                raise ConnectionError("no")
            return len(moments.at)

        await ctx.step(others.later, name="done before")
        return int(await ctx.step(flaky, retry=Retry(attempts=2, jitter=0)))

    task = await lab.run(work)
    assert (task.result, task.attempt) == (5, 3)
    assert moments.pauses == pytest.approx([1, 1, 1, 2], abs=0.15), "two for each attempt of the task"
    assert len(others.at) == 1


async def test_a_fatal_step_fails_its_task_at_once(lab: Lab) -> None:
    moments = Moments(lab)

    @lab.app.task(retry=5)
    async def work(ctx: Any) -> None:
        async def call() -> None:
            moments.note()
            raise Fatal("card refused")

        await ctx.step(call, retry=5)

    task = await lab.run(work)
    assert (task.state, task.attempt, len(moments.at)) == (State.FAILED, 1, 1)


async def test_a_fatal_step_fails_its_task_also_after_a_crash(lab: Lab) -> None:
    """The worker died after it recorded the step's failure and before it recorded the task's. The fatal error stays fatal."""
    moments = Moments(lab)
    hang = True

    @lab.app.task(retry=5)
    async def work(ctx: Any) -> None:
        async def call() -> None:
            moments.note()
            raise Fatal("card refused")

        try:
            await ctx.step(call)
        finally:
            if hang:
                await asyncio.Event().wait()

    await lab.start()
    task_id = await lab.submit(work)
    while r.STEP_FAILED not in await lab.kinds(task_id):
        await calm()
    await lab.crash()
    hang = False
    await lab.start()
    task = await lab.ended(task_id)
    assert (task.state, task.attempt, len(moments.at)) == (State.FAILED, 1, 1)


async def test_a_failure_that_the_handler_caught_is_caught_again_in_the_replay(lab: Lab) -> None:
    calls: list[str] = []

    @lab.app.task
    async def work(ctx: Any) -> Any:
        seen = []
        for name in ("first", "second"):
            try:
                await ctx.step(raises, name, name=name)
            except StepFailed as failed:
                seen.append([failed.step, failed.attempts, failed.kind, failed.message])
        await ctx.step(lambda: calls.append("after"), name="after")
        if ctx.attempt == 1:
            raise ConnectionError
        await ctx.sleep(5)
        return seen

    def raises(name: str) -> None:
        calls.append(name)
        raise ValueError(name)

    task = await lab.run(work)
    assert task.result == [["first", 1, "ValueError", "first"], ["second", 1, "ValueError", "second"]]
    assert calls == ["first", "second", "after"], "each was tried in the first shift, and in no other"


async def test_resume_tries_the_failed_step_anew_and_no_other(lab: Lab) -> None:
    calls: list[str] = []
    well = False

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> str:
        await ctx.step(lambda: calls.append("one"), name="one")
        await ctx.step(sick, name="two")
        return "done"

    def sick() -> None:
        calls.append("two")
        if not well:
            raise Fatal("sick")

    task = await lab.run(work)
    assert task.state is State.FAILED
    await lab.app.resume(task.task_id)
    assert (await lab.ended(task.task_id)).state is State.FAILED
    well = True
    await lab.app.resume(task.task_id)
    assert (await lab.ended(task.task_id)).result == "done"
    assert calls == ["one", "two", "two", "two"]


async def test_a_long_pause_of_a_step_holds_no_slot_and_survives_a_crash(lab: Lab) -> None:
    moments = Moments(lab)

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> int:
        async def flaky() -> int:
            if moments.note() < 3:
                raise ConnectionError
            return len(moments.at)

        return int(await ctx.step(flaky, retry=Retry(attempts=3, first=6, factor=1, jitter=0)))

    await lab.start()
    task_id = await lab.submit(work)
    task = await lab.settled(task_id)
    assert (task.reason, lab.worker.running) == ("retrying", 0)
    await lab.crash()
    await lab.start()
    task = await lab.ended(task_id)
    assert task.result == 3
    assert moments.pauses == pytest.approx([6, 6], abs=1), "the attempts before the crash count"


# ── deadlines ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_deadline_ends_a_task_that_sleeps(lab: Lab) -> None:
    @lab.app.task(deadline="0.25m")
    async def slow(ctx: Any) -> None:
        await ctx.sleep("1h")

    start = lab.clock.time
    task = await lab.run(slow)
    assert task.state is State.FAILED
    assert task.error["type"] == "DeadlineExceeded"  # type: ignore[index]
    assert "deadline exceeded: 15 s after its first start" in task.error["message"]  # type: ignore[index]
    assert 14 < lab.clock.time - start < 20
    assert (await lab.kinds(task.task_id))[-2:] == [r.DEADLINE, r.FAILED]
    assert task.deadline_at == pytest.approx(start + 15, abs=1)


async def test_a_deadline_ends_a_task_that_works(lab: Lab) -> None:
    cleaned: list[str] = []

    @lab.app.task(retry=5)
    async def slow(ctx: Any) -> None:
        try:
            await lab.clock.sleep(500)
        finally:
            cleaned.append("yes")

    task = await lab.run(slow, deadline=10)
    assert (task.state, task.attempt) == (State.FAILED, 1)
    assert "deadline exceeded: 10 s" in task.error["message"]  # type: ignore[index]
    assert cleaned == ["yes"]


async def test_a_deadline_ends_a_task_in_the_middle_of_a_step(lab: Lab) -> None:
    @lab.app.task(deadline=5)
    async def slow(ctx: Any) -> None:
        await ctx.step(lab.clock.sleep, 500, retry=5)

    task = await lab.run(slow)
    assert task.state is State.FAILED
    assert r.STEP_FAILED not in await lab.kinds(task.task_id), "the step has not failed: its time was taken"


async def test_a_deadline_counts_from_the_first_claim_and_across_restarts(lab: Lab) -> None:
    @lab.app.task(deadline=20)
    async def slow(ctx: Any) -> None:
        await ctx.step(lambda: 1, name="one")
        await lab.clock.sleep(1000)

    task_id = await lab.submit(slow)
    lab.clock.jump(500)  # waiting in the queue does not count
    await lab.start()
    await lab.clock.until(_running(lab, task_id))
    begun = lab.clock.time
    await lab.crash()
    lab.clock.jump(12)
    await lab.start()
    await lab.clock.until(_running(lab, task_id))
    await lab.crash()
    await lab.start()
    task = await lab.ended(task_id)
    assert "deadline exceeded: 20 s" in task.error["message"]  # type: ignore[index]
    assert 18 < lab.clock.time - begun < 25


async def _running(lab: Lab, task_id: str) -> None:
    while (await lab.app.get(task_id)).state is not State.RUNNING:
        await lab.clock.sleep(0.05)
    await lab.clock.sleep(1)


async def test_a_deadline_that_passed_while_no_worker_ran(lab: Lab) -> None:
    calls: list[int] = []

    @lab.app.task(deadline=100)
    async def slow(ctx: Any) -> None:
        calls.append(1)
        await lab.clock.sleep(1000)

    await lab.start()
    task_id = await lab.submit(slow)
    await lab.clock.until(_running(lab, task_id))
    await lab.crash()
    lab.clock.jump(3600)
    await lab.start()
    task = await lab.ended(task_id)
    assert "deadline exceeded" in task.error["message"]  # type: ignore[index]
    assert calls == [1], "it was not begun again for nothing"


async def test_a_retry_does_not_wait_beyond_the_deadline(lab: Lab) -> None:
    @lab.app.task(deadline=10, retry=Retry(attempts=5, first=3600, cap=3600))
    async def bad(ctx: Any) -> None:
        raise ConnectionError

    start = lab.clock.time
    task = await lab.run(bad)
    assert "deadline exceeded" in task.error["message"]  # type: ignore[index]
    assert lab.clock.time - start < 15


async def test_a_failure_that_the_handler_caught_before_a_gather_stays_after_a_resume(lab: Lab) -> None:
    """A gather has no record in the handler's own scope: the records of its branches prove that the handler went on."""
    ran: list[str] = []

    async def breaks() -> None:
        ran.append("breaks")
        raise RuntimeError("no")

    async def side(name: str) -> None:
        ran.append(name)

    async def last() -> None:
        ran.append("last")
        if ran.count("last") == 1:
            raise ValueError("once")

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> str:
        with contextlib.suppress(StepFailed):
            await ctx.step(breaks, retry=1)
        await ctx.gather(ctx.step(side, "a"), ctx.step(side, "b"))
        await ctx.gather(ctx.step(last, retry=1))
        return "done"

    task = await lab.run(work)
    assert task.state is State.FAILED
    await lab.app.resume(task.task_id)
    assert (await lab.ended(task.task_id)).result == "done"
    assert sorted(ran) == ["a", "b", "breaks", "last", "last"]


async def test_a_resumed_task_has_its_time_anew(lab: Lab) -> None:
    naps = [1000, 1]

    @lab.app.task(deadline=10)
    async def slow(ctx: Any) -> str:
        await lab.clock.sleep(naps.pop(0))
        return "done"

    task = await lab.run(slow)
    assert task.state is State.FAILED
    lab.clock.jump(3600)
    await lab.app.resume(task.task_id)
    assert (await lab.ended(task.task_id)).result == "done"


async def test_a_task_that_no_worker_began_in_time_expires(lab: Lab) -> None:
    calls: list[int] = []

    @lab.app.task
    async def work(ctx: Any) -> None:
        calls.append(1)

    expired, fine = await lab.submit(work, expires=10), await lab.submit(work, expires=60)
    lab.clock.jump(30)
    await lab.start()
    task = await lab.ended(expired)
    assert (task.state, task.error["type"]) == (State.FAILED, "Expired")  # type: ignore[index]
    assert "no worker had started the task 10 s after it was submitted" in task.error["message"]  # type: ignore[index]
    assert (await lab.ended(fine)).state is State.COMPLETED
    assert calls == [1]


async def test_a_deadline_on_every_store(app: Onward) -> None:
    @app.task(deadline=0.2)
    async def slow(ctx: Any) -> None:
        await asyncio.sleep(30)

    @app.task(deadline=0.2)
    def blocking(ctx: Any) -> None:
        released.wait(20)

    released = threading.Event()
    async with app.worker(slots=2):
        for handler in (slow, blocking):
            with pytest.raises(TaskFailed, match=r"deadline exceeded: 0\.2 s"):
                await (await app.submit(handler)).result(timeout=60)
        released.set()


# ── timeouts of steps ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_that_hangs(lab: Lab) -> None:
    calls: list[str] = []

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> None:
        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                calls.append("left")

        await ctx.step(hang, timeout=5, retry=Retry(attempts=2, jitter=0))

    start = lab.clock.time
    task = await lab.run(work)
    assert (
        "step 'hang' was tried 2 times and failed: StepTimeout: step 'hang' took longer than its timeout of 5 s"
        in task.error["message"]
    )  # type: ignore[index]
    assert 11 <= lab.clock.time - start < 13
    assert calls == ["left", "left"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the worker leave a step that ignores its cancellation sooner."""
    monkeypatch.setattr(timeout, "CANCEL_GRACE_S", 0.05)


async def test_a_step_that_hangs_and_does_not_heed_its_cancellation(app: Onward, impatient: None) -> None:
    """The worker leaves the step behind: its slot is free, the task goes on, and its late result is dropped."""
    release = asyncio.Event()
    finished: list[str] = []

    @app.task(retry=1)
    async def work(ctx: Any) -> str:
        async def stubborn() -> str:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            finished.append("at last")
            return "too late"

        try:
            await ctx.step(stubborn, timeout=0.1)
        except StepFailed as failed:
            return failed.kind
        return "no timeout"

    async with app.worker(slots=1):
        handle = await app.submit(work)
        assert await handle.result(timeout=60) == "StepTimeout"
        before = await app.service.journal(handle.id)
        release.set()
        await asyncio.sleep(0.1)
        assert finished == ["at last"]
        assert await app.service.journal(handle.id) == before


async def test_a_plain_step_that_hangs_frees_its_slot(app: Onward) -> None:
    release = threading.Event()

    @app.task(retry=1)
    async def work(ctx: Any) -> str:
        try:
            await ctx.step(release.wait, 20, timeout=0.1, name="hang")
        except StepFailed as failed:
            return failed.kind
        return "no timeout"

    async with app.worker(slots=1) as worker:
        for _ in range(2):
            assert await (await app.submit(work)).result(timeout=60) == "StepTimeout"
        assert worker.threads.left_behind == 2
        release.set()
        for _ in range(100):
            if not worker.threads.left_behind:
                break
            await asyncio.sleep(0.02)
        assert worker.threads.left_behind == 0, "they came back and are kept for the next"


async def test_a_step_in_time_is_not_disturbed(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> Any:
        async def quick() -> str:
            await lab.clock.sleep(4)
            return "in time"

        return [await ctx.step(quick, timeout=5), await ctx.step(lambda: "plain", name="plain", timeout="1m")]

    assert (await lab.run(work)).result == ["in time", "plain"]


async def test_a_step_left_behind_by_a_deadline_writes_no_record(app: Onward, impatient: None) -> None:
    """It ignores its cancellation and returns after its task has failed: no record may follow the end."""
    release = asyncio.Event()
    returned = asyncio.Event()

    @app.task(deadline=0.2, retry=1)
    async def work(ctx: Any) -> None:
        async def stubborn() -> str:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            returned.set()
            return "too late"

        await ctx.step(stubborn)

    async with app.worker():
        handle = await app.submit(work)
        with pytest.raises(TaskFailed, match="deadline exceeded"):
            await handle.result(timeout=60)
        release.set()
        await asyncio.wait_for(returned.wait(), 60)
        await asyncio.sleep(0.1)
        assert (await app.service.journal(handle.id))[-1].kind == r.FAILED


async def test_a_plain_handler_left_behind_by_a_deadline_writes_no_record(app: Onward) -> None:
    release = threading.Event()
    outcome: list[str] = []

    @app.task(deadline=0.2, retry=1)
    def work(ctx: Any) -> None:
        release.wait(20)
        try:
            ctx.step(lambda: outcome.append("ran"), name="after the end")
        except BaseException as error:
            outcome.append(type(error).__name__)
            raise

    async with app.worker():
        handle = await app.submit(work)
        with pytest.raises(TaskFailed, match="deadline exceeded"):
            await handle.result(timeout=60)
        release.set()
        for _ in range(100):
            if outcome:
                break
            await asyncio.sleep(0.02)
        assert outcome == ["DeadlineExceeded"], "its next step raises that"
        assert (await app.service.journal(handle.id))[-1].kind == r.FAILED
