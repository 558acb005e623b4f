"""What people say to tasks, at the door: who is told what when it cannot be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from onward import Onward
from onward.errors import AlreadyDecided, BadSetting, InvalidInput, NotFound, StateConflict, TaskNotFound, UsageError
from tests.kit import Lab


@pytest.fixture
async def asked(lab: Lab) -> str:
    """A task that has asked a question with choices and waits."""

    @lab.app.task
    async def choose(ctx: Any) -> Any:
        return await ctx.ask("Where?", choices=["eu", "us"])

    await lab.start()
    task_id = await lab.submit("choose")
    assert (await lab.settled(task_id)).reason == "question"
    return task_id


async def test_of_two_answers_the_second_is_told_the_first(lab: Lab, asked: str) -> None:
    (ask,) = await lab.app.asks("question")
    assert (ask.id, ask.text, ask.choices) == (f"{asked}.3", "Where?", ("eu", "us"))
    assert await lab.app.asks("approval") == []
    await lab.app.answer(ask.id, "eu")
    with pytest.raises(AlreadyDecided, match="decided already: eu"):
        await lab.app.answer(ask.id, "us")
    assert (await lab.ended(asked)).result == "eu"
    with pytest.raises(AlreadyDecided, match="decided already: eu"):
        await lab.app.answer(ask.id, "us")


async def test_an_answer_that_is_none_of_the_choices(lab: Lab, asked: str) -> None:
    with pytest.raises(InvalidInput, match=r"takes one of eu, us, and not 'mars'"):
        await lab.app.answer(f"{asked}.3", "mars")
    assert len(await lab.app.asks()) == 1, "it is still open"


async def test_a_question_cannot_be_approved(lab: Lab, asked: str) -> None:
    with pytest.raises(UsageError, match="is a question; `onward answer` answers it"):
        await lab.app.decide(f"{asked}.3", "approve")
    with pytest.raises(BadSetting, match="'approve' or 'deny'"):
        await lab.app.decide(f"{asked}.3", "perhaps")


@pytest.mark.parametrize("ask_id", ["nobody.3", "nobody", "", ".", "x.y", "{id}.1", "{id}.99", "{id}.0", "{id}"])
async def test_there_is_no_such_question(lab: Lab, asked: str, ask_id: str) -> None:
    with pytest.raises(NotFound, match=re.escape("`onward approvals` and `onward questions` list them")):
        await lab.app.answer(ask_id.format(id=asked), "eu")


async def test_nobody_is_there_to_hear_it(app: Onward) -> None:
    for say in (
        app.signal("nobody", "go"),
        app.doubts("nobody"),
        app.resolve("nobody", "happened"),
    ):
        with pytest.raises(TaskNotFound, match="there is no task 'nobody'"):
            await say


async def test_nothing_is_in_doubt(lab: Lab, asked: str) -> None:
    assert await lab.app.doubts(asked) == []
    with pytest.raises(StateConflict, match="no effect of it is in doubt"):
        await lab.app.resolve(asked, "happened")
    with pytest.raises(StateConflict, match="no effect pay of it is in doubt"):
        await lab.app.resolve(asked, "happened", step="pay")
    with pytest.raises(BadSetting, match="one of happened, not_happened, undo"):
        await lab.app.resolve(asked, "perhaps")


async def test_an_effect_that_was_undone_by_hand_is_not_tried_again(lab: Lab) -> None:
    """Its task would be, at the first failure; but nobody wants done again what was just taken back."""
    calls: list[str] = []

    async def pay() -> None:
        calls.append("pay")
        raise TimeoutError("no answer")

    @lab.app.task(retry=5)
    async def charge(ctx: Any) -> None:
        await ctx.step(pay, effect="once", undo=lambda: calls.append("refund"))

    await lab.start()
    task_id = await lab.submit(charge)
    assert (await lab.settled(task_id)).reason == "in_doubt"
    await lab.app.resolve(task_id, "undo")
    task = await lab.ended(task_id)
    assert (task.state, calls) == ("failed", ["pay", "refund"])
    assert "a person had it undone" in (task.error or {})["message"]


async def test_a_question_of_a_saga_that_was_undone_is_not_asked_twice(lab: Lab) -> None:
    """The deadline passed, all was undone, somebody resumed it: it asks anew, and the old question is gone."""

    @lab.app.task(deadline=30)
    async def trip(ctx: Any) -> Any:
        async with ctx.saga():
            await ctx.step(str, "flight", name="flight", undo=len)
            return await ctx.ask("Go?")

    await lab.start()
    task_id = await lab.submit(trip)
    assert (await lab.settled(task_id)).reason == "question"
    (old,) = await lab.app.asks()
    assert (await lab.ended(task_id)).state == "failed"
    assert await lab.app.asks() == []
    await lab.app.resume(task_id)
    assert (await lab.settled(task_id)).reason == "question"
    (again,) = await lab.app.asks()
    assert again.id != old.id
    await lab.app.answer(again.id, "yes")
    assert (await lab.ended(task_id)).result == "yes"
