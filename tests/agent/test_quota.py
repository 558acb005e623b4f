"""Quotas of providers: one task gets the refusal, and all that need the quota wait without a slot, an attempt or a request."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Limit, Onward, RetryLater, State
from onward.agent.model import Emit, ModelBusy, ModelUnavailable, Reply, Request
from onward.agent.models.scripted import ScriptedModel
from onward.cli.output.timeline import LineRenderer
from onward.core import quota
from onward.core.control import NotNow
from onward.core.task import Reason
from onward.engine.shift.quota import within_quota
from onward.errors import UsageError
from onward.store.shared.quotas import Quotas
from onward.testing import MemoryApp, crashes, drain, memory_app
from rig.aimock import AIMock
from rig.processes import Child
from rig.strict import Answer, Strict
from tests.kit import eventually, not_memory

MODEL = "gpt-5-mini"


class Provider:
    """A provider whose quota is used up until `reset`."""

    name = "provider"

    def __init__(self, clock: Any, *, tells: bool = True) -> None:
        self.reset, self._tells, self._clock = 0.0, tells, clock
        self.refused: list[float] = []
        self.answered: list[float] = []

    async def ask(self, request: Request, emit: Emit) -> Reply:
        now = self._clock.now()
        if now < self.reset:
            self.refused.append(now)
            raise ModelBusy(self.name, "429 too many", self.reset - now if self._tells else None, quota=True)
        self.answered.append(now)
        return Reply("done")


@pytest.fixture
async def mine() -> AsyncIterator[MemoryApp]:
    """An app in memory, on a clock that jumps from one timer to the next."""
    async with memory_app(slots=5) as app:
        yield app


async def for_now(app: MemoryApp) -> None:
    """Runs everything that happens before the first retry."""
    with pytest.raises(UsageError, match="still run"):
        await drain(app, within="1s")
    tasks, _ = await app.list()
    assert {task.reason for task in tasks if not task.ended} == {"quota"}


# ── all tasks wait ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("slots", [1, 5])
async def test_one_task_is_refused_and_all_wait_for_the_reset(slots: int) -> None:
    async with memory_app(slots=slots) as app:
        provider = Provider(app.clock)
        provider.reset = reset = app.clock.now() + 600
        handles = await app.submit_many(app.agent("devops", model=provider), [f"goal {number}" for number in range(20)])
        await for_now(app)
        assert len(provider.refused) <= slots, "those that had asked before the first refusal"
        task = await handles[0].get()
        assert (task.state, task.reason, task.worker) == (State.PENDING, "quota", None)
        assert task.due_at is not None
        assert reset <= task.due_at <= reset + 0.1 * 600
        assert await drain(app) == []
        ended = [await handle.get() for handle in handles]
        assert {(task.state, task.attempt) for task in ended} == {(State.COMPLETED, 1)}
        assert len(provider.refused) <= slots
        assert (len(provider.answered), min(provider.answered) >= reset) == (20, True)
        assert len(set(provider.answered)) > 10, "they do not all come in the same moment"
        assert await app.store.quotas.get("provider") is None


async def test_the_count_of_refusals_finds_tasks_that_do_not_look_first(
    mine: MemoryApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: every task asks for itself."""

    async def nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(Quotas, "get", nothing)
    provider = Provider(mine.clock)
    provider.reset = mine.clock.now() + 600
    await mine.submit_many(mine.agent("devops", model=provider), [f"goal {number}" for number in range(20)])
    await for_now(mine)
    assert len(provider.refused) == 20


async def test_a_quota_that_goes_again_and_again_takes_no_attempt(mine: MemoryApp) -> None:
    answers: list[Any] = [ModelBusy("m", "429", 100, quota=True) for _ in range(11)]  # more than any policy would try
    model = ScriptedModel([lambda _: answers.pop() if answers else "at last"])
    handle = await mine.submit(mine.agent("devops", model=model, retry=1), "x")
    await drain(mine)
    task = await handle.get()
    assert (task.result, task.attempt, len(model.asked)) == ("at last", 1, 12)


