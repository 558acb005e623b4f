"""Agents of the OpenAI Agents SDK as tasks: the real SDK, with a strict OpenAI-compatible server that is not part of this project, and with
a scripted model where a worker is killed at every point."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp
import openai
import pytest
from pydantic import BaseModel

from onward import Budget, Onward, State
from onward.core import record as r
from onward.errors import BadSetting, InvalidInput
from onward.testing import MemoryApp, crashes, memory_app
from rig import openai_agents
from rig.aimock import AIMock
from rig.server import Unavailable
from rig.strict import Answer, Strict
from tests.integrations.test_pydantic_ai import SCRIPT, World, steps_of
from tests.kit import drain, eventually, only_memory

try:
    openai_agents.obtain()
except Unavailable as missing:
    pytest.skip(f"the OpenAI Agents SDK cannot be installed here: {missing}", allow_module_level=True)

from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SessionABC,
    SessionSettings,
    ToolOutputImage,
    ToolOutputText,
    ToolTimeoutError,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
)
from agents import set_tracing_disabled as disable_tracing
from agents.items import ModelResponse
from agents.mcp import MCPServer
from agents.usage import Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from onward.integrations.openai_agents import OnwardRunner, OnwardSession  # it makes runs in handlers durable

disable_tracing(True)
PAYS = {"pay": {"risk": "external_action"}}
LOOKS = [("look", f"look {place}", f'{{"place": "{place}"}}') for place in ("hall", "yard", "roof")]
PAY = [("pay", "pay 1", '{"cents": 4}')]


@pytest.fixture
def world() -> World:
    return World()


def tools(world: World) -> list[Any]:
    @function_tool
    async def look(place: str) -> str:
        """Look at a place."""
        world.done.append(place)
        return f"nothing in the {place}"

    @function_tool
    async def pay(cents: int) -> str:
        """Pay."""
        world.done.append(cents)
        return "paid"

    return [look, pay]


class Scripted(Model):
    """A model that gives these replies, one for each turn of a conversation: lists of calls, or text."""

    model = "scripted"

    def __init__(self, world: World, *replies: Any) -> None:
        self._world, self._replies = world, replies

    async def get_response(  # the signature of the SDK
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        items = [] if isinstance(input, str) else input
        answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
        calls = {item["call_id"] for item in items if item.get("type") == "function_call"}
        turn, left = 0, set(answered) & calls
        while left and turn < len(self._replies) and isinstance(self._replies[turn], list):
            left -= {call_id for _, call_id, _ in self._replies[turn]}
            turn += 1
        self._world.asked.append(turn)
        reply = self._replies[turn]
        reply = reply(items) if callable(reply) else reply
        output: list[Any] = [
            ResponseFunctionToolCall(type="function_call", name=item[0], call_id=item[1], arguments=item[2])
            if isinstance(item, tuple)
            else item
            for item in ([] if isinstance(reply, str) else reply)
        ]
        if isinstance(reply, str):
            text = ResponseOutputText(type="output_text", text=reply, annotations=[])
            output = [
                ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            ]
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=output, usage=usage, response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        reply = await self.get_response(*args, **kwargs)
        for item in reply.output:
            for part in getattr(item, "content", ()):
                yield ResponseTextDeltaEvent.model_construct(type="response.output_text.delta", delta=part.text)
        usage = ResponseUsage.model_validate(
            {
                "input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        )  # fmt: skip
        response = Response(
            id="r", created_at=0, model="scripted", object="response", output=reply.output, tool_choice="auto", tools=[],
            parallel_tool_calls=True, usage=usage,
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=1)


def results(items: list[Any]) -> str:
    return str([item["output"] for item in items if item.get("type") == "function_call_output"])


async def settle(app: MemoryApp, world: World, **decision: Any) -> None:
    while left := await drain(app):
        (task,) = left
        assert task.state is State.WAITING, (task.state, task.reason)
        for ask in await app.asks():
            await app.decide(ask.id, **{"decision": "approve", **decision})
        for _ in await app.doubts(task.task_id):
            await app.resolve(task.task_id, *(("happened", "paid") if 4 in world.done else ("not_happened",)))


async def run(agent: Any, world: World, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The task of an agent that has ended, and its steps."""
    app = memory_app()
    app.openai_agent(agent, **options)
    async with app:
        task = await app.submit(agent.name, "Go.")
        await settle(app, world)
        return await app.get(task.id), await steps_of(app, task.id)


