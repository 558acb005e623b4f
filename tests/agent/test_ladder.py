"""The last part of an agent's time: a hint at 80 %, a last question without tools at 90 %, and its partial result is kept."""

from __future__ import annotations

import math
from typing import Any

import pydantic
import pytest

from onward import Budget, Context, State, tool
from onward.agent.model import Reply, Request, ToolCall
from onward.agent.models.scripted import ScriptedModel
from onward.core import record as r
from onward.errors import TaskFailed
from tests.kit import Lab

DEADLINE_S = 100


def says(text: str, *calls: tuple[str, str]) -> Any:
    """A line of a script: words, and calls."""
    made = tuple(ToolCall(f"c{number}", name, arguments) for number, (name, arguments) in enumerate(calls))
    return lambda _: Reply(text, made, finish="tool_calls" if made else "stop")


def answers_when_asked_last(request: Request) -> Reply:
    if not request.tools:
        return Reply("the best that I have")
    return Reply("", (ToolCall("again", "linger", "{}"),), finish="tool_calls")


@pytest.mark.parametrize("kind", ["read", "idempotent", "once"])
@pytest.mark.parametrize("length", [1, 30, 85, 95, 150, math.inf])
async def test_a_tool_of_any_length_does_not_push_it_past_its_time(lab: Lab, length: float, kind: str) -> None:
    risk = "read" if kind == "read" else "write_local"

    @tool(risk=risk, idempotent=kind == "idempotent")
    async def linger() -> str:
        """Take a while."""
        await lab.clock.sleep(min(length, 10_000))
        return "lingered"

    model = ScriptedModel([says("I have 3 of 5.", ("linger", "{}")), *[answers_when_asked_last] * 300])
    lab.app.agent("late", model=model, tools=[linger], deadline=DEADLINE_S)
    task = await lab.run("late", "go")
    assert task.finished_at is not None
    assert task.finished_at - task.created_at <= DEADLINE_S + 2
    if kind == "once" and length in {85, 150, math.inf}:  # one of its calls is running when the time is over
        assert (task.state, task.partial) == (State.FAILED, "I have 3 of 5.")
        assert (task.error or {})["type"] == "DeadlineExceeded"
        with pytest.raises(TaskFailed) as failed:
            await lab.app.handle(task.task_id).result()
        assert failed.value.partial == "I have 3 of 5."
        assert await lab.app.handle(task.task_id).result(partial=True) == "I have 3 of 5."
        return
    assert (task.state, task.result, task.partial) == (State.COMPLETED, "the best that I have", None), task.error
    assert not model.asked[-1].tools
    assert "This is the last question" in str(model.asked[-1].messages[-1]["content"])
    assert all(request.tools for request in model.asked[:-1])
    replayed = await lab.app.replay(task.task_id)
    assert replayed.agrees, replayed.detail


async def test_a_last_question_without_an_answer_fails_with_the_partial_result(lab: Lab) -> None:
    async def linger() -> str:
        """Take a while."""
        await lab.clock.sleep(60)
        return "lingered"

    model = ScriptedModel(
        [says(f"Part {number}.", ("linger", "{}")) for number in range(3)] + [says("", ("linger", "{}"))]
    )
    lab.app.agent("late", model=model, tools=[linger], deadline=DEADLINE_S)
    task = await lab.run("late", "go")
    assert (task.state, task.result) == (State.COMPLETED, "Part 2."), "calls without an offered tool are left alone"
    silent = ScriptedModel([says("Part 0.", ("linger", "{}")), says("", ("linger", "{}")), says("", ("linger", "{}"))])
    lab.app.agent("silent", model=silent, tools=[linger], deadline=DEADLINE_S)
    task = await lab.run("silent", "go")
    assert (task.state, task.partial) == (State.FAILED, "Part 0.")
    assert (task.error or {})["type"] == "TimeUp"
    assert len(silent.asked) == 3, "it is asked a last time once"


