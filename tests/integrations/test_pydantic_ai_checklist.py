"""What the framework expects of every engine that makes its agents durable: models, toolsets, events and suspended replies.

The guide pydantic-ai.md maps the framework's own list of 56 cases to these tests, or says why a case has no place here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import (
    AbstractCapability,
    DynamicCapability,
    Instrumentation,
    ModelFallback,
    ProcessEventStream,
    ResolveModelId,
    SelectModel,
)
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestContext
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.toolsets import FunctionToolset, WrapperToolset
from pydantic_ai.usage import RequestUsage, UsageLimits

import onward
from onward.errors import TaskFailed, UsageError
from onward.integrations.pydantic_ai import OnwardDurability
from onward.testing import memory_app
from tests.integrations.test_pydantic_ai import LOOKS, World, call, scripted, steps_of, turns
from tests.kit import drain

Handler = Callable[[], Any]


@pytest.fixture
def world() -> World:
    return World()


def saying(text: str, **options: Any) -> FunctionModel:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(text)])

    return FunctionModel(reply, **options)


async def in_task(work: Handler) -> tuple[Any, dict[str, Any]]:
    """The result of a handler that does this work, and the steps of its task."""
    app = memory_app()

    @app.task(retry=1)
    async def handler(ctx: Any) -> Any:
        return await work()

    async with app:
        task = await app.submit(handler)
        assert await drain(app) == []
        return await task.result(), await steps_of(app, task.id)


async def refused(work: Handler, match: str) -> None:
    with pytest.raises(TaskFailed, match=match):
        await in_task(work)


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def output(agent: Agent[Any, Any], **options: Any) -> Any:
    return (await agent.run("Go.", **options)).output


async def test_a_model_of_the_list_by_its_name_by_itself_and_by_override() -> None:
    other = saying("other")
    agent = Agent(saying("default"), name="a", capabilities=[OnwardDurability(models={"other": other})])
    assert (await in_task(lambda: output(agent)))[0] == "default"
    assert (await in_task(lambda: output(agent, model="other")))[0] == "other"
    assert (await in_task(lambda: output(agent, model=other)))[0] == "other"
    with agent.override(model=other):
        assert (await in_task(lambda: output(agent)))[0] == "other"


async def test_a_model_that_is_not_in_the_list_is_refused() -> None:
    agent = Agent(saying("default"), name="a", capabilities=[OnwardDurability()])
    await refused(lambda: output(agent, model=saying("stranger")), "was not registered with `OnwardDurability`")


async def test_a_name_that_no_model_has_is_refused() -> None:
    async def in_the_handler(ctx: Any, model_id: str) -> Model | None:
        try:
            _ = onward.current().key
        except UsageError:
            return saying("alias")
        return None  # a step runs, and its worker does not know the alias

    agent = Agent(saying("default"), name="a", capabilities=[ResolveModelId(in_the_handler), OnwardDurability()])
    await refused(lambda: output(agent, model="alias"), "could not be rebuilt")


async def test_an_alias_is_resolved_with_the_dependencies_of_the_run() -> None:
    async def of_tenant(ctx: Any, model_id: str) -> Model | None:
        return saying(f"the model of {ctx.deps}") if model_id == "tenant-model" else None

    agent = Agent("tenant-model", name="a", deps_type=str, capabilities=[ResolveModelId(of_tenant), OnwardDurability()])
    assert (await in_task(lambda: output(agent, deps="ada")))[0] == "the model of ada"
    assert (await in_task(lambda: output(agent, deps="bo", model="tenant-model")))[0] == "the model of bo"


async def test_another_model_for_each_turn(world: World) -> None:
    def select(ctx: Any) -> str:
        return "first" if ctx.run_step == 1 else "tenant-model"

    async def of_tenant(ctx: Any, model_id: str) -> Model | None:
        return saying(f"the model of {ctx.deps}") if model_id == "tenant-model" else None

    agent = Agent(
        saying("default"),
        name="a",
        deps_type=str,
        tools=world.tools(),
        capabilities=[
            SelectModel(select),
            ResolveModelId(of_tenant),
            OnwardDurability(models={"first": scripted(world, LOOKS)}),
        ],
    )
    result, steps = await in_task(lambda: output(agent, deps="ada"))
    assert result == "the model of ada"
    assert {"model", "model#2"} <= steps.keys()
    assert world.asked == [0]


async def test_an_error_of_a_resolver_is_raised_as_it_is() -> None:
    async def broken(ctx: Any, model_id: str) -> Model | None:
        raise RuntimeError("no such tenant")

    agent = Agent("tenant-model", name="a", capabilities=[ResolveModelId(broken), OnwardDurability()])
    await refused(lambda: output(agent), "no such tenant")


async def test_a_string_as_the_default_model() -> None:
    agent = Agent("test", name="a", capabilities=[OnwardDurability()])
    result, steps = await in_task(lambda: output(agent, model="test"))
    assert result == "success (no tool calls)"
    assert list(steps) == ["model"]


async def test_a_wrapper_around_the_default_model_is_still_that_model() -> None:
    class Swap(AbstractCapability[Any]):
        async def before_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            request_context.model = WrapperModel(request_context.model)
            return request_context

    default = saying("default")
    agent = Agent(default, name="a", capabilities=[Swap(), OnwardDurability()])
    result, steps = await in_task(lambda: output(agent, model=WrapperModel(default)))
    assert (result, list(steps)) == ("default", ["model"])


async def test_instrumentation_around_the_agent() -> None:
    agent = Agent(saying("default"), name="a", capabilities=[Instrumentation(), OnwardDurability()])
    assert (await in_task(lambda: output(agent)))[0] == "default"


async def test_a_fallback_to_another_model_is_replayed_as_it_was() -> None:
    asked: list[str] = []

    def broken(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append("broken")
        raise ModelHTTPError(400, "broken", {"why": "odd"})

    def working(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append("working")
        return ModelResponse(parts=[TextPart("fine")])

    second = FunctionModel(working)
    agent = Agent(
        FunctionModel(broken),
        name="a",
        capabilities=[ModelFallback(second), OnwardDurability(models={"second": second})],
    )
    app = memory_app()

    @app.task
    async def handler(ctx: Any) -> Any:
        first = await output(agent)
        await ctx.signal("go")
        return first

    async with app:
        task = await app.submit(handler)
        await drain(app)
        await app.signal(task.id, "go")
        assert await drain(app) == []
        assert await task.result() == "fine"
    assert asked == ["broken", "working"]


def test_an_agent_needs_a_name_and_a_model() -> None:
    with pytest.raises(UserError, match="name"):
        Agent(saying("x"), capabilities=[OnwardDurability()])
    with pytest.raises(UserError, match="model"):
        Agent(name="a", capabilities=[OnwardDurability()])
    named = Agent(saying("x"), capabilities=[OnwardDurability(name="given")])
    bound = OnwardDurability.from_agent(named)
    assert bound is not None
    assert bound.name == "given"


def test_its_place_among_capabilities() -> None:
    assert OnwardDurability().get_ordering().position == "innermost"
    assert OnwardDurability.get_serialization_name() is None


async def test_a_cancellation_token_is_refused_in_a_task() -> None:
    from pydantic_ai import CancellationToken

    agent = Agent(saying("x"), name="a", capabilities=[OnwardDurability()])
    await refused(lambda: output(agent, cancellation_token=CancellationToken()), "token")
    assert await output(agent, cancellation_token=CancellationToken()) == "x"


# ── toolsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_toolsets_of_a_run_have_steps_too(world: World) -> None:
    agent = Agent(scripted(world, LOOKS, "done"), name="a", capabilities=[OnwardDurability()])
    result, steps = await in_task(lambda: output(agent, toolsets=[FunctionToolset(world.tools(), id="more")]))
    assert result == "done"
    assert "[branch.look hall]look" in steps


async def test_toolsets_of_a_run_without_an_id_are_refused(world: World) -> None:
    agent = Agent(scripted(world, LOOKS, "done"), name="a", capabilities=[OnwardDurability()])
    await refused(lambda: output(agent, toolsets=[FunctionToolset(world.tools())]), "needs an `id` of its own")


async def test_two_toolsets_with_one_id_are_refused(world: World) -> None:
    one, two = FunctionToolset(world.tools(), id="x"), FunctionToolset([], id="x")
    with pytest.raises(UserError, match="same `id`"):
        Agent(saying("x"), name="a", toolsets=[one, two], capabilities=[OnwardDurability()])
    agent = Agent(scripted(world, LOOKS, "done"), name="a", toolsets=[one], capabilities=[OnwardDurability()])
    await refused(lambda: output(agent, toolsets=[two]), "is that of another one")


async def test_tools_of_a_capability(world: World) -> None:
    class Eyes(AbstractCapability[Any]):
        def get_toolset(self) -> Any:
            return FunctionToolset(world.tools(), id="eyes")

    agent = Agent(scripted(world, LOOKS, "done"), name="a", capabilities=[Eyes(), OnwardDurability()])
    result, steps = await in_task(lambda: output(agent))
    assert result == "done"
    assert "[branch.look hall]look" in steps
    of_run = Agent(scripted(world, LOOKS, "done"), name="b", capabilities=[OnwardDurability()])
    result, steps = await in_task(lambda: output(of_run, capabilities=[Eyes()]))
    assert result == "done"
    assert "[branch.look hall]look" in steps


async def test_tools_of_a_capability_that_is_made_for_each_run(world: World) -> None:
    def eyes(ctx: RunContext[Any]) -> AbstractCapability[Any]:
        class Eyes(AbstractCapability[Any]):
            def get_toolset(self) -> Any:
                return FunctionToolset(world.tools(), id="eyes")

        return Eyes()

    agent = Agent(
        scripted(world, LOOKS, "done"),
        name="a",
        capabilities=[DynamicCapability(eyes, id="dynamic"), OnwardDurability()],
    )
    result, steps = await in_task(lambda: output(agent))
    assert result == "done"
    assert "[branch.look hall]look" in steps
    with pytest.raises(UserError, match="unique `id`"):
        Agent(saying("x"), name="b", capabilities=[eyes, OnwardDurability()])


async def test_a_server_that_cannot_be_reached_at_first_is_tried_again(world: World) -> None:
    class Far(WrapperToolset[Any]):
        async def __aenter__(self) -> Any:
            world.done.append("connect")
            if world.done == ["connect"]:
                raise ConnectionError("not yet")
            return await super().__aenter__()

    class Eyes(AbstractCapability[Any]):
        def get_toolset(self) -> Any:
            return Far(FunctionToolset(world.tools(), id="eyes"))

    agent = Agent(
        scripted(world, LOOKS, "done"),
        name="a",
        capabilities=[DynamicCapability(lambda ctx: Eyes(), id="dynamic"), OnwardDurability()],
    )
    result, steps = await in_task(lambda: output(agent))
    assert result == "done"
    assert set(steps["tools of dynamic"]["output"]["tools"]) == {"look", "pay"}, "and not none, as of an empty toolset"
    assert "[branch.look hall]look" in steps
    assert world.done[:2] == ["connect", "connect"]


# ── MCP ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

NOTES = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes", instructions="Write short notes.")

@server.tool()
def write_note(text: str) -> str:
    "Write a note."
    with open(sys.argv[1], "a") as file:
        file.write(text + "\\n")
    return "written"

server.run("stdio")
"""


