"""Budgets of one task: no agent spends more, a cut-off call counts, and a waiting task goes on after a raise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Budget, Context, Onward, State
from onward.agent.model import Emit, Reply, Request, Usage
from onward.agent.models.scripted import ScriptedModel
from onward.errors import UsageError
from tests.engines.kit import Engine, Foreign

LOOK: Any = [("look", {})]
TOKENS = 1_000
"""Tokens that each answer of the model costs."""


async def look() -> str:
    """Look around."""
    return "nothing new"


class Spender(ScriptedModel):
    """A scripted model whose answers cost TOKENS each. It may hang in one of them."""

    def __init__(self, script: list[Any], hang_at: int = 0) -> None:
        super().__init__(script)
        self._hang_at, self.began, self.hangs = hang_at, 0, asyncio.Event()

    async def ask(self, request: Request, emit: Emit) -> Reply:
        self.began += 1
        if self.began == self._hang_at:
            self.hangs.set()
            await asyncio.Event().wait()
        reply = await super().ask(request, emit)
        return Reply(reply.text, reply.calls, Usage(TOKENS - 10, 10), reply.finish)


def add_agent(app: Onward, model: ScriptedModel, budget: Budget) -> Any:
    return app.agent("devops", model=model, tools=[look], budget=budget)


@pytest.mark.parametrize(
    ("budget", "raised"),
    [(Budget(max_steps=3), {"max_steps": 9}), (Budget(max_llm_tokens=8_000), {"max_llm_tokens": 90_000})],
)
async def test_at_the_limit_it_waits_for_a_raise(engine: Engine, budget: Budget, raised: dict[str, Any]) -> None:
    model = Spender([LOOK] * 9 + ["done"] if "max_llm_tokens" in raised else [LOOK] * 6 + ["done"])
    handle = await engine.submit(add_agent(engine.app, model, budget), "go")
    await engine.waiting(handle, "budget")
    calls = model.began
    assert 0 < calls < 9
    spent = await engine.app.budget(handle.id)
    assert (spent.ledger.spent.steps, spent.ledger.spent.llm_tokens) == (calls, TOKENS * calls)
    assert spent.waiting == (handle.id,)
    assert (await engine.app.raise_budget(handle.id, **raised)).waiting == ()
    assert (await engine.ended(handle)).result == "done"
    spent = await engine.app.budget(handle.id)
    assert (spent.ledger.spent.steps, spent.ledger.spent.llm_tokens) == (model.began, TOKENS * model.began)
    assert not spent.ledger.reserved
    assert spent.ledger.budget.to_json() == raised


async def test_the_budget_of_a_submit_counts(engine: Engine) -> None:
    model = Spender([LOOK, LOOK, LOOK, "done"])
    agent = add_agent(engine.app, model, Budget(max_steps=9))
    handle = await engine.submit(agent, "go", budget=Budget(max_steps=2, when_spent="finish"))
    task = await engine.ended(handle)
    assert task.state is State.COMPLETED
    assert model.began == 2


async def test_a_call_that_a_crash_cut_off_is_charged(engine: Engine) -> None:
    model = Spender([LOOK, LOOK, "done"], hang_at=2)
    handle = await engine.submit(add_agent(engine.app, model, Budget(max_steps=9)), "go")
    await asyncio.wait_for(model.hangs.wait(), 60)
    await engine.crash()
    await engine.start()
    assert (await engine.ended(handle)).result == "done"
    spent = await engine.app.budget(handle.id)
    assert (model.began, spent.ledger.spent.steps) == (4, 4)
    assert not spent.ledger.reserved


async def test_a_raise_while_it_runs(engine: Engine) -> None:
    model = Spender([LOOK, LOOK, LOOK, "done"])
    agent = add_agent(engine.app, model, Budget(max_steps=2))
    handle = await engine.submit(agent, "go")
    await engine.waiting(handle, "budget")
    await engine.app.raise_budget(handle.id, max_steps=3)
    await engine.until(lambda: _asked(model, 3))
    await engine.waiting(handle, "budget")
    await engine.app.raise_budget(handle.id, max_steps=4)
    assert (await engine.ended(handle)).result == "done"
    if isinstance(engine, Foreign):
        with pytest.raises(UsageError, match="has ended"):
            await engine.app.raise_budget(handle.id, max_steps=5)


async def _asked(model: Spender, calls: int) -> bool:
    return model.began >= calls


async def test_a_child_shares_the_budget_or_is_refused(engine: Engine) -> None:
    @engine.app.task(name="part")
    async def part(ctx: Context) -> str:
        return "done"

    @engine.app.task(name="whole")
    async def whole(ctx: Context) -> Any:
        return await (await ctx.submit(part))

    task = await engine.run(whole, budget=Budget(max_steps=2))
    if isinstance(engine, Foreign):
        assert task.state is State.FAILED
        assert "a child of a task with a budget is not there on" in str(task.error)
    else:
        assert task.result == "done"
