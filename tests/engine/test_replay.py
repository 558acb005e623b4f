"""Replay: with changed code, with a handler that breaks the rules, and over sleeps."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from onward import Context, Onward, State
from onward.core import record as r
from onward.core.control import Suspend
from onward.core.record import Record
from onward.engine.shift.rolling import tried_versions
from tests.kit import Lab, claim, dense, eventually, value

# ── code that was changed under a living task ────────────────────────────────────────────────────────────────────────


async def _changed(lab: Lab, before: Any, after: Any, *, sleeps: bool = True) -> Any:
    """A task that slept in one version of a handler and woke up in another (which does not sleep, unless it `sleeps`)."""
    versions = [before]

    @lab.app.task
    async def work(ctx: Any) -> Any:
        answer = await versions[-1](ctx)
        if len(versions) == 1 or sleeps:
            await ctx.sleep(100)
        return answer

    await lab.start()
    task_id = await lab.submit(work)
    assert (await lab.settled(task_id)).reason == "asleep"
    versions.append(after)
    lab.clock.jump(200)
    return await lab.settled(task_id, no_more="asleep")


def _steps(*names: str, **args: Any) -> Any:
    async def run(ctx: Any) -> str:
        for name in names:
            await (
                ctx.sleep(5000, name=name[1:])
                if name.startswith("~")
                else ctx.step(_echo, args.get(name, 0), name=name)
            )
        return "done"

    return run


async def _echo(n: Any) -> Any:
    return n


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (_steps("a", "x", "b"), "the code asks for step 'x' where the journal has 'b'"),
        (_steps("b", "a"), "the code asks for step 'b' where the journal has 'a'"),
        (_steps("a", "c"), "the code asks for step 'c' where the journal has 'b'"),
        (_steps("a", "b", b=1), "the code calls step 'b' with other arguments"),
        (_steps("a"), "without asking for step 'b', which the journal has"),
        (_steps(), "without asking for step 'a', which the journal has"),
        (_steps("a", "~b"), "the code asks for 'b' as sleep.started where the journal has step.completed"),
    ],
    ids=[
        "inserted",
        "reordered",
        "renamed",
        "other arguments",
        "removed the last",
        "removed all",
        "step became a sleep",
    ],
)
async def test_changed_code_parks_the_task(lab: Lab, after: Any, reason: str) -> None:
    task = await _changed(lab, _steps("a", "b"), after, sleeps="without asking" not in reason)
    assert (task.state, task.reason, task.due_at) == (State.WAITING, "parked", math.inf)
    last = (await lab.store.journal(task.task_id))[-1]
    assert last.kind == r.PARKED
    assert reason in value(last)["reason"]
    assert await lab.store.health.census() == []
    lab.clock.jump(1e6)
    assert (await lab.settled(task.task_id)).reason == "parked", "never guessed at, however long it takes"


@pytest.mark.parametrize(("before", "after"), [((), (1,)), ((1,), ()), ((1,), (1, 2)), (({1},), (1,))], ids=repr)
async def test_arguments_that_came_or_went_park_the_task_too(lab: Lab, before: Any, after: Any) -> None:
    def with_(args: Any) -> Any:
        async def run(ctx: Any) -> None:
            await ctx.step(lambda *_: 1, *args, name="a")

        return run

    assert (await _changed(lab, with_(before), with_(after))).reason == "parked"


async def test_code_that_was_not_changed_goes_on(lab: Lab) -> None:
    task = await _changed(lab, _steps("a", "b"), _steps("a", "b"))
    assert (task.state, task.result) == (State.COMPLETED, "done")


async def test_code_that_goes_further_than_the_journal_goes_on(lab: Lab) -> None:
    async def further(ctx: Any) -> Any:
        await _steps("a")(ctx)
        await ctx.sleep(100)
        return await _steps("b", "c")(ctx)

    assert (await _changed(lab, _steps("a"), further, sleeps=False)).result == "done"


async def test_a_parked_task_goes_on_when_the_code_is_as_it_was(lab: Lab) -> None:
    answers = [["a", "b"], ["a", "x"], ["a", "b"]]
    round_ = 0

    @lab.app.task
    async def work(ctx: Any) -> str:
        for name in answers[round_]:
            await ctx.step(_echo, 1, name=name)
        await ctx.sleep(100)
        return "done"

    await lab.start()
    task_id = await lab.submit(work)
    await lab.settled(task_id)
    round_ = 1
    lab.clock.jump(200)
    assert (await lab.settled(task_id, no_more="asleep")).reason == "parked"
    round_ = 2
    await lab.app.resume(task_id)
    assert (await lab.ended(task_id)).result == "done"
    assert [x.key for x in await lab.store.journal(task_id) if x.kind == r.STEP_DONE] == ["a", "b"]


async def test_a_parked_task_can_be_cancelled(lab: Lab) -> None:
    task = await _changed(lab, _steps("a"), _steps("z"))
    assert task.reason == "parked"
    assert (await lab.app.cancel(task.task_id)).state is State.CANCELLED


async def test_a_handler_that_catches_everything_is_parked_too(lab: Lab) -> None:
    async def stubborn(ctx: Any) -> str:
        for name in ("z", "y", "x"):
            try:
                await ctx.step(_echo, 0, name=name)
            except BaseException:
                continue
        return "I am fine"

    task = await _changed(lab, _steps("a"), stubborn)
    assert (task.state, task.reason) == (State.WAITING, "parked")


def _journal(*kinds: str) -> list[Record]:
    """A journal of these records. The name of a version stands for a shift that was handed back because it did not fit."""
    records = []
    for kind in kinds:
        unfit = "." not in kind
        data = b'{"reason":"unfit code","version":"%s"}' % kind.encode() if unfit else b"{}"
        records.append(Record(len(records) + 1, 2, r.HANDED_BACK if unfit else kind, "", data, 0.0))
    return records


@pytest.mark.parametrize("news", [r.STEP_DONE, r.CHECKPOINT, r.RESUMED, r.CANCEL, r.DEADLINE, r.RETRY])
def test_tries_count_from_the_last_progress_of_a_task(news: str) -> None:
    """A task that a person has resumed is tried by every version again: by those that could not go on with it before, too."""
    assert tried_versions(_journal("old", r.SHIFT, "older", r.SHIFT, r.MESSAGE)) == ["older", "old"]
    assert tried_versions(_journal("old", news, r.SHIFT, "older", r.SHIFT)) == ["older"]


# ── what a handler may not do ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["gather steps", "gather a sleep", "gather sleeps", "a step in a step"])
async def test_two_at_once_are_refused_with_a_sentence(lab: Lab, how: str) -> None:
    async def slow(n: int) -> int:
        await lab.clock.sleep(0.3)
        return n

    @lab.app.task(retry=3)
    async def work(ctx: Any) -> Any:
        async def nested() -> Any:
            return await ctx.step(slow, 1, name="inner")

        match how:
            case "gather steps":
                return await asyncio.gather(*[ctx.step(slow, n) for n in range(3)])
            case "gather a sleep":
                return await asyncio.gather(ctx.sleep(0.5), ctx.step(slow, 1))
            case "gather sleeps":
                return await asyncio.gather(ctx.sleep(0.5, name="a"), ctx.sleep(0.6, name="b"))
            case _:
                return await ctx.step(nested)

    task = await lab.run(work)
    assert task.state is State.FAILED
    assert "ctx.gather" in task.error["message"]  # type: ignore[index]
    assert task.attempt == 1, "the same code would do the same again"
    lab.clock.jump(5)
    await asyncio.sleep(0.05)
    assert (await lab.kinds(task.task_id))[-1] == r.FAILED, "the branch left running writes no record"
    assert await dense(lab.store, task.task_id)


@pytest.mark.parametrize("swallow", [Exception, BaseException])
async def test_a_handler_that_swallows_a_suspension(lab: Lab, swallow: type[BaseException], caplog: Any) -> None:
    calls: list[str] = []

    @lab.app.task
    async def work(ctx: Context) -> str:
        try:
            await ctx.sleep(9)
        except swallow:
            calls.append("swallowed")
            with pytest.raises(Suspend):
                await ctx.step(lambda: calls.append("must not run"), name="next")
        return "done"

    start = lab.clock.time
    task = await lab.run(work)
    assert (task.state, task.result) == (State.COMPLETED, "done")
    assert lab.clock.time >= start + 9
    assert calls == (["swallowed"] if swallow is BaseException else [])
    assert ("caught Suspend and returned" in caplog.text) == (swallow is BaseException)


async def test_finally_blocks_run_when_a_task_goes_to_sleep(lab: Lab) -> None:
    calls: list[str] = []

    @lab.app.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.sleep(9)
        finally:
            calls.append("closed")

    await lab.run(work)
    assert calls == ["closed", "closed"], "once for each shift"


# ── sleeping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_sleeping_frees_the_slot(lab: Lab) -> None:
    @lab.app.task
    async def sleepy(ctx: Any, n: int) -> int:
        await ctx.sleep("0.2m")
        return n

    await lab.start(slots=1)
    start = lab.clock.time
    handles = await lab.app.submit_many(sleepy, list(range(20)))
    for handle in handles:
        await lab.ended(handle.id)
    assert lab.clock.time < start + 20, "all of them slept at the same time, with one slot"


async def test_a_sleep_counts_from_when_it_was_first_reached(lab: Lab) -> None:
    @lab.app.task
    async def sleepy(ctx: Any) -> float:
        await ctx.sleep(100)
        return float(await ctx.now())

    await lab.start()
    start = lab.clock.time
    task_id = await lab.submit(sleepy)
    await lab.settled(task_id)
    assert lab.worker.running == 0
    await lab.crash()
    lab.clock.jump(70)
    await lab.start()
    task = await lab.ended(task_id)
    assert start + 100 <= task.result < start + 110
    assert task.attempt == 1


async def test_an_overdue_sleep_ends_at_once_and_once(lab: Lab) -> None:
    calls: list[str] = []

    @lab.app.task
    async def sleepy(ctx: Any) -> str:
        await ctx.sleep(10)
        await ctx.step(lambda: calls.append("awake"), name="note")
        await ctx.sleep(10)
        return "done"

    await lab.start()
    task_id = await lab.submit(sleepy)
    await lab.settled(task_id)
    lab.clock.jump(8 * 3600)  # the laptop was asleep
    assert (await lab.ended(task_id)).result == "done"
    assert calls == ["awake"]
    assert (await lab.kinds(task_id)).count(r.SLEPT) == 2


async def test_a_short_sleep_is_spent_in_memory(lab: Lab) -> None:
    @lab.app.task
    async def sleepy(ctx: Any) -> None:
        await ctx.sleep(0.5)

    task = await lab.run(sleepy)
    assert await lab.kinds(task.task_id) == [r.SUBMITTED, r.SHIFT, r.SLEEP, r.SLEPT, r.COMPLETED]


@pytest.mark.parametrize("wrong", [-1, "soon", math.inf, math.nan])
async def test_sleeps_that_make_no_sense(lab: Lab, wrong: Any) -> None:
    @lab.app.task(retry=1)
    async def sleepy(ctx: Any) -> None:
        await ctx.sleep(wrong)

    assert "duration" in (await lab.run(sleepy)).error["message"]  # type: ignore[index]


async def test_sleeping_on_every_store(app: Onward) -> None:
    """On real time, so a short one that is still long enough to leave memory."""

    @app.task
    async def sleepy(ctx: Any) -> str:
        await ctx.step(lambda: 1, name="before")
        await ctx.sleep(1.1)
        return "done"

    async with app.worker(slots=1) as worker:
        handle = await app.submit(sleepy)
        started = time.monotonic()

        async def asleep() -> bool:
            return (await handle.get()).reason == "asleep"

        async def let_go() -> bool:
            return worker.running == 0

        await eventually(asleep)
        await eventually(let_go)
        assert await handle.result(timeout=60) == "done"
        assert time.monotonic() - started > 1.0
    assert await claim(app.store) == []
