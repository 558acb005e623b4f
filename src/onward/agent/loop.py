"""The agent's loop: an ordinary handler, with no privilege over any other.

    slice ─► model (a step) ─► its calls (steps, approvals, questions) ─► patch ─► … until it answers without a call

Everything it needs to go on is in the journal and in what the task keeps: after a crash the loop runs over its records and
is where it was. Every few turns a checkpoint stands for all that came before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from onward.agent.builtin import ASK_USER, ask_user, builtin
from onward.agent.calls import Calls, Done
from onward.agent.conversation import Conversation, Ref, Turn, result_message
from onward.agent.model import Message, Model, Reply, Request, ToolCall
from onward.agent.tools import Tool
from onward.core import wire
from onward.core.budget import Budget
from onward.core.retry import Retry
from onward.core.slice import state_slice
from onward.core.state import AgentState, Constraints, HumanInTheLoop
from onward.engine.context import Context
from onward.errors import Fatal

NO_LIMITS = Budget()
EVERY = 20
"""Turns between two checkpoints."""

STATE_BYTES = 8_000
CONTEXT_BYTES = 100_000
"""Bytes of the state, and of the conversation, that a model call is shown."""

MOST_AT_ONCE = 8
PATIENCE = Retry(attempts=6, first=1.0, cap=60.0)
"""For a provider that is busy or away. What it says about when to come back is obeyed."""


@dataclasses.dataclass(frozen=True)
class Agent:
    """What was said about an agent. Its `handler` does tasks whose input is a goal."""

    name: str
    model: Callable[[], Model]
    instructions: str = ""
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    approve: frozenset[str] = frozenset()
    budget: Budget = NO_LIMITS
    result: type[BaseModel] | None = None
    context_bytes: int = CONTEXT_BYTES

    async def handler(self, ctx: Context, goal: str) -> Any:
        """Work towards the goal; the answer is the task's result."""
        run = _Run(self, ctx)
        await run.begin(goal)
        while True:
            reply = await run.ask()
            if reply.calls:
                await run.do(reply)
            else:
                answer, wrong = self._checked(reply.text)
                if not wrong:
                    return answer
                run.say({"role": "user", "content": wrong})
            await run.rest()

    def _checked(self, text: str) -> tuple[Any, str]:
        """The answer in the form that was promised, or what to say about it."""
        if self.result is None:
            return text, ""
        try:
            return self.result.model_validate_json(text).model_dump(mode="json"), ""
        except ValidationError as error:
            return None, f"Your answer does not fit: {error}. Answer again, with nothing but JSON of that form."


