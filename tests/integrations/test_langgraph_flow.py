"""A graph as a task: nodes are steps, interrupts are questions, and a kill at any point repeats no recorded node."""

from __future__ import annotations

import asyncio
import itertools
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from onward.core import record as r
from onward.errors import BadSetting, UsageError
from onward.integrations.langgraph import flow
from onward.integrations.langgraph.flow import graph_handler
from onward.testing import MemoryApp, crashes, memory_app
from tests.kit import drain


class State(TypedDict):
    words: Annotated[list[str], operator.add]


class Shown(TypedDict):
    shown: str


class Kept(Shown):
    value: Any


CALLS: list[str] = []


def node(name: str) -> Any:
    async def run(state: State) -> dict[str, list[str]]:
        CALLS.append(name)
        return {"words": [name]}

    return run


def wide() -> StateGraph[Any, Any, Any, Any]:
    """Two nodes beside each other, three more by `Send`, and a last one."""

    async def one(state: Any) -> dict[str, list[str]]:
        CALLS.append(f"one {state}")
        return {"words": [f"one {state}"]}

    graph = StateGraph(State)
    for name in ("left", "right", "last"):
        graph.add_node(name, node(name))
    graph.add_node("one", one)
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    graph.add_conditional_edges("left", lambda state: [Send("one", number) for number in range(3)], ["one"])
    graph.add_edge("one", "last")
    graph.add_edge("last", END)
    return graph


def asking() -> StateGraph[Any, Any, Any, Any]:
    def asks(state: State) -> dict[str, list[str]]:
        CALLS.append("asks")
        first = interrupt("the first?")
        second = interrupt({"question": "the second?"})
        CALLS.append("answered")
        return {"words": [first, second]}

    graph = StateGraph(State)
    graph.add_node("before", node("before"))
    graph.add_node("asks", asks)
    graph.add_node("beside", node("beside"))
    graph.add_node("after", node("after"))
    graph.add_edge(START, "before")
    graph.add_edge("before", "asks")
    graph.add_edge("before", "beside")
    graph.add_edge(["asks", "beside"], "after")
    graph.add_edge("after", END)
    return graph


def nested() -> StateGraph[Any, Any, Any, Any]:
    inner = StateGraph(State)
    inner.add_node("deep", node("deep"))
    inner.add_node("jump", lambda state: Command(goto="far", update={"words": ["jumped"]}, graph=Command.PARENT))
    inner.add_edge(START, "deep")
    inner.add_edge("deep", "jump")
    graph = StateGraph(State)
    graph.add_node("inner", inner.compile())
    graph.add_node("far", node("far"))
    graph.add_edge(START, "inner")
    graph.add_edge("far", END)
    return graph


def app_of(graph: Any, **options: Any) -> MemoryApp:
    app = memory_app()
    app.langgraph("flow", graph, **options)
    return app


async def run(app: MemoryApp, answers: list[Any] | None = None) -> Any:
    task = await app.submit("flow", {"words": []})
    for answer in answers or []:
        await drain(app)
        (ask,) = await app.asks()
        await app.answer(ask.id, answer)
    assert await drain(app) == []
    return await task.result()


async def test_parallel_nodes_and_sends_with_a_kill_at_every_point() -> None:
    async for app in crashes(app_of(wide())):
        CALLS.clear()
        result = await run(app)
        assert result["words"][:2] == ["left", "right"], app.killed_at
        assert sorted(result["words"]) == ["last", "left", "one 0", "one 1", "one 2", "right"]
        assert all(CALLS.count(call) <= 2 for call in CALLS), "a node that has no record runs once more"
        assert len(CALLS) <= 9, "those that ran beside each other when it was killed"


@pytest.mark.slow
async def test_questions_with_a_kill_at_every_point() -> None:
    async for app in crashes(app_of(asking())):
        CALLS.clear()
        result = await run(app, ["yes", "also"])
        assert result == {"words": ["before", "yes", "also", "beside", "after"]}, app.killed_at
        assert CALLS.count("beside") <= 2
        assert CALLS.count("asks") <= 4, "once for each answer, and once for the kill"


