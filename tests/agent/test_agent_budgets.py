"""Budgets of living agents: no agent spends more, no call is charged twice, and a waiting task goes on after a raise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward import Budget, Onward, State
from onward.agent import loop
from onward.agent.account import MAX_TOKENS
from onward.agent.model import ModelBusy, ModelUnavailable, Reply, Request, ToolCall, Usage
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices
from onward.core import record as r
from onward.core.state import BUDGET_PRESSURE
from onward.core.task import Reason
from onward.errors import NotFound, TaskFailed, UsageError
from onward.testing import crashes, drain, memory_app
from tests.kit import Lab, eventually

LOOK: Any = [("look", {})]


async def look() -> str:
    """Look around."""
    return "nothing new"


def spender(script: Any, tokens: int = 100, *, most: int | None = None) -> ScriptedModel:
    """A model that reports `tokens` tokens for each answer."""

    def line(entry: Any, turn: int) -> Any:
        usage = Usage(tokens - 10, 10)
        if isinstance(entry, str):
            return Reply(entry, usage=usage)
        calls = tuple(ToolCall(f"c{turn}_{n}", name, "{}") for n, (name, _) in enumerate(entry))
        return Reply("", calls, usage, "tool_calls")

    model = ScriptedModel([entry if callable(entry) else line(entry, turn) for turn, entry in enumerate(script)])
    model.prices = Prices(1_000.0, 2_000.0)  # type: ignore[attr-defined]
    return model


def used(model: ScriptedModel, tokens: int = 100) -> int:
    return tokens * len(model.asked)


# ── at the limit ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("budget", "raised"),
    [
        (Budget(max_steps=3), {"max_steps": 9}),
        (Budget(max_llm_tokens=15_000), {"max_llm_tokens": 90_000}),
        (Budget(max_cost_usd=20.0), {"max_cost_usd": 90.0}),
    ],
)
async def test_at_the_limit_it_waits_for_a_raise_and_goes_on(app: Onward, budget: Budget, raised: Any) -> None:
    tokens = 4_000
    model = spender([LOOK] * 6 + ["done"], tokens)
    devops = app.agent("devops", model=model, tools=[look], budget=budget)
    async with app.worker():
        handle = await app.submit(devops, "go")
        await eventually(lambda: _reason(app, handle.id, Reason.BUDGET))
        before = len(model.asked)
        assert 0 < before < 7
        spent = await app.budget(handle.id)
        assert spent.waiting == (handle.id,)
        assert spent.ledger.spent.llm_tokens == tokens * before
        assert (await app.raise_budget(handle.id, **raised)).waiting == ()
        assert await handle.result(timeout=60) == "done"
    assert len(model.asked) == 7, "nothing was asked again"
    spent = await app.budget(handle.id)
    assert (spent.ledger.spent.steps, spent.ledger.spent.llm_tokens) == (7, 7 * tokens)
    assert not spent.ledger.reserved


async def test_a_raise_that_is_too_small_is_recorded_once(app: Onward) -> None:
    devops = app.agent("devops", model=spender([LOOK, LOOK, LOOK, "done"]), tools=[look], budget=Budget(max_steps=1))
    async with app.worker():
        handle = await app.submit(devops, "go")

        async def waits() -> int:
            """The number of recorded waits, once the task waits for its budget."""
            waits_so_far = sum(record.kind == r.STEP_WAITS for record in await app.service.journal(handle.id))
            return waits_so_far if await _reason(app, handle.id, Reason.BUDGET) else 0

        assert await eventually(waits) == 1
        for times in (2, 3, 4):
            await app.raise_budget(handle.id, max_steps=1)
            assert await eventually(lambda times=times: _at_least(waits, times)) == times, (
                "old messages are not read again"
            )
        await app.raise_budget(handle.id, max_steps=9)
        assert await handle.result(timeout=60) == "done"


async def _at_least(count: Any, least: int) -> int:
    number: int = await count()
    return number if number >= least else 0


async def test_no_limit_in_dollars_without_a_known_price(app: Onward) -> None:
    devops = app.agent("devops", model=ScriptedModel([LOOK, "done"]), tools=[look], budget=Budget(max_steps=1))
    async with app.worker():
        handle = await app.submit(devops, "go")
        await eventually(lambda: _reason(app, handle.id, Reason.BUDGET))
        with pytest.raises(UsageError, match=r"the cost of task .* so far is unknown.*limit its tokens"):
            await app.raise_budget(handle.id, max_steps=9, max_cost_usd=3)
        assert (await app.budget(handle.id)).meters["steps"]["limit"] == 1, "nothing of it was written"


async def _reason(app: Onward, task_id: str, reason: str) -> bool:
    return (await app.get(task_id)).reason == reason


@pytest.mark.slow
async def test_the_wall_time_is_one_of_the_limits(lab: Lab) -> None:
    async def wait_long() -> str:
        await lab.clock.sleep(50)
        return "waited"

    model = spender([[("wait_long", {})]] * 3 + ["done"])
    devops = lab.app.agent("devops", model=model, tools=[wait_long], budget=Budget(max_wall_time="80s"))
    await lab.start()
    task_id = await lab.submit(devops, "go")
    task = await lab.settled(task_id)
    assert (task.reason, len(model.asked)) == (Reason.BUDGET, 2), task.error
    await lab.app.raise_budget(task_id, max_wall_time="1h")
    assert (await lab.ended(task_id)).result == "done"


async def test_it_can_end_with_its_partial_result(lab: Lab) -> None:
    script = [Reply("So far: 3 GB.", (ToolCall("c", "look", "{}"),), Usage(5, 5), "tool_calls"), LOOK, LOOK, "done"]
    model = ScriptedModel([(lambda _, reply=reply: reply) if isinstance(reply, Reply) else reply for reply in script])
    budget = Budget(max_steps=2, when_spent="finish")
    devops = lab.app.agent("devops", model=model, tools=[look], budget=budget)
    task = await lab.run(devops, "go")
    assert task.state is State.COMPLETED
    assert task.result.startswith("So far: 3 GB.\n\n(This is not finished: the budget of task")
    assert "onward budget" in task.result
    assert len(model.asked) == 2


async def test_pressure_is_in_the_state_and_goes_with_a_raise(lab: Lab) -> None:
    model = spender([LOOK] * 6 + ["done"])
    devops = lab.app.agent("devops", model=model, tools=[look], budget=Budget(max_steps=5))
    await lab.start()
    task_id = await lab.submit(devops, "go")
    await lab.settled(task_id)
    shown = [BUDGET_PRESSURE in str(request.messages[-1]["content"]) for request in model.asked]
    assert shown == [False, False, False, False, True], "the fourth of five reaches the pressure; the fifth shows it"
    await lab.app.raise_budget(task_id, max_steps=50)
    assert (await lab.ended(task_id)).result == "done"
    assert BUDGET_PRESSURE not in str(model.asked[-1].messages[-1]["content"])
    replayed = await lab.app.replay(task_id)
    assert replayed.agrees, replayed.detail


async def test_a_deadline_that_is_near_presses_too(lab: Lab) -> None:
    async def wait_long() -> str:
        await lab.clock.sleep(85)
        return "waited"

    model = spender([[("wait_long", {})], LOOK, "done"])
    devops = lab.app.agent("devops", model=model, tools=[wait_long, look], deadline="100s")
    assert (await lab.run(devops, "go")).result == "done"
    assert ["time is nearly over" in str(request.messages[-1]["content"]) for request in model.asked] == [
        False,
        True,
        True,
    ]


async def test_a_model_without_a_known_price_fails_with_its_name(lab: Lab) -> None:
    model = ScriptedModel(["done"], name="nobody-knows")
    task = await lab.run(lab.app.agent("a", model=model, budget=Budget(max_cost_usd=1)), "go")
    assert "the price of the model nobody-knows is not known" in (task.error or {})["message"]
    assert not model.asked


async def test_a_provider_that_takes_more_than_it_was_allowed_is_reported(lab: Lab) -> None:
    model = spender(["done"], tokens=50_000)
    task = await lab.run(lab.app.agent("a", model=model, budget=Budget(max_llm_tokens=20_000)), "go")
    assert task.result == "done"
    ledger = (await lab.app.budget(task.task_id)).ledger
    assert ledger.spent.llm_tokens == 50_000
    assert 30_000 < ledger.exceeded["llm_tokens"] < 50_000


async def test_a_refused_call_is_free_and_a_cut_off_one_is_charged(lab: Lab) -> None:
    cut = ModelUnavailable("m", "the stream broke off")
    cut.began = True  # type: ignore[attr-defined]
    answers: list[Any] = [ModelBusy("m", "busy", 1.0), ModelUnavailable("m", "refused"), cut]
    model = spender([lambda _: answers.pop(0) if answers else Reply("done", usage=Usage(90, 10))])
    task = await lab.run(lab.app.agent("a", model=model, budget=Budget(max_llm_tokens=90_000)), "go")
    assert task.result == "done"
    ledger = (await lab.app.budget(task.task_id)).ledger
    assert (ledger.spent.llm_tokens, ledger.reserved) == (200, {}), "the cut off call costs as much as the next one"


async def test_a_wrong_budget_is_refused_with_a_sentence(app: Onward) -> None:
    devops = app.agent("devops", model=spender(["done"]))
    handle = await app.submit(devops, "go")
    with pytest.raises(NotFound, match="spends from no budget"):
        await app.budget(handle.id)
    with pytest.raises(UsageError, match="say which limit"):
        await app.raise_budget(handle.id)


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_killed_anywhere_each_call_is_charged_once() -> None:
    """Every call that was made is charged, also one whose answer was lost; none is charged twice."""
    points: set[str] = set()
    repeated = 0
    async for app in crashes():
        model = spender([LOOK, LOOK, "done"])
        devops = app.agent("devops", model=model, tools=[look], budget=Budget(max_llm_tokens=90_000))
        handle = await app.submit(devops, "go")
        await drain(app)
        assert await handle.result(timeout=1) == "done", app.killed_at
        ledger = (await app.budget(handle.id)).ledger
        unseen = 100 if app.killed_at == "purse.after" else 0  # the journal does not show that the call was not made
        assert used(model) <= ledger.spent.llm_tokens <= used(model) + unseen, app.killed_at
        assert not ledger.reserved, app.killed_at
        repeated += len(model.asked) > 3
        points.add(str(app.killed_at))
    assert {"purse.before", "purse.after", "save.before", "save.after"} <= points
    assert repeated, "or nothing was lost on the way, and this shows little"


@pytest.mark.slow
async def test_killed_anywhere_nothing_stays_reserved_behind_a_checkpoint(monkeypatch: Any) -> None:
    """A checkpoint replaces all calls before it, also one that was not settled yet."""
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_TURNS", 1)
    async for app in crashes():

        async def shut() -> str:
            """Make the next call wait."""
            await app.store.quotas.shut("scripted", 60.0, "enough")
            return "shut"

        model = spender([[("shut", {})], "done"])
        devops = app.agent("devops", model=model, tools=[shut], budget=Budget(max_llm_tokens=90_000))
        handle = await app.submit(devops, "go")
        await drain(app)
        assert await handle.result(timeout=1) == "done", app.killed_at
        assert not (await app.budget(handle.id)).ledger.reserved, app.killed_at


@pytest.mark.slow
async def test_killed_anywhere_a_raise_wakes_the_task() -> None:
    async for app in crashes():
        model = spender([LOOK, LOOK, "done"])
        devops = app.agent("devops", model=model, tools=[look], budget=Budget(max_steps=2))
        handle = await app.submit(devops, "go")
        (left,) = await drain(app)
        assert left.reason == Reason.BUDGET, app.killed_at
        await app.raise_budget(handle.id, max_steps=9)
        await drain(app)
        assert await handle.result(timeout=1) == "done", app.killed_at
        unseen = 100 if app.killed_at == "purse.after" else 0
        assert 0 <= (await app.budget(handle.id)).ledger.spent.llm_tokens - used(model) <= unseen, app.killed_at


# ── children share ───────────────────────────────────────────────────────────────────────────────────────────────────

CHILDREN = 10


def family(app: Onward, tokens: int, turns: int = 4) -> tuple[Any, list[Request]]:
    """A handler with ten agents below it, one of them with children of its own."""
    requests: list[Request] = []

    def answer(turn: int) -> Any:
        def line(request: Request) -> Any:
            requests.append(request)
            calls = () if turn == turns - 1 else (ToolCall(f"c{turn}", "look", "{}"),)
            return Reply("done", calls, Usage(tokens - 10, 10), "tool_calls" if calls else "stop")

        return line

    model = ScriptedModel([answer(turn) for turn in range(turns)])
    model.prices = Prices(1_000.0, 1_000.0)  # type: ignore[attr-defined]
    app.agent("worker", model=model, tools=[look], max_tokens=500)

    @app.task
    async def middle(ctx: Any, n: int) -> Any:
        return await (await ctx.submit("worker", f"goal {n}"))

    @app.task
    async def boss(ctx: Any) -> Any:
        children = [
            await ctx.submit("middle" if n == 0 else "worker", n if n == 0 else f"goal {n}") for n in range(CHILDREN)
        ]
        return await ctx.gather(*children)

    return boss, requests


@pytest.mark.parametrize("kind", ["sqlite file", "postgres"], indirect=True)
async def test_ten_children_race_one_budget_and_never_exceed_it(url: str) -> None:
    app = Onward(url, poll_s=0.05, slots=10, lease_s=300.0)  # a starved worker is not declared dead
    tokens, turns = 400, 4  # less than a call reserves: a provider that takes more is another test
    boss, requests = family(app, tokens, turns)
    whole = CHILDREN * turns * tokens
    budget = Budget(max_llm_tokens=whole // 2, max_cost_usd=whole / 1000 / 2)
    async with app.worker(), app.worker():
        handle = await app.submit(boss, budget=budget)
        seen: list[float] = []
        waiting = await eventually(lambda: _all_wait(app, handle.id, seen), 60)
        first = await app.budget(handle.id)
        assert first.ledger.spent.llm_tokens == tokens * len(requests) <= whole // 2
        calls = len(requests)
        assert waiting == set(first.waiting)
        await app.raise_budget(handle.id, max_llm_tokens=4 * whole, max_cost_usd=4 * whole / 1000)
        assert await handle.result(timeout=60) == ["done"] * CHILDREN
        ledger = (await app.budget(handle.id)).ledger
        messages = {
            child: [record.kind for record in await app.service.journal(child)].count(r.MESSAGE) for child in waiting
        }
    assert seen
    assert max(seen) <= whole // 2, "at no time was more spent and reserved than there was"
    assert len(requests) == CHILDREN * turns > calls, "nothing was asked again"
    assert (ledger.spent.llm_tokens, ledger.reserved, ledger.exceeded) == (whole, {}, {})
    assert ledger.spent.cost_usd == pytest.approx(whole / 1000)
    assert all(messages.values()), "each waiting task got a message"


async def _all_wait(app: Onward, task_id: str, seen: list[float]) -> set[str] | None:
    """The unfinished children, once all of them wait for the budget."""
    workers = (await app.list(task="worker"))[0]
    if len(workers) < CHILDREN:
        return None
    seen.append((await app.budget(task_id)).ledger.used("llm_tokens"))
    left = [task for task in workers if not task.ended]
    return {task.task_id for task in left} if all(task.reason == Reason.BUDGET for task in left) else None


async def test_a_raise_wakes_exactly_the_waiting_ones(lab: Lab) -> None:
    """Tasks of the same budget that sleep or wait for other reasons are left alone."""
    model = spender([LOOK, "done"])
    lab.app.agent("worker", model=model, tools=[look])

    @lab.app.task
    async def sleeper(ctx: Any) -> str:
        await ctx.signal("go")
        return "slept"

    @lab.app.task
    async def boss(ctx: Any) -> Any:
        worker_task = await ctx.submit("worker", "x")
        other = await ctx.submit("sleeper")
        return [await worker_task, await other]

    await lab.start()
    boss_id = await lab.submit(boss, budget=Budget(max_steps=1))
    await lab.settled(boss_id)
    ((worker,), _), ((asleep,), _) = await lab.app.list(task="worker"), await lab.app.list(task="sleeper")
    await lab.settled(worker.task_id)
    before = await lab.kinds(asleep.task_id)
    await lab.app.raise_budget(worker.task_id, max_steps=9)  # through a child: it raises the boss's budget
    assert (await lab.ended(worker.task_id)).result == "done"
    assert await lab.kinds(asleep.task_id) == before
    await lab.app.signal(asleep.task_id, "go")
    assert (await lab.ended(boss_id)).result == ["done", "slept"]


async def test_a_raise_that_is_not_enough_wakes_it_once(lab: Lab) -> None:
    """Earlier raises do not wake it again."""
    agent = lab.app.agent("a", model=spender(["done"]), budget=Budget(max_llm_tokens=1))
    await lab.start()
    task_id = await lab.submit(agent, "x")
    for raised in range(2, 7):
        await lab.settled(task_id)
        await lab.app.raise_budget(task_id, max_llm_tokens=raised)
        assert (await lab.app.get(task_id)).reason == "queued"
    await lab.settled(task_id)
    assert (await lab.kinds(task_id)).count(r.STEP_WAITS) == 6
    await lab.app.raise_budget(task_id, max_llm_tokens=90_000)
    assert (await lab.ended(task_id)).result == "done"


async def test_a_raise_is_for_the_budget_that_the_task_waits_for(lab: Lab) -> None:
    """The task also has a budget of its own, which has enough."""
    lab.app.agent("worker", model=spender([LOOK, "done"]), tools=[look], budget=Budget(max_steps=5))

    @lab.app.task
    async def boss(ctx: Any) -> Any:
        return await (await ctx.submit("worker", "x"))

    await lab.start()
    boss_id = await lab.submit(boss, budget=Budget(max_steps=1))
    await lab.settled(boss_id)
    (worker,) = (await lab.app.list(task="worker"))[0]
    await lab.settled(worker.task_id)
    assert (await lab.app.budget(worker.task_id)).task_id == boss_id
    assert (await lab.app.raise_budget(worker.task_id, max_steps=2)).task_id == boss_id
    assert (await lab.ended(boss_id)).result == "done"
    assert (await lab.app.budget(worker.task_id)).task_id == worker.task_id


async def test_a_limit_that_is_set_later_holds_from_then_on(lab: Lab) -> None:
    async def limit(ctx: Any) -> str:
        """Limit the tokens."""
        await lab.app.raise_budget(ctx.task_id, max_llm_tokens=20_000)
        return "limited"

    model = spender([[("limit", {})], "done"])
    agent = lab.app.agent("a", model=model, tools=[limit], budget=Budget(max_steps=9))
    task = await lab.run(agent, "x")
    assert task.result == "done"
    assert [request.max_tokens for request in model.asked] == [None, MAX_TOKENS], "or an answer could be of any length"
    ledger = (await lab.app.budget(task.task_id)).ledger
    assert (ledger.spent.llm_tokens, ledger.spent.steps, ledger.reserved) == (200, 2, {})


async def test_a_child_has_its_own_budget_and_that_of_its_parent(lab: Lab) -> None:
    lab.app.agent(
        "small", model=spender([LOOK] * 9 + ["done"]), tools=[look], budget=Budget(max_steps=2, when_spent="finish")
    )

    @lab.app.task
    async def boss(ctx: Any) -> Any:
        return [await (await ctx.submit("small", "x")) for _ in range(2)]

    @lab.app.task
    async def giver(ctx: Any) -> Any:
        return await (await ctx.submit("small", "x", budget=Budget(max_steps=4, when_spent="finish")))

    task = await lab.run(boss, None, budget=Budget(max_steps=3, when_spent="finish"))
    assert task.state is State.COMPLETED
    assert (await lab.app.budget(task.task_id)).ledger.spent.steps == 3, "two for the first, and one was left"
    model_steps = [
        (await lab.app.budget(child.task_id)).ledger.spent.steps for child in (await lab.app.list(task="small"))[0]
    ]
    assert sorted(model_steps) == [1, 2]
    await lab.run(giver)
    newest = (await lab.app.list(task="small"))[0][0]
    assert (await lab.app.budget(newest.task_id)).ledger.spent.steps == 4


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 12))
def test_the_children_never_exceed_the_sum(turns: list[int], steps: int) -> None:
    async def run() -> None:
        app = memory_app()
        requests: list[Request] = []
        for n, count in enumerate(turns):
            model = spender([LOOK] * (count - 1) + ["done"])
            model.asked = requests
            app.agent(f"a{n}", model=model, tools=[look])

        @app.task
        async def boss(ctx: Any) -> Any:
            return await ctx.gather(
                *[await ctx.submit(f"a{n}", "x") for n in range(len(turns))], return_exceptions=True
            )

        async with app:
            handle = await app.submit(boss, budget=Budget(max_steps=steps))
            left = await drain(app)
            assert len(requests) == min(steps, sum(turns))
            assert bool(left) == (steps < sum(turns))
            if left:
                await app.raise_budget(handle.id, max_steps=99)
                await drain(app)
            assert await handle.result(timeout=1) == ["done"] * len(turns)
            assert len(requests) == sum(turns)

    asyncio.run(run())


async def test_a_failed_task_leaves_nothing_reserved(lab: Lab) -> None:
    model = spender([LOOK, lambda _: ModelUnavailable("m", "away")])
    devops = lab.app.agent("devops", model=model, tools=[look], budget=Budget(max_steps=9), retry=1)
    await lab.start()
    handle = await lab.app.submit(devops, "x")
    task = await lab.ended(handle.id, 100_000)
    assert task.state is State.FAILED
    with pytest.raises(TaskFailed):
        await handle.result()
    ledger = (await lab.app.budget(handle.id)).ledger
    assert (ledger.spent.steps, ledger.reserved) == (1, {})


@pytest.mark.parametrize("where", ["of the agent", "at the submit"])
async def test_a_question_shows_no_more_of_artifacts_than_it_may(lab: Lab, where: str) -> None:
    def log(number: int) -> str:
        """Read a log."""
        return f"log {number}: " + "x" * 3_000

    script = [[("log", {"number": number})] for number in range(6)]
    model = ScriptedModel([*script, "done"])
    limit = 4_000
    budget = Budget(max_artifact_bytes_in_context=limit)
    own = budget if where == "of the agent" else Budget(max_steps=5)
    reader = lab.app.agent("reader", model=model, tools=[log], budget=own, shown_bytes=1_500)
    task = await lab.run(reader, "go", **({} if own is budget else {"budget": budget}))
    assert task.result == "done"
    assert (await lab.app.state(task.task_id)).budget == budget.limits
    for request in model.asked:
        results = [str(message["content"]) for message in request.conversation if message["role"] == "tool"]
        excerpts = [text for text in results if "xxx" in text]
        assert sum(map(len, excerpts)) <= limit
        assert excerpts == [text for text in results if not text.startswith(("(", "error"))][-len(excerpts) :]
    assert len(excerpts) == 2, "the latest two have room"
    assert sum("there is no room to show them" in text for text in results) == 4
