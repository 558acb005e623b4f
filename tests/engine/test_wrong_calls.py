"""Calls on a context that cannot be meant so: each is refused at once, or when the handler returns, with a sentence that says what to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from onward import Onward
from onward.errors import TaskFailed


async def charge(amount: int = 1) -> int:
    return amount


async def failure(app: Onward, handler: Callable[..., Any]) -> str:
    """The sentence with which a task of the handler fails."""
    app.task(handler)
    async with app.worker():
        with pytest.raises(TaskFailed) as caught:
            await (await app.submit(handler)).result(timeout=60)
    assert caught.value.error["type"] == "UsageError"
    assert (await app.get(caught.value.task_id)).attempt == 1, "no retry heals it"
    return str(caught.value)


# ── await is missing ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_that_is_not_awaited_fails_the_task(app: Onward) -> None:
    async def order(ctx: Any) -> int:
        ctx.step(charge, 7)
        for _ in range(20):  # more than the context remembers
            await ctx.step(charge)
        return 1

    assert "step 'charge' never ran, because the handler did not await it; await it: `await ctx.step(…)`" in (
        await failure(app, order)
    )


async def test_a_returned_step_is_not_a_result(app: Onward) -> None:
    async def order(ctx: Any) -> Any:
        return ctx.step(charge, 7, name="pay")

    assert "step 'pay' never ran" in await failure(app, order)


@pytest.mark.parametrize("verb", ["approve", "ask", "signal", "sleep", "submit", "now", "gather", "checkpoint"])
async def test_every_other_call_that_is_not_awaited_fails_the_task(app: Onward, verb: str) -> None:
    async def order(ctx: Any) -> int:
        getattr(ctx, verb)(*() if verb == "now" else ("1",))
        return 1

    assert f"ctx.{verb}(…) never ran" in await failure(app, order)


async def test_all_forgotten_calls_are_counted(app: Onward) -> None:
    async def order(ctx: Any) -> int:
        ctx.gather(*[ctx.step(charge, n) for n in range(20)])
        return 1

    assert "step 'charge' never ran, nor 20 other calls on ctx" in await failure(app, order)


async def test_calls_that_begin_later_are_not_forgotten(app: Onward) -> None:
    """Steps that are made first and awaited in another order, in branches, by asyncio, or closed."""

    @app.task
    async def order(ctx: Any) -> list[int]:
        last = ctx.step(charge, 1, name="last")
        many = await ctx.gather(*[ctx.step(charge, n) for n in range(30)], limit=3)
        beside = asyncio.create_task(ctx.step(charge, 5, name="beside"))
        unused = ctx.step(charge, 6, name="unused")
        unused.close()
        return [await beside, await last, sum(many)]

    @app.task
    def plain(ctx: Any) -> int:
        ctx.step(charge, 1)
        ctx.sleep(0)
        return int(ctx.step(charge, 2))

    async with app.worker():
        assert await (await app.submit(order)).result(timeout=60) == [5, 1, sum(range(30))]
        assert await (await app.submit(plain)).result(timeout=60) == 2