def notes(home: Path, **options: Any) -> Any:
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    transport = StdioTransport(command=sys.executable, args=["-c", NOTES, str(home / "notes")])
    return MCPToolset(transport, init_timeout=60, **options)


async def test_tools_of_an_mcp_server(world: World, tmp_path: Path) -> None:
    agent = Agent(
        scripted(world, [call("write_note", "1", text="hello")], "done"),
        name="a",
        toolsets=[notes(tmp_path, id="notes")],
    )
    app = memory_app()
    app.pydantic_ai(agent, approve=["external_action"])
    async with app:
        task = await app.submit("a", "Go.")
        await drain(app)
        (ask,) = await app.asks()
        assert (ask.tool, ask.arguments) == ("write_note", {"text": "hello"})
        await app.decide(ask.id, "approve")
        assert await drain(app) == []
        assert await task.result() == "done"
        steps = await steps_of(app, task.id)
    assert "tools of notes" in steps
    assert "[branch.1]write_note" in steps
    assert (tmp_path / "notes").read_text() == "hello\n"
    assert world.asked == [0, 1]


@pytest.mark.slow
async def test_mcp_servers_of_a_capability_and_of_a_run(world: World, tmp_path: Path) -> None:
    class Notes(AbstractCapability[Any]):
        def get_toolset(self) -> Any:
            return notes(tmp_path, id="notes")

    def replies() -> FunctionModel:
        return scripted(world, [call("write_note", "1", text="hello")], "done")

    async def steps_with(agent: Agent[Any, Any], **options: Any) -> dict[str, Any]:
        app = memory_app()

        @app.task(retry=1)
        async def handler(ctx: Any) -> Any:
            return await output(agent, **options)

        async with app:
            task = await app.submit(handler)
            assert await drain(app) == []
            assert await task.result() == "done"
            return await steps_of(app, task.id)

    expected = {"tools of notes", "[branch.1]write_note"}
    own = Agent(replies(), name="a", capabilities=[Notes(), OnwardDurability()])
    assert expected <= (await steps_with(own)).keys()
    plain = Agent(replies(), name="b", capabilities=[OnwardDurability()])
    assert expected <= (await steps_with(plain, toolsets=[notes(tmp_path, id="notes")])).keys()
    made = Agent(replies(), name="c", capabilities=[DynamicCapability(lambda ctx: Notes(), id="d"), OnwardDurability()])
    assert "[branch.1]write_note" in await steps_with(made)
    assert (tmp_path / "notes").read_text() == "hello\n" * 3