# ── with a real server ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_agent_of_the_sdk_is_a_task_like_any_agent(
    app: Onward, door: Strict, openai_server: AIMock, world: World, api: str
) -> None:
    openai_server.script(SCRIPT if api == "chat" else _of_responses())
    client = openai.AsyncOpenAI(base_url=door.url if api == "chat" else openai_server.url, api_key="k")
    model = (OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel)("gpt-5-mini", client)
    agent = Agent(name="clerk", instructions="Be short.", model=model, tools=tools(world))
    app.openai_agent(agent, tools=PAYS, approve=["external_action"], budget=Budget(max_steps=5))
    async with app.worker():
        task = await app.submit("clerk", "Look around, and pay.")
        (ask,) = await eventually(app.asks)
        assert (ask.tool, ask.arguments, ask.risk) == ("pay", {"cents": 5}, "external_action")
        await app.decide(ask.id, "approve")
        assert await task.result(timeout=60) == "All is paid."
    assert sorted(world.done[:2]) == ["hall", "yard"]
    assert world.done[2:] == [5]
    assert len(openai_server.requests()) == 3
    usage = (await app.get(task.id)).usage
    assert usage is not None
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (3, 600, 60)
    views = await app.service.timelines.turns(task.id)
    assert [(view.turn, view.model, view.text, view.tools) for view in views] == [
        (1, "gpt-5-mini", "Let me look." if api == "chat" else "", ("look", "look")),
        (2, "gpt-5-mini", "", ("pay",)),
        (3, "gpt-5-mini", "All is paid.", ()),
    ]
    turn = await app.service.timelines.turn(task.id, 3)
    assert turn.messages[0] == {"role": "system", "content": "Be short."}
    assert turn.messages[-1]["content"] == "paid"


def _of_responses() -> list[dict[str, Any]]:
    """The same replies for the Responses API, in which the server counts each item as a turn of its own."""
    first, second, third = SCRIPT
    calls = {key: value for key, value in first["response"].items() if key != "content"}  # type: ignore[attr-defined]
    return [
        {"match": {"turnIndex": 0}, "response": calls},
        {"match": {"turnIndex": 2}, "response": second["response"]},
        {"match": {"turnIndex": 3}, "response": third["response"]},
    ]


@only_memory
async def test_errors_of_the_provider(app: Onward, door: Strict, openai_server: AIMock) -> None:
    openai_server.script([{"match": {}, "response": {"content": "Fine."}}])
    door.say(Answer(503), Answer(400, {"error": {"message": "odd"}}))
    client = openai.AsyncOpenAI(base_url=door.url, api_key="k")
    agent = Agent(name="clerk", model=OpenAIChatCompletionsModel("gpt-5-mini", client))
    seen: list[Any] = []

    @app.task
    async def careful(ctx: Any) -> Any:
        try:
            await Runner.run(agent, "Hello")
        except openai.BadRequestError as error:
            seen.append(error.status_code)
        await ctx.signal("go")
        return (await Runner.run(agent, "Again")).final_output

    async with app.worker():
        task = await app.submit(careful)
        await eventually(lambda: _waits(app, task.id))
        await app.signal(task.id, "go")
        assert await task.result(timeout=60) == "Fine."
    assert seen == [400, 400], "the same error in the replay"
    assert len(door.seen) == 3, "busy, refused, fine"
    assert client.max_retries == 2


async def _waits(app: Onward, task_id: str) -> bool:
    task = await app.get(task_id)
    return task.state is State.WAITING and task.reason == "signal"


