"""Pydantic AI agents as tasks: the real framework, with a strict OpenAI-compatible server that is not part of this project, and with
functions as models where a worker is killed at every point."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai.exceptions import ModelHTTPError, ModelUnavailableError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset
from pydantic_ai.usage import RequestUsage, UsageLimits

import onward
from onward import Budget, Onward, State
from onward.agents import Prices
from onward.core import record as r
from onward.core.asks import AskedIn
from onward.errors import BadSetting, UsageError
from onward.integrations.pydantic_ai import OnwardDurability
from onward.testing import MemoryApp, crashes, memory_app
from rig.aimock import AIMock
from rig.strict import Answer, Strict
from tests.killer import Killer
from tests.kit import drain, eventually, only_memory

PAYS = {"onward": {"risk": "external_action"}}
CALLS = [{"name": "look", "arguments": f'{{"place":"{place}"}}'} for place in ("hall", "yard")]
SCRIPT = [
    {"match": {"turnIndex": 0}, "response": {"content": "Let me look.", "toolCalls": CALLS, "usage": {"prompt_tokens": 100, "completion_tokens": 10}}},
    {"match": {"turnIndex": 1}, "response": {"toolCalls": [{"name": "pay", "arguments": '{"cents":5}'}], "usage": {"prompt_tokens": 200, "completion_tokens": 20}}},
    {"match": {"turnIndex": 2}, "response": {"content": "All is paid.", "usage": {"prompt_tokens": 300, "completion_tokens": 30}}},
]  # fmt: skip


class World:
    """What the model was asked, and what the tools did."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.done: list[Any] = []

    def clear(self) -> None:
        self.asked.clear()
        self.done.clear()

    def tools(self) -> list[Any]:
        async def look(place: str) -> str:
            """Look at a place."""
            self.done.append(place)
            return f"nothing in the {place}"

        async def pay(cents: int) -> str:
            """Pay."""
            self.done.append(cents)
            return "paid"

        return [look, Tool(pay, metadata=PAYS)]


@pytest.fixture
def world() -> World:
    return World()


def turns(messages: list[ModelMessage]) -> int:
    return sum(isinstance(message, ModelResponse) for message in messages)