@pytest.mark.slow
async def test_without_a_time_they_ask_more_and_more_rarely() -> None:
    async with memory_app(slots=1) as app:
        provider = Provider(app.clock, tells=False)
        provider.reset = app.clock.now() + 86_400
        handles = await app.submit_many(app.agent("devops", model=provider), ["a", "b", "c", "d", "e"])
        await drain(app, within="3d")
        assert {(await handle.get()).state for handle in handles} == {State.COMPLETED}
    pauses = [later - sooner for sooner, later in itertools.pairwise(provider.refused)]
    assert pauses[0] < 5
    assert max(pauses) <= quota.MAX_PAUSE_S * 1.1 + quota.MAX_SPREAD_S
    assert len(provider.refused) < 45, "a day without money: about one question in an hour, from all of them"
    assert min(provider.answered) - provider.reset < quota.MAX_PAUSE_S * 1.2


async def test_another_model_is_not_waited_for(mine: MemoryApp) -> None:
    provider = Provider(mine.clock)
    provider.reset = mine.clock.now() + 600
    waiting = await mine.submit(mine.agent("devops", model=provider), "x")
    other = await mine.submit(mine.agent("other", model=ScriptedModel(["here"], "another")), "y")
    await for_now(mine)
    assert await other.result(timeout=1) == "here"
    assert (await waiting.get()).reason == "quota"


async def test_a_provider_that_is_only_down_is_tried_by_policy(mine: MemoryApp) -> None:
    model = ScriptedModel([ModelUnavailable("m", "500")])
    handle = await mine.submit(mine.agent("devops", model=model, retry=1), "x")
    await drain(mine)
    assert (await handle.get()).state is State.FAILED
    assert len(model.asked) == 6
    assert await mine.store.quotas.get("scripted") is None


@pytest.mark.parametrize("after", [0, 0.0, -3, float("inf"), float("nan"), "soon"])
async def test_a_retry_time_of_zero_or_nonsense_is_ignored(mine: MemoryApp, after: Any) -> None:
    answers: list[Any] = [ModelBusy("m", "429", 1.0, quota=True) for _ in range(8)]
    for no in answers:
        no.retry_after = after
    model = ScriptedModel([lambda _: answers.pop(0) if answers else "at last"])
    handle = await mine.submit(mine.agent("devops", model=model), "x")
    start = mine.clock.now()
    await drain(mine)
    assert await handle.result() == "at last"
    assert mine.clock.now() - start >= 2 * (2**8 - 1), "each pause is twice the one before"


# ── other events while tasks wait ────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_that_waits_can_be_cancelled_and_has_its_deadline(mine: MemoryApp) -> None:
    provider = Provider(mine.clock)
    provider.reset = mine.clock.now() + 10_000
    devops = mine.agent("devops", model=provider)
    cancelled, other = await mine.submit(devops, "x"), await mine.submit(devops, "y", deadline="1h")
    await for_now(mine)
    assert (await cancelled.cancel()).state is State.CANCELLED
    start = mine.clock.now()
    await drain(mine)
    late = await other.get()
    assert late.state is State.FAILED
    assert "deadline" in (late.error or {})["message"]
    assert mine.clock.now() - start < 3_700
    assert len(provider.refused) <= 2


async def test_killed_anywhere_while_it_waits_it_goes_on() -> None:
    points = 0
    async for app in crashes():
        answers: list[Any] = [ModelBusy("m", "429", 30.0, quota=True)]
        model = ScriptedModel([lambda _, answers=answers: answers.pop() if answers else "at last"])
        handle = await app.submit(app.agent("devops", model=model), "x")
        await drain(app)
        assert await handle.result(timeout=1) == "at last", app.killed_at
        points += 1
    assert points > 3


async def test_a_wait_for_a_provider_does_not_block_the_apps_own_limits(mine: MemoryApp) -> None:
    """A limit has a queue of its own, with the same reason: tasks that wait for a provider are not in that queue."""
    reset_at = mine.clock.now() + 3_600
    done: list[tuple[int, float]] = []

    async def ask() -> str:
        if mine.clock.now() < reset_at:
            raise RetryLater("429", retry_after=reset_at - mine.clock.now())
        return "ok"

    @mine.task(limit=Limit(rate="1/10s"))
    async def limited(ctx: Any, number: int) -> None:
        if number == 0:
            await ctx.step(lambda: within_quota(ctx, "theirs", ask), name="ask")
        done.append((number, mine.clock.now()))

    start = mine.clock.now()
    await mine.submit_many(limited, [0, 1, 2, 3])
    await drain(mine)
    assert [number for number, _ in done] == [1, 2, 3, 0]
    assert done[2][1] - start < 120