# ── killed at every point ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_a_worker_that_is_killed_at_any_point_loses_and_repeats_nothing(world: World) -> None:
    agent = Agent(name="clerk", model=Scripted(world, LOOKS, PAY, "done"), tools=tools(world))
    app, points = Onward("sqlite://:memory:"), 0
    app.openai_agent(agent, tools=PAYS, approve=["external_action"])
    async for killed in crashes(app):
        world.clear()
        task = await killed.submit("clerk", "Go.")
        await settle(killed, world)
        assert await task.result() == "done", killed.killed_at
        assert world.done.count(4) == 1, killed.killed_at
        lost = killed.killed_at == "save.before"
        assert len(world.asked) <= 3 + lost
        assert len(world.done) <= 4 + 3 * lost
        records = await killed.service.journal(task.id)
        keys = [record.key for record in records if record.kind == r.STEP_DONE]
        assert len(keys) == len(set(keys))
        points += 1
    assert points > 20


@pytest.mark.slow
async def test_agents_as_tools_and_handoffs_are_killed_at_any_point(world: World) -> None:
    inner = Agent(name="inner", model=Scripted(World(), LOOKS[:1], "inner answer"), tools=tools(world))
    last = Agent(name="last", model=Scripted(World(), results))
    delegate = inner.as_tool("delegate", "Ask the other agent.")
    first = Agent(
        name="first",
        model=Scripted(
            world,
            [("delegate", "d1", '{"input": "a"}'), ("delegate", "d2", '{"input": "b"}')],
            [("transfer_to_last", "t1", "{}")],
        ),
        tools=[delegate],
        handoffs=[handoff(last)],
    )
    app = Onward("sqlite://:memory:")
    app.openai_agent(first)
    async for killed in crashes(app):
        task = await killed.submit("first", "Go.")
        assert await drain(killed) == [], killed.killed_at
        assert (await task.result()).startswith("['inner answer', 'inner answer', "), killed.killed_at
        usage = (await killed.get(task.id)).usage
        assert usage is not None
        assert usage.calls == 7
        steps = await steps_of(killed, task.id)
    assert {"[branch.d1]model", "[branch.d1/branch.look hall]look", "[branch.d2]model#2", "model#3"} <= steps.keys()


# ── tools, approvals and the run ─────────────────────────────────────────────────────────────────────────────────────


async def test_parallel_tools_run_at_once(world: World) -> None:
    together = asyncio.Barrier(3)

    @function_tool
    async def look(place: str) -> str:
        """Look."""
        await asyncio.wait_for(together.wait(), 60)
        return place

    agent = Agent(name="clerk", model=Scripted(world, LOOKS, results), tools=[look])
    task, _ = await run(agent, world)
    assert task.result == "['hall', 'yard', 'roof']"


async def test_a_denied_call(world: World) -> None:
    agent = Agent(name="clerk", model=Scripted(world, PAY, results), tools=tools(world))
    app = memory_app()
    app.openai_agent(agent, tools=PAYS, approve=["external_action"])
    async with app:
        task = await app.submit("clerk", "Go.")
        await drain(app)
        (ask,) = await app.asks()
        await app.decide(ask.id, "deny", reason="too much")
        assert await drain(app) == []
        assert await task.result() == "['denied: too much']"
    assert world.done == []


async def test_a_call_with_other_arguments_and_always(world: World) -> None:
    again = [("pay", "pay 2", '{"cents": 9}')]
    agent = Agent(name="clerk", model=Scripted(world, PAY, again, results), tools=tools(world))
    app = memory_app()
    app.openai_agent(agent, tools=PAYS, approve=["external_action"])
    async with app:
        task = await app.submit("clerk", "Go.")
        await drain(app)
        (ask,) = await app.asks()
        with pytest.raises(InvalidInput, match="do not fit the tool 'pay'"):
            await app.decide(ask.id, "approve", arguments={"cents": "many"})
        await app.decide(ask.id, "approve", arguments={"cents": 3}, always=True)
        assert await drain(app) == []
        assert 'other arguments, {"cents": 3})' in await task.result()
    assert world.done == [3, 9]