@pytest.mark.parametrize("way", ["approval", "question", "model", "flaky"])
async def test_the_deadline_holds_in_every_wait(lab: Lab, way: str) -> None:
    tried = 0

    @tool(risk="write_local", idempotent=True)
    async def touch() -> str:
        """Touch."""
        return "touched"

    async def flaky() -> str:
        """Fail once, then hang."""
        nonlocal tried
        tried += 1
        if tried == 1:
            await lab.clock.sleep(50)
            raise ConnectionError("away")
        await lab.clock.sleep(10_000)
        return ""

    class Slow(ScriptedModel):
        async def ask(self, request: Request, emit: Any) -> Reply:
            if way == "model" and len(self.asked) == 1:
                await lab.clock.sleep(10_000)
            return await super().ask(request, emit)

    called = {"approval": ("touch", "{}"), "question": ("ask_user", '{"question": "well?"}'), "flaky": ("flaky", "{}")}
    model = Slow([says("So far.", called.get(way, ("touch", "{}"))), says("the end")])
    approve = ["write_local"] if way == "approval" else []
    options: dict[str, Any] = {"approval_timeout": "1h", "approval_default": "approve"} if approve else {}
    lab.app.agent("late", model=model, tools=[touch, flaky], approve=approve, deadline=DEADLINE_S, **options)
    task = await lab.run("late", "go")
    assert task.finished_at is not None
    assert task.finished_at - task.created_at <= DEADLINE_S + 2
    if way == "model":
        assert (task.state, task.partial) == (State.FAILED, "So far.")
        return
    assert (task.state, task.result) == (State.COMPLETED, "the end"), task.error
    results = [str(message["content"]) for message in model.asked[-1].conversation if message["role"] == "tool"]
    assert "most of the task's time" in results[0]
    assert "touched" not in results[0], "it has no approval"
    replayed = await lab.app.replay(task.task_id)
    assert replayed.agrees, replayed.detail


async def test_a_deadline_that_passed_without_a_worker_keeps_the_partial_result(lab: Lab) -> None:
    model = ScriptedModel([says("Halfway.", ("ask_user", '{"question": "well?"}')), says("the end")])
    lab.app.agent("late", model=model, deadline=DEADLINE_S)
    await lab.start()
    task_id = await lab.submit("late", "go")
    await lab.settled(task_id)
    await lab.stop()
    lab.clock.jump(DEADLINE_S * 3)
    await lab.start()
    task = await lab.ended(task_id)
    assert (task.state, task.partial, (task.error or {})["type"]) == (State.FAILED, "Halfway.", "DeadlineExceeded")
    assert len(model.asked) == 1


async def test_behind_a_checkpoint_it_is_kept_too(lab: Lab, monkeypatch: Any) -> None:
    monkeypatch.setattr("onward.agent.loop.CHECKPOINT_EVERY_TURNS", 1)
    model = ScriptedModel(
        [says("Halfway.", ("note", "{}")), says("", ("ask_user", '{"question": "well?"}')), says("", ("note", "{}"))]
    )

    async def note() -> str:
        """Note."""
        return "noted"

    lab.app.agent("late", model=model, tools=[note], deadline=DEADLINE_S)
    await lab.start()
    task_id = await lab.submit("late", "go")
    await lab.settled(task_id)
    assert r.CHECKPOINT in await lab.kinds(task_id)
    await lab.stop()
    lab.clock.jump(DEADLINE_S * 3)
    await lab.start()
    assert (await lab.ended(task_id)).partial == "Halfway."


async def test_an_agent_answers_with_the_partial_results_of_its_agents(lab: Lab) -> None:
    async def linger() -> str:
        """Take very long."""
        await lab.clock.sleep(10_000)
        return "lingered"

    @tool(risk="write_local")
    async def hang(ctx: Context) -> str:
        """Take for ever."""
        await lab.clock.sleep(10_000)
        return "hung"

    lab.app.agent(
        "digger", model=ScriptedModel([says("Dug 3 m.", ("hang", "{}")), says("Dug 3 m in all.")]), tools=[hang]
    )
    boss = ScriptedModel([says("", ("digger", '{"goal": "dig"}')), says("We dug.")])
    lab.app.agent("boss", model=boss, tools=["digger"], deadline=DEADLINE_S)
    task = await lab.run("boss", "go")
    assert (task.state, task.result) == (State.COMPLETED, "We dug.")
    (result,) = [str(message["content"]) for message in boss.asked[-1].conversation if message["role"] == "tool"]
    assert "which is not finished" in result
    assert "Dug 3 m." in result


async def test_a_spent_budget_keeps_the_answers_of_children(lab: Lab) -> None:
    lab.app.agent("digger", model=ScriptedModel([says("There are 3 GB in /var.")]), description="digs")
    boss = ScriptedModel([says("I ask.", ("digger", '{"goal": "dig"}'), ("digger", '{"goal": "dig"}')), says("never")])
    lab.app.agent("boss", model=boss, tools=["digger"], budget=Budget(max_steps=3, when_spent="finish"))
    task = await lab.run("boss", "go")
    assert task.state is State.COMPLETED
    assert task.result.count("There are 3 GB in /var.") == 2
    assert "(This is not finished: the budget of task" in task.result


async def test_a_promised_form_fails_with_the_partial_result(lab: Lab) -> None:
    class Report(pydantic.BaseModel):
        size: int

    async def note() -> str:
        """Note."""
        return "noted"

    model = ScriptedModel([says("About 3 GB.", ("note", "{}"))] * 4)
    budget = Budget(max_steps=2, when_spent="finish")
    lab.app.agent("formal", model=model, tools=[note], result=Report, budget=budget)
    task = await lab.run("formal", "go")
    assert (task.state, task.partial) == (State.FAILED, "About 3 GB.")
