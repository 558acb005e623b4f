"""Several agents: one calls another as a tool and reads its state; crashes and circles do no harm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward, State
from onward.agent.delegation import MAX_DEPTH
from onward.agent.model import ModelRefused, Reply, Request, ToolCall
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core.task import Reason
from onward.errors import BadSetting, UsageError
from onward.testing import crashes, drain
from tests.agent.pairing import badly_paired
from tests.kit import Gate, Lab, eventually


def crew(app: Onward, boss_says: Any, helper_says: Any, **options: Any) -> tuple[Any, ScriptedModel, ScriptedModel]:
    """A boss that can ask a researcher."""
    helper, boss = ScriptedModel(helper_says), ScriptedModel(boss_says)
    researcher = app.agent("researcher", model=helper, instructions="You find things out.")
    return app.agent("boss", model=boss, tools=[researcher], **options), boss, helper


def find(request: Request) -> str:
    """The answer of a researcher: its goal, found."""
    return f"found {request.conversation[-1]['content']}"


async def children(app: Onward, parent: str) -> list[Any]:
    tasks, _ = await app.list(limit=100)
    return [task for task in tasks if task.parent == parent]


async def test_several_agents_work_at_once_and_the_caller_holds_no_slot(app: Onward) -> None:
    gate = Gate()

    class Patient(ScriptedModel):
        async def ask(self, request: Request, emit: Any) -> Reply:
            await gate()
            return await super().ask(request, emit)

    researcher = app.agent("researcher", model=Patient([find]), description="Finds things out.")
    model = ScriptedModel(
        [[("researcher", {"goal": "the year"}), ("researcher", {"goal": "the place"})], "1815, London"]
    )
    boss = app.agent("boss", model=model, tools=[researcher])
    async with app.worker(slots=2):  # both researchers fit only when the boss has left
        handle = await app.submit(boss, "When and where was Ada born?")

        async def both() -> bool:
            tasks = await children(app, handle.id)
            return len(tasks) == 2 and all(task.state is State.RUNNING for task in tasks)

        await eventually(both)
        assert (await handle.get()).reason == Reason.CHILD
        gate.opened.set()
        assert await handle.result(timeout=60) == "1815, London"
    results = [message["content"] for message in model.asked[1].conversation[-2:]]
    assert [text.partition(")\n")[2] for text in results] == ["found the year", "found the place"]
    (spec,) = [tool_["function"] for tool_ in model.asked[0].tools if tool_["function"]["name"] == "researcher"]
    assert "Finds things out." in spec["description"]
    assert spec["parameters"]["required"] == ["goal"]
    assert [task.input["depth"] for task in await children(app, handle.id)] == [1, 1]


@pytest.mark.slow
async def test_killed_anywhere_each_agent_is_asked_once() -> None:
    points = 0
    calls = [("researcher", {"goal": "a"}), ("researcher", {"goal": "b"})]
    async for app in crashes():
        boss, model, helper = crew(app, [calls, "both found"], [find])
        handle = await app.submit(boss, "Find a and b.")
        await drain(app)
        assert await handle.result(timeout=1) == "both found", app.killed_at
        assert len(await children(app, handle.id)) == 2, app.killed_at
        assert all(badly_paired(request.messages) == [] for request in model.asked), app.killed_at
        results = [message["content"].partition("\n")[2] for message in model.asked[-1].conversation[-2:]]
        assert results == ["found a", "found b"], app.killed_at
        assert len(helper.asked) <= 4, (
            "a reply is paid twice only when it was not recorded (and both are in one commit)"
        )
        assert app.killed_at or (await app.replay(handle.id)).agrees
        points += 1
    assert points > 15


async def test_an_agent_that_fails_or_is_cancelled_is_read_as_a_result(app: Onward) -> None:
    boss, model, _ = crew(
        app,
        [[("researcher", {"goal": "a"})], [("researcher", {"goal": "b"})], "gave up"],
        [ModelRefused("m", "no key")],
    )
    async with app.worker():
        handle = await app.submit(boss, "x")
        await eventually(lambda: _asked(model, 2))
        assert "failed: step 'model' was tried once" in model.asked[1].conversation[-1]["content"]
        assert await handle.result(timeout=60) == "gave up"


async def _asked(model: ScriptedModel, times: int) -> bool:
    return len(model.asked) >= times


async def test_a_cancelled_agent_is_read_too_and_a_cancelled_boss_takes_its_agents_along(app: Onward) -> None:
    gate = Gate()

    class Slow(ScriptedModel):
        async def ask(self, request: Request, emit: Any) -> Reply:
            await gate()
            return await super().ask(request, emit)

    researcher = app.agent("researcher", model=Slow([find]))
    model = ScriptedModel([[("researcher", {"goal": "a"})], [("researcher", {"goal": "b"})], "never"])
    boss = app.agent("boss", model=model, tools=[researcher])
    async with app.worker():
        handle = await app.submit(boss, "x")
        (first,) = await eventually(lambda: children(app, handle.id))
        await app.cancel(first.task_id)
        await eventually(lambda: _asked(model, 2))
        assert f"researcher (task {first.task_id}) was cancelled" in model.asked[1].conversation[-1]["content"]

        async def second() -> Any:
            return [task for task in await children(app, handle.id) if not task.ended]

        (other,) = await eventually(second)
        await app.cancel(handle.id)
        gate.opened.set()

        async def all_cancelled() -> bool:
            return (await app.get(other.task_id)).state is State.CANCELLED

        await eventually(all_cancelled)


async def test_agents_that_call_themselves_come_to_an_end(lab: Lab) -> None:
    class Shirker:
        """Hands each goal on to an agent of its kind, and answers when it reads a result."""

        name = "shirker"

        def __init__(self) -> None:
            self.results: list[str] = []

        async def ask(self, request: Request, emit: Any) -> Reply:
            last = request.conversation[-1]
            if last["role"] == "tool":
                self.results.append(last["content"])
                return Reply("nobody wanted to")
            return Reply("", (ToolCall("c", "shirker", '{"goal": "you do it"}'),))

    lab.app.agent("shirker", model=(model := Shirker()), tools=["shirker"])
    task = await lab.run("shirker", "Do it.")
    assert task.result == "nobody wanted to"
    assert model.results[0] == (
        "error: the agent 'shirker' was not asked: agents have handed this work on 5 times, and no further; "
        "do it yourself, or answer with what you have"
    )
    tasks, _ = await lab.app.list(limit=100)
    assert len(tasks) == MAX_DEPTH + 1


async def test_an_unknown_agent_is_an_error_for_the_model(lab: Lab) -> None:
    lab.app.agent("boss", model=(model := ScriptedModel([[("nobody", {"goal": "a"})], "alone"])), tools=["nobody"])
    assert (await lab.run("boss", "x")).result == "alone"
    assert "no task is named 'nobody'" in model.asked[1].conversation[-1]["content"]


async def test_a_long_answer_is_an_artifact_of_the_caller(lab: Lab) -> None:
    def read(request: Request) -> Any:
        shown = request.conversation[-1]["content"]
        assert len(shown.encode()) <= 4_000
        name = shown.partition("read_artifact('")[2].partition("'")[0]
        return [("read_artifact", {"artifact_id": name, "search": "line 700"})]

    answer = "\n".join(f"line {number}" for number in range(1000))
    boss, model, _ = crew(lab.app, [[("researcher", {"goal": "a"})], read, "ok"], [answer])
    task = await lab.run(boss, "x")
    assert task.result == "ok"
    assert model.asked[2].conversation[-1]["content"] == "701: line 700"
    assert [artifact.type for artifact in (await lab.app.state(task.task_id)).artifacts] == ["answer"]


async def test_an_agent_reads_the_state_of_its_relatives_only(lab: Lab) -> None:
    stranger = await _with_state(lab, "stranger")
    fact = ("record_fact", {"key": "born", "value": 1815, "source": "a book"})
    boss_says: list[Any] = [
        [("record_fact", {"key": "asker", "value": "the king", "source": "him"})],
        [("researcher", {"goal": "when was Ada born?"})],
        lambda request: [("read_state", {"task_id": request.conversation[-1]["content"][6:32]})],
        [("read_state", {"task_id": stranger}), ("read_state", {"task_id": "\x00' OR 1=1"})],
        "1815",
    ]
    parent: list[str] = []
    helper_says: list[Any] = [[fact], lambda _: [("read_state", {"task_id": parent[0]})], "done"]
    boss, model, helper = crew(lab.app, boss_says, helper_says)
    await lab.start()
    parent.append(await lab.submit(boss, "x"))
    assert (await lab.ended(parent[0])).result == "1815"
    assert "born = 1815 (a book)" in model.asked[3].conversation[-1]["content"]
    for message in model.asked[4].conversation[-2:]:
        assert "you have nothing to do with a task" in message["content"]
    assert "asker = the king (him)" in helper.asked[2].conversation[-1]["content"]


async def _with_state(lab: Lab, name: str) -> str:
    lab.app.agent(name, model=ScriptedModel(["hello"]))
    return (await lab.run(name, "x")).task_id


async def test_an_agent_goes_on_from_an_earlier_answer_of_the_same_agent_but_not_from_a_stranger(lab: Lab) -> None:
    stranger = await _with_state(lab, "stranger")
    boss_says: list[Any] = [
        [("researcher", {"goal": "first"})],
        lambda request: [("researcher", {"goal": "second", "after": request.conversation[-1]["content"][6:32]})],
        [("researcher", {"goal": "third", "after": stranger})],
        "ok",
    ]
    boss, model, helper = crew(lab.app, boss_says, [find, find])
    task = await lab.run(boss, "x")
    assert task.result == "ok"
    assert [message["content"] for message in helper.asked[1].conversation[1:]] == ["first", "found first", "second"]
    assert "was not started by the agent that asks to go on from it" in model.asked[3].conversation[-1]["content"]


def test_names_that_clash_or_cannot_be_called_are_refused(app: Onward) -> None:
    @tool
    def researcher() -> str:
        """Look."""
        return ""

    agent = app.agent("researcher", model="openai:x")
    with pytest.raises(UsageError, match="both named 'researcher'"):
        app.agent("boss", model="openai:x", tools=[agent, researcher])
    with pytest.raises(BadSetting, match="tool name"):
        app.agent("boss", model="openai:x", tools=["not a name"])
    assert "boss" not in app.handlers
    assert asyncio.iscoroutinefunction(agent)