async def test_questions_of_nodes_beside_each_other_are_answered_as_they_were_asked() -> None:
    """Nodes come to their questions in another order in each replay."""

    async def ask(asked: tuple[str, float]) -> dict[str, list[str]]:
        await asyncio.sleep(asked[1])
        return {"words": [f"{asked[0]}: {interrupt(asked[0] + '?')}"]}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    sends = [Send("ask", asked) for asked in (("a", 0.1), ("b", 0), ("c", 0.05))]
    graph.add_conditional_edges(START, lambda state: sends, ["ask"])
    async for app in crashes(app_of(graph)):
        task = await app.submit("flow", {"words": []})
        while await drain(app):
            asks = await app.asks()
            assert asks, (app.killed_at, (await app.get(task.id)).error)
            for each in asks:
                await app.answer(each.id, f"the answer to {each.text}")
        assert await task.result() == {"words": [f"{name}: the answer to {name}?" for name in "abc"]}, app.killed_at


def calling(metadata: dict[str, Any] | None) -> StateGraph[Any, Any, Any, Any]:
    """A graph with a node that calls two others at once, each of which asks a question."""

    async def ask(state: State) -> dict[str, list[str]]:
        return {"words": [interrupt(f"{state['words'][0]}?")]}

    inner = StateGraph(State)
    inner.add_node("deep", node("deep"))
    inner.add_node("ask", ask)
    inner.add_edge(START, "deep")
    inner.add_edge("deep", "ask")
    called = inner.compile()

    async def call(state: State) -> dict[str, list[str]]:
        states = await asyncio.gather(*(called.ainvoke({"words": [name]}) for name in state["words"]))
        return {"words": [word for each in states for word in each["words"]]}

    graph = StateGraph(State)
    graph.add_node("call", call, metadata=metadata)
    graph.add_edge(START, "call")
    return graph


async def test_graphs_that_a_node_in_the_handler_calls_are_durable() -> None:
    async for app in crashes(app_of(calling({"onward": False}))):
        CALLS.clear()
        task = await app.submit("flow", {"words": ["a", "b"]})
        questions = []
        while await drain(app):
            for each in await app.asks():
                questions.append(each.text)
                await app.answer(each.id, f"yes to {each.text}")
        answers = ["a", "deep", "yes to a?", "b", "deep", "yes to b?"]
        assert await task.result() == {"words": ["a", "b", *answers]}, app.killed_at
        assert len(CALLS) <= 4, "the nodes of the inner graphs are recorded"
        assert questions == ["a?", "b?"]
    assert CALLS == ["deep", "deep"]


async def test_a_graph_that_asks_in_the_middle_of_a_step_is_refused() -> None:
    app = app_of(calling(None), retry=1)
    async with app:
        task = await app.submit("flow", {"words": ["a"]})
        assert await drain(app) == [], "it would ask again after each answer"
        error = (await app.get(task.id)).error
    assert error is not None
    assert 'metadata={"onward": False}' in error["message"]


@task
async def draft(name: str) -> str:
    await asyncio.sleep(0.01 if name == "a" else 0)
    CALLS.append(name)
    return f"draft {name}"


@entrypoint()
async def letters(state: State) -> list[Any]:
    drafts = await asyncio.gather(*(draft(name) for name in state["words"]))
    return [*drafts, interrupt("Fine?"), await draft("c")]


async def test_the_tasks_of_an_entrypoint_are_steps() -> None:
    async for app in crashes(app_of(letters)):
        CALLS.clear()
        flow_task = await app.submit("flow", {"input": {"words": ["a", "b"]}})
        while await drain(app):
            for each in await app.asks():
                await app.answer(each.id, "yes")
        assert await flow_task.result() == ["draft a", "draft b", "yes", "draft c"], app.killed_at
        assert len(CALLS) <= 5, "a task that is recorded does not run again"
    assert sorted(CALLS) == ["a", "b", "c"], "nor after the answer"


@pytest.mark.parametrize("in_handler", [False, True])
async def test_a_node_that_calls_a_task_and_then_asks(in_handler: bool) -> None:
    async def ask(state: State) -> dict[str, list[str]]:
        return {"words": [await draft("a"), interrupt("Fine?")]}

    graph = StateGraph(State)
    graph.add_node("ask", ask, metadata={"onward": False} if in_handler else None)
    graph.add_edge(START, "ask")
    CALLS.clear()
    app = app_of(graph, retry=1)
    async with app:
        flow_task = await app.submit("flow", {"words": []})
        while await drain(app):
            (each,) = await app.asks()
            await app.answer(each.id, "yes")
        ended = await app.get(flow_task.id)
    assert CALLS == ["a"], "it would run again with the answer"
    if in_handler:
        assert ended.result == {"words": ["draft a", "yes"]}
    else:
        assert ended.error is not None
        assert 'metadata={"onward": False}' in ended.error["message"]