def call(name: str, call_id: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(name, arguments, tool_call_id=call_id)


def scripted(world: World, *replies: Any) -> FunctionModel:
    """A model that gives these replies, one for each turn: lists of calls, or text."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = turns(messages)
        world.asked.append(turn)
        answer = replies[turn]
        answer = answer(messages) if callable(answer) else answer
        parts = [TextPart(answer)] if isinstance(answer, str) else answer
        return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=10, output_tokens=5))

    return FunctionModel(reply)


LOOKS = [call("look", f"look {place}", place=place) for place in ("hall", "yard", "roof")]


async def steps_of(app: Onward, task_id: str) -> dict[str, Any]:
    records = await app.service.journal(task_id)
    return {record.key: record.value["result"] for record in records if record.kind == r.STEP_DONE}


# ── with a real server ───────────────────────────────────────────────────────────────────────────────────────────────


def provider(door: Strict) -> OpenAIChatModel:
    return OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(base_url=door.url, api_key="k"))


async def test_an_agent_of_pydantic_ai_is_a_task_like_any_agent(
    app: Onward, door: Strict, openai_server: AIMock, world: World
) -> None:
    openai_server.script(SCRIPT)
    durability = OnwardDurability[None](approve=["external_action"], prices=Prices(1.0, 10.0))
    agent = Agent(
        provider(door), name="clerk", instructions="Be short.", tools=world.tools(), capabilities=[durability]
    )
    clerk = app.pydantic_ai(agent, budget=Budget(max_steps=5, max_llm_tokens=100_000))
    async with app.worker():
        task = await app.submit(clerk, "Look around, and pay.")
        (ask,) = await eventually(app.asks)
        assert (ask.tool, ask.arguments, ask.risk) == ("pay", {"cents": 5}, "external_action")
        await app.decide(ask.id, "approve")
        assert await task.result(timeout=60) == "All is paid."
    assert sorted(world.done[:2]) == ["hall", "yard"]
    assert world.done[2:] == [5]
    assert len(door.seen) == 3
    assert all(seen["stream"] and seen["max_completion_tokens"] for seen in door.seen)
    usage = (await app.get(task.id)).usage
    assert usage is not None
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (3, 600, 60)
    assert usage.cost_usd == pytest.approx(0.0012)
    spent = await app.budget(task.id)
    assert (spent.ledger.spent.steps, spent.ledger.spent.llm_tokens) == (3, 660)
    views = await app.service.timelines.turns(task.id)
    assert [(view.turn, view.model, view.finish, view.text, view.tools) for view in views] == [
        (1, "gpt-5-mini", "tool_calls", "Let me look.", ("look", "look")),
        (2, "gpt-5-mini", "tool_calls", "", ("pay",)),
        (3, "gpt-5-mini", "stop", "All is paid.", ()),
    ]
    turn = await app.service.timelines.turn(task.id, 2)
    assert [message["role"] for message in turn.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert turn.messages[0]["content"] == "Be short."
    assert turn.messages[-1]["content"] == "nothing in the yard"
    timeline = await app.service.timelines.timeline(task.id)
    assert sorted(bar.name for bar in timeline.bars if bar.kind == "tool") == ["look", "look", "pay"]


@only_memory
@pytest.mark.parametrize(
    "answer",
    [
        Answer(429, headers={"Retry-After": "0.2"}),
        pytest.param(Answer(500), marks=pytest.mark.slow),
        pytest.param(Answer(503), marks=pytest.mark.slow),
    ],
    ids=lambda answer: str(answer.status),
)
async def test_a_provider_that_is_busy_or_away_is_asked_again(
    app: Onward, door: Strict, openai_server: AIMock, world: World, answer: Answer
) -> None:
    openai_server.script([{"match": {}, "response": {"content": "Fine."}}])
    door.say(answer)
    model = provider(door)
    agent = Agent(model, name="clerk")
    app.pydantic_ai(agent)
    async with app.worker():
        task = await app.submit("clerk", "How are you?")
        assert await task.result(timeout=60) == "Fine."
    assert len(door.seen) == 2
    kinds = {record.kind for record in await app.service.journal(task.id)}
    assert kinds & {r.STEP_RETRY, r.STEP_WAITS}, "the attempts are in the journal, and not hidden in the SDK"
    assert model.client.max_retries == 2, "outside of a step the SDK tries again as before"


@only_memory
async def test_an_error_of_the_provider_keeps_its_type_in_a_replay(
    app: Onward, door: Strict, openai_server: AIMock
) -> None:
    openai_server.script([{"match": {}, "response": {"content": "Fine."}}])
    door.say(Answer(400, {"error": {"message": "no such thing", "code": "odd", "type": "invalid_request_error"}}))
    agent = Agent(provider(door), name="clerk", capabilities=[OnwardDurability()])
    seen: list[Any] = []

    @app.task
    async def careful(ctx: Any) -> str:
        try:
            await agent.run("Hello")
        except ModelHTTPError as error:
            seen.append((type(error).__mro__[1:3], error.status_code, error.body, error.provider_error_code))
        await ctx.signal("go")
        return (await agent.run("Again")).output

    async with app.worker():
        task = await app.submit(careful)
        await eventually(lambda: _waits(app, task.id))
        await app.signal(task.id, "go")
        assert await task.result(timeout=60) == "Fine."
    assert len(door.seen) == 2, "the error came from the journal the second time"
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][1] == 400


@only_memory
async def test_a_refused_task_asks_again_when_a_person_resumes_it(
    app: Onward, door: Strict, openai_server: AIMock
) -> None:
    openai_server.script([{"match": {}, "response": {"content": "Fine."}}])
    door.say(Answer(401, {"error": {"message": "wrong key"}}))
    app.pydantic_ai(Agent(provider(door), name="clerk"))
    async with app.worker():
        task = await app.submit("clerk", "How are you?")
        failed = await eventually(lambda: _ended(app, task.id))
        assert failed.state is State.FAILED
        assert len(door.seen) == 1, "no retry of the task heals a wrong key"
        await app.resume(task.id)
        assert await task.result(timeout=60) == "Fine."
    assert len(door.seen) == 2


async def _ended(app: Onward, task_id: str) -> Any:
    task = await app.get(task_id)
    return task if task.ended else None


async def _waits(app: Onward, task_id: str) -> bool:
    return (await app.get(task_id)).state is State.WAITING


# ── killed at every point ────────────────────────────────────────────────────────────────────────────────────────────


async def settle(app: MemoryApp, world: World, **decision: Any) -> None:
    """Run the task to its end: decide what it asks, and say of an effect in doubt what the world knows."""
    while left := await drain(app):
        (task,) = left
        assert task.state is State.WAITING, (task.state, task.reason)
        for ask in await app.asks():
            await app.decide(ask.id, **{"decision": "approve", **decision})
        for _ in await app.doubts(task.task_id):
            await app.resolve(task.task_id, *(("happened", "paid") if 4 in world.done else ("not_happened",)))


def check_calls(app: MemoryApp, world: World, records: list[r.Record]) -> None:
    """No model request and no tool call is made again once the journal has its result."""
    assert world.done.count(4) == 1, app.killed_at
    lost = app.killed_at == "save.before"  # the result was there, and the journal did not get it
    assert len(world.asked) <= 3 + lost, (app.killed_at, world.asked)
    assert len(world.done) <= 4 + 3 * lost, (app.killed_at, world.done)
    done = collections.Counter(record.key for record in records if record.kind == r.STEP_DONE)
    assert set(done.values()) == {1}


async def test_a_worker_that_is_killed_at_any_point_loses_and_repeats_nothing(world: World) -> None:
    model = scripted(world, LOOKS, [call("pay", "pay 1", cents=5)], "done")
    app = Onward("sqlite://:memory:")
    app.pydantic_ai(
        Agent(model, name="clerk", tools=world.tools()),
        approve=["external_action"],
        budget=Budget(max_llm_tokens=10_000),
    )
    points = 0
    async for killed in crashes(app):
        world.clear()
        task = await killed.submit("clerk", "Look around, and pay.")
        await settle(killed, world, arguments={"cents": 4})
        assert await task.result() == "done", killed.killed_at
        check_calls(killed, world, await killed.service.journal(task.id))
        spent = await killed.budget(task.id)
        lost = killed.killed_at is not None  # a request that may have been made is paid like the one in its place
        assert spent.ledger.spent.llm_tokens in ({45, 60} if lost else {45})
        points += 1
    assert points > 25


@pytest.mark.slow
async def test_the_same_on_every_store(url: str, world: World) -> None:
    model = scripted(world, LOOKS, [call("pay", "pay 1", cents=4)], "done")
    number = 0
    while True:
        number += 1
        world.clear()
        app = Onward(url, poll_s=0.05)
        agent = Agent(model, name="clerk", tools=world.tools())
        app.pydantic_ai(agent)
        async with app:
            killer = Killer(app, number)
            task = await app.submit("clerk", "Look around, and pay.")

            async def end(task: Any = task, app: Any = app) -> Any:
                while not (now := await app.get(task.id)).ended:
                    for _ in await app.doubts(task.id):
                        await app.resolve(task.id, *(("happened", "paid") if 4 in world.done else ("not_happened",)))
                    await asyncio.sleep(0.02)
                return now.result

            assert await killer.until(end) == "done", killer.killed_at
            assert world.done.count(4) == 1, killer.killed_at
            assert await app.store.health.census() == []
        if killer.killed_at is None:
            break
    assert number > 15


# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def run(agent: Agent[Any, Any], world: World, prompt: str = "Go.", **options: Any) -> tuple[MemoryApp, Any]:
    """Run a task of the agent to its end."""
    app = memory_app()
    app.pydantic_ai(agent, **options)
    async with app:
        task = await app.submit(str(agent.name), prompt)
        await settle(app, world)
        return app, await app.get(task.id)


def results(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def test_parallel_tools_run_at_once(world: World) -> None:
    together = asyncio.Barrier(3)

    async def look(place: str) -> str:
        await asyncio.wait_for(together.wait(), 60)
        return place

    agent = Agent(scripted(world, LOOKS, lambda messages: str(results(messages))), name="clerk", tools=[look])
    _, task = await run(agent, world)
    assert task.result == "['hall', 'yard', 'roof']"


async def test_a_denied_call_and_one_with_other_arguments(world: World) -> None:
    calls = [call("pay", "pay 1", cents=5), call("pay", "pay 2", cents=7)]
    agent = Agent(scripted(world, calls, lambda messages: str(results(messages))), name="clerk", tools=world.tools())
    app = memory_app()
    app.pydantic_ai(agent, approve=["external_action"])
    async with app:
        task = await app.submit("clerk", "Pay.")
        await drain(app)
        first, second = await app.asks()
        assert (first.effect, first.description) == (second.effect, second.description) == ("once", "Pay.")
        assert await app.service.asks.asked_in(second) == AskedIn(1, "")
        await app.decide(first.id, "deny", reason="too much")
        await app.decide(second.id, "approve", arguments={"cents": 6})
        assert await drain(app) == []
        assert await task.result() == "['denied: too much', 'paid']"
    assert world.done == [6]


async def test_always_allows_a_tool_for_the_rest_of_the_task(world: World) -> None:
    replies = [[call("pay", f"pay {number}", cents=number)] for number in (1, 2)]
    agent = Agent(scripted(world, *replies, "done"), name="clerk", tools=world.tools())
    app = memory_app()
    app.pydantic_ai(agent, approve=["external_action"])
    async with app:
        task = await app.submit("clerk", "Pay.")
        await drain(app)
        (ask,) = await app.asks()
        await app.decide(ask.id, "approve", always=True)
        assert await drain(app) == []
        assert await task.result() == "done"
    assert world.done == [1, 2]


async def test_without_a_decision_in_time_the_default_decides(world: World) -> None:
    agent = Agent(
        scripted(world, [call("pay", "pay 1", cents=1)], lambda messages: str(results(messages))),
        name="clerk",
        tools=world.tools(),
    )
    app = memory_app()
    app.pydantic_ai(agent, approve=["external_action"], approval_timeout="1h")
    async with app:
        task = await app.submit("clerk", "Pay.")
        assert [left.reason for left in await drain(app)] == ["approval"]
        await app.clock.move("1h")
        assert await drain(app) == []
        assert "nobody decided in time" in await task.result()
    assert world.done == []


async def test_a_tool_that_requires_approval_by_itself(world: World) -> None:
    async def wipe() -> str:
        world.done.append("wiped")
        return "wiped"

    agent = Agent(
        scripted(world, [call("wipe", "wipe 1")], "done"), name="clerk", tools=[Tool(wipe, requires_approval=True)]
    )
    _, task = await run(agent, world)
    assert (task.result, world.done) == ("done", ["wiped"])


async def test_a_call_that_another_program_does_waits_for_a_signal(world: World) -> None:
    external = ExternalToolset(
        [ToolDefinition(name="print_page", parameters_json_schema={"type": "object"})], id="desk"
    )
    agent = Agent(
        scripted(world, [call("print_page", "print 1", page=3)], lambda messages: str(results(messages))),
        name="clerk",
        toolsets=[external],
    )
    app = memory_app()
    app.pydantic_ai(agent)
    async with app:
        task = await app.submit("clerk", "Print.")
        (left,) = await drain(app)
        assert left.state is State.WAITING
        (progress,) = [
            record.value
            for record in await app.service.journal(task.id)
            if record.kind == r.PROGRESS and "external" in record.value
        ]
        assert progress["external"] == {"call": "print 1", "arguments": {"page": 3}, "signal": "tool call print 1"}
        await app.signal(task.id, progress["external"]["signal"], "printed")
        assert await drain(app) == []
        assert await task.result() == "['printed']"
    assert world.asked == [0, 1]


async def test_a_tool_asks_the_model_to_try_again(world: World) -> None:
    async def look(place: str) -> Any:
        world.done.append(place)
        if place == "hall":
            raise ModelRetry("the hall is locked")
        return ToolReturn(return_value="nothing", metadata={"seen": 1})

    replies = [[call("look", "1", place="hall")], [call("look", "2", place="yard")], "done"]
    agent = Agent(scripted(world, *replies), name="clerk", tools=[look])
    _, task = await run(agent, world)
    assert (task.result, world.done) == ("done", ["hall", "yard"])


async def test_a_large_result_is_stored_beside_the_journal(world: World) -> None:
    def dump() -> dict[str, str]:
        world.done.append("dump")
        return {"data": "x" * 200_000}

    @dataclasses.dataclass
    class Size:
        size: int

    def answer(messages: list[ModelMessage]) -> str:
        return str(len(results(messages)[0]["data"]))

    agent = Agent(scripted(world, [call("dump", "1")], answer), name="clerk", tools=[dump])
    app = Onward("sqlite://:memory:")
    app.pydantic_ai(agent)
    async for killed in crashes(app):
        task = await killed.submit("clerk", "Go.")
        assert await drain(killed) == []
        assert await task.result() == "200000"
        for record in await killed.service.journal(task.id):
            assert len(record.data) < 20_000


async def test_a_result_that_no_record_can_hold_fails_the_task_and_is_not_repeated(world: World) -> None:
    def odd() -> Any:
        world.done.append("odd")
        return object()

    agent = Agent(scripted(world, [call("odd", "1")], "done"), name="clerk", tools=[odd])
    _, task = await run(agent, world, retry=1)
    assert task.state is State.FAILED
    assert "cannot be recorded" in str(task.error)
    assert world.done == ["odd"]


async def test_a_tool_that_runs_in_the_handler_uses_the_task(world: World) -> None:
    async def rest(who: str) -> str:
        ctx = onward.current()
        await ctx.sleep("1h")
        await ctx.step(world.done.append, who, name="note")
        return who

    calls = [call("rest", f"rest {who}", who=who) for who in ("a", "b")]
    agent = Agent(
        scripted(world, calls, lambda messages: str(results(messages))),
        name="clerk",
        tools=[Tool(rest, metadata={"onward": False})],
    )
    _, task = await run(agent, world)
    assert task.result == "['a', 'b']"
    assert sorted(world.done) == ["a", "b"]


@pytest.mark.slow
async def test_an_agent_in_a_tool_has_steps_of_its_own(world: World) -> None:
    inner_world = World()
    inner = Agent(
        scripted(inner_world, LOOKS[:1], "inner answer"),
        name="inner",
        tools=world.tools(),
        capabilities=[OnwardDurability()],
    )

    async def delegate(question: str) -> str:
        return (await inner.run(question)).output

    calls = [call("delegate", f"d{number}", question="?") for number in (1, 2)]
    agent = Agent(
        scripted(world, calls, lambda messages: str(results(messages))),
        name="clerk",
        tools=[Tool(delegate, metadata={"onward": False})],
    )
    app = Onward("sqlite://:memory:")
    app.pydantic_ai(agent)
    async for killed in crashes(app):
        world.clear()
        inner_world.clear()
        task = await killed.submit("clerk", "Go.")
        assert await drain(killed) == []
        assert await task.result() == "['inner answer', 'inner answer']"
        usage = (await killed.get(task.id)).usage
        assert usage is not None
        assert usage.calls == 6
        assert len(await killed.service.timelines.turns(task.id)) == 6, "each request has a turn of its own"
        steps = await steps_of(killed, task.id)
    assert len(inner_world.asked) == 4
    assert {
        "model",
        "model#2",
        "[branch.d1]model",
        "[branch.d1]model#2",
        "[branch.d1/branch.look hall]look",
    } <= steps.keys()


async def test_toolsets_that_are_made_for_each_run(world: World) -> None:
    agent = Agent(scripted(world, LOOKS, "done"), name="clerk", deps_type=str)

    @agent.toolset(id="more", per_run_step=False)
    def more(ctx: RunContext[str]) -> FunctionToolset[str]:
        return FunctionToolset(world.tools(), id=f"of {ctx.deps}")

    _, task = await run(agent, world, deps=lambda ctx: ctx.task_id)
    assert task.result == "done"
    assert world.done == ["hall", "yard", "roof"]


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_output_of_a_type(world: World) -> None:
    class Answer(BaseModel):
        place: str
        empty: bool

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        world.asked.append(turns(messages))
        wrong = {"place": "hall"} if turns(messages) == 0 else {"place": "hall", "empty": True}
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, wrong)])

    agent = Agent(FunctionModel(answer), name="clerk", output_type=Answer)
    _, task = await run(agent, world)
    assert task.result == {"place": "hall", "empty": True}
    assert world.asked == [0, 1], "the framework asks again when the output does not fit"


@pytest.mark.parametrize(("output_type", "output", "result"), [(set[int], [3], [3]), (bytes, "yes", "eWVz")])
async def test_output_that_json_has_no_value_for(world: World, output_type: Any, output: Any, result: Any) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        world.asked.append(turns(messages))
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"response": output})])

    _, task = await run(Agent(FunctionModel(answer), name="clerk", output_type=output_type), world, retry=1)
    assert task.result == result


async def test_thoughts_and_signatures_come_back_byte_for_byte(world: World) -> None:
    seen: list[Any] = []
    thought = ThinkingPart(
        "hm\u2028\U0001f600", id="t1", signature="c2ln+/==", provider_name="x", provider_details={"a": [1, None]}
    )

    def look_back(messages: list[ModelMessage]) -> str:
        seen.append(next(part for part in messages[1].parts if isinstance(part, ThinkingPart)))
        return "done"

    agent = Agent(scripted(world, [thought, *LOOKS[:1]], look_back), name="clerk", tools=world.tools())
    app = Onward("sqlite://:memory:")
    app.pydantic_ai(agent)
    async for killed in crashes(app):
        task = await killed.submit("clerk", "Go.")
        assert await drain(killed) == []
        assert await task.result() == "done"
    assert len(seen) > 3
    assert all(part == thought for part in seen)


async def test_live_text_of_a_streamed_reply(world: World) -> None:
    async def words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for word in ("one ", "two ", "three"):
            await app.clock.move(1)
            yield word

    app = memory_app()
    app.pydantic_ai(Agent(FunctionModel(stream_function=words), name="clerk"))
    async with app:
        task = await app.submit("clerk", "Count.")
        assert await drain(app) == []
        assert await task.result() == "one two three"
        pieces = [
            record.value
            for record in await app.service.journal(task.id)
            if record.kind == r.PROGRESS and "text" in record.value
        ]
    assert "".join(piece["text"] for piece in pieces) == "one two three"


async def test_events_are_not_handled_again_in_a_replay(world: World) -> None:
    handled: list[str] = []

    async def handle(ctx: RunContext[Any], events: Any) -> None:
        async for event in events:
            handled.append(type(event).__name__)

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        if turns(messages) == 0:
            yield {0: DeltaToolCall("pay", '{"cents": 4}', tool_call_id="p")}
        else:
            yield "done"

    durability = OnwardDurability[None](approve=["external_action"], event_stream_handler=handle)
    agent = Agent(FunctionModel(stream_function=stream), name="clerk", tools=world.tools(), capabilities=[durability])
    _, task = await run(agent, world)
    assert task.result == "done"
    assert handled.count("FunctionToolCallEvent") == 1
    assert handled.count("FunctionToolResultEvent") == 1


async def test_a_budget_that_is_spent_makes_the_task_wait(world: World) -> None:
    agent = Agent(scripted(world, LOOKS, "done"), name="clerk", tools=world.tools())
    app = memory_app()
    app.pydantic_ai(agent, budget=Budget(max_steps=1))
    async with app:
        task = await app.submit("clerk", "Go.")
        (left,) = await drain(app)
        assert left.reason == "budget"
        await app.raise_budget(task.id, max_steps=2)
        assert await drain(app) == []
        assert await task.result() == "done"
    assert world.asked == [0, 1]


async def test_the_limits_of_the_framework_hold_too(world: World) -> None:
    agent = Agent(scripted(world, LOOKS, "done"), name="clerk", tools=world.tools())
    _, task = await run(agent, world, usage_limits=UsageLimits(request_limit=1), retry=1)
    assert task.state is State.FAILED
    assert task.error["type"] == "UsageLimitExceeded"


async def test_messages_of_people_reach_the_model(world: World) -> None:
    prompts: list[list[str]] = []

    def answer(messages: list[ModelMessage]) -> Any:
        texts = [part.content for message in messages for part in message.parts if part.part_kind == "user-prompt"]
        prompts.append(texts)
        return "done" if len(texts) < 3 else "done twice"

    agent = Agent(scripted(world, [call("pay", "p", cents=1)], answer, answer), name="clerk", tools=world.tools())
    app = memory_app()
    app.pydantic_ai(agent, approve=["external_action"])
    async with app:
        task = await app.submit("clerk", "Pay.")
        await drain(app)
        await app.message(task.id, "and be quick")
        (ask,) = await app.asks()
        await app.decide(ask.id, "approve")
        assert await drain(app) == []
        assert await task.result() == "done"
    assert prompts == [["Pay.", "and be quick"]]


async def test_a_run_has_the_same_ids_in_every_shift(world: World) -> None:
    ids: list[Any] = []

    async def note(ctx: RunContext[Any]) -> str:
        ids.append((ctx.run_id, ctx.conversation_id))
        return "ok"

    agent = Agent(
        scripted(world, [call("note", "1"), call("pay", "2", cents=1)], "done"),
        name="clerk",
        tools=[*world.tools(), Tool(note, metadata={"onward": False})],
    )
    _, task = await run(agent, world, approve=["external_action"])
    assert task.result == "done"
    assert len(ids) == 2
    assert ids[0] == ids[1]
    assert ids[0][0] == f"{task.task_id}:1"


async def test_the_agent_runs_as_usual_outside_of_a_task_and_inside_a_step(world: World) -> None:
    model = scripted(world, LOOKS, "done")
    agent = Agent(model, name="clerk", tools=world.tools(), capabilities=[OnwardDurability()])
    assert (await agent.run("Go.")).output == "done"
    app = memory_app()

    async def ask() -> str:
        return (await agent.run("Go.")).output

    @app.task
    async def work(ctx: Any) -> str:
        return str(await ctx.step(ask))

    async with app:
        task = await app.submit(work)
        assert await drain(app) == []
        assert await task.result() == "done"
        assert list(await steps_of(app, task.id)) == ["ask"]


@pytest.mark.slow
async def test_two_runs_in_one_handler(world: World) -> None:
    model = scripted(world, LOOKS, "done")
    agent = Agent(model, name="clerk", tools=world.tools(), capabilities=[OnwardDurability()])
    app = Onward("sqlite://:memory:")

    @app.task
    async def work(ctx: Any) -> list[str]:
        first = await agent.run("One.")
        await ctx.sleep("1d")
        second = await agent.run("Two.")
        return [first.output, second.output]

    async for killed in crashes(app):
        world.clear()
        task = await killed.submit("work")
        assert await drain(killed) == []
        assert await task.result() == ["done", "done"]
        assert len(world.asked) <= 5
        usage = (await killed.get(task.id)).usage
        assert usage is not None
        assert usage.calls == 4
    assert world.asked == [0, 1, 0, 1]


@pytest.mark.parametrize("beside", ["the same agent", "a step"])
async def test_a_run_beside_other_work_of_its_line_is_refused(world: World, beside: str) -> None:
    """A run that starts while a step of the handler runs is not a run inside of that step."""
    agent = Agent(scripted(world, LOOKS, "done"), name="clerk", tools=world.tools(), capabilities=[OnwardDurability()])
    app = memory_app()

    @app.task(retry=1)
    async def work(ctx: Any) -> None:
        other = agent.run("One.") if beside == "the same agent" else ctx.step(asyncio.sleep, 0.1)
        await asyncio.gather(other, agent.run("Two."))

    async with app:
        task = await app.submit(work)
        assert await drain(app) == []
        error = (await app.get(task.id)).error
    assert error is not None
    assert "ctx.gather runs several at once" in error["message"]
    assert len(world.asked) <= 1, "no request is made that the journal does not have"


async def test_two_runs_at_once_in_one_handler(world: World) -> None:
    agent = Agent(scripted(world, LOOKS, "done"), name="clerk", tools=world.tools(), capabilities=[OnwardDurability()])
    app = Onward("sqlite://:memory:")

    @app.task
    async def work(ctx: Any) -> list[str]:
        return [result.output for result in await ctx.gather(agent.run("One."), agent.run("Two."))]

    async for killed in crashes(app):
        world.clear()
        task = await killed.submit("work")
        assert await drain(killed) == []
        assert await task.result() == ["done", "done"]
        assert len(world.asked) <= 6, killed.killed_at
        usage = (await killed.get(task.id)).usage
        assert usage is not None
        assert usage.calls == 4


async def test_a_provider_that_stays_away_is_an_error_of_the_framework(world: World) -> None:
    def away(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        world.asked.append(0)
        raise ModelUnavailableError("m", "it is away")

    agent = Agent(FunctionModel(away), name="clerk", capabilities=[OnwardDurability(retry=2)])
    app = memory_app()

    @app.task
    async def work(ctx: Any) -> str:
        try:
            return (await agent.run("Go.")).output
        except ModelUnavailableError as error:
            return str(error)

    async with app:
        task = await app.submit(work)
        assert await drain(app) == []
        assert "it is away" in await task.result()
    assert len(world.asked) == 2


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mistakes_are_reported_when_the_agent_is_registered(world: World) -> None:
    app = memory_app()
    model = scripted(world, "done")
    with pytest.raises(BadSetting, match="rules of tool 'pay'"):
        app.pydantic_ai(
            Agent(model, name="a", tools=[Tool(world.tools()[0], name="pay", metadata={"onward": {"risks": "x"}})])
        )
    with pytest.raises(BadSetting, match="approve"):
        app.pydantic_ai(Agent(model, name="b"), approve="external_action")
    with pytest.raises(BadSetting, match="budget"):
        app.pydantic_ai(Agent(model, name="c"), budget=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="OnwardDurability of its own"):
        app.pydantic_ai(Agent(model, name="d", capabilities=[OnwardDurability()]), approve=["x"])
    with pytest.raises(UsageError, match="name"):
        app.pydantic_ai(Agent(model))
