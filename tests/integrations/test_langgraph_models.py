"""Models that the nodes of a graph call: usage, cost, budgets, live text and the conversation, as for every agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph

from onward import Budget, State
from onward.testing import MemoryApp, crashes, memory_app
from tests.kit import drain

USAGE: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "input_token_details": {"cache_read": 4}}


class Scripted(BaseChatModel):
    """A model that calls a tool in its first turn, and then ends."""

    model: str = "gpt-5-mini"
    usage: bool = True

    @property
    def _llm_type(self) -> str:
        return "openai-chat"

    def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
        return {"ls_provider": "openai", "ls_model_name": self.model, "ls_model_type": "chat"}

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        calls = [{"name": "look", "args": {"place": "hall"}, "id": f"look {turn}"}] if turn == 0 else []
        reply = AIMessage(f"turn {turn}", tool_calls=calls, usage_metadata=USAGE if self.usage else None)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in ("a ", "long ", "reply"):
            yield ChatGenerationChunk(message=AIMessageChunk(word))


def graph(
    model: BaseChatModel, *, turns: int = 2, calls: int = 1, threads: bool = False
) -> StateGraph[Any, Any, Any, Any]:
    """A node that calls the model, and one that looks, in turns."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        replies = [await model.ainvoke(state["messages"]) for _ in range(calls)]
        return {"messages": [replies[-1]]}

    def ask_in_a_thread(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def look(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("user", "nothing in the hall")]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask_in_a_thread if threads else ask)
    builder.add_node("look", look)
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", lambda state: END if len(state["messages"]) >= 2 * turns else "look")
    builder.add_edge("look", "ask")
    return builder


async def finished(app: MemoryApp, **options: Any) -> Any:
    task = await app.submit("flow", {"messages": [("system", "You look."), ("user", "Go.")][-1:]}, **options)
    await drain(app)
    return await task.get()


@pytest.mark.parametrize("threads", [False, True])
async def test_the_usage_of_models_is_that_of_the_task(threads: bool) -> None:
    base = memory_app()
    base.langgraph("flow", graph(Scripted(), threads=threads))
    async for app in crashes(base):
        task = await finished(app)
        assert task.state is State.COMPLETED, app.killed_at
        usage = task.usage
        assert (usage.calls, usage.input_tokens, usage.output_tokens) == (2, 20, 10), app.killed_at
        assert usage.cost_usd > 0


async def test_several_calls_of_a_node_count_together() -> None:
    app = memory_app()
    app.langgraph("flow", graph(Scripted(), turns=1, calls=3))
    async with app:
        task = await finished(app)
        assert (task.usage.calls, task.usage.input_tokens) == (3, 30)


async def test_usage_that_a_provider_does_not_report_is_unknown() -> None:
    app = memory_app()
    app.langgraph("flow", graph(Scripted(usage=False), turns=1))
    async with app:
        task = await finished(app)
        assert (task.usage.calls, task.usage.input_tokens, task.usage.cost_usd) == (1, None, None)


async def test_a_graph_without_models_has_no_usage() -> None:
    async def nothing(state: MessagesState) -> dict[str, Any]:
        return {"messages": []}

    builder = StateGraph(MessagesState)
    builder.add_node("nothing", nothing)
    builder.add_edge(START, "nothing")
    app = memory_app()
    app.langgraph("flow", builder)
    async with app:
        assert (await finished(app)).usage is None


async def test_the_conversation_is_shown_turn_by_turn() -> None:
    app = memory_app()
    app.langgraph("flow", graph(Scripted()))
    async with app:
        task = await finished(app)
        turns = await app.service.timelines.turns(task.task_id)
        last = await app.service.timelines.turn(task.task_id, 2)
    assert [turn.turn for turn in turns] == [1, 2]
    assert [turn.model for turn in turns] == ["openai:gpt-5-mini"] * 2
    assert [(message["role"], message["content"]) for message in [*last.messages, last.reply]] == [
        ("system", ""),
        ("user", "Go."),
        ("assistant", "turn 0"),
        ("user", "nothing in the hall"),
        ("assistant", "turn 1"),
    ]


async def test_a_graph_waits_when_its_budget_is_spent() -> None:
    app = memory_app()
    app.langgraph("flow", graph(Scripted(), turns=5))
    async with app:
        task = await finished(app, budget=Budget(max_steps=3))
        assert (task.state, task.reason) == (State.WAITING, "budget")
        turns = await app.service.timelines.turns(task.task_id)
        assert len(turns) == 3, "nodes that call no model cost nothing"
        await app.raise_budget(task.task_id, max_steps=9)
        await drain(app)
        task = await app.get(task.task_id)
        assert (task.state, task.usage.calls) == (State.COMPLETED, 5)


async def test_a_graph_fails_when_its_budget_is_spent_and_may_not_wait() -> None:
    app = memory_app()
    app.langgraph("flow", graph(Scripted(), turns=5))
    async with app:
        task = await finished(app, budget=Budget(max_llm_tokens=150, when_spent="finish"))
        assert task.state is State.FAILED
        assert "BudgetSpent" in task.error["message"]
        assert "128, and 120 of 150 are left" in task.error["message"]


async def test_a_limit_in_dollars_needs_a_price() -> None:
    app = memory_app()
    app.langgraph("flow", graph(Scripted(model="nobody-knows-it")))
    async with app:
        task = await finished(app, budget=Budget(max_cost_usd=1.0))
        assert task.state is State.FAILED
        assert "price of the model openai:nobody-knows-it is not known" in task.error["message"]


async def test_streamed_text_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.agent.live.REPORT_INTERVAL_S", 0.0)
    model = Scripted()

    async def ask(state: MessagesState) -> dict[str, Any]:
        pieces = [str(piece.content) async for piece in model.astream(state["messages"])]
        return {"messages": [AIMessage("".join(pieces))]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    app = memory_app()
    app.langgraph("flow", builder)
    async with app:
        task = await app.submit("flow", {"messages": [("user", "Go.")]})
        await drain(app)
        texts = [record.value.get("text") async for record in task.tail() if record.kind == "progress"]
    assert "".join(text for text in texts if text).startswith("a long reply")
