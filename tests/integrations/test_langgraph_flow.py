"""A graph as a task: nodes are steps, interrupts are questions, and a kill at any point repeats no recorded node."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from onward.errors import BadSetting, UsageError
from onward.integrations.langgraph.flow import graph_handler
from onward.testing import MemoryApp, crashes, memory_app
from tests.kit import drain


class State(TypedDict):
    words: Annotated[list[str], operator.add]


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
        assert await drain(app) == []
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
