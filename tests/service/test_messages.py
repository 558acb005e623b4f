"""Messages of people to tasks: the errors of those that cannot be delivered."""

from __future__ import annotations

import re
from typing import Any

import pytest

from onward import Context, Onward
from onward.errors import AlreadyDecided, BadSetting, InvalidInput, NotFound, StateConflict, TaskNotFound, UsageError
from tests.kit import Lab, eventually


@pytest.fixture
async def asking_task(lab: Lab) -> str:
    """A task that has asked a question with choices and waits."""

    @lab.app.task
    async def choose(ctx: Any) -> Any:
        return await ctx.ask("Where?", choices=["eu", "us"])

    await lab.start()
    task_id = await lab.submit("choose")
    assert (await lab.settled(task_id)).reason == "question"
    return task_id


async def test_the_error_of_a_second_answer_names_the_first(lab: Lab, asking_task: str) -> None:
    (ask,) = await lab.app.asks("question")
    assert (ask.id, ask.text, ask.choices) == (f"{asking_task}.3", "Where?", ("eu", "us"))
    assert await lab.app.asks("approval") == []
    await lab.app.answer(ask.id, "eu")
    with pytest.raises(AlreadyDecided, match="decided already: eu"):
        await lab.app.answer(ask.id, "us")
    assert (await lab.ended(asking_task)).result == "eu"
    with pytest.raises(AlreadyDecided, match="decided already: eu"):
        await lab.app.answer(ask.id, "us")


async def test_an_answer_that_is_none_of_the_choices(lab: Lab, asking_task: str) -> None:
    with pytest.raises(InvalidInput, match=r"takes one of eu, us, and not 'mars'"):
        await lab.app.answer(f"{asking_task}.3", "mars")
    assert len(await lab.app.asks()) == 1, "it is still open"


async def test_a_question_cannot_be_approved(lab: Lab, asking_task: str) -> None:
    with pytest.raises(UsageError, match="is a question; `onward answer` answers it"):
        await lab.app.decide(f"{asking_task}.3", "approve")
    with pytest.raises(BadSetting, match="'approve' or 'deny'"):
        await lab.app.decide(f"{asking_task}.3", "perhaps")


@pytest.mark.parametrize("ask_id", ["nobody.3", "nobody", "", ".", "x.y", "{id}.1", "{id}.99", "{id}.0", "{id}"])
async def test_there_is_no_such_question(lab: Lab, asking_task: str, ask_id: str) -> None:
    with pytest.raises(NotFound, match=re.escape("`onward approvals` and `onward questions` list them")):
        await lab.app.answer(ask_id.format(id=asking_task), "eu")


async def test_messages_to_an_unknown_task_are_refused(app: Onward) -> None:
    for say in (
        app.signal("nobody", "go"),
        app.doubts("nobody"),
        app.resolve("nobody", "happened"),
    ):
        with pytest.raises(TaskNotFound, match="there is no task 'nobody'"):
            await say


async def test_nothing_is_in_doubt(lab: Lab, asking_task: str) -> None:
    assert await lab.app.doubts(asking_task) == []
    with pytest.raises(StateConflict, match="no effect of it is in doubt"):
        await lab.app.resolve(asking_task, "happened")
    with pytest.raises(StateConflict, match="no effect pay of it is in doubt"):
        await lab.app.resolve(asking_task, "happened", step="pay")
    with pytest.raises(BadSetting, match="one of happened, not_happened, nothing_happened, undo"):
        await lab.app.resolve(asking_task, "perhaps")


async def test_an_effect_that_was_undone_by_hand_is_not_tried_again(lab: Lab) -> None:
    """The task itself would be retried after a failure, but an effect that was just undone must not be repeated."""
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
    """The deadline passed, all was undone, and the task was resumed: it asks again, and the old question is gone."""

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


async def test_no_id_of_a_signal_keeps_a_question_from_expiring(lab: Lab) -> None:
    @lab.app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.ask("how?", timeout="1m", default="nobody said")

    await lab.start()
    task_id = await lab.submit("waits")
    await lab.settled(task_id)
    (ask,) = await lab.app.asks("question")
    await lab.app.signal(task_id, "go", id=f"expired {ask.seq}")
    assert (await lab.ended(task_id)).result == "nobody said"


async def test_no_message_from_outside_stands_in_for_the_end_of_a_child(app: Onward) -> None:
    @app.task(retry=1)
    async def parent(ctx: Context) -> Any:
        return await (await ctx.submit("child")).result()

    @app.task(retry=1)
    async def child(ctx: Context) -> Any:
        return await ctx.signal("go")

    handle = await app.submit("parent")
    async with app.worker():
        (child_id,) = await eventually(lambda: app.store.children(handle.id))
        for number in range(1, 40):
            await app.signal(handle.id, "x", "mine", id=f"{child_id}.{number}")
            for own in (f"onward:child {child_id}.{number}", f"onward:budget {handle.id} {number}"):
                with pytest.raises(UsageError, match="begin with 'onward:'"):
                    await app.signal(handle.id, "x", "mine", id=own)
        await app.signal(child_id, "go", "the true end")
        assert await handle.result(timeout=20) == "the true end"
