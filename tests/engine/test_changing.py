"""Coming back after a failure, beside branches and blocks: a failure that the handler caught is not repeated, and a saga that was
undone starts another round. And `ctx.version`."""

from __future__ import annotations

from typing import Any

from onward import Retry, State
from onward.core import record as r
from tests.kit import Lab

SOON = Retry(attempts=3, first=0.1)


async def test_a_saga_that_was_undone_runs_its_steps_anew_with_new_keys(lab: Lab) -> None:
    keys: list[str] = []
    happened: list[str] = []

    @lab.app.task(retry=SOON)
    async def work(ctx: Any) -> str:
        async def book() -> str:
            keys.append(ctx.key)
            happened.append("book")
            return f"booking {len(keys)}"

        async def unbook(result: str) -> None:
            happened.append(f"undo {result}")

        async def pay() -> None:
            happened.append("pay")
            if len(keys) == 1:
                raise OSError("the bank is away")

        await ctx.step(lambda: happened.append("look"), name="look")
        async with ctx.saga():
            booking = await ctx.step(book, undo=unbook)
            await ctx.step(pay)
        return str(booking)

    task = await lab.run(work)
    assert (task.state, task.result, task.attempt) == (State.COMPLETED, "booking 2", 2)
    assert happened == ["look", "book", "pay", "undo booking 1", "book", "pay"]
    assert keys == [f"{task.task_id}:[saga]book", f"{task.task_id}:[saga@2]book"]
    assert (await lab.app.replay(task.task_id)).agrees
    assert await lab.app.check() == []


async def test_an_undo_that_failed_is_not_tried_again_when_the_handler_went_on(lab: Lab) -> None:
    happened: list[str] = []

    @lab.app.task(retry=SOON)
    async def work(ctx: Any) -> str:
        async def undo() -> None:
            happened.append("undo")
            raise ValueError("cannot be undone")

        async def fail() -> None:
            raise ValueError("no")

        async def last() -> None:
            happened.append("last")
            if happened.count("last") == 1:
                raise OSError("not yet")

        try:
            async with ctx.saga():
                await ctx.step(lambda: happened.append("a"), name="a", undo=undo)
                await ctx.step(fail)
        except Exception:
            await ctx.step(lambda: happened.append("told"), name="tell")
        await ctx.step(last)
        return "done"

    task = await lab.run(work)
    assert (task.state, task.result) == (State.COMPLETED, "done")
    undos = happened.count("undo")
    assert happened == ["a", *["undo"] * undos, "told", "last", "last"], "undone (in vain) once, with all its attempts"


async def test_sagas_in_two_branches_are_both_undone_after_a_crash_in_the_middle(lab: Lab) -> None:
    """While one is being undone, nothing new begins in the other."""
    happened: list[str] = []
    crash = True

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> None:
        async def undo(name: str) -> None:
            happened.append(f"undo {name}")
            if crash:
                await lab.clock.sleep(1e9)

        async def fail(name: str) -> None:
            happened.append(f"fail {name}")
            raise ValueError(name)

        async def do(name: str) -> None:  # async, so in the loop: the order of threads would be random
            happened.append(name)

        async def branch(name: str) -> None:
            async with ctx.saga():
                await ctx.step(do, name, name="do", undo=undo)
                await ctx.step(fail, name, effect="read")

        await ctx.gather(branch("one"), branch("two"))

    await lab.start()
    task_id = await lab.submit(work)
    await lab.clock.until(lab.clock.sleep(1))
    assert sorted(happened) == ["fail one", "fail two", "one", "two", "undo one", "undo two"]
    await lab.crash()
    crash = False
    await lab.start()
    assert (await lab.ended(task_id)).state is State.FAILED
    assert sorted(happened[6:]) == ["undo one", "undo two"]


async def test_a_cancelled_saga_with_an_open_wait_is_undone_after_a_crash_in_the_middle(lab: Lab) -> None:
    happened: list[str] = []

    @lab.app.task
    async def work(ctx: Any) -> None:
        async def undo() -> None:
            happened.append("undo")
            if len(happened) == 2:
                await lab.clock.sleep(1e9)

        async with ctx.saga():
            await ctx.step(lambda: happened.append("do"), name="do", undo=undo)
            await ctx.sleep(100)

    await lab.start()
    task_id = await lab.submit(work)
    await lab.settled(task_id)
    await lab.app.cancel(task_id)
    await lab.clock.until(lab.clock.sleep(1))
    assert happened == ["do", "undo"]
    await lab.crash()
    await lab.start()
    assert (await lab.ended(task_id)).state is State.CANCELLED
    assert happened == ["do", "undo", "undo"]


async def test_an_announced_effect_is_not_repeated_because_the_code_no_longer_says_once(lab: Lab) -> None:
    happened: list[str] = []
    effect: str | None = "once"

    @lab.app.task
    async def work(ctx: Any) -> Any:
        async def pay() -> str:
            happened.append("pay")
            await lab.clock.sleep(1e9)
            return "paid"

        return await ctx.step(pay, effect=effect)

    await lab.start()
    task_id = await lab.submit(work)
    await lab.clock.until(lab.clock.sleep(1))
    await lab.crash()
    effect = None
    await lab.start()
    assert (await lab.settled(task_id)).reason == "in_doubt"
    await lab.app.resolve(task_id, "happened", "by hand")
    assert (await lab.ended(task_id)).result == "by hand"
    assert happened == ["pay"]


# ── ctx.version ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_change_is_decided_once_for_each_scope(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> list[Any]:
        async def branch(number: int) -> list[bool]:
            decisions = [await ctx.version("v") for _ in range(3)]
            await ctx.sleep(10)
            return [*decisions, await ctx.version("v")]

        async with ctx.saga():
            inside = await ctx.version("v")
        return [inside, await ctx.gather(branch(1), branch(2)), await ctx.version("v")]

    task = await lab.run(work)
    assert task.result == [True, [[True] * 4] * 2, True]
    keys = [x.key for x in await lab.store.journal(task.task_id) if x.kind == r.VERSION]
    assert sorted(keys) == ["[gather.0]version v", "[gather.1]version v", "[saga]version v", "version v"]


async def test_a_crash_between_the_mark_and_its_step_changes_nothing(lab: Lab) -> None:
    happened: list[str] = []

    @lab.app.task
    async def work(ctx: Any) -> bool:
        async def slow() -> None:
            happened.append("slow")
            if len(happened) == 1:
                await lab.clock.sleep(1e9)

        new = await ctx.version("v")
        ctx.progress("marked")
        await ctx.step(slow)
        return bool(new)

    await lab.start()
    task_id = await lab.submit(work)
    await lab.clock.until(lab.clock.sleep(2))
    assert r.VERSION in await lab.kinds(task_id)
    await lab.crash()
    await lab.start()
    assert (await lab.ended(task_id)).result is True
    assert (await lab.kinds(task_id)).count(r.VERSION) == 1
