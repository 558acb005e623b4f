"""Signals, questions and approvals on every engine: the first answer counts, and no message is missed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import State
from onward.errors import AlreadyDecided, InvalidInput, NotFound, StateConflict, UsageError
from tests.engines.kit import Engine


async def test_a_signal_wakes_the_task_and_its_slot_was_free(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        return await ctx.signal("go")

    handle = await engine.submit(work)
    (left,) = await engine.idle(handle)
    assert (left.state, left.reason, left.worker) == (State.WAITING, "signal", None)
    await engine.app.signal(handle.id, "other", 0)
    assert (await engine.waiting(handle, "signal")).state is State.WAITING, "another name is another signal"
    await engine.app.signal(handle.id, "go", {"n": 1})
    assert (await engine.ended(handle)).result == {"n": 1}


async def test_signals_that_come_before_are_kept_in_order(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        await ctx.signal("begin")
        return [await ctx.signal("n") for _ in range(3)]

    handle = await engine.submit(work)
    for number in range(5):
        await engine.app.signal(handle.id, "n", number)
    await engine.app.signal(handle.id, "begin")
    assert (await engine.ended(handle)).result == [0, 1, 2]


async def test_the_same_signal_twice_is_one(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        await ctx.signal("all sent")
        return [await ctx.signal("n"), await ctx.signal("n", timeout=0.5, default="no more")]

    handle = await engine.submit(work)
    for _ in range(3):
        await engine.app.signal(handle.id, "n", 1, id="delivery-77")
    await engine.app.signal(handle.id, "all sent")
    assert (await engine.ended(handle)).result == [1, "no more"]


async def test_a_signal_that_does_not_come(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        first = await ctx.signal("n", timeout=0.3, default="nothing")
        return [first, await ctx.signal("n", timeout=0.3)]

    task = await engine.run(work)
    assert task.error is not None
    assert (task.error["type"], task.error["message"]) == ("WaitTimeout", "no signal 'n' came in time")


async def test_messages_to_no_task_and_to_an_ended_one(engine: Engine) -> None:
    @engine.app.task
    async def work(ctx: Any) -> None: ...

    with pytest.raises(NotFound, match="there is no task 'nobody'"):
        await engine.app.signal("nobody", "x")
    task = await engine.run(work)
    with pytest.raises(StateConflict, match="it has ended"):
        await engine.app.signal(task.task_id, "x")


async def ask_twice(ctx: Any) -> Any:
    name = await ctx.ask("What is your name?")
    colour = await ctx.ask("Which colour?", choices=["red", "blue"], timeout=30, default="grey")
    return [name, colour]


async def _open_ask(engine: Engine, kind: str | None = None) -> Any:
    """The one question or approval that is open, once there is one."""
    (ask,) = await engine.until(lambda: engine.app.asks(kind))
    return ask


async def test_a_question_and_its_answer(engine: Engine) -> None:
    work = engine.app.task(retry=1)(ask_twice)
    handle = await engine.submit(work)
    assert (await engine.waiting(handle, "question")).state is State.WAITING
    ask = await _open_ask(engine)
    assert (ask.task_id, ask.kind, ask.text, ask.expires_at) == (handle.id, "question", "What is your name?", None)
    await engine.app.answer(ask.id, "Ada")
    with pytest.raises(AlreadyDecided, match="decided already: Ada"):
        await engine.app.answer(ask.id, "Eve")
    second = await _open_ask(engine)
    with pytest.raises(InvalidInput, match="takes one of red, blue, and not 'green'"):
        await engine.app.answer(second.id, "green")
    await engine.app.answer(second.id, "blue")
    assert (await engine.ended(handle)).result == ["Ada", "blue"]
    assert await engine.app.asks() == []


async def test_a_question_without_an_answer_gets_its_default(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        return await ctx.ask("Which colour?", timeout=0.4, default="grey")

    handle = await engine.submit(work)
    assert (await engine.ended(handle)).result == "grey"
    records = await engine.app.service.journal(handle.id)
    (late,) = [record for record in records if record.value.get("question") == "Which colour?"]
    with pytest.raises((AlreadyDecided, StateConflict)):
        await engine.app.answer(f"{handle.id}.{late.seq}", "red")


@pytest.mark.parametrize(("decision", "state"), [("approve", State.COMPLETED), ("deny", State.FAILED)])
async def test_approvals(engine: Engine, decision: str, state: State) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        approval = await ctx.approve("Route traffic?", risk="external_action", data={"to": "web"})
        return approval["decision"]

    handle = await engine.submit(work)
    ask = await _open_ask(engine, "approval")
    assert (ask.risk, ask.data, ask.text) == ("external_action", {"to": "web"}, "Route traffic?")
    with pytest.raises(UsageError, match="is an approval; `onward approve`"):
        await engine.app.answer(ask.id, "yes")
    await engine.app.decide(ask.id, decision, reason="because", by="ada")
    with pytest.raises((AlreadyDecided, StateConflict)):
        await engine.app.decide(ask.id, "approve")
    ended = await engine.ended(handle)
    assert ended.state is state
    assert ended.error is None or ended.error["message"] == "denied: Route traffic? (because)"


@pytest.mark.parametrize(("default", "state"), [("approve", State.COMPLETED), ("deny", State.FAILED)])
async def test_an_approval_that_no_person_decides(engine: Engine, default: str, state: State) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        return (await ctx.approve("Route traffic?", timeout=0.4, default=default))["decision"]

    assert (await engine.run(work)).state is state


async def test_wrong_ids(engine: Engine) -> None:
    work = engine.app.task(retry=1)(ask_twice)
    handle = await engine.submit(work)
    await engine.waiting(handle, "question")
    for wrong in ("nobody", "nobody.3", f"{handle.id}.1", f"{handle.id}.999", f"{handle.id}.x"):
        with pytest.raises(NotFound, match="no question or approval"):
            await engine.app.answer(wrong, "x")
        with pytest.raises(NotFound, match="no question or approval"):
            await engine.app.decide(wrong, "approve")


async def test_several_open_at_once_answered_in_any_order(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        return await ctx.gather(ctx.ask("a?"), ctx.ask("b?"), ctx.approve("c?"), ctx.signal("d"))

    handle = await engine.submit(work)
    (left,) = await engine.idle(handle)
    assert left.reason == "approval"
    asks = {ask.text: ask.id for ask in await engine.app.asks()}
    assert set(asks) == {"a?", "b?", "c?"}
    await engine.app.signal(handle.id, "d", 4)
    await engine.app.decide(asks["c?"], "approve")
    await engine.app.answer(asks["b?"], 2)
    await engine.app.answer(asks["a?"], 1)
    result = (await engine.ended(handle)).result
    assert [result[0], result[1], result[3]] == [1, 2, 4]


async def test_signals_race_with_the_falling_asleep(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any, count: int) -> list[Any]:
        return [await ctx.signal("n") for _ in range(count)]

    handles = [await engine.submit(work, 5) for _ in range(4)]

    async def send(task_id: str) -> None:
        for number in range(5):
            await asyncio.sleep(0.001 * (number % 3))
            await engine.app.signal(task_id, "n", number)

    await asyncio.gather(*[send(handle.id) for handle in handles])
    for handle in handles:
        assert (await engine.ended(handle)).result == list(range(5))


async def test_several_people_answer_at_once_and_one_wins(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        return await ctx.ask("who?")

    handle = await engine.submit(work)
    ask = await _open_ask(engine)
    results = await asyncio.gather(*[engine.app.answer(ask.id, n) for n in range(10)], return_exceptions=True)
    (winner,) = [number for number, answer in enumerate(results) if answer is None]
    assert all(isinstance(a, AlreadyDecided | StateConflict) for n, a in enumerate(results) if n != winner)
    assert (await engine.ended(handle)).result == winner


async def test_one_branch_works_while_another_waits(engine: Engine) -> None:
    """A wait stays in memory while another branch works, and messages reach it there too."""
    heard = asyncio.Event()

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        async def slow() -> str:
            await engine.app.signal(ctx.task_id, "go", "heard")
            await heard.wait()
            return "worked"

        async def listen() -> str:
            message = await ctx.signal("go")
            heard.set()
            return str(message)

        return await ctx.gather(ctx.step(slow), listen())

    assert (await engine.run(work)).result == ["worked", "heard"]


async def test_a_crash_while_a_question_is_open(engine: Engine) -> None:
    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        first = await ctx.step(lambda: "before", name="before")
        return [first, await ctx.ask("?"), await ctx.step(lambda: "after", name="after")]

    handle = await engine.submit(work)
    ask = await _open_ask(engine)
    await engine.crash()
    await engine.app.answer(ask.id, "answer")
    await engine.start()
    assert (await engine.ended(handle)).result == ["before", "answer", "after"]
