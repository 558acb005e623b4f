"""The account of one agent: what a model call may cost is reserved before it, and what it did cost is settled after it.

A call reserves a step, and tokens: an estimate for its input (a token for every three bytes, where tokenizers make one of four or
more of most texts) plus the `max_tokens` that it sends. Where there is no room for so much, the model is told a smaller
`max_tokens`, but no less than `LEAST_OUTPUT`. What a provider reports is settled, also where that is more than the estimate: such
an excess is written down, and the next call finds so much less.

What was settled before a crash is known by the name of the call, so that a replay charges nothing twice; what was not is settled
with the next call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onward.agent import tracing as traced
from onward.agent.model import Emit, Model, Reply, Request
from onward.agent.prices import cost, most
from onward.core import usage, wire
from onward.core.budget import Amount, Budget
from onward.engine.context.context import Context
from onward.engine.shift.spending import Spending
from onward.errors import Fatal

MAX_TOKENS = 4_096
"""What a call may answer with at most, where tokens or money are counted and neither the agent nor the model says."""

LEAST_OUTPUT = 128
"""Tokens of an answer below which a call is not worth making: a reply that is cut off is of no use."""

BYTES_OF_A_TOKEN = 3


class Account:
    """What an agent's model calls cost."""

    def __init__(self, ctx: Context, budget: Budget, max_tokens: int | None) -> None:
        self._ctx = ctx
        self.spending: Spending = ctx.spending(budget)
        self._own_most = max_tokens
        self._made = ""
        self._unsettled: dict[str, Amount] = {}
        """Calls that the journal has: they may have been settled, or the worker died just before it."""
        self.usage = usage.restored(ctx.restored, ctx.task_id) if ctx.restored is not None else usage.Usage()
        ctx.host.usage = self.usage

    def _max_tokens(self, model: Model) -> int | None:
        """What an answer may have at most, by the limits as they are known now."""
        limits = self.spending.budgets.values()
        counted = any(one.max_llm_tokens is not None or one.max_cost_usd is not None for one in limits)
        return self._own_most or ((getattr(model, "max_tokens", None) or MAX_TOKENS) if counted else None)

    async def ask(self, model: Model, request: Request, emit: Emit) -> tuple[Reply, dict[str, Any]]:
        """Inside a step: what the model replies, and what the record says about its price. Where there is not enough, the step
        waits, or has failed for good."""
        self._made = self._ctx.key
        request = dataclasses.replace(request, max_tokens=self._max_tokens(model))
        key, pressed = "", False
        if self.spending:
            key, pressed, granted = await self._reserve(model, request)
            if request.max_tokens != self._max_tokens(model):  # there is a limit that the task was not submitted with
                await self.spending.settle({}, free=key)
                request = dataclasses.replace(request, max_tokens=self._max_tokens(model))
                key, pressed, granted = await self._reserve(model, request)
            request = dataclasses.replace(request, max_tokens=granted)
        with traced.chat(model, request) as asked:
            try:
                reply = await model.ask(request, emit)
            except Exception as error:
                if not getattr(
                    error, "began", False
                ):  # it cost nothing; else it is charged like the one that takes its place
                    await self.spending.settle({}, free=key)
                raise
            price = cost(model, reply.usage)
            traced.answered(asked, model, reply, price)
        paid = {"call": self._made, "usage": dataclasses.asdict(reply.usage), "cost": price}
        return reply, paid | ({"pressed": pressed} if self.spending else {})

    async def _reserve(self, model: Model, request: Request) -> tuple[str, bool, int | None]:
        """The name of this try, whether most is gone, and the `max_tokens` for which there is room."""
        size, output = estimate(request), request.max_tokens or 0
        low = min(output, LEAST_OUTPUT)
        price, least_price = most(model, size, output), most(model, size, low)
        if price is None and self.spending.counts_money:
            raise Fatal(
                f"nobody knows what the model {model.name} costs, so max_cost_usd cannot be held; give the model prices, "
                "install 'onward[prices]', or leave that limit out"
            )
        whole, least = Amount(1, size + output, price), Amount(1, size + low, least_price)
        key, granted = await self.spending.reserve(self._made, whole, self._unsettled, least)
        self._unsettled = {}
        room = (granted.amount.llm_tokens or 0) - size
        return key, granted.pressed, None if request.max_tokens is None else max(room, low)

    async def close(self, told: Mapping[str, Any]) -> None:
        """After the call: settled at once when it was made now, with the next one when the journal had it."""
        self.usage = self._ctx.host.usage = self.usage + usage.of_call(told, self._ctx.task_id)
        if not self.spending or "call" not in told:
            return
        taken, given = told["usage"]["input"], told["usage"]["output"]
        tokens = None if taken is None or given is None else taken + given
        self._unsettled[told["call"]] = Amount(1, tokens, told["cost"])
        if told["call"] == self._made:
            await self.settle()

    async def settle(self) -> None:
        """Settle what may not be."""
        done, self._unsettled = self._unsettled, {}
        await self.spending.settle(done)


def estimate(request: Request) -> int:
    """Tokens of what a model is sent, rather too many than too few."""
    form = None if request.result is None else request.result.model_json_schema()
    size = len(wire.encode([list(request.messages), list(request.tools), form]))
    return -(-size // BYTES_OF_A_TOKEN)