async def test_a_tool_that_needs_approval_by_itself(world: World) -> None:
    @function_tool(needs_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        world.done.append(cents)
        return "paid"

    agent = Agent(name="clerk", model=Scripted(world, PAY, "done"), tools=[pay])
    task, _ = await run(agent, world)
    assert (task.result, world.done) == ("done", [4])


async def test_output_of_a_type(world: World) -> None:
    class Place(BaseModel):
        place: str

    agent = Agent(name="clerk", model=Scripted(world, '{"place": "hall"}'), output_type=Place)
    task, _ = await run(agent, world)
    assert task.result == {"place": "hall"}


async def test_a_budget_that_is_spent_makes_the_task_wait(world: World) -> None:
    agent = Agent(name="clerk", model=Scripted(world, LOOKS, "done"), tools=tools(world))
    app = memory_app()
    app.openai_agent(agent, budget=Budget(max_steps=1))
    async with app:
        task = await app.submit("clerk", "Go.")
        (left,) = await drain(app)
        assert left.reason == "budget"
        await app.raise_budget(task.id, max_steps=2)
        assert await drain(app) == []
        assert await task.result() == "done"
    assert world.asked == [0, 1]


async def test_a_streamed_run(world: World) -> None:
    agent = Agent(name="clerk", model=Scripted(world, LOOKS, "done"), tools=tools(world))
    app = memory_app()
    seen: list[list[str]] = []

    @app.task
    async def work(ctx: Any) -> Any:
        result = Runner.run_streamed(agent, "Go.")
        events = [event async for event in result.stream_events()]
        seen.append([event.data.type for event in events if event.type == "raw_response_event"])
        await ctx.signal("go")
        return result.final_output

    async with app:
        task = await app.submit(work)
        await drain(app)
        await app.signal(task.id, "go")
        assert await drain(app) == []
        assert await task.result() == "done"
        assert "[branch.look hall]look" in await steps_of(app, task.id)
        usage = (await app.get(task.id)).usage
    last = "response.completed"
    assert seen == [[last, "response.output_text.delta", last], [last, last]], (
        "as they come, and the last of each reply"
    )
    assert usage is not None
    assert (usage.calls, usage.input_tokens) == (2, 20)
    assert (world.asked, len(world.done)) == ([0, 1], 3), "a replay asks no model and calls no tool"


async def test_live_text_of_a_streamed_reply(world: World) -> None:
    class Slow(Scripted):
        async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            async for event in super().stream_response(*args, **kwargs):
                if event.type == "response.completed":
                    yield event
                    continue
                for letter in event.delta:
                    await app.clock.move(1)
                    yield ResponseTextDeltaEvent.model_construct(type="response.output_text.delta", delta=letter)

    agent = Agent(name="clerk", model=Slow(world, LOOKS[:1], PAY, "done"), tools=tools(world))
    app = memory_app()
    app.openai_agent(agent, tools=PAYS, approve=["external_action"], live=True)
    async with app:
        task = await app.submit("clerk", "Go.")
        await drain(app)
        await app.message(task.id, "And now?")
        await settle(app, world)
        assert await task.result() == "done"
        records = [record.value for record in await app.service.journal(task.id) if record.kind == r.PROGRESS]
    texts = {record["turn"]: "" for record in records if "text" in record and "attempt" in record}
    for record in records:
        if "text" in record and "attempt" in record:
            texts[record["turn"]] += record["text"]
    assert set(texts.values()) == {"done"}
    assert world.done == ["hall", 4]


@pytest.mark.slow
async def test_a_streamed_run_with_approvals_is_killed_at_any_point(world: World) -> None:
    agent = Agent(
        name="clerk", model=Scripted(world, [*LOOKS, *PAY], "done"), tools=[tools(world)[0], asked_pay(world)]
    )
    app = Onward("sqlite://:memory:")

    @app.task
    async def work(ctx: Any) -> Any:
        result = Runner.run_streamed(agent, "Go.")
        names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
        return [result.final_output, result.interruptions, names.count("tool_output")]

    async for killed in crashes(app):
        world.clear()
        task = await killed.submit("work")
        await settle(killed, world)
        assert await task.result() == ["done", [], 4], killed.killed_at
        assert world.done.count(4) <= 1 + (killed.killed_at == "save.before"), "it is a read, and may be repeated"
        assert len(world.asked) <= 3, killed.killed_at
        assert len(world.done) <= 8
    assert (world.asked, len(world.done)) == ([0, 1], 4)


def asked_pay(world: World) -> Any:
    """A tool that needs an approval by itself."""

    @function_tool(needs_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        world.done.append(cents)
        return "paid"

    return pay


async def replayed(agent: Any, world: World, **options: Any) -> list[Any]:
    """The result of a run, or its error, in two shifts. The second one is a replay."""
    app, ends = memory_app(), []

    @app.task(retry=1)
    async def work(ctx: Any) -> None:
        try:
            ends.append(await Runner.run(agent, "Go.", **options))
        except Exception as error:
            ends.append(error)
        await ctx.signal("go")

    async with app:
        task = await app.submit(work)
        await drain(app)
        asked, done = len(world.asked), len(world.done)
        await app.signal(task.id, "go")
        assert await drain(app) == []
        assert (await app.get(task.id)).state is State.COMPLETED
    assert (len(world.asked), len(world.done)) == (asked, done), "a replay asks no model and calls no tool"
    assert len(ends) == 2
    return ends


async def test_a_reply_is_recorded_with_the_fields_that_it_has(world: World) -> None:
    agent = Agent(name="clerk", model=Scripted(world, PAY, "done"), tools=tools(world))
    call = {"type": "function_call", "name": "pay", "call_id": "pay 1", "arguments": '{"cents": 4}'}
    for result in await replayed(agent, world):
        assert result.to_input_list()[1] == call, "the API refuses other fields when the SDK sends the item back"


async def test_a_reply_of_a_provider_that_differs_from_the_api(world: World) -> None:
    text = ResponseOutputText(type="output_text", text="done", annotations=[])
    reply = ResponseOutputMessage.model_construct(id="m", type="message", role="assistant", status=None, content=[text])
    agent = Agent(name="clerk", model=Scripted(world, lambda _: [reply]))
    for result in await replayed(agent, world):
        assert result.final_output == "done"
        assert type(result.raw_responses[0].output[0]) is ResponseOutputMessage


class Refused(Exception):
    """An error of a provider that is not OpenAI."""


async def test_an_error_of_a_model_or_a_tool_has_its_type_in_replays_too(world: World) -> None:
    def refuse(items: Any) -> Any:
        raise Refused("no", 7)

    for error in await replayed(Agent(name="clerk", model=Scripted(world, refuse)), world):
        assert (type(error), error.args) == (Refused, ("no", 7))

    @function_tool(failure_error_function=None)
    async def pay(cents: int) -> str:
        """Pay."""
        world.done.append(cents)
        raise ToolTimeoutError("pay", 3.0)

    for error in await replayed(Agent(name="clerk", model=Scripted(world, PAY, "done"), tools=[pay]), world):
        assert (type(error), error.tool_name, error.timeout_seconds) == (ToolTimeoutError, "pay", 3.0)
    assert world.done == [4], "the SDK decides about errors of tools, and the step is not tried again"


async def test_a_tool_that_is_cancelled(world: World) -> None:
    @function_tool
    async def pay(cents: int) -> str:
        """Pay."""
        world.done.append(cents)
        raise asyncio.CancelledError("too late")

    agent = Agent(name="clerk", model=Scripted(world, PAY, results), tools=[pay])
    first, second = await replayed(agent, world)
    assert "cancelled" in first.final_output.lower() or "error" in first.final_output.lower()
    assert first.final_output == second.final_output


class Place(BaseModel):
    """A result of a tool that is not JSON."""

    name: str


async def test_outputs_of_tools_are_the_same_in_replays(world: World) -> None:
    @function_tool
    async def typed() -> Place:
        """Find a place."""
        return Place(name="hall")

    @function_tool
    async def untyped():  # type: ignore[no-untyped-def]
        """Find a place."""
        return Place(name="yard")

    @function_tool
    async def picture() -> Any:
        """Show a place."""
        return [ToolOutputText(text="the roof"), ToolOutputImage(image_url="https://x.example/roof.png")]

    calls = [(name, name, "{}") for name in ("typed", "untyped", "picture")]
    agent = Agent(name="clerk", model=Scripted(world, calls, "done"), tools=[typed, untyped, picture])
    shown = []
    for result in await replayed(agent, world):
        outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
        assert outputs[:2] == [Place(name="hall"), "name='yard'"], "by the annotation, or as the model sees it"
        assert [type(part) for part in outputs[2]] == [ToolOutputText, ToolOutputImage]
        shown.append(result.to_input_list())
    assert shown[0] == shown[1]


async def test_hooks_and_results_have_the_agents_themselves(world: World) -> None:
    seen: list[Any] = []
    look, _ = tools(world)

    class Hooks(AgentHooks[Any]):
        async def on_start(self, context: Any, agent: Any) -> None:
            seen.append(agent)
            agent.tools = [look]

    agent = Agent(name="clerk", model=Scripted(world, LOOKS[:1], "done"), hooks=Hooks())
    for result in await replayed(agent, world):
        assert result.last_agent is agent
        assert {id(item.agent) for item in result.new_items} == {id(agent)}
    assert all(item is agent for item in seen)
    assert world.done == ["hall"], "a tool that a hook adds is a step too"


async def test_a_runner_that_returns_interruptions(world: World) -> None:
    @function_tool(needs_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        world.done.append(cents)
        return "paid"

    agent = Agent(name="clerk", model=Scripted(world, PAY, "done"), tools=[pay])
    app, runner = memory_app(), OnwardRunner(asks=False)

    @app.task
    async def work(ctx: Any) -> Any:
        result = await runner.run(agent, "Go.")
        state = result.to_state()
        state.approve(result.interruptions[0])
        return (await runner.run(agent, state)).final_output

    async with app:
        task = await app.submit(work)
        assert await drain(app) == []
        assert await task.result() == "done"
    assert world.done == [4]


async def test_the_agent_runs_as_usual_outside_of_a_task_and_inside_a_step(world: World) -> None:
    agent = Agent(name="clerk", model=Scripted(world, LOOKS, "done"), tools=tools(world))
    result = await Runner.run(agent, "Go.")
    assert result.final_output == "done"
    assert result.last_agent is agent
    app = memory_app()

    async def ask() -> Any:
        return (await Runner.run(agent, "Go.")).final_output

    @app.task
    async def work(ctx: Any) -> Any:
        inside = await ctx.step(ask)
        durable = await Runner.run(agent, "Go.")
        return [inside, durable.last_agent is agent]

    async with app:
        task = await app.submit(work)
        assert await drain(app) == []
        assert await task.result() == ["done", True]


# ── guardrails ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("judge", ["function", "agent"])
@pytest.mark.parametrize("trips", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_verdict_of_a_guardrail_is_recorded(world: World, judge: str, trips: bool, streamed: bool) -> None:
    censor, judged = Agent(name="censor", model=Scripted(World(), "bad" if trips else "fine")), []

    @input_guardrail
    async def polite(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:  # noqa: A002
        judged.append("Go.")
        while len(world.done) < 3:  # noqa: ASYNC110 -- the tools know nothing of it
            await asyncio.sleep(0)  # beside the first turn
        verdict = (await Runner.run(censor, input)).final_output if judge == "agent" else "bad" if trips else "fine"
        return GuardrailFunctionOutput(output_info=verdict, tripwire_triggered=verdict == "bad")

    @output_guardrail
    async def short(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        judged.append(output)
        return GuardrailFunctionOutput(output_info=len(output), tripwire_triggered=False)

    agent = Agent(
        name="clerk", model=Scripted(world, LOOKS, "done"), tools=tools(world), input_guardrails=[polite],
        output_guardrails=[short],
    )  # fmt: skip
    app, ends = memory_app(), []

    @app.task(retry=1)
    async def work(ctx: Any) -> None:
        try:
            if streamed:
                result = Runner.run_streamed(agent, "Go.")
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, "Go.")
            ends.append([item.output.output_info for item in result.input_guardrail_results])
        except InputGuardrailTripwireTriggered as tripped:
            ends.append(tripped.guardrail_result.output.output_info)
        await ctx.signal("go")
        await ctx.signal("on")

    async with app:
        task = await app.submit(work)
        await drain(app)
        for name in ("go", "on"):
            await app.signal(task.id, name)
            await drain(app)
        assert (await app.get(task.id)).state is State.COMPLETED, (await app.get(task.id)).error
        usage = (await app.get(task.id)).usage
    assert ends == [("bad" if trips else ["fine"])] * 3
    assert len(world.done) == 3
    assert usage is not None
    assert usage.calls == len(world.asked) + (judge == "agent")
    again = 2 if judge == "agent" else 0
    assert judged.count("Go.") == 1 + again, "one with an agent runs again, with recorded replies"
    assert judged.count("done") == (0 if trips else 1)


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_on_the_database_of_an_app(app: Onward) -> None:
    async with app:
        session, other = OnwardSession(app, "customer 7"), OnwardSession(app, "customer 7", tenant="acme")
        await session.add_items([{"role": "user", "content": text} for text in "abc"])
        await asyncio.gather(*(session.add_items([{"role": "user", "content": text}]) for text in "de"))
        assert [item["content"] for item in await session.get_items()][:3] == ["a", "b", "c"]
        assert sorted(item["content"] for item in await session.get_items(limit=2)) == ["d", "e"]
        assert await session.get_items(limit=0) == []
        limited = OnwardSession(app, "customer 7", session_settings=SessionSettings(limit=1))
        assert len(await limited.get_items()) == 1
        assert (await session.pop_item())["content"] in "de"
        assert (await session.pop_item())["content"] in "de"
        assert await session.pop_item() == {"role": "user", "content": "c"}
        assert await OnwardSession(app, "customer 7").get_items() == [
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
        ]
        assert await other.get_items() == []
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items([])
        assert await session.get_items() == []


class SimpleSession(SessionABC):
    """A session that is not ours."""

    session_id = "a list"

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return self.items[-limit:] if limit else list(self.items)

    async def add_items(self, items: Any) -> None:
        self.items += items

    async def pop_item(self) -> Any:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours", "another"])
async def test_no_crash_adds_an_item_to_a_session_twice(world: World, kind: str) -> None:
    agent = Agent(name="clerk", model=Scripted(world, LOOKS[:1], "done"), tools=tools(world))
    app, sessions = Onward("sqlite://:memory:"), []

    @app.task
    async def work(ctx: Any) -> Any:
        return (await Runner.run(agent, "Go.", session=sessions[-1])).final_output

    async for killed in crashes(app):
        sessions.append(OnwardSession(killed, "customer 7") if kind == "ours" else SimpleSession())
        task = await killed.submit("work")
        assert await drain(killed) == []
        assert await task.result() == "done", killed.killed_at
        kinds = [item.get("type", item.get("role")) for item in await sessions[-1].get_items()]
        assert kinds == ["user", "function_call", "function_call_output", "message"], killed.killed_at


async def test_tools_of_an_mcp_server_are_steps(world: World) -> None:
    class Server(MCPServer):
        name = "places"

        async def connect(self) -> None: ...
        async def cleanup(self) -> None: ...

        async def list_tools(self, *args: Any) -> Any:
            schema = {"type": "object", "properties": {"place": {"type": "string"}}}
            return [mcp.types.Tool(name="look", inputSchema=schema)]

        async def call_tool(self, tool_name: str, arguments: Any, *args: Any) -> Any:
            world.done.append(arguments["place"])
            return mcp.types.CallToolResult(content=[mcp.types.TextContent(type="text", text="nothing there")])

        async def list_prompts(self) -> Any:
            raise NotImplementedError

        async def get_prompt(self, name: str, arguments: Any = None) -> Any:
            raise NotImplementedError

    agent = Agent(name="clerk", model=Scripted(world, LOOKS, results), mcp_servers=[Server()])
    first, second = await replayed(agent, world)
    assert first.final_output == second.final_output
    assert first.final_output.count("nothing there") == 3
    assert sorted(world.done) == ["hall", "roof", "yard"]


def test_mistakes_are_reported_when_the_agent_is_registered(world: World) -> None:
    app = memory_app()
    agent = Agent(name="clerk", model=Scripted(world, "done"))
    with pytest.raises(BadSetting, match="rules of tool 'pay'"):
        app.openai_agent(agent, tools={"pay": {"risks": "x"}})
    with pytest.raises(BadSetting, match="approve"):
        app.openai_agent(agent, approve="external_action")