def test_a_graph_that_stops_without_a_question_is_refused() -> None:
    with pytest.raises(UsageError, match="stops at asks"):
        app_of(asking().compile(interrupt_before=["asks"]))


async def test_subgraphs_and_jumps_out_of_them() -> None:
    async for app in crashes(app_of(nested())):
        CALLS.clear()
        assert await run(app) == {"words": ["jumped", "far"]}, app.killed_at
        assert len(CALLS) <= 3


def reviewed() -> StateGraph[Any, Any, Any, Any]:
    """Asks for the review of tool calls, in the form of LangChain's middleware."""

    def calls(state: State) -> dict[str, list[str]]:
        calls = [{"name": "pay", "args": {"cents": 5}}, {"name": "mail", "args": {"to": "Ada"}}]
        answer = interrupt({"action_requests": calls, "review_configs": []})
        return {"words": [str(decision) for decision in answer["decisions"]]}

    graph = StateGraph(State)
    graph.add_node("calls", calls)
    graph.add_edge(START, "calls")
    return graph


async def test_reviews_of_tool_calls_are_approvals() -> None:
    app = app_of(reviewed())
    async with app:
        task = await app.submit("flow", {"words": []})
        await drain(app)
        (ask,) = await app.asks()
        assert ask.text == "pay(cents=5)"
        await app.decide(ask.id, "approve")
        await drain(app)
        (ask,) = await app.asks()
        await app.decide(ask.id, "deny", reason="not her")
        await drain(app)
        assert (await task.result())["words"] == [
            "{'type': 'approve'}",
            "{'type': 'reject', 'message': 'denied: not her'}",
        ]


async def test_a_review_with_other_arguments() -> None:
    app = app_of(reviewed())
    async with app:
        task = await app.submit("flow", {"words": []})
        for _ in range(2):
            await drain(app)
            (ask,) = await app.asks()
            await app.decide(ask.id, "approve", **({"arguments": {"cents": 4}} if ask.tool == "pay" else {}))
        assert await drain(app) == []
        assert (await task.result())["words"] == [
            "{'type': 'edit', 'edited_action': {'name': 'pay', 'args': {'cents': 4}}}",
            "{'type': 'approve'}",
        ]


async def test_reviews_without_a_decision_in_time() -> None:
    app = app_of(reviewed(), answer_timeout="1h")
    async with app:
        task = await app.submit("flow", {"words": []})
        while await drain(app):  # it stops at each review
            await app.clock.move("1h")
        assert all("'reject'" in word and "in time" in word for word in (await task.result())["words"])


async def test_a_tool_that_is_always_allowed_is_asked_about_once() -> None:
    def calls(state: State) -> dict[str, list[str]]:
        calls = [{"name": "pay", "args": {"cents": cents}} for cents in (5, 6)]
        answer = interrupt({"action_requests": calls, "review_configs": []})
        return {"words": [decision["type"] for decision in answer["decisions"]]}

    graph = StateGraph(State)
    graph.add_node("calls", calls)
    graph.add_edge(START, "calls")
    app = app_of(graph)
    async with app:
        task = await app.submit("flow", {"words": []})
        await drain(app)
        (ask,) = await app.asks()
        await app.decide(ask.id, "approve", always=True)
        assert await drain(app) == []
        assert (await task.result())["words"] == ["approve", "approve"]


def test_a_misspelt_default_is_reported_when_the_graph_is_registered() -> None:
    with pytest.raises(BadSetting, match="approval_default"):
        app_of(reviewed(), approval_default="denied")
    with pytest.raises(BadSetting, match="answer_timeout"):
        app_of(reviewed(), answer_timeout="soon")


async def test_options_of_a_node_are_checked_when_the_graph_is_registered() -> None:
    graph = StateGraph(State)
    graph.add_node("pay", node("pay"), metadata={"onward": {"risk": "high"}})
    graph.add_edge(START, "pay")
    with pytest.raises(UsageError, match="it takes effect, retry and timeout of its step"):
        memory_app().langgraph("flow", graph)


