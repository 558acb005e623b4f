"""The same clerks (`tests.faults.clerks`) as agents of the OpenAI Agents SDK."""

from __future__ import annotations

import json
from typing import Any

from onward import Budget, Onward, Retry
from rig import openai_agents
from rig.ledger import Ledger
from tests.faults.clerks import ANSWER, GOAL, PAID, PLACES, Clerk

__all__ = ["ANSWER", "GOAL", "PAID", "add", "app_of"]

openai_agents.obtain()

from agents import Agent, Model, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

TURNS: list[list[tuple[str, str, dict[str, Any]]]] = [
    [*(("look", f"look {place}", {"place": place}) for place in PLACES), ("deposit", "deposit", {"cents": 5})],
    [("pay", "pay", {"cents": 7}), ("look", "look cellar", {"place": "cellar"})],
]


def app_of(options: dict[str, Any], **settings: Any) -> Onward:
    """The app of a crew, and of the test."""
    app = Onward(options["db"], **settings)
    add(app, Ledger(options["ledger"]))
    return app


def add(app: Onward, ledger: Ledger) -> Shop:
    """Register the handler of the clerks."""
    set_tracing_disabled(True)
    shop = Shop(app, ledger)
    rules = {"deposit": {"risk": "write_local", "idempotent": True}, "pay": {"risk": "external_action"}}
    app.openai_agent(
        shop.sdk_agent(),
        tools=rules,
        approve=["external_action"],
        budget=Budget(max_steps=1_000),
        retry=Retry(attempts=3, first=0.01),
    )
    return shop


class Shop(Clerk, Model):
    """The world of the agents of one process, and their model."""

    model = "scripted"

    def sdk_agent(self) -> Any:
        @function_tool(failure_error_function=None)
        async def look(place: str) -> str:
            """Look."""
            await self._note("looked", f"look {place}")
            return f"nothing in the {place}"

        @function_tool(failure_error_function=None)
        async def deposit(cents: int) -> str:
            """Deposit."""
            await self._note("deposited", "deposit")
            return f"deposited {cents}"

        @function_tool(failure_error_function=None)
        async def pay(cents: int) -> str:
            """Pay."""
            await self._note("paid", "pay")
            return f"paid {cents}"

        return Agent(name="clerk", model=self, tools=[look, deposit, pay])

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        items = [] if isinstance(input, str) else input
        outputs = {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
        turn = sum(all(call_id in outputs for _, call_id, _ in calls) for calls in TURNS)
        await self._note("asked", f"turn {turn}")
        output: list[Any] = [
            ResponseFunctionToolCall(type="function_call", name=name, call_id=call_id, arguments=json.dumps(arguments))
            for name, call_id, arguments in (TURNS[turn] if turn < len(TURNS) else [])
        ]
        if turn == len(TURNS):
            answer = "; ".join(outputs[call_id] for calls in TURNS for _, call_id, _ in calls)
            text = ResponseOutputText(type="output_text", text=answer, annotations=[])
            output = [
                ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            ]
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError
