"""The account of one agent: it reserves the most that a model call may cost before the call, and settles the real cost after it.

A call reserves one step, and tokens: an estimate for its input plus the `max_tokens` that it sends. The estimate is one token for
every three bytes; tokenizers make one token of four or more bytes of most strings. Where the budget has less room, the request gets
a smaller `max_tokens`, but no less than `MIN_OUTPUT_TOKENS`. The account settles the usage that a provider reports, also where it
exceeds the estimate: the ledger records the excess, and the next call has that much less.

The ledger knows settled calls by their names, so a replay charges nothing twice. A call that a crash left unsettled is settled with
the next call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onward.agent import tracing
from onward.agent.model import Emit, Model, Reply, Request
from onward.agent.prices import cost, max_cost
from onward.core import usage, wire
from onward.core.budget import Amount, Budget
from onward.engine.context.context import Context
from onward.engine.shift.spending import Spending
from onward.errors import Fatal

MAX_TOKENS = 4_096
"""The limit for one reply where the budget counts tokens or money, and neither the agent nor the model sets one."""

MIN_OUTPUT_TOKENS = 128
"""With room for fewer tokens a call is not worth making: a reply that is cut off is of no use."""

BYTES_PER_TOKEN = 3


class Account:
    """Reserves and settles the cost of an agent's model calls."""

    def __init__(self, ctx: Context, budget: Budget, max_tokens: int | None) -> None:
        self._ctx = ctx
        self.spending: Spending = ctx.spending(budget)
        self._agent_max_tokens = max_tokens
        self._made: set[str] = set()
        """Calls that were made in this shift, until they are settled. Agents of other frameworks make several at once."""
        self._unsettled: dict[str, Amount] = {}
        """Calls that the journal has. They may be settled, or the worker died just before that."""
        self.usage: usage.Usage = (
            usage.restored(ctx.restored, ctx.task_id) if ctx.restored is not None else usage.Usage()
        )
        ctx.host.usage = self.usage

    def _max_tokens(self, model: Model) -> int | None:
        """The most tokens of a reply, by the limits that are known now."""
        budgets = self.spending.budgets.values()
        counted = any(budget.max_llm_tokens is not None or budget.max_cost_usd is not None for budget in budgets)
        return self._agent_max_tokens or ((getattr(model, "max_tokens", None) or MAX_TOKENS) if counted else None)

    async def ask(self, model: Model, request: Request, emit: Emit) -> tuple[Reply, dict[str, Any]]:
        """Call the model, inside a step; return its reply, and what the step's record says about usage and price. Where the budget
        has not enough left, the step waits or fails for good."""
        call = self._ctx.key
        max_tokens = self._max_tokens(model)
        request = dataclasses.replace(request, max_tokens=max_tokens)
        key, pressed = "", False
        if self.spending:
            key, pressed, granted = await self._reserve(call, model, request)
            if self._max_tokens(model) != max_tokens:  # the reservation read a limit that was added after the submit
                await self.spending.settle({}, free=key)
                request = dataclasses.replace(request, max_tokens=self._max_tokens(model))
                key, pressed, granted = await self._reserve(call, model, request)
            request = dataclasses.replace(request, max_tokens=granted)
        with tracing.chat_span(model, request) as span:
            try:
                reply = await model.ask(request, emit)
            except Exception as error:
                # A call that began may cost something: its reservation stays, and it is charged like the call that takes its place.
                if not getattr(error, "began", False):
                    await self.spending.settle({}, free=key)
                raise
            price = cost(model, reply.usage)
            tracing.record_reply(span, model, reply, price)
        self._made.add(call)
        payment = {"call": call, "usage": dataclasses.asdict(reply.usage), "cost": price}
        return reply, payment | ({"pressed": pressed} if self.spending else {})

    async def _reserve(self, call: str, model: Model, request: Request) -> tuple[str, bool, int | None]:
        """Reserve the most that a request may cost; return the name of the reservation, whether the budget is nearly spent, and the
        `max_tokens` for which there is room."""
        size, output = estimate(request), request.max_tokens or 0
        low = min(output, MIN_OUTPUT_TOKENS)
        price, least_price = max_cost(model, size, output), max_cost(model, size, low)
        if price is None and self.spending.counts_money:
            raise Fatal(
                f"the price of the model {model.name} is not known, so max_cost_usd cannot be kept; give the model prices, "
                "install 'onward[prices]', or leave that limit out"
            )
        whole, least = Amount(1, size + output, price), Amount(1, size + low, least_price)
        key, granted = await self.spending.reserve(call, whole, self._unsettled, least)
        self._unsettled = {}
        room = (granted.amount.llm_tokens or 0) - size
        return key, granted.pressed, None if request.max_tokens is None else max(room, low)

    async def close(self, result: Mapping[str, Any]) -> None:
        """Account for a model call by the recorded result of its step. A call that was made now is settled at once; one from the
        journal is settled with the next call."""
        self.usage = self._ctx.host.usage = self.usage + usage.of_call(result, self._ctx.task_id)
        if not self.spending or "call" not in result:
            return
        input_tokens, output_tokens = result["usage"]["input"], result["usage"]["output"]
        tokens = None if input_tokens is None or output_tokens is None else input_tokens + output_tokens
        self._unsettled[result["call"]] = Amount(result.get("calls", 1), tokens, result["cost"])
        if result["call"] in self._made:
            self._made.discard(result["call"])
            await self.settle()

    async def begin(self, call: str) -> str:
        """Reserve the least that a call may cost, where the code that makes it is not ours and gives no estimate. Return the name of the
        reservation; empty without a budget. Where the budget is spent, the step waits or fails for good, as with `ask`."""
        if not self.spending:
            return ""
        least = Amount(1, MIN_OUTPUT_TOKENS, 0.0)
        key, _ = await self.spending.reserve(call, least, self._unsettled)
        self._unsettled = {}
        return key

    async def end(self, call: str, key: str, made: bool) -> None:
        """The code that may make a call has ended. The reservation of a call that was made is settled by `close`."""
        if made:
            self._made.add(call)
        elif key:
            await self.spending.settle({}, free=key)

    async def settle(self) -> None:
        """Settle the calls that may be unsettled."""
        calls, self._unsettled = self._unsettled, {}
        await self.spending.settle(calls)


def estimate(request: Request) -> int:
    """An upper estimate of the input tokens of a request."""
    schema = None if request.result is None else request.result.model_json_schema()
    size = len(wire.encode([list(request.messages), list(request.tools), schema]))
    return -(-size // BYTES_PER_TOKEN)