async def test_a_graph_with_a_checkpointer_is_refused() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    with pytest.raises(UsageError, match="the journal of the task takes its place"):
        graph_handler(asking().compile(checkpointer=InMemorySaver()))


async def test_a_long_graph_stores_each_outcome_once_and_no_state() -> None:
    """The record of a node has its outcome and nothing of the state, which grows."""

    async def grow(state: State) -> dict[str, list[str]]:
        return {"words": [f"word {len(state['words'])}"]}

    graph = StateGraph(State)
    graph.add_node("grow", grow)
    graph.add_edge(START, "grow")
    graph.add_conditional_edges("grow", lambda state: "grow" if len(state["words"]) < 30 else END)
    app = app_of(graph, config={"recursion_limit": 100})
    async with app:
        task = await app.submit("flow", {"words": []})
        assert await drain(app) == []
        records = await app.store.journal(task.id, 0, 1_000)
        sizes = [len(record.data) for record in records if record.kind == r.STEP_DONE]
        assert len(sizes) == 30
        assert max(sizes) <= min(sizes) + 4


@pytest.mark.parametrize("value", [[1, 2.5, None, True, "x" * 50], {1: "one"}, {"a": {"b": [set()]}}, "x" * 100_000])
async def test_outcomes_of_every_type_are_the_same_after_a_crash(value: Any) -> None:
    graph = StateGraph(Kept, output_schema=Shown)
    graph.add_node("make", lambda state: {"value": value})
    graph.add_node("look", lambda state: {"shown": repr(state["value"])})
    graph.add_edge(START, "make")
    graph.add_edge("make", "look")
    async for app in crashes(app_of(graph)):
        task = await app.submit("flow", {"shown": ""})
        assert await drain(app) == []
        assert (await task.result())["shown"] == repr(value), app.killed_at


@pytest.mark.parametrize(("value", "shown"), [(b"\xff", "_w=="), (float("nan"), "NaN")])
async def test_an_output_that_json_has_no_value_for(value: Any, shown: Any) -> None:
    graph = StateGraph(Kept)
    graph.add_node("make", lambda state: {"value": value})
    graph.add_edge(START, "make")
    app = app_of(graph, retry=1)
    async with app:
        task = await app.submit("flow", {"shown": ""})
        assert await drain(app) == []
        assert (await task.result())["value"] == shown


async def test_records_of_an_earlier_version_are_read() -> None:
    """Once, each outcome was stored beside the journal."""
    app = app_of(asking())
    async with app:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flow, "_is_json", lambda value, room: -1)
            task = await app.submit("flow", {"words": []})
            await drain(app)
        for answer in ("a", "b"):
            (ask,) = await app.asks()
            await app.answer(ask.id, answer)
            await drain(app)
        assert (await task.result())["words"] == ["before", "a", "b", "beside", "after"]


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def forgetful() -> StateGraph[Any, Any, Any, Any]:
    """A graph that removes messages by ids which LangGraph gave them."""

    async def say(state: Talk) -> dict[str, Any]:
        return {"messages": [("ai", "a draft"), AIMessage("another")]}

    async def forget(state: Talk) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=str(message.id)) for message in state["messages"][:2]]}

    graph = StateGraph(Talk)
    graph.add_node("say", say)
    graph.add_node("forget", forget)
    graph.add_node("say again", say)
    graph.add_node("forget again", forget)
    for before, after in itertools.pairwise([START, "say", "forget", "say again", "forget again", END]):
        graph.add_edge(before, after)
    return graph


@pytest.mark.parametrize("depth", [0, 1])
async def test_messages_have_the_same_ids_in_a_replay(depth: int) -> None:
    """The journal has the ids that a node named: a replay that gives the messages other ids cannot remove them."""
    graph = forgetful()
    if depth:
        outer = StateGraph(Talk)
        outer.add_node("inner", graph.compile())
        outer.add_edge(START, "inner")
        graph = outer
    async for app in crashes(app_of(graph)):
        task = await app.submit("flow", {"messages": [{"role": "user", "content": "Go."}]})
        assert await drain(app) == []
        messages = (await task.result())["messages"]
        left = ["Go.", "another"] if depth else ["another"]  # the graph around it still has its own message
        assert [message["content"] for message in messages] == left, app.killed_at
