"""Calls on a context that cannot be meant so: each is refused at once, or when the handler returns, with a sentence that says what to write."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from onward import Onward
from onward.errors import TaskFailed, UsageError
from tests.kit import kinds


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


# ── a function, its arguments, and options ───────────────────────────────────────────────────────────────────────


async def pay(amount: int, *, currency: str = "EUR") -> int:
    return amount


def order(ctx: Any, n: int = 0) -> int:
    """A handler."""
    return n


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a call": (
        lambda ctx: ctx.step(pay(1)),
        r"got a call of pay; write `ctx.step\(pay, …\)` and not `ctx.step\(pay\(…\)\)`",
    ),
    "no function": (lambda ctx: ctx.step("pay", 1), "ctx.step takes a function, and then its arguments, and got 'pay'"),
    "a handler": (lambda ctx: ctx.step(order, 1), "order is a handler, .* write `await ctx.submit"),
    "an option": (lambda ctx: ctx.step(pay, 1, retires=3), "no parameter 'retires', .* perhaps you meant 'retry'"),
    "a parameter": (lambda ctx: ctx.step(pay, 1, curency="x"), "perhaps you meant 'currency'"),
    "no idea": (lambda ctx: ctx.step(pay, 1, zzz=3), "the options are effect, makes, name, reconcile, retry"),
    "of a partial": (lambda ctx: ctx.step(functools.partial(pay, 1), zzz=3), "pay has no parameter 'zzz'"),
    "retry": (lambda ctx: ctx.step(pay, 1, retry="3"), "retry is '3', but must be a Retry or a number of attempts"),
    "retry as bool": (lambda ctx: ctx.step(pay, 1, retry=True), "retry is True, but must be a Retry"),
    "timeout": (lambda ctx: ctx.step(pay, 1, timeout=[3]), "timeout is .3., but must be a duration such as 90"),
    "name": (lambda ctx: ctx.step(pay, 1, name=3), "name is 3, but must be a string"),
    "undo": (lambda ctx: ctx.step(pay, 1, undo=pay(1)), "undo is .* must be a function, and not a call of one"),
    "reconcile": (lambda ctx: ctx.step(pay, 1, reconcile="pay"), "reconcile is 'pay', but must be a function"),
    "a transaction": (lambda ctx: ctx.transaction(pay(1)), "ctx.transaction takes the function and its arguments"),
    "its option": (lambda ctx: ctx.transaction(pay, timeot=1), "no parameter 'timeot', and ctx.transaction has no"),
    "a map": (lambda ctx: ctx.map(order, [1]), r"order is a handler, .* write `ctx.map\('order', items\)`"),
    "a map of items": (lambda ctx: ctx.map([1], pay), r"ctx.map takes a function, .* and got \[1\] first"),
    "its options": (lambda ctx: ctx.map(pay, [1], retires=3), "perhaps you meant 'retry'"),
    "a child": (lambda ctx: ctx.submit(pay(1)), "ctx.submit takes the function and its arguments, and got a call of"),
    "a list": (lambda ctx: ctx.gather([1]), r"ctx.gather takes calls that it awaits, .* `ctx.gather\(\*calls\)`"),
    "functions": (lambda ctx: ctx.gather(pay), r"write `ctx.gather\(ctx.step\(pay, …\), …\)`"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_call_says_what_was_meant(app: Onward, wrong: str) -> None:
    call, sentence = WRONG[wrong]
    app.task(order)

    async def shop(ctx: Any) -> str:
        with pytest.raises(UsageError, match=sentence) as caught:
            work = call(ctx)
            assert wrong in {"a map", "a map of items", "its options", "a child", "a list", "functions"}, "too late"
            await work
        return str(caught.value)

    app.task(shop)
    async with app.worker():
        task = await app.submit(shop)
        assert await task.result(timeout=60)
        assert not [kind for kind in await kinds(app.store, task.id) if kind.startswith("step.")], "nothing ran"


# ── what undoes or reconciles a step ─────────────────────────────────────────────────────────────────────────────


def no_result(amount: int) -> None: ...
def with_result(amount: int, result: int) -> None: ...
def named_result(*, result: int, **more: Any) -> None: ...
def any_undo(*args: Any, **kwargs: Any) -> None: ...


def needs_more(amount: int, why: str) -> None: ...
def takes_nothing() -> None: ...
def other_name(sum_: int, result: int) -> None: ...


@functools.wraps(needs_more)
def gives_more(*args: Any, **kwargs: Any) -> None:
    needs_more(*args, **kwargs, why="it gives the argument itself")


@pytest.mark.parametrize(
    ("undo", "kwargs", "sentence"),
    [
        (needs_more, {}, "undo=needs_more of step 'pay' cannot be called: missing a required argument: 'why'"),
        (takes_nothing, {}, "too many positional arguments. It gets the arguments of the step, and with `result`"),
        (named_result, {}, "too many positional arguments"),
        (no_result, {"currency": "USD"}, "got an unexpected keyword argument 'currency'"),
    ],
)
async def test_an_undo_that_cannot_be_called_is_refused_at_the_step(
    app: Onward, undo: Callable[..., Any], kwargs: dict[str, Any], sentence: str
) -> None:
    async def shop(ctx: Any) -> None:
        async with ctx.saga():
            await ctx.step(pay, 7, undo=undo, **kwargs)

    assert sentence in await failure(app, shop)
    (task,), _ = await app.list()
    assert "step.done" not in await kinds(app.store, task.task_id), "it was not paid"


async def test_a_reconcile_that_cannot_be_called_is_refused_at_the_step(app: Onward) -> None:
    async def shop(ctx: Any) -> None:
        await ctx.step(pay, 7, reconcile=takes_nothing)

    assert "reconcile=takes_nothing of step 'pay' cannot be called: too many positional" in await failure(app, shop)


async def test_an_undo_that_fits_is_taken(app: Onward) -> None:
    @app.task
    async def shop(ctx: Any) -> None:
        async with ctx.saga():
            for undo in (
                no_result,
                with_result,
                any_undo,
                other_name,
                gives_more,
                functools.partial(needs_more, why="x"),
                print,
            ):
                await ctx.step(pay, 7, undo=undo)
            await ctx.step(functools.partial(pay, 7), undo=named_result)

    async with app.worker():
        await (await app.submit(shop)).result(timeout=60)
