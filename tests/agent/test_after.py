"""Going on after an earlier task: with its state and its conversation, also after the task failed or was cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward, State
from onward.agent import loop
from onward.agent.loop import CHECKPOINT_EVERY_TURNS
from onward.agent.model import Reply, Request
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import record as r
from onward.core.budget import Budget
from onward.core.state import BUDGET_PRESSURE, AgentState, StatePatch
from onward.errors import InvalidInput, NoState, StateConflict, TaskFailed, TaskNotFound
from onward.service.submission import SubmitRequest
from onward.testing import crashes, drain
from tests.agent.pairing import badly_paired
from tests.agent.test_compaction import ROOM_BYTES, Walker, look
from tests.kit import Lab, eventually, sql

FACT = ("record_fact", {"key": "name", "value": "Ada", "source": "user"})


@tool
def logs() -> str:
    """All logs."""
    return "\n".join(f"line {number}" for number in range(1000))


def shown_texts(request: Request) -> list[Any]:
    """The contents of the messages in a request, or the names of the calls in them."""
    return [
        message.get("content") or [call["function"]["name"] for call in message["tool_calls"]]
        for message in request.conversation[1:]
    ]


def read_first(request: Request) -> Any:
    shown = next(
        str(message["content"])
        for message in request.conversation
        if message["role"] == "tool" and "line 0" in str(message["content"])
    )
    return [
        ("read_artifact", {"artifact_id": shown.partition("read_artifact('")[2].partition("'")[0], "search": "line 77"})
    ]


async def test_a_task_goes_on_where_an_earlier_one_ended(app: Onward) -> None:
    script: Any = [[FACT, ("logs", {})], "Hello Ada.", read_first, "Line 77, Ada."]
    agent = app.agent("helper", model=(model := ScriptedModel(script)), tools=[logs], budget=Budget(max_steps=9))
    async with app.worker():
        first = await app.submit(agent, "I am Ada.")
        assert await first.result(timeout=60) == "Hello Ada."
        second = await app.submit(agent, "Which line has a 77?", after=first.id)
        await second.result(timeout=60)
        assert await second.result(timeout=60) == "Line 77, Ada."
        await sql(
            app.store, f"DELETE FROM onward_contents WHERE task_id = '{first.id}'"
        )  # nothing of it matters any more
        third = await app.submit(agent, "Thanks.", after=second.id)
        with pytest.raises(TaskFailed):  # the script has no more lines
            await third.result(timeout=60)
    assert (await second.get()).input == {"goal": "Which line has a 77?", "after": first.id}
    assert shown_texts(model.asked[2])[0] == "I am Ada."
    assert shown_texts(model.asked[2])[-2:] == ["Hello Ada.", "Which line has a 77?"]
    assert all(badly_paired(request.messages) == [] for request in model.asked)
    assert "name = Ada (user)" in model.asked[2].messages[-1]["content"]
    assert "Goal: Which line has a 77?" in model.asked[2].messages[-1]["content"]
    assert "78: line 77" in model.asked[3].conversation[-1]["content"]
    state = await app.state(second.id)
    assert (state.goal, state.fact("name"), len(state.artifacts)) == ("Which line has a 77?", "Ada", 1)
    assert "Line 77, Ada." in shown_texts(model.asked[4])


async def test_a_child_goes_on_after_an_earlier_task(lab: Lab) -> None:
    agent = lab.app.agent("helper", model=(model := ScriptedModel([[FACT], "Hello Ada.", "You are Ada."])))

    @lab.app.task(retry=1)
    async def parent(ctx: Any, earlier: str) -> Any:
        return await (await ctx.submit(agent, "Who am I?", after=earlier))

    first = await lab.run(agent, "I am Ada.")
    task = await lab.run(parent, first.task_id)
    assert task.result == "You are Ada.", task.error
    assert "name = Ada (user)" in model.asked[2].messages[-1]["content"]
    refused = await lab.run(parent, task.task_id)
    assert "has no state" in refused.error["message"]  # type: ignore[index]


async def test_a_child_goes_on_after_no_task_of_another_tenant(lab: Lab) -> None:
    agent = lab.app.agent("helper", model=ScriptedModel([[FACT], "Hello Ada.", "You are Ada."]))

    @lab.app.task(retry=1)
    async def parent(ctx: Any, earlier: str) -> Any:
        return await (await ctx.submit(agent, "Who am I?", after=earlier))

    await lab.start()
    (first,) = await lab.app.service.submit([SubmitRequest("helper", "I am Ada.", tenant="a")])
    await lab.ended(first)
    (second,) = await lab.app.service.submit([SubmitRequest("parent", first, tenant="b")])
    refused = await lab.ended(second)
    assert f"there is no task {first!r}" in refused.error["message"]  # type: ignore[index]
    (third,) = await lab.app.service.submit([SubmitRequest("parent", first, tenant="a")])
    assert (await lab.ended(third)).result == "You are Ada."


@pytest.mark.slow
async def test_killed_anywhere_it_goes_on_with_the_same() -> None:
    points, seen = 0, set()
    async for app in crashes():
        script: Any = [[FACT, ("logs", {})], "Hello Ada.", read_first, "It is line 77."]
        agent = app.agent("helper", model=(model := ScriptedModel(script)), tools=[logs])
        first = await app.submit(agent, "I am Ada.")
        await drain(app)
        second = await app.submit(agent, "Which line?", after=first.id)
        await drain(app)
        assert await second.result(timeout=1) == "It is line 77.", app.killed_at
        seen.add(str(model.asked[-1].conversation))
        assert app.killed_at or (await app.replay(second.id)).agrees
        points += 1
    assert len(seen) == 1
    assert points > 20


@pytest.mark.parametrize("turns", [2, CHECKPOINT_EVERY_TURNS + 3], ids=["short", "with a checkpoint"])
async def test_it_works_after_checkpoints_and_compactions_and_for_another_agent(lab: Lab, turns: int) -> None:
    lab.app.agent("walker", model=(model := Walker(turns)), tools=[look], context_bytes=ROOM_BYTES)
    first = await lab.run("walker", "Look.")
    kinds = await lab.kinds(first.task_id)
    assert (r.CHECKPOINT in kinds) == (turns > CHECKPOINT_EVERY_TURNS)
    if turns > CHECKPOINT_EVERY_TURNS:  # records that rotation may drop
        last = len(kinds) - kinds[::-1].index(r.CHECKPOINT)
        await sql(
            lab.store,
            f"DELETE FROM onward_journal WHERE task_id = '{first.task_id}' AND seq < {last - 1} AND kind = 'step.completed'",
        )
    other = lab.app.agent("other", model=(another := Walker(0)))
    second = await lab.run(other, "Go on.", after=first.task_id)
    assert second.result == "Looked at 0."
    assert another.asked[0].conversation[1:-1] == [
        *model.asked[-1].conversation[1:],
        {"role": "assistant", "content": f"Looked at {turns}."},
    ]
    assert another.asked[0].conversation[-1] == {"role": "user", "content": "Go on."}


async def test_a_task_goes_on_after_one_that_was_cancelled_in_the_middle_of_a_call(lab: Lab) -> None:
    lab.app.agent("asker", model=ScriptedModel([[FACT], [("ask_user", {"question": "Who?"}), FACT], "never"]))
    await lab.start()
    first = await lab.submit("asker", "Ask.")
    assert (await lab.settled(first)).reason == "question"
    with pytest.raises(
        StateConflict, match=r"is waiting and cannot be gone on from; wait until it has ended, or cancel it"
    ):
        await lab.submit("asker", "Go on.", after=first)
    await lab.app.cancel(first)
    lab.app.agent("other", model=(model := ScriptedModel(["", "", "fine"])))
    second = await lab.run("other", "Go on.", after=first)
    assert second.result == "fine"
    assert badly_paired(model.asked[0].messages) == []
    assert [message["content"] for message in model.asked[0].conversation[-3:]] == [
        *["interrupted: the task had ended before it was known what came of this"] * 2,
        "Go on.",
    ]
    assert "name = Ada (user)" in model.asked[0].messages[-1]["content"]
    assert (await lab.app.state(second.task_id)).open_questions == ("Who?",)


async def test_a_task_goes_on_after_one_that_ended_right_after_a_checkpoint(lab: Lab, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_TURNS", 2)
    app = lab.app

    class Stuck(Walker):
        async def ask(self, request: Request, emit: Any) -> Reply:
            if len(self.asked) == 2:
                raise RuntimeError("gone")
            return await super().ask(request, emit)

    app.agent("walker", model=Stuck(9), tools=[look], retry=1)
    first = await lab.run("walker", "Look.")
    assert first.state is State.FAILED
    kinds = await lab.kinds(first.task_id)
    assert r.STEP_DONE not in kinds[kinds.index(r.CHECKPOINT) :], "its model was not asked since"
    app.agent("other", model=(model := Walker(0)))
    await lab.run("other", "Go on.", after=first.task_id)
    assert [message["role"] for message in model.asked[0].conversation[1:]] == [
        "user",
        *["assistant", "tool"] * 2,
        "user",
    ]


async def test_calls_that_were_done_before_the_failure_keep_their_results(lab: Lab) -> None:
    """Without them the next task would repeat the calls."""
    sent = 0

    @tool(risk="external_action")
    async def send(to: str) -> str:
        """Send a letter."""
        nonlocal sent
        sent += 1
        return f"sent to {to}"

    def away(_: Request) -> Reply:
        raise RuntimeError("gone")

    script: Any = [[("send", {"to": "Ada"}), ("send", {"to": "Bob"})], away]
    lab.app.agent("writer", model=ScriptedModel(script), tools=[send], retry=1)
    first = await lab.run("writer", "Write.")
    assert (first.state, sent) == (State.FAILED, 2)
    lab.app.agent("other", model=(model := ScriptedModel(["", "fine"])))
    await lab.run("other", "Go on.", after=first.task_id)
    assert shown_texts(model.asked[0])[-3:] == ["sent to Ada", "sent to Bob", "Go on."]


async def test_an_empty_reply_is_not_inherited(lab: Lab) -> None:
    """Some providers refuse a whole history with an empty reply."""
    lab.app.agent("silent", model=ScriptedModel([""] * 3))
    first = await lab.run("silent", "Speak.")
    assert first.state is State.FAILED
    lab.app.agent("other", model=(model := ScriptedModel([*[""] * 2, "fine"])))
    assert (await lab.run("other", "Go on.", after=first.task_id)).result == "fine"
    assert all(message["content"] for message in model.asked[0].conversation)


async def test_results_shown_as_excerpts_are_inherited_too(lab: Lab, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_TURNS", 3)
    few = Budget(max_artifact_bytes_in_context=1_500)

    def away(_: Request) -> Reply:
        raise RuntimeError("gone")

    script: Any = [*[[("logs", {})]] * 3, away]
    lab.app.agent("reader", model=ScriptedModel(script), tools=[logs], budget=few, shown_bytes=1_000, retry=1)
    first = await lab.run("reader", "Read.")
    assert first.state is State.FAILED
    lab.app.agent("other", model=(model := ScriptedModel([*[""] * 3, "fine"])), budget=few)
    second = await lab.run("other", "Go on.", after=first.task_id)
    assert second.result == "fine", second.error
    results = [str(message["content"]) for message in model.asked[0].conversation if message["role"] == "tool"]
    assert ["there is no room to show them" in text for text in results] == [True, True, False]


async def test_an_unusable_after_is_refused_at_once(lab: Lab) -> None:
    agent = lab.app.agent("helper", model=ScriptedModel(["hi"]))

    @lab.app.task
    async def plain(ctx: Any) -> str:
        return "x"

    with pytest.raises(TaskNotFound, match="there is no task '01nothing'"):
        await lab.submit(agent, "x", after="01nothing")
    done = await lab.run(plain)
    with pytest.raises(NoState, match="has no state: only agents have one"):
        await lab.submit(agent, "x", after=done.task_id)
    first = await lab.run(agent, "x")
    with pytest.raises(InvalidInput, match="the input says to go on after task 'other'"):
        await lab.submit(agent, {"goal": "x", "after": "other"}, after=first.task_id)
    await sql(lab.store, f"DELETE FROM onward_contents WHERE task_id = '{first.task_id}'")
    lost = await lab.run(agent, "x", after=first.task_id)
    assert "is no longer there; submit the goal without going on after it" in (lost.error or {})["message"]
    late = await lab.run(agent, {"goal": "x", "after": "01nothing"})
    assert "there is no task '01nothing'" in (late.error or {})["message"]


async def test_a_conversation_may_branch(lab: Lab) -> None:
    agent = lab.app.agent(
        "helper", model=ScriptedModel([[FACT], "hi", lambda request: request.conversation[-1]["content"]])
    )
    first = await lab.run(agent, "x")
    answers = [(await lab.run(agent, goal, after=first.task_id)).result for goal in ("a", "b")]
    assert answers == ["a", "b"]


async def test_the_pressure_of_an_earlier_budget_is_not_inherited(lab: Lab) -> None:
    @tool(normalize=lambda _: StatePatch(flag_risks=(BUDGET_PRESSURE, "tired")))
    def spend() -> str:
        """Spend."""
        return "spent"

    agent = lab.app.agent("helper", model=ScriptedModel([[("spend", {})], "a", "b"]), tools=[spend])
    first = await lab.run(agent, "x")
    second = await lab.run(agent, "y", after=first.task_id)
    assert (await lab.app.state(first.task_id)).risk_flags == (BUDGET_PRESSURE, "tired")
    assert (await lab.app.state(second.task_id)).risk_flags == ("tired",)


async def test_the_state_of_a_running_task_and_of_an_own_handler(app: Onward) -> None:
    @app.task
    async def mine(ctx: Any) -> None:
        await ctx.patch(AgentState(goal="g"))
        await ctx.patch(StatePatch(replace_plan=("a",)))
        await ctx.checkpoint({"mine": True})
        await ctx.patch(AgentState(goal="g", plan=("b",)))
        await ctx.signal("go")

    async with app.worker():
        handle = await app.submit(mine)

        async def waits() -> bool:
            return (await handle.get()).reason == "signal"

        await eventually(waits)
        assert (await app.state(handle.id)).plan == ("b",)
        await app.cancel(handle.id)
    with pytest.raises(TaskNotFound):
        await app.state("nothing")
