"""Agents of LangChain (`create_agent`) and of deepagents as tasks: they are graphs, and a kill at any point repeats no recorded work.

The packages are in no lock: deepagents brings clients of several providers. Tests install them into `.cache`, without what they need.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool

from onward.testing import crashes, drain, memory_app
from rig.install import CACHE, once, pip
from rig.ledger import Ledger
from rig.server import Unavailable
from tests.faults.clerks import Clerk

PACKAGES = (
    "langchain==1.4.7",
    "deepagents==0.7.32",
    "langchain-anthropic==1.7.9",
    "langchain-google-genai==4.4.2",
    "wcmatch==12.0.1",
    "bracex==3.2.2",
)
HOME = CACHE / "langchain-1.4.7-deepagents-0.7.32"
PLACES = ("hall", "yard")
ANSWER = "nothing in the hall; nothing in the yard; paid 7"

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def packages() -> Iterator[None]:
    """The packages, from the cache."""
    try:
        with once("langchain-agents"):
            if not HOME.exists():
                pip(HOME, *PACKAGES)
    except Unavailable as why:
        pytest.skip(str(why))
    sys.path.append(str(HOME))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(HOME))


class Scripted(BaseChatModel):
    """A model that calls two tools at once, then one that needs an approval, and then ends."""

    clerk: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        await self.clerk._note("asked", f"turn {turn}")
        calls = [{"name": "look", "args": {"place": place}, "id": f"look {place}"} for place in PLACES]
        results = "; ".join(str(message.content) for message in messages if isinstance(message, ToolMessage))
        replies = [
            AIMessage("", tool_calls=calls),
            AIMessage("", tool_calls=[{"name": "pay", "args": {"cents": 7}, "id": "pay"}]),
            AIMessage(results),
        ]
        return ChatResult(generations=[ChatGeneration(message=replies[turn])])


class AgentClerk(Clerk):
    """The world of the agents."""

    def tools(self) -> list[Any]:
        async def look(place: str) -> str:
            """Look at a place."""
            await self._note("looked", f"look {place}")
            return f"nothing in the {place}"

        async def pay(cents: int) -> str:
            """Pay."""
            await self._note("paid", "pay")
            return f"paid {cents}"

        return [StructuredTool.from_function(coroutine=tool) for tool in (look, pay)]


def langchain_agent(clerk: AgentClerk) -> Any:
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    review: Any = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    return create_agent(Scripted(clerk=clerk), clerk.tools(), middleware=[review])


def deep_agent(clerk: AgentClerk) -> Any:
    from deepagents import create_deep_agent

    return create_deep_agent(model=Scripted(clerk=clerk), tools=clerk.tools(), interrupt_on={"pay": True})


class Delegating(Scripted):
    """Gives the work to the sub-agent, and says what it said."""

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        await self.clerk._note("asked", f"delegating {turn}")
        call = {"name": "task", "args": {"description": "Go.", "subagent_type": "payer"}, "id": "delegate"}
        replies = [AIMessage("", tool_calls=[call]), AIMessage(str(messages[-1].content))]
        return ChatResult(generations=[ChatGeneration(message=replies[turn])])


def agent_with_a_sub_agent(clerk: AgentClerk) -> Any:
    from deepagents import create_deep_agent

    payer: Any = {
        "name": "payer",
        "description": "It pays.",
        "system_prompt": "Pay.",
        "model": Scripted(clerk=clerk),
        "tools": clerk.tools(),
        "interrupt_on": {"pay": True},
    }
    return create_deep_agent(model=Delegating(clerk=clerk), subagents=[payer])


@pytest.mark.parametrize("make", [langchain_agent, deep_agent, agent_with_a_sub_agent])
async def test_an_agent_survives_a_kill_at_every_point(make: Any, tmp_path: Path) -> None:
    base, ledger, points = memory_app(), Ledger(tmp_path / "ledger"), 0
    clerk = AgentClerk(base, ledger)
    base.langgraph("agent", make(clerk))
    async for app in crashes(base):
        ledger.path.write_text("")
        clerk.app, points = app, points + 1
        task = await app.submit("agent", {"messages": [{"role": "user", "content": "Go."}]})
        await drain(app)
        (ask,) = await app.asks()
        assert (ask.tool, ask.text) == ("pay", "pay(cents=7)")
        await app.decide(ask.id, "approve")
        assert await drain(app) == []
        result = await task.result()
        assert result["messages"][-1]["content"] == ANSWER, app.killed_at
        lines = ledger.read()
        assert not [line for line in lines if line[3]], f"done again although recorded, killed at {app.killed_at}"
        assert sum(line[0] == "paid" for line in lines) <= 2
    assert points > 10
