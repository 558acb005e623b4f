"""Pause from outside, through the public API alone: after its answer no step begins, anywhere in the tree.

Three apps share a database: two with a worker each, and one that only controls. Every step records its begin, so the test
counts the steps that began after the answer.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
from typing import Any

import pytest

from onward import Onward
from onward.errors import StateConflict
from tests.kit import not_memory

TIMEOUT_S = 60.0
LEAVES, STEPS = 3, 14


class Ledger:
    """The steps that began, in their order."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, ctx: Any, name: str) -> str:
        self.begun.append(f"{ctx.task_id}:{name}")
        return name


def register(app: Onward, ledger: Ledger, pace: random.Random) -> None:
    """A root with branches of its own and with children, which have branches and children as well."""

    async def line(ctx: Any, name: str) -> None:
        async def plain(n: int) -> str:
            ledger.begin(ctx, f"{name} {n}")
            await asyncio.sleep(pace.random() * 0.01)
            return "plain"

        def threaded(n: int) -> str:
            return ledger.begin(ctx, f"{name} {n}")

        for number in range(STEPS):
            effect = "once" if number % 3 == 1 else None
            await ctx.step(threaded if number % 4 == 3 else plain, number, name=f"step {number}", effect=effect)
            if pace.random() < 0.2:
                await asyncio.sleep(pace.random() * 0.01)  # the handler's own time, between two steps

    @app.task
    async def leaf(ctx: Any) -> str:
        await ctx.gather(line(ctx, "left"), line(ctx, "right"))
        return "leaf"

    @app.task
    async def middle(ctx: Any) -> list[str]:
        await line(ctx, "middle")
        return await ctx.gather(*[await ctx.submit("leaf") for _ in range(2)])

    @app.task
    async def root(ctx: Any) -> list[Any]:
        children = [await ctx.submit("leaf") for _ in range(LEAVES)]
        children.append(await ctx.submit("middle"))
        await line(ctx, "root")
        return await ctx.gather(*children)


async def _at_rest(app: Onward) -> None:
    """Waits until no worker holds a task, so that all running steps have ended."""
    async with asyncio.timeout(TIMEOUT_S):
        while any(task.worker is not None for task in (await app.list(limit=100))[0]):  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.005)


@not_memory
async def test_no_step_begins_after_a_pause_was_answered(url: str, prove: bool) -> None:
    rng, ledger = random.Random(18), Ledger()
    apps = [Onward(url) for number in range(3)]
    for app in apps:
        register(app, ledger, rng)
    moments, left = 0, 200 if prove else 12
    steering = apps[0]
    async with steering, apps[1].worker(), apps[2].worker():
        while left > 0:
            ledger.begun.clear()
            task = await steering.submit("root")
            while left > 0:
                await asyncio.sleep(rng.random() * 0.15)
                try:
                    paused = await steering.pause(task.id)
                except StateConflict:  # it has ended
                    break
                begun = list(ledger.begun)
                await _at_rest(steering)
                assert ledger.begun == begun, (
                    f"{len(ledger.begun) - len(begun)} steps began after pause {moments} was answered"
                )
                moments, left = moments + 1, left - 1
                if paused.ended:  # it ended while it was being paused
                    break
                await steering.resume(task.id)
            assert await task.result(TIMEOUT_S) == [*["leaf"] * LEAVES, ["leaf"] * 2]
            twice = [step for step, count in collections.Counter(ledger.begun).items() if count > 1]
            assert not twice, "a pause makes no step run again"
            assert len(ledger.begun) == STEPS * (2 + 2 * (LEAVES + 2))
    assert moments >= 5


@not_memory
@pytest.mark.parametrize("early", [False, True])
async def test_an_effect_that_runs_while_it_is_paused_is_recorded(url: str, early: bool) -> None:
    """A pause puts no step in doubt: a running effect ends, and an announced one that has not begun does not begin."""
    app, steering = Onward(url), Onward(url)
    began, go_on = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @app.task
    async def work(ctx: Any) -> str:
        async def pay() -> str:
            ran.append("pay")
            began.set()
            await go_on.wait()
            return "paid"

        async def mail() -> str:
            ran.append("mail")
            return "sent"

        return f"{await ctx.step(pay, effect='once')} {await ctx.step(mail, effect='once')}"

    async with steering, app.worker():
        task = await steering.submit("work")
        await asyncio.wait_for(began.wait(), TIMEOUT_S)
        await steering.pause(task.id)
        if early:  # it is resumed while the effect still runs
            await steering.resume(task.id)
            go_on.set()
        else:
            go_on.set()
            await _at_rest(steering)
            assert (ran, (await steering.get(task.id)).reason) == (["pay"], "paused")
            assert await steering.doubts(task.id) == []
            await steering.resume(task.id)
        assert await task.result(TIMEOUT_S) == "paid sent"
        assert ran == ["pay", "mail"]


@not_memory
async def test_a_child_that_is_being_submitted_is_paused_with_its_parent(url: str) -> None:
    """A step that starts a child may be running when its parent is paused: the child starts paused."""
    app, steering = Onward(url), Onward(url)
    rng, ran = random.Random(7), []

    @app.task
    async def child(ctx: Any) -> None:
        async def note() -> None:
            ran.append(ctx.task_id)

        await ctx.step(note)

    @app.task
    async def parent(ctx: Any) -> None:
        for _ in range(60):
            await ctx.submit("child")

    async with steering, app.worker():
        for _ in range(8):
            task = await steering.submit("parent")
            await asyncio.sleep(rng.random() * 0.1)
            with contextlib.suppress(StateConflict):  # it has ended
                await steering.pause(task.id)
            if not (await steering.get(task.id)).ended:
                count = len(ran)
                await _at_rest(steering)
                assert len(ran) == count
                await steering.cancel(task.id)
