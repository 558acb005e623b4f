"""Agents of another framework, for the processes that a fault test kills: parallel tools, an effect that may be repeated, and one that may
not and needs an approval.

The model and the tools note in the ledger what they do. Before that they look into the journal: work whose result is there already must
not be done again.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

import onward
from onward import Budget, Onward, Retry
from onward.core import record as r
from onward.engine.shift.scope import SCOPE
from onward.integrations.pydantic_ai import OnwardDurability
from rig.ledger import Ledger

PLACES = ("hall", "yard", "roof")
MODEL_CALLS = 3
BUSY_S = 0.03
"""The longest pause in a model request or a tool."""


GOAL = "Look around, deposit and pay."
PAID = "paid 7"
"""The result of the tool that pays, for the person who says that it happened."""


def app_of(options: dict[str, Any], **settings: Any) -> Onward:
    """The app of a crew, and of the test."""
    app = Onward(options["db"], **settings)
    add(app, Ledger(options["ledger"]))
    return app


def add(app: Onward, ledger: Ledger) -> Clerk:
    """Register the handler of the clerks."""
    clerk = Clerk(app, ledger)
    app.pydantic_ai(clerk.agent(), budget=Budget(max_steps=1_000), retry=Retry(attempts=3, first=0.01))
    return clerk


class Clerk:
    """The world of the agents of one process."""

    def __init__(self, app: Onward, ledger: Ledger) -> None:
        self.app, self._ledger = app, ledger

    def agent(self) -> Agent[None, str]:
        async def look(place: str) -> str:
            await self._note("looked", f"look {place}")
            return f"nothing in the {place}"

        async def deposit(cents: int) -> str:
            await self._note("deposited", "deposit")
            return f"deposited {cents}"

        async def pay(cents: int) -> str:
            await self._note("paid", "pay")
            return f"paid {cents}"

        tools = [
            Tool(look),
            Tool(deposit, metadata={"onward": {"risk": "write_local", "idempotent": True}}),
            Tool(pay, metadata={"onward": {"risk": "external_action"}}),
        ]
        durability = OnwardDurability[None](approve=["external_action"])
        return Agent(FunctionModel(self._reply), name="clerk", tools=tools, capabilities=[durability])

    async def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        await self._note("asked", f"turn {turn}")
        parts: list[Any] = [TextPart(digest(messages))]
        if turn == 0:
            parts = [ToolCallPart("look", {"place": place}, tool_call_id=f"look {place}") for place in PLACES]
            parts.append(ToolCallPart("deposit", {"cents": 5}, tool_call_id="deposit"))
        elif turn == 1:
            parts = [
                ToolCallPart("pay", {"cents": 7}, tool_call_id="pay"),
                ToolCallPart("look", {"place": "cellar"}, tool_call_id="look cellar"),
            ]
        return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=10, output_tokens=5))

    async def _note(self, event: str, what: str) -> None:
        """Note that work is done now, and whether the journal has its result already."""
        task_id, key = onward.current().task_id, SCOPE.get().key
        assert key is not None, "a step runs here"
        await asyncio.sleep(random.uniform(0, BUSY_S))
        records = await self.app.store.journal(task_id, 0, 1_000)
        again = any(record.kind == r.STEP_DONE and record.key == key for record in records)
        self._ledger.write(event, task_id, what, again, "" if event == "asked" else onward.current().key)
        await asyncio.sleep(random.uniform(0, BUSY_S))


def digest(messages: list[ModelMessage]) -> str:
    """The results of all tools, in the order in which the model sees them."""
    parts = (part for message in messages for part in message.parts)
    return "; ".join(str(part.content) for part in parts if isinstance(part, ToolReturnPart))


ANSWER = "; ".join([*(f"nothing in the {place}" for place in PLACES), "deposited 5", "paid 7", "nothing in the cellar"])
