"""Effects in doubt from outside: deadline and cancel undo the certain effects, and the doubt can be resolved after the end."""

from __future__ import annotations

import asyncio
import collections
import random
from typing import Any

import pytest

from onward import Fatal, Onward, State, tool
from onward.agent.models.scripted import ScriptedModel
from onward.errors import OnwardError, StateConflict
from tests.kit import not_memory

TIMEOUT_S = 60.0


class World:
    """The effects that were done and undone outside."""

    def __init__(self) -> None:
        self.did: collections.Counter[str] = collections.Counter()
        self.keys: list[str] = []
        self.broken = 0
        """How often an undo fails before it works."""


def register(app: Onward, world: World) -> None:
    @app.task
    async def trip(ctx: Any, block: str = "saga", seconds: float | None = None) -> str:
        """A hotel that is booked for certain, and a charge whose answer never comes."""

        async def book(item: str) -> str:
            world.did[f"book {item}"] += 1
            return item

        async def give_back(item: str) -> None:
            world.did[f"give {item} back"] += 1

        async def charge(amount: int) -> str:
            world.did["charge"] += 1
            world.keys.append(f"charge {ctx.key}")
            raise TimeoutError("the bank does not answer")

        async def refund(amount: int) -> None:
            if world.broken:
                world.broken -= 1
                raise Fatal("the bank is closed")
            if f"refund {ctx.key}" not in world.keys:  # like a bank that knows effect keys
                world.did[f"refund {amount}"] += 1
            world.keys.append(f"refund {ctx.key}")

        async def work() -> None:
            await ctx.step(book, "hotel", name="hotel", undo=give_back)
            if block == "branches":
                await ctx.gather(
                    ctx.step(book, "car", name="car", undo=give_back),
                    ctx.step(charge, 7, name="charge", effect="once", undo=refund),
                )
            else:
                await ctx.step(charge, 7, name="charge", effect="once", undo=refund)

        if block == "plain":
            await work()
        else:
            async with ctx.saga():
                await work()
        return "done"