@not_memory
async def test_any_text_of_a_provider_can_be_stored(app: Onward) -> None:
    answers: list[Any] = [ModelBusy("m", "429 \x00\ud800\n" + "x" * 9_000, 0.3)]
    model = ScriptedModel([lambda _: answers.pop() if answers else "at last"])
    devops = app.agent("devops", model=model, retry=1)
    async with app.worker():
        handle = await app.submit(devops, "x")
        assert await handle.result(timeout=60) == "at last"
    assert len(model.asked) == 2


# ── any step ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_quotas_and_failures_of_one_step_are_counted_apart(mine: MemoryApp) -> None:
    errors: list[BaseException] = [
        ValueError("one"),
        *[RetryLater("429", retry_after=5) for _ in range(5)],
        ValueError("two"),
        RetryLater("429", retry_after=5),
        ValueError("three"),
    ]

    async def ask() -> None:
        raise errors.pop(0)

    @mine.task(retry=1)
    async def work(ctx: Any) -> None:
        await ctx.step(lambda: within_quota(ctx, "api", ask), name="ask", retry=3)

    handle = await mine.submit(work)
    await drain(mine)
    assert "was tried 3 times" in ((await handle.get()).error or {})["message"]
    assert errors == []


async def test_a_transaction_waits_as_well(mine: MemoryApp) -> None:
    delays = [50.0] * 9

    @mine.task(retry=1)
    async def work(ctx: Any) -> str:
        async def insert(_: Any) -> str:
            if delays:
                raise NotNow(Reason.QUOTA, mine.clock.now() + delays.pop(), "429")
            return "in"

        return await ctx.transaction(insert)

    start, handle = mine.clock.now(), await mine.submit(work)
    await drain(mine)
    assert await handle.result() == "in"
    assert mine.clock.now() - start >= 450


async def test_people_see_why(mine: MemoryApp) -> None:
    provider = Provider(mine.clock)
    provider.reset = mine.clock.now() + 600
    handle = await mine.submit(mine.agent("devops", model=provider), "x")
    await for_now(mine)
    renderer = LineRenderer(handle.id)
    lines = [line for record in await mine.service.journal(handle.id) for line in renderer.render(record)]
    text = f"{lines[-1].text}: {lines[-1].detail}"
    assert text.startswith("model waits for quota: the quota of provider is used up: 429 too many; again in 10 m")


# ── real workers, a real server, real time ───────────────────────────────────────────────────────────────────────────

WORKER = """
import asyncio, sys
from onward import Onward
from onward.agent.models.openai import OpenAIModel

app = Onward(sys.argv[1], poll_s=0.05, slots=2)
app.agent("devops", model=OpenAIModel("gpt-5-mini", base_url=sys.argv[2]), retry=1)

async def main():
    async with app.worker():
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
@not_memory
async def test_two_workers_and_twenty_tasks_ask_a_provider_whose_quota_is_gone_about_once_each(
    url: str, door: Strict, openai_server: AIMock
) -> None:
    openai_server.script([{"match": {"userMessage": "goal"}, "response": {"content": "done"}}])
    pause, started = 4, time.monotonic()
    resets: list[float] = []

    def rule(_: Any) -> Answer | None:
        resets.append(time.monotonic() + pause) if not resets else None
        left = resets[0] - time.monotonic()
        return Answer(429, {"error": {"message": "slow down"}}, {"Retry-After": str(pause)}) if left > 0 else None

    door.rule = rule
    app = Onward(url)
    async with app:
        workers = [Child.code(WORKER, url, door.url) for _ in range(2)]
        try:
            for worker in workers:
                await asyncio.to_thread(worker.wait_for, "ready")
            handles = [await app.submit("devops", f"goal {number}") for number in range(20)]

            async def waiting() -> bool:
                tasks, _ = await app.list()
                return {task.reason for task in tasks} == {"quota"}

            await eventually(waiting)
            assert len(door.seen) <= 4, "two workers with two slots each: none asks after the first refusal"
            results = [await handle.result(timeout=60) for handle in handles]
        finally:
            for worker in workers:
                worker.kill9()
        tasks = [await handle.get() for handle in handles]
    assert results == ["done"] * 20
    assert {(task.state, task.attempt) for task in tasks} == {(State.COMPLETED, 1)}
    assert len(door.seen) <= 24
    print(f"{len(door.seen)} questions for 20 tasks in {time.monotonic() - started:.1f} s")
