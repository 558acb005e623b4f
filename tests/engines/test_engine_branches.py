"""Named branches: steps of code that starts its own asyncio tasks, as agent frameworks do for the tools of one turn."""

from __future__ import annotations

import asyncio
import collections
import random
from typing import Any

import pytest

import onward
from onward import State
from onward.errors import UsageError
from tests.engines.kit import Engine


async def _tools(ctx: Any, calls: dict[str, Any]) -> dict[str, Any]:
    """Run each call in a branch of its name, in a random order, as a framework may."""
    names = random.sample(list(calls), len(calls))

    async def run(name: str) -> Any:
        async with ctx.branch(name):
            return await calls[name]()

    return dict(zip(names, await asyncio.gather(*map(run, names)), strict=True))


async def test_branches_begin_in_any_order_and_replay_by_name(engine: Engine) -> None:
    ran: collections.Counter[str] = collections.Counter()
    all_began, stuck = asyncio.Event(), asyncio.Event()

    @engine.app.task
    async def work(ctx: Any) -> dict[str, Any]:
        async def tool(name: str) -> str:
            ran[name] += 1
            if sum(ran.values()) == 8:
                all_began.set()
            if name == "call.7" and not stuck.is_set():
                await all_began.wait()
                stuck.set()
                await asyncio.Event().wait()
            return f"{name}!"

        def call(name: str) -> Any:
            return lambda: ctx.step(tool, name, name="tool")

        return await _tools(ctx, {name: call(name) for name in (f"call.{n}" for n in range(8))})

    handle = await engine.submit(work)
    await stuck.wait()
    for _ in range(2):
        await engine.crash()
        await engine.start()
    task = await engine.ended(handle)
    assert task.result == {f"call.{n}": f"call.{n}!" for n in range(8)}
    assert ran["call.7"] >= 2


async def test_several_branches_ask_at_once(engine: Engine) -> None:
    """The first branch that waits does not send the task away before the others have asked."""

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> dict[str, Any]:
        def ask(what: str) -> Any:
            return lambda: ctx.approve(what)

        decided = await _tools(ctx, {what: ask(what) for what in ("a?", "b?", "c?")})
        return {what: decision["decision"] for what, decision in decided.items()}

    handle = await engine.submit(work)

    async def three() -> Any:
        asks = await engine.app.asks("approval")
        return asks if len(asks) == 3 else None

    for ask in await engine.until(three):
        await engine.app.decide(ask.id, "approve")
    assert (await engine.ended(handle)).result == {"a?": "approve", "b?": "approve", "c?": "approve"}


async def test_a_branch_works_while_another_waits(engine: Engine) -> None:
    heard = asyncio.Event()

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> dict[str, Any]:
        async def slow() -> str:
            await engine.app.signal(ctx.task_id, "go", "heard")
            await heard.wait()
            return "worked"

        async def listen() -> Any:
            message = await ctx.signal("go")
            heard.set()
            return message

        return await _tools(ctx, {"slow": lambda: ctx.step(slow), "listen": listen})

    assert (await engine.run(work)).result == {"slow": "worked", "listen": "heard"}


async def test_a_branch_inside_a_branch_and_a_name_that_comes_again(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> list[Any]:
        results = []
        for turn in range(2):
            async with ctx.branch("same name/../[x]#1.\U0001f600"):
                results.append(await ctx.step(lambda turn=turn: turn, name="outer"))
                async with ctx.branch("inner"):
                    results.append(await ctx.step(lambda turn=turn: turn * 10, name="inner"))
                await ctx.sleep(0.01)
                await ctx.signal("go")
        return results

    handle = await engine.submit(work)
    await engine.waiting(handle, "signal")
    await engine.crash()
    await engine.app.signal(handle.id, "go")
    await engine.app.signal(handle.id, "go")
    await engine.start()
    assert (await engine.ended(handle)).result == [0, 0, 1, 10]


async def test_a_line_with_open_branches_begins_nothing_of_its_own(engine: Engine) -> None:
    refused: list[str] = []

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> str:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def tool() -> None:
            async with ctx.branch("tool"):
                entered.set()
                await leave.wait()

        async def saga() -> None:
            async with ctx.saga():
                pass

        open_branch = asyncio.create_task(tool())
        await entered.wait()
        for begin in (lambda: ctx.step(lambda: 1, name="own"), lambda: ctx.signal("x"), ctx.gather, saga):
            with pytest.raises(UsageError) as error:
                await begin()
            refused.append(str(error.value))
        leave.set()
        await open_branch
        return str(await ctx.step(lambda: "done", name="own"))

    assert (await engine.run(work)).result == "done"
    assert len(refused) == 4
    assert all("branch.tool" in sentence for sentence in refused), refused


async def test_a_step_opens_no_branch(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> str:
        async def step() -> str:
            with pytest.raises(UsageError, match="while step 'step'"):
                async with ctx.branch("tool"):
                    pass
            return "refused"

        return str(await ctx.step(step))

    assert (await engine.run(work)).result == "refused"


async def test_a_branch_has_a_name(engine: Engine) -> None:
    names: list[Any] = ["", None, 7]

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> str:
        for name in names:
            with pytest.raises(UsageError, match="a branch needs a name"):
                async with ctx.branch(name):
                    pass
        return str(await ctx.step(lambda: "refused", name="after"))

    assert (await engine.run(work)).result == "refused"


async def test_a_branch_that_is_gone_parks_the_task(engine: Engine) -> None:
    names = ["a", "b"]

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        calls = {name: lambda name=name: ctx.step(lambda: name, name="tool") for name in names}
        return [await _tools(ctx, calls), await ctx.signal("go")]

    handle = await engine.submit(work)
    await engine.waiting(handle, "signal")
    names.remove("b")
    await engine.app.signal(handle.id, "go")
    task = await engine.waiting(handle, "parked")
    assert task.state is State.WAITING
    names.append("b")
    await engine.app.resume(handle.id)
    assert (await engine.ended(handle)).result == [{"a": "a", "b": "b"}, None]


async def test_the_context_of_the_running_task(engine: Engine) -> None:
    async def deep_inside() -> list[Any]:
        ctx = onward.current()
        return [ctx.task_id, ctx.replaying, await ctx.step(lambda: onward.current().task_id, name="in a step")]

    seen: list[bool] = []

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> list[Any]:
        seen.append(ctx.replaying)
        result = await deep_inside()
        await ctx.signal("go")
        seen.append(ctx.replaying)
        return result[:1] + result[2:]

    @engine.app.task(retry=1)
    def plain(ctx: Any) -> str:
        with pytest.raises(UsageError, match="passes its ctx on"):
            onward.current()
        return "refused"

    handle = await engine.submit(work)
    await engine.waiting(handle, "signal")
    await engine.app.signal(handle.id, "go")
    assert (await engine.ended(handle)).result == [handle.id, handle.id]
    assert seen == [False, True, False]
    assert (await engine.run(plain)).result == "refused"
    with pytest.raises(UsageError, match="no task runs here"):
        onward.current()
