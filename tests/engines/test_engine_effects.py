"""Effects that must not happen twice, on every engine: announced, in doubt, reconciled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward, Retry, State
from onward.core import record as r
from onward.errors import BadSetting, StateConflict
from tests.engines.kit import Engine

FOREIGN_TIMEOUT = type("TimeoutError", (Exception,), {})("like that of redis, which is no TimeoutError of Python")
LOST = [ConnectionResetError("reset"), TimeoutError("late"), EOFError("cut"), FOREIGN_TIMEOUT]


def add_pay(
    app: Onward, error: BaseException | None = None, *, happens: bool = True, **options: Any
) -> tuple[Any, list[str]]:
    """A handler that pays once, and the keys of its payments."""
    paid: list[str] = []

    @app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge() -> dict[str, int]:
            if happens:
                paid.append(ctx.key)
            if error is not None and len(paid) < 2:
                raise error
            return {"id": len(paid)}

        return await ctx.step(charge, effect="once", **options)

    return pay, paid


async def test_a_payment_is_announced_before_it_is_made(engine: Engine) -> None:
    pay, paid = add_pay(engine.app)
    handle = await engine.submit(pay)
    assert (await engine.ended(handle)).result == {"id": 1}
    assert len(paid) == 1
    kinds = [kind for kind in await engine.kinds(handle) if kind != r.STEP_STARTED]
    assert kinds == [r.SUBMITTED, r.SHIFT, r.ANNOUNCED, r.STEP_DONE, r.COMPLETED]


@pytest.mark.parametrize("error", LOST, ids=["reset", "timeout", "cut", "foreign timeout"])
async def test_a_timeout_is_not_a_no(engine: Engine, error: BaseException) -> None:
    pay, paid = add_pay(engine.app, error)
    handle = await engine.submit(pay)
    await engine.waiting(handle, "in_doubt")
    assert len(paid) == 1, "not tried again"
    await engine.app.resolve(handle.id, "happened", {"id": 99})
    with pytest.raises(StateConflict, match="no effect of it is in doubt"):
        await engine.app.resolve(handle.id, "not_happened")
    assert (await engine.ended(handle)).result == {"id": 99}
    assert len(paid) == 1


async def test_did_not_happen_runs_it_again_with_the_same_key(engine: Engine) -> None:
    pay, paid = add_pay(engine.app, LOST[0])
    handle = await engine.submit(pay)
    await engine.waiting(handle, "in_doubt")
    await engine.app.resolve(handle.id, "not_happened")
    assert (await engine.ended(handle)).result == {"id": 2}
    assert paid == [f"{handle.id}:charge"] * 2


async def test_undo_takes_it_back_and_fails_the_step(engine: Engine) -> None:
    taken_back: list[str] = []

    async def refund() -> None:
        taken_back.append("refund")

    pay, _ = add_pay(engine.app, LOST[0], undo=refund)
    handle = await engine.submit(pay)
    await engine.waiting(handle, "in_doubt")
    await engine.app.resolve(handle.id, "undo")
    ended = await engine.ended(handle)
    assert ended.state is State.FAILED
    assert ended.error is not None
    assert "had it undone" in ended.error["message"]
    assert taken_back == ["refund"]


@pytest.mark.parametrize("error", [ValueError("declined"), ConnectionRefusedError("nobody there")], ids=repr)
async def test_a_clear_no_is_an_ordinary_failure(engine: Engine, error: Exception) -> None:
    pay, _ = add_pay(engine.app, error, happens=False)
    ended = await engine.run(pay)
    assert ended.state is State.FAILED
    assert ended.error is not None
    assert str(error) in ended.error["message"]


async def test_an_effect_known_not_to_have_happened_is_not_in_doubt_after_a_pause(engine: Engine) -> None:
    """The task gives its slot back between two attempts: the next shift reads the announcement and its outcome in the journal."""
    tries = 0

    @engine.app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge() -> str:
            nonlocal tries
            tries += 1
            if tries < 2:
                raise ValueError("no")
            return "paid"

        return await ctx.step(charge, effect="once", retry=Retry(attempts=3, first=2.5))

    handle = await engine.submit(pay)
    assert ((await engine.ended(handle)).result, tries) == ("paid", 2)
    kinds = await engine.kinds(handle)
    assert (kinds.count(r.ANNOUNCED), kinds.count(r.SHIFT)) == (2, 2)


async def test_a_step_that_times_out_is_in_doubt(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge() -> None:
            await asyncio.Event().wait()

        return await ctx.step(charge, effect="once", timeout=0.5, retry=3)

    handle = await engine.submit(pay)
    await engine.waiting(handle, "in_doubt")
    assert "timeout of 0.5 s" in (await engine.app.doubts(handle.id))[0].reason


async def test_an_effect_whose_worker_died_is_in_doubt(engine: Engine) -> None:
    paid: list[str] = []
    begun = asyncio.Event()

    @engine.app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge() -> None:
            paid.append(ctx.key)
            begun.set()
            await asyncio.Event().wait()

        return await ctx.step(charge, effect="once")

    handle = await engine.submit(pay)
    await begun.wait()
    await engine.crash()
    await engine.start()
    await engine.waiting(handle, "in_doubt")
    await engine.app.resolve(handle.id, "happened", "by hand")
    assert (await engine.ended(handle)).result == "by hand"
    assert len(paid) == 1


async def test_an_effect_that_can_be_asked_is_asked_after_a_crash(engine: Engine) -> None:
    world: set[str] = set()
    begun = asyncio.Event()

    @engine.app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge(amount: int) -> str:
            assert ctx.key not in world, "it happened twice"
            world.add(ctx.key)
            begun.set()
            await asyncio.Event().wait()
            return f"paid {amount}"

        async def was_charged(amount: int) -> str | None:
            return f"paid {amount}" if ctx.key in world else None

        return await ctx.step(charge, 5, effect="once", reconcile=was_charged)

    handle = await engine.submit(pay)
    await begun.wait()
    await engine.crash()
    await engine.start()
    assert (await engine.ended(handle)).result == "paid 5"
    assert r.ANNOUNCED not in await engine.kinds(handle)


async def test_a_lost_answer_is_reconciled_without_a_crash(engine: Engine) -> None:
    calls: list[str] = []

    @engine.app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge() -> str:
            calls.append("charge")
            raise ConnectionResetError("the answer was lost")

        return await ctx.step(charge, reconcile=lambda: "it was paid")

    assert (await engine.run(pay)).result == "it was paid"
    assert calls == ["charge"]


async def test_wrong_words(engine: Engine) -> None:
    pay, _ = add_pay(engine.app)

    @engine.app.task(retry=1)
    async def odd(ctx: Any) -> None:
        await ctx.step(print, effect="twice")

    with pytest.raises(BadSetting, match="one of happened, not_happened, nothing_happened, undo"):
        await engine.app.resolve("x", "perhaps")
    task = await engine.run(pay)
    with pytest.raises(StateConflict, match="no effect of it is in doubt"):
        await engine.app.resolve(task.task_id, "happened")
    strange = await engine.run(odd)
    assert strange.error is not None
    assert "one of read, idempotent, once" in strange.error["message"]


async def test_several_in_doubt_at_once_are_named(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def both(ctx: Any) -> list[Any]:
        async def lost(name: str) -> None:
            raise ConnectionResetError(name)

        return await ctx.gather(*[ctx.step(lost, name, name=name, effect="once") for name in ("a", "b")])

    handle = await engine.submit(both)
    for _ in range(2):
        (doubt, *_rest) = await engine.until(lambda: engine.app.doubts(handle.id))
        await engine.waiting(handle, "in_doubt")
        await engine.app.resolve(handle.id, "happened", doubt.step, step=doubt.step)
    assert (await engine.ended(handle)).result == ["[gather.0]a", "[gather.1]b"]
