"""The checkpointer for LangGraph: the conformance suite of LangGraph, and what it does not ask."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from onward import Onward
from onward.errors import UsageError
from onward.integrations.langgraph import OnwardSaver
from onward.store.port.core import Store
from tests.kit import encrypt, not_memory, sql


class State(TypedDict):
    words: Annotated[list[str], operator.add]


def builder(fails: list[bool] | None = None) -> StateGraph[Any, Any, Any, Any]:
    def first(state: State) -> dict[str, list[str]]:
        return {"words": ["first"]}

    def asks(state: State) -> dict[str, list[str]]:
        return {"words": [str(interrupt("which word?"))]}

    def last(state: State) -> dict[str, list[str]]:
        if fails:
            fails.pop()
            raise ConnectionError("the worker is gone")
        return {"words": ["last"]}

    graph = StateGraph(State)
    for name, node in (("first", first), ("asks", asks), ("last", last)):
        graph.add_node(name, node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "asks")
    graph.add_edge("asks", "last")
    graph.add_edge("last", END)
    return graph


def thread(name: str = "t1", **more: Any) -> Any:
    return {"configurable": {"thread_id": name, **more}}


async def test_conformance(store: Store) -> None:
    @checkpointer_test(name="OnwardSaver")
    async def saver() -> AsyncIterator[OnwardSaver]:
        yield OnwardSaver(Onward(store=store))

    report = await validate(saver)
    failures = [failure for result in report.results.values() for failure in result.failures or ()]
    assert failures == []
    assert sum(result.tests_passed for result in report.results.values()) == 81


async def test_a_graph_goes_on_in_another_process_after_a_failure(store: Store) -> None:
    graph = builder([True]).compile(checkpointer=OnwardSaver(Onward(store=store)))
    await graph.ainvoke({"words": []}, thread())
    with pytest.raises(ConnectionError):
        await graph.ainvoke(Command(resume="second"), thread())
    again = builder().compile(checkpointer=OnwardSaver(Onward(store=store)))
    assert await again.ainvoke(None, thread()) == {"words": ["first", "second", "last"]}


async def test_a_thread_goes_on_from_an_old_checkpoint_with_its_own_values(store: Store) -> None:
    graph = builder().compile(checkpointer=OnwardSaver(Onward(store=store)))
    await graph.ainvoke({"words": []}, thread())
    await graph.ainvoke(Command(resume="second"), thread())
    before = next(state for state in [s async for s in graph.aget_state_history(thread())] if state.next == ("asks",))
    fork = await graph.aupdate_state(before.config, {"words": ["edited"]})
    await graph.ainvoke(None, fork)
    await graph.ainvoke(Command(resume="third"), thread())
    words = [state.values.get("words") async for state in graph.aget_state_history(thread())]
    assert words[0] == ["first", "edited", "third", "last"]
    assert ["first", "second", "last"] in words


async def test_tenants_are_apart(store: Store) -> None:
    app = Onward(store=store)
    for tenant in (None, "acme", "globex"):
        graph = builder().compile(checkpointer=OnwardSaver(app, tenant=tenant))
        await graph.ainvoke({"words": [str(tenant)]}, thread())
    mine = OnwardSaver(app, tenant="acme")
    newest = await anext(aiter(mine.alist(None)))
    assert newest.checkpoint["channel_values"]["words"] == ["acme", "first"]
    await mine.adelete_thread("t1")
    assert await mine.aget_tuple(thread()) is None
    assert await OnwardSaver(app, tenant="globex").aget_tuple(thread()) is not None


async def test_checkpoints_are_encrypted(store: Store) -> None:
    encrypt(store)
    graph = builder().compile(checkpointer=OnwardSaver(Onward(store=store)))
    await graph.ainvoke({"words": ["my secret"]}, thread())
    assert (await graph.aget_state(thread())).values["words"] == ["my secret", "first"]
    assert not any(b"my secret" in bytes(data) for (data,) in await sql(store, "SELECT data FROM onward_documents"))


async def test_a_deleted_thread_leaves_nothing(store: Store) -> None:
    saver = OnwardSaver(Onward(store=store))
    graph = builder().compile(checkpointer=saver)
    await graph.ainvoke({"words": []}, {**thread(), "metadata": {"run_id": "r1"}})
    await saver.acopy_thread("t1", "t2")
    await saver.adelete_thread("t1")
    assert (await graph.aget_state(thread("t2"))).values["words"] == ["first"]
    await saver.adelete_thread("t2")
    assert await sql(store, "SELECT count(*) FROM onward_documents") == [(0,)]


async def test_a_pruned_thread_keeps_only_what_its_newest_checkpoint_needs(store: Store) -> None:
    saver = OnwardSaver(Onward(store=store))
    graph = builder().compile(checkpointer=saver)
    await graph.ainvoke({"words": []}, thread())
    before = await sql(store, "SELECT count(*) FROM onward_documents")
    await saver.aprune(["t1"])
    after = await sql(store, "SELECT count(*) FROM onward_documents")
    assert after < before
    assert await graph.ainvoke(Command(resume="second"), thread()) == {"words": ["first", "second", "last"]}


@not_memory
def test_a_program_without_a_loop(url: str) -> None:
    with Onward(url).in_thread() as app:
        graph = builder().compile(checkpointer=OnwardSaver(app))
        graph.invoke({"words": []}, thread())
        assert graph.invoke(Command(resume="second"), thread()) == {"words": ["first", "second", "last"]}
        assert len(list(graph.get_state_history(thread()))) == 5
    with pytest.raises(UsageError, match="the app is not open"):
        graph.get_state(thread())


async def test_a_blocking_call_in_the_loop_says_what_to_do(url: str) -> None:
    async with Onward(url) as app:
        graph = builder().compile(checkpointer=OnwardSaver(app))
        with pytest.raises(UsageError, match="ainvoke"):
            graph.invoke({"words": []}, thread())
