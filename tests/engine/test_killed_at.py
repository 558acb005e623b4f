"""`crashes` says where it killed the worker: the point, and the steps that ran."""

from __future__ import annotations

from typing import Any

from onward import Onward
from onward.testing import crashes, drain


async def test_a_crash_names_the_step_that_ran() -> None:
    base = Onward("sqlite://")

    async def charge() -> int:
        return 1

    @base.task
    async def order(ctx: Any) -> None:
        await ctx.step(charge)
        await ctx.gather(*[ctx.step(charge, name=name) for name in "abcd"])
        async with ctx.saga():
            await ctx.step(charge)

    killed: list[tuple[str | None, tuple[str, ...]]] = []
    async for app in crashes(base):
        await app.submit(order)
        assert await drain(app) == []
        killed.append((app.killed_at, app.killed_in))
    assert ("save.before", ("charge",)) in killed
    assert ("save.before", ("[gather.0]a", "[gather.1]b", "[gather.2]c", "[gather.3]d")) in killed
    assert ("save.after", ("saga",)) in killed
    assert killed[-1] == (None, ())