class _Run:
    """One task of an agent."""

    def __init__(self, agent: Agent, ctx: Context) -> None:
        self._agent, self._ctx = agent, ctx
        self._tools = {**agent.tools, **builtin(ctx), ASK_USER.name: ASK_USER}
        self._calls = Calls(ctx, self._tools, agent.approve, self._write)
        self._talk = Conversation()
        self._pages: list[str] = []
        self._steps = self._saved = 0
        self._before = 0
        """Turns that were not read again, because they cannot be shown anyway."""
        self._fresh: dict[str, bytes] = {}
        """What was written since the last record, and may not be in the store yet."""
        self._model: Model | None = None

    # ── where it is ──────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self, goal: str) -> None:
        """At the beginning, or where the last checkpoint was."""
        saved = self._ctx.restored
        if saved is None:
            people = Constraints(
                human_in_the_loop=HumanInTheLoop(required_for_risk_levels=tuple(sorted(self._agent.approve)))
            )
            await self._ctx.patch(AgentState(goal=goal, constraints=people, budget=self._agent.budget.limits))
            self.say({"role": "user", "content": goal})
            return
        await self._ctx.patch(AgentState.model_validate(saved["state"]))
        self._pages, self._steps = saved["pages"], saved["steps"]
        await self._read_pages()
        self._before = saved.get("turns", self._saved) - self._saved

    async def _read_pages(self) -> None:
        """The latest turns, as many as could be shown."""
        turns: list[Turn] = []
        for page in reversed(self._pages):
            (data,) = await self._ctx.kept(page)
            turns = [_turn(one) for one in wire.decode(data)] + turns
            if sum(_size(turn) for turn in turns) > self._agent.context_bytes:
                break
        self._talk.turns = turns
        self._saved = len(turns)

    async def rest(self) -> None:
        """Now and then: what came before is in a checkpoint."""
        if len(self._talk.turns) - self._saved < EVERY:
            return
        new = [_told(turn) for turn in self._talk.turns[self._saved :]]
        self._pages = [*self._pages, self._ctx.keep(wire.encode(new))]
        self._saved = len(self._talk.turns)
        assert self._ctx.state is not None
        state = self._ctx.state.model_dump(mode="json", exclude_defaults=True)
        told = {"pages": self._pages, "turns": self._before + self._saved, "steps": self._steps}
        await self._ctx.checkpoint({"state": state, **told})
        await self._ctx.patch(self._ctx.state)

    # ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────

    def say(self, message: Message) -> None:
        """Somebody else than the model says something."""
        self._talk.say(self._write(message))

    def _write(self, message: Message) -> Ref:
        data = wire.encode(dict(message))
        name = self._ctx.keep(data)
        self._fresh[name] = data
        return Ref(name, len(data))

    async def ask(self) -> Reply:
        """The model's next words, asked for once."""
        self._count()
        state = self._ctx.state
        assert state is not None
        shown, left_out = self._talk.shown(self._agent.context_bytes)
        system = _system(self._agent.instructions, state, left_out + self._before)
        told = await self._ctx.step(lambda: self._asked(system, shown), name="model", retry=PATIENCE)
        self._fresh.clear()
        (data,) = await self._ctx.kept(told["id"])
        reply = _reply(wire.decode(data), told)
        self._talk.say(Ref(told["id"], told["bytes"]), reply.calls)
        if reply.text:
            self._ctx.progress(reply.text[:500], self._steps)
        return reply

    async def _asked(self, system: str, shown: Sequence[Ref]) -> dict[str, Any]:
        ctx = self._ctx
        there = [ref.id for ref in shown if ref.id not in self._fresh]
        texts = self._fresh | dict(zip(there, await ctx.kept(*there), strict=True))
        head = wire.encode({"role": "system", "content": system})
        messages = [wire.decode(head), *(wire.decode(texts[ref.id]) for ref in shown)]
        specs = [tool.spec() for tool in self._tools.values()]
        self._model = self._model or self._agent.model()
        reply = await self._model.ask(Request(messages, specs, result=self._agent.result), _silent)
        said = wire.encode(reply.message)
        return {
            "asked": {"system": ctx.keep(head), "shown": [ref.id for ref in shown], "model": self._model.name},
            "id": ctx.keep(said),
            "bytes": len(said),
            "finish": reply.finish,
            "usage": dataclasses.asdict(reply.usage),
        }

    def _count(self) -> None:
        self._steps += 1
        most = self._agent.budget.max_steps
        if most is not None and self._steps > most:
            raise Fatal(f"the agent has used its {most} steps without coming to an answer")

    # ── what is done ─────────────────────────────────────────────────────────────────────────────────────────────

    async def do(self, reply: Reply) -> None:
        """All calls of a turn: at once where they only read, one after the other where they do not."""
        wanted = [self._calls.check(call) for call in reply.calls]
        pairs = list(zip(reply.calls, wanted, strict=True))
        self._ctx.progress(", ".join(call.name for call in reply.calls), self._steps)
        if len(pairs) > 1 and self._calls.together(wanted) and ASK_USER.name not in {call.name for call, _ in pairs}:
            done = await self._ctx.gather(*[self._calls.do(*pair) for pair in pairs], limit=MOST_AT_ONCE)
        else:
            done = [
                await (self._person(call) if call.name == ASK_USER.name else self._calls.do(call, one))
                for call, one in pairs
            ]
        await self._take(done)

    async def _take(self, done: Sequence[Done]) -> None:
        for one in done:
            self._talk.answer(one.call.id, one.result)
            if one.patch:
                await self._ctx.patch(one.patch)

    async def _person(self, call: ToolCall) -> Done:
        """A question to a person is a wait, not a step."""
        checked = self._calls.check(call)
        if isinstance(checked, str):
            return await self._calls.do(call, checked)
        patch, answer = await ask_user(self._ctx, str(checked.arguments["question"]))
        return Done(call, self._write(result_message(call.id, answer)), patch)


def _system(instructions: str, state: AgentState, left_out: int) -> str:
    note = f"\n({left_out} earlier turns of this conversation are not shown.)" if left_out else ""
    return f"{instructions}\n\n{state_slice(state, STATE_BYTES).text}{note}".strip()


def _reply(message: Mapping[str, Any], told: Mapping[str, Any]) -> Reply:
    calls = tuple(
        ToolCall(one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in message.get("tool_calls", ())
    )
    return Reply(message.get("content") or "", calls, finish=told["finish"])


def _told(turn: Turn) -> list[Any]:
    results = {call: list(dataclasses.astuple(ref)) for call, ref in turn.results.items()}
    return [turn.said.id, turn.said.bytes, list(turn.calls), results]


def _turn(told: Sequence[Any]) -> Turn:
    name, size, calls, results = told
    return Turn(Ref(name, size), tuple(calls), {call: Ref(*ref) for call, ref in results.items()})


def _size(turn: Turn) -> int:
    return turn.said.bytes + sum(ref.bytes for ref in turn.results.values())


def _silent(_: str) -> None:
    """Nobody listens."""