async def _in_doubt(app: Onward, task_id: str) -> str:
    """Waits until the task is in doubt; returns the step in doubt."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (doubts := await app.doubts(task_id)):  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.01)
    return doubts[0].step


async def _ended(app: Onward, task_id: str) -> Any:
    async with asyncio.timeout(TIMEOUT_S):
        while not (task := await app.get(task_id)).ended:  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.01)
    return task


async def _until(condition: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.01)


@not_memory
@pytest.mark.parametrize("block", ["saga", "branches", "plain"])
@pytest.mark.parametrize("how", ["deadline", "cancel"])
async def test_a_task_in_doubt_ends_and_its_doubt_is_answered_later(url: str, block: str, how: str) -> None:
    app, world = Onward(url), World()
    register(app, world)
    async with app.worker():
        task = await app.submit("trip", {"block": block}, deadline=1.0 if how == "deadline" else None)
        await _in_doubt(app, task.id)
        if how == "cancel":
            await app.cancel(task.id)
        ended = await _ended(app, task.id)
        assert ended.state is (State.FAILED if how == "deadline" else State.CANCELLED)
        certain = {"saga": {"give hotel back": 1}, "branches": {"give hotel back": 1, "give car back": 1}, "plain": {}}[
            block
        ]
        assert {key: count for key, count in world.did.items() if key.startswith("give")} == certain
        (doubt,) = await app.doubts(task.id)
        assert doubt.step.endswith("charge")
        await app.resolve(task.id, "undo")
        await _until(lambda: world.did["refund 7"])
        assert await app.doubts(task.id) == []
        assert len({key.split()[1] for key in world.keys}) == 1, "the undo has the key of the effect that it undoes"
        again = await app.get(task.id)
        assert (again.state, again.error, again.finished_at) == (ended.state, ended.error, ended.finished_at)
        with pytest.raises(StateConflict, match="no effect of it is in doubt"):
            await app.resolve(task.id, "happened")
        assert (world.did["charge"], world.did["refund 7"]) == (1, 1)
        for other in (await app.list())[0]:
            await _ended(app, other.task_id)
            assert await app.doubts(other.task_id) == []
        assert await app.store.health.census() == []


@not_memory
@pytest.mark.parametrize("verdict", ["happened", "not_happened"])
async def test_a_verdict_after_the_end_without_an_undo_is_only_recorded(url: str, verdict: str) -> None:
    app, world = Onward(url), World()
    register(app, world)
    async with app.worker():
        task = await app.submit("trip")
        await _in_doubt(app, task.id)
        await app.cancel(task.id)
        await _ended(app, task.id)
        await app.resolve(task.id, verdict, {"id": 1} if verdict == "happened" else None)
        assert await app.doubts(task.id) == []
        assert len((await app.list())[0]) == 1, "nothing has to be done"
        assert (world.did["refund 7"], world.did["charge"]) == (0, 1)


@not_memory
async def test_an_undo_that_fails_can_be_resumed(url: str) -> None:
    app, world = Onward(url), World()
    register(app, world)
    world.broken = 1
    async with app.worker():
        task = await app.submit("trip")
        await _in_doubt(app, task.id)
        await app.cancel(task.id)
        await _ended(app, task.id)
        await app.resolve(task.id, "undo")
        (undo,) = [item for item in (await app.list())[0] if item.task_id != task.id]
        failed = await _ended(app, undo.task_id)
        assert (failed.state, failed.error["type"]) == (State.FAILED, "Fatal")
        await app.resume(undo.task_id)
        done = await _ended(app, undo.task_id)
        assert (done.state, done.result["of"]) == (State.COMPLETED, task.id)
        assert world.did["refund 7"] == 1


@not_memory
async def test_a_requested_undo_runs_once_in_any_order_of_events(url: str, prove: bool) -> None:
    """The verdict of a person, a cancel and a deadline, in every order and at any moment."""
    app, world, rng = Onward(url), World(), random.Random(19)
    register(app, world)
    async with app.worker():
        for number in range(60 if prove else 8):
            world.did.clear()
            block = rng.choice(["saga", "branches", "plain"])
            deadline = rng.choice([None, None, 0.3])
            task = await app.submit("trip", {"block": block}, deadline=deadline)
            step = await _in_doubt(app, task.id)
            verdict = rng.choice(["undo", "undo", "happened", "not_happened"])

            async def cancel(task_id: str = task.id) -> None:
                await asyncio.sleep(rng.random() * 0.1)
                try:
                    await app.cancel(task_id)
                except StateConflict:  # it has ended
                    pass

            async def answer(task_id: str = task.id, verdict: str = verdict, step: str = step) -> bool:
                await asyncio.sleep(rng.random() * 0.3)
                try:
                    await app.resolve(task_id, verdict, "paid" if verdict == "happened" else None, step=step)
                except OnwardError:
                    return False
                return True

            _, answered = await asyncio.gather(cancel(), answer())
            await _ended(app, task.id)
            if not answered:
                assert await app.doubts(task.id) == [], "only a step that is not in doubt refuses a verdict"
                continue
            if verdict == "undo":
                await _until(lambda: world.did["refund 7"])
            for other in (await app.list(limit=100))[0]:
                await _ended(app, other.task_id)
            assert world.did["refund 7"] <= 1, (number, block, deadline, verdict)
            assert world.did["charge"] == 1 or verdict == "not_happened"


@pytest.mark.parametrize("kind", ["sqlite file"], indirect=True)
async def test_the_call_of_an_agent_in_doubt_is_undone_after_a_cancel(url: str) -> None:
    app, did = Onward(url), collections.Counter[str]()

    async def unbook(item: str) -> None:
        did[f"unbook {item}"] += 1

    @tool(risk="external_action", undo=unbook)
    async def book(item: str) -> str:
        """Book an item."""
        did["book"] += 1
        raise TimeoutError("no answer")

    app.agent("clerk", model=ScriptedModel([[("book", {"item": "a hall"})], "done"]), tools=[book])
    async with app.worker():
        task = await app.submit("clerk", "Book a hall.")
        await _in_doubt(app, task.id)
        await app.cancel(task.id)
        await _ended(app, task.id)
        await app.resolve(task.id, "undo")
        await _until(lambda: did["unbook a hall"])
        assert did == {"book": 1, "unbook a hall": 1}
        assert (await app.get(task.id)).state is State.CANCELLED