def test_an_mcp_server_needs_an_id(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unique `id`"):
        Agent(saying("x"), name="a", toolsets=[notes(tmp_path)], capabilities=[OnwardDurability()])
    shared = notes(tmp_path, id="notes")
    Agent(saying("x"), name="a", toolsets=[shared, shared], capabilities=[OnwardDurability()])


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def streamed(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    if info.function_tools and turns(messages) == 0:
        yield {0: DeltaToolCall("look", '{"place": "hall"}', tool_call_id="1")}
    else:
        yield "so "
        yield "be it"


def collector(events: list[str]) -> Any:
    async def handle(ctx: RunContext[Any], stream: Any) -> None:
        async for event in stream:
            events.append(type(event).__name__)

    return handle


async def test_a_handler_of_the_run_and_a_capability_get_events(world: World) -> None:
    of_run: list[str] = []
    of_capability: list[str] = []
    agent = Agent(
        FunctionModel(stream_function=streamed),
        name="a",
        tools=world.tools(),
        capabilities=[ProcessEventStream(collector(of_capability)), OnwardDurability()],
    )
    result, steps = await in_task(lambda: output(agent, event_stream_handler=collector(of_run)))
    assert result == "so be it"
    assert {"PartStartEvent", "FunctionToolCallEvent", "FunctionToolResultEvent"} <= set(of_run)
    assert of_run.count("FunctionToolResultEvent") == of_capability.count("FunctionToolResultEvent") == 1
    assert list(steps) == ["model", "[branch.1]look", "model#2"], "events are no steps"


async def test_a_stream_of_the_caller(world: World) -> None:
    agent = Agent(FunctionModel(stream_function=streamed), name="a", capabilities=[OnwardDurability()])

    async def work() -> list[str]:
        async with agent.run_stream("Go.") as result:
            return [text async for text in result.stream_text()]

    texts, steps = await in_task(work)
    assert texts[-1] == "so be it"
    assert list(steps) == ["model"]


async def test_the_graph_of_a_run(world: World) -> None:
    agent = Agent(scripted(world, LOOKS, "done"), name="a", tools=world.tools(), capabilities=[OnwardDurability()])

    async def work() -> list[str]:
        async with agent.iter("Go.") as run:
            return [type(node).__name__ async for node in run]

    nodes, steps = await in_task(work)
    assert nodes[-1] == "End"
    assert "model#2" in steps


async def test_a_handler_of_events_outside_of_a_task_and_none(world: World) -> None:
    events: list[str] = []
    durability = OnwardDurability[None](event_stream_handler=collector(events))
    agent = Agent(FunctionModel(stream_function=streamed), name="a", capabilities=[durability])
    assert await output(agent) == "so be it"
    assert "PartStartEvent" in events
    assert not OnwardDurability[None]().has_wrap_run_event_stream


async def test_a_handler_in_a_step_cannot_add_messages() -> None:
    async def handle(ctx: RunContext[Any], stream: Any) -> None:
        async for _ in stream:
            ctx.enqueue("more")

    durability = OnwardDurability[None](event_stream_handler=handle, retry=1)
    agent = Agent(FunctionModel(stream_function=streamed), name="a", capabilities=[durability])
    await refused(lambda: output(agent), r"`ctx.enqueue\(\)` is not supported inside a durable step")


# ── replies in parts ─────────────────────────────────────────────────────────────────────────────────────────────────


class Pausing(FunctionModel):
    """A model whose replies come in parts, as with background jobs of providers."""

    def __init__(self, *parts: tuple[str, str, int]) -> None:
        super().__init__(self._part)
        self._parts = list(parts)
        self.asked = 0
        self.cancelled: list[str | None] = []

    def _part(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        text, state, tokens = self._parts[self.asked]
        self.asked += 1
        return ModelResponse(
            parts=[TextPart(text)],
            state=state,  # type: ignore[arg-type]
            usage=RequestUsage(input_tokens=tokens, output_tokens=tokens),
            provider_response_id=f"part {self.asked}",
        )

    @contextlib.asynccontextmanager
    async def request_stream(
        self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> AsyncIterator[Any]:
        part: Any = self._part(messages, None)  # type: ignore[arg-type]
        yield CompletedStreamedResponse(part, model_request_parameters=model_request_parameters, replay_events=True)

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        self.cancelled.append(response.provider_response_id)


async def test_each_part_of_a_suspended_reply_is_a_step() -> None:
    model = Pausing(("The answer ", "suspended", 5), ("is 42.", "complete", 3))
    agent = Agent(model, name="a", capabilities=[OnwardDurability()])

    async def work() -> list[Any]:
        result = await agent.run("Go.")
        return [result.output, result.usage.requests, result.usage.input_tokens]

    result, steps = await in_task(work)
    assert result == ["The answer is 42.", 1, 8]
    assert [key for key in steps if "model" in key] == ["model", "model#2"]


async def test_parts_of_a_streamed_reply() -> None:
    events: list[str] = []
    model = Pausing(("The answer ", "suspended", 5), ("is 42.", "complete", 3))
    agent = Agent(model, name="a", capabilities=[ProcessEventStream(collector(events)), OnwardDurability()])
    result, steps = await in_task(lambda: output(agent))
    assert result == "The answer is 42."
    assert events.count("PartStartEvent") == 2
    assert [key for key in steps if "model" in key] == ["model", "model#2"]


async def test_a_limit_between_parts_cancels_the_job_of_the_provider() -> None:
    model = Pausing(("still ", "suspended", 5), ("going ", "suspended", 50), ("on", "complete", 5))
    agent = Agent(model, name="a", capabilities=[OnwardDurability()])
    limits = UsageLimits(total_tokens_limit=20)
    await refused(lambda: output(agent, usage_limits=limits), "total_tokens_limit")
    assert model.asked == 2
    assert model.cancelled == ["part 2"]


async def test_a_history_that_ends_in_a_suspended_reply_is_continued() -> None:
    model = Pausing(("is 42.", "complete", 3))
    begun = ModelResponse(parts=[TextPart("The answer ")], state="suspended", provider_response_id="part 0")
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("Go.")]), begun]
    agent = Agent(model, name="a", capabilities=[OnwardDurability()])

    async def work() -> Any:
        return (await agent.run(message_history=history)).output

    result, steps = await in_task(work)
    assert result == "The answer is 42."
    assert list(steps) == ["model"]
