"""Agents that read, change and ask, in processes that are killed; and the judge of what they did again.

    python -m tests.faults.readers '{"mode": "lead", "db": …, "ledger": …, "workers": 6, "plant": ""}'

Everything is noted in the ledger before it is done. That something was durable is concluded from what the same process did
after it, never asked of Onward: whatever it could only begin once that was written proves that it was.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import sys
from pathlib import Path
from typing import Any

from onward import Onward, tool
from onward.agent.models.scripted import ScriptedModel
from onward.core.journal.checkpoint import STRATEGIES, Checkpoints
from onward.engine.context.context import Context
from onward.engine.shift.reads import DeferringSteps
from rig.ledger import Ledger
from rig.processes import Child
from tests.faults import crew
from tests.faults.band import ROOT, Place

PLANS: list[list[str]] = [
    ["look", "look", "look"],
    ["look", "fact"],
    ["look", "change", "look", "look"],
    ["look"],
    ["look", "look", "change"],
    ["look"],
]
"""What a model asks for in each turn."""

GATHERED = {turn for turn, plan in enumerate(PLANS) if "change" not in plan}
CHANGING = {turn for turn, plan in enumerate(PLANS) if "fact" in plan}
ROUNDS = 12
KEEP = 2


class ReaderPlace(Place):
    """A place whose crews are readers."""

    def child(self, mode: str, **more: Any) -> Child:
        return Child.module("tests.faults.readers", self.options(mode, **more), cwd=ROOT)


def build(db: str, ledger: str, **settings: Any) -> Onward:
    app = Onward(db, **settings)
    book = Ledger(Path(ledger))

    async def did(what: str, who: str, turn: int, n: int) -> None:
        book.write(what, who, turn, n, os.getpid())
        await asyncio.sleep(0.01)

    @tool
    async def look(who: str, turn: int, n: int) -> str:
        """Look."""
        await did("look", who, turn, n)
        return f"seen {turn}.{n}"

    async def whether(who: str, turn: int, n: int) -> str | None:
        there = ["change", who, turn, n] in [line[:4] for line in book.read()]
        return "changed" if there else None

    @tool(risk="write_external", reconcile=whether)
    async def change(who: str, turn: int, n: int) -> str:
        """Change."""
        await did("change", who, turn, n)
        return "changed"

    class Model(ScriptedModel):
        async def ask(self, request: Any, emit: Any) -> Any:
            who = str(request.messages[1]["content"])
            turn = sum(message["role"] == "assistant" for message in request.messages)
            await did("model", who, turn, 0)
            return await ScriptedModel([*map(calls_of(who), range(len(PLANS))), f"{who} done"]).ask(request, emit)

    for strategy in STRATEGIES:
        app.agent(strategy, model=Model([]), tools=[look, change], checkpoint=strategy)

    @app.task(checkpoint=Checkpoints("every_iteration", keep=KEEP))
    async def rounds(ctx: Any, who: str) -> list[str]:
        done = ctx.restored or []
        for number in range(len(done), ROUNDS):
            seen = await ctx.step(look.function, who, number, 0, name="look", effect="read")
            args = (who, number, 1)
            await ctx.step(change.function, *args, name="change", reconcile=whether)
            done = [*done, seen]
            await ctx.checkpoint(done)
        return list(done)

    return app


def calls_of(who: str) -> Any:
    def calls(turn: int) -> Any:
        fact = ("record_fact", {"key": "k", "value": turn, "source": "me"})
        return [
            fact if what == "fact" else (what, {"who": who, "turn": turn, "n": n}) for n, what in enumerate(PLANS[turn])
        ]

    return calls


def plant(fault: str) -> None:
    """Break a promise, so that the judge has something to find."""

    async def never(self: Context) -> None:
        """Turns are not written before the next one begins."""

    async def at_once(self: DeferringSteps, call: Any) -> Any:
        """Effects do not wait for what was read before them, and are not written themselves."""
        return await self._reads.run(call)

    if fault == "turns":
        Context.flush = never  # type: ignore[method-assign]
    elif fault == "effects":
        DeferringSteps.run = at_once  # type: ignore[method-assign]


# ── the judge ────────────────────────────────────────────────────────────────────────────────────────────────────────

Event = tuple[str, int, int]
"""What, turn, number."""


def segments(lines: list[list[Any]]) -> dict[str, list[list[Event]]]:
    """For each task, what each process did of it, in order."""
    found: dict[str, dict[int, list[Event]]] = collections.defaultdict(dict)
    for what, who, turn, n, pid in lines:
        found[who].setdefault(pid, []).append((what, turn, n))
    return {who: list(by_process.values()) for who, by_process in found.items()}


def durable(strategy: str, event: Event, later: list[Event]) -> bool:
    """Whether what the same process did later proves that this was written."""
    what, turn, n = event
    beyond = [one for one in later if one[1] > turn]
    acted = [one for one in beyond if one[0] != "model"]
    if what == "model":
        return any(one[0] != "model" for one in later)
    if what == "change":
        return bool(later)
    if any(one[0] == "change" for one in later):
        return True
    if strategy == "every_step":
        return bool(beyond) or (turn not in GATHERED and any(one[2] > n for one in later))
    if strategy == "on_state_change":
        return bool(acted) or (turn in CHANGING and bool(beyond))
    return bool(beyond)


def judge(lines: list[list[Any]]) -> tuple[list[str], collections.Counter[str]]:
    """What was done again although it was written, and how many reads of each strategy were done again at all."""
    wrong: list[str] = []
    again: collections.Counter[str] = collections.Counter()
    for who, parts in segments(lines).items():
        strategy = who.partition(" ")[0]
        rule = "every_iteration" if strategy == "rounds" else strategy
        for place, part in enumerate(parts):
            after = {event for other in parts[place + 1 :] for event in other}
            for at, event in enumerate(part):
                if event in after and event[0] == "change":
                    wrong.append(f"{who}: {event} happened twice")
                elif event in after and durable(rule, event, part[at + 1 :]):
                    wrong.append(f"{who}: {event} was written and done again: {parts}")
                again[strategy] += event in after and event[0] == "look"
            twice = [event for event, times in collections.Counter(part).items() if times > 1]
            wrong += [f"{who}: {event} twice in one process" for event in twice]
    return wrong, again


def foretold(who: str) -> Any:
    """The result of a task."""
    return [f"seen {number}.0" for number in range(ROUNDS)] if who.startswith("rounds") else f"{who} done"


if __name__ == "__main__":
    plant(json.loads(sys.argv[1]).get("plant", ""))
    crew.build = build
    sys.exit(crew.main())
