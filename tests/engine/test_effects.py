"""Effects that must not happen twice: announced, in doubt, reconciled; and the keys of those that may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from onward.core.control import NotNow
from onward.core.retry import Retry
from onward.core.task import Reason, State
from onward.testing import MemoryApp, crashes, drain, memory_app
from tests.engines.test_engine_effects import add_pay

LOST = [ConnectionResetError("reset"), TimeoutError("late"), EOFError("cut")]


def payment(error: BaseException | None = None, *, happens: bool = True, **options: Any) -> tuple[MemoryApp, list[str]]:
    app = memory_app()
    _, paid = add_pay(app, error, happens=happens, **options)
    return app, paid


async def test_doubt_exactly_between_announcement_and_record() -> None:
    """Killed at every point: a step is in doubt only where its effect may have begun and the journal has no end of it."""
    app, paid = payment()
    doubtful = set()
    async for copy in crashes(app):
        paid.clear()
        task = await copy.submit("pay")
        left = await drain(copy)
        kinds = [record.kind for record in await copy.service.journal(task.id)]
        if left:
            doubtful.add(copy.killed_at)
            assert (left[0].state, left[0].reason) == (State.WAITING, "in_doubt")
            assert r.ANNOUNCED in kinds
            assert r.DOUBTED in kinds
            (doubt,) = await copy.doubts(task.id)
            assert doubt.step == "charge"
            verdict = "happened" if paid else "not_happened"
            await copy.resolve(task.id, verdict, {"id": 1})
            assert await drain(copy) == []
        assert (await task.get()).result == {"id": 1}
        assert len(paid) == 1, copy.killed_at
    assert doubtful == {"save.after", "effect.before", "effect.after", "save.before"}


@pytest.mark.parametrize("later", [ValueError("no"), NotNow(Reason.QUOTA, 2e9, "used up")], ids=["no", "not now"])
async def test_an_effect_known_not_to_have_happened_is_not_in_doubt_after_a_pause(later: Exception) -> None:
    """The task gives its slot back between two attempts: the next shift reads the announcement and its outcome in the journal."""
    app, tries = memory_app(), 0

    @app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge() -> str:
            nonlocal tries
            tries += 1
            if isinstance(later, NotNow):
                later.until = app.clock.now() + 3600
            if tries < 3:
                raise later
            return "paid"

        return await ctx.step(charge, effect="once", retry=Retry(attempts=3, first=60))

    async with app:
        handle = await app.submit(pay)
        assert await drain(app) == []
        assert (await handle.result(timeout=1), tries) == ("paid", 3)
        kinds = [record.kind for record in await app.service.journal(handle.id)]
        assert (kinds.count(r.ANNOUNCED), kinds.count(r.SHIFT)) == (3, 3)
        assert (await app.replay(handle.id)).agrees


async def test_an_effect_that_can_be_asked_is_asked_and_not_announced() -> None:
    world: set[str] = set()
    reconciled = 0
    app = memory_app()

    @app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge(amount: int) -> str:
            assert ctx.key not in world, "it happened twice"
            world.add(ctx.key)
            return f"paid {amount}"

        async def was_charged(amount: int) -> str | None:
            nonlocal reconciled
            reconciled += 1
            return f"paid {amount}" if ctx.key in world else None

        return await ctx.step(charge, 5, effect="once", reconcile=was_charged)

    async for copy in crashes(app):
        world.clear()
        task = await copy.submit("pay")
        assert await drain(copy) == [], "reconcile answers, and no person is asked"
        assert (await task.get()).result == "paid 5", copy.killed_at
        assert len(world) == 1
        assert r.ANNOUNCED not in [record.kind for record in await copy.service.journal(task.id)]
    assert reconciled > 0


@pytest.mark.parametrize("error", [ConnectionResetError, TimeoutError])
async def test_an_effect_that_is_lost_each_time_is_tried_by_its_retry_rule(error: type[Exception]) -> None:
    """`reconcile` says each time that it did not happen. The step waits between its attempts, and fails after the last one."""
    app, tries = memory_app(), 0

    @app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge() -> str:
            nonlocal tries
            tries += 1
            assert tries < 50, "it is tried without an end"
            raise error("gone")

        async def was_charged() -> str | None:
            return None

        return await ctx.step(charge, effect="once", reconcile=was_charged, retry=Retry(attempts=3, first=60))

    async with app:
        begun = app.clock.now()
        task = await app.submit(pay)
        assert await drain(app) == []
        assert (await task.get()).state == "failed"
        assert tries == 3
        assert app.clock.now() - begun >= 60, "it did not wait between its attempts"


async def test_steps_that_are_safe_to_repeat_pay_nothing() -> None:
    app = memory_app()

    @app.task
    async def look(ctx: Any) -> None:
        async def read() -> int:
            return 1

        await ctx.step(read, effect="read")
        await ctx.step(read, effect="idempotent")

    async with app:
        task = await app.submit("look")
        await drain(app)
        kinds = [record.kind for record in await app.service.journal(task.id)]
        assert kinds == [r.SUBMITTED, r.SHIFT, r.STEP_DONE, r.STEP_DONE, r.COMPLETED]


async def test_on_every_store(app: Onward) -> None:
    paid: list[str] = []

    @app.task(retry=1)
    async def pay(ctx: Any) -> Any:
        async def charge() -> str:
            paid.append(ctx.key)
            raise ConnectionResetError("lost")

        return await ctx.step(charge, effect="once")

    async with app.worker():
        task = await app.submit(pay)
        while (await task.get()).reason != "in_doubt":  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.01)
        assert await app.store.health.census() == []
        assert await app.store.listing.doubts(10) == [(task.id, "pay")]
        await app.resolve(task.id, "happened", "yes")
        assert await task.result(60) == "yes"
        assert len(paid) == 1
