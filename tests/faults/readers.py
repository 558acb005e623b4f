"""Agents that read, change and ask, in processes that are killed; and the judge of their repeated work.

    python -m tests.faults.readers '{"mode": "lead", "db": …, "ledger": …, "workers": 6, "plant": ""}'

The tools note each event in the ledger before they do it. The judge never asks Onward whether an event was durable. It
concludes that from later events of the same process: an event that may only begin after a write proves the write.
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
"""The calls of the model in each turn."""

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

    async def note(kind: str, label: str, turn: int, n: int) -> None:
        book.write(kind, label, turn, n, os.getpid())
        await asyncio.sleep(0.01)

    @tool
    async def look(label: str, turn: int, n: int) -> str:
        """Look."""
        await note("look", label, turn, n)
        return f"seen {turn}.{n}"

    async def was_changed(label: str, turn: int, n: int) -> str | None:
        happened = ["change", label, turn, n] in [line[:4] for line in book.read()]
        return "changed" if happened else None

    @tool(risk="write_external", reconcile=was_changed)
    async def change(label: str, turn: int, n: int) -> str:
        """Change."""
        await note("change", label, turn, n)
        return "changed"

    class Model(ScriptedModel):
        async def ask(self, request: Any, emit: Any) -> Any:
            label = str(request.conversation[1]["content"])
            turn = sum(message["role"] == "assistant" for message in request.messages)
            await note("model", label, turn, 0)
            return await ScriptedModel([*map(calls_of(label), range(len(PLANS))), f"{label} done"]).ask(request, emit)

    for strategy in STRATEGIES:
        app.agent(strategy, model=Model([]), tools=[look, change], checkpoint=strategy)

    @app.task(checkpoint=Checkpoints("every_iteration", keep=KEEP))
    async def rounds(ctx: Any, label: str) -> list[str]:
        done = ctx.restored or []
        for number in range(len(done), ROUNDS):
            seen = await ctx.step(look.function, label, number, 0, name="look", effect="read")
            args = (label, number, 1)
            await ctx.step(change.function, *args, name="change", reconcile=was_changed)
            done = [*done, seen]
            await ctx.checkpoint(done)
        return list(done)

    return app


def calls_of(label: str) -> Any:
    def calls(turn: int) -> Any:
        fact = ("record_fact", {"key": "k", "value": turn, "source": "me"})
        return [
            fact if call == "fact" else (call, {"label": label, "turn": turn, "n": n})
            for n, call in enumerate(PLANS[turn])
        ]

    return calls


def plant(fault: str) -> None:
    """Breaks a promise of the worker, so that the judge has a fault to find."""

    async def never(self: Context) -> None:
        """Turns are not written before the next one begins."""

    async def at_once(self: DeferringSteps, call: Any) -> Any:
        """Effects do not wait until the reads before them are written, and are not written themselves."""
        return await self._reads.run(call)

    if fault == "turns":
        Context.flush = never  # type: ignore[method-assign]
    elif fault == "effects":
        DeferringSteps.run = at_once  # type: ignore[method-assign]


# ── the judge ────────────────────────────────────────────────────────────────────────────────────────────────────────

Event = tuple[str, int, int]
"""Kind, turn, number."""


def segments(lines: list[list[Any]]) -> dict[str, list[list[Event]]]:
    """For each task, the events of each process in order."""
    events: dict[str, dict[int, list[Event]]] = collections.defaultdict(dict)
    for kind, label, turn, n, pid in lines:
        events[label].setdefault(pid, []).append((kind, turn, n))
    return {label: list(by_process.values()) for label, by_process in events.items()}


def durable(strategy: str, event: Event, later: list[Event]) -> bool:
    """Whether later events of the same process prove that this one was written."""
    kind, turn, n = event
    beyond = [other for other in later if other[1] > turn]
    acted = [other for other in beyond if other[0] != "model"]
    if kind == "model":
        return any(other[0] != "model" for other in later)
    if kind == "change":
        return bool(later)
    if any(other[0] == "change" for other in later):
        return True
    if strategy == "every_step":
        return bool(beyond) or (turn not in GATHERED and any(other[2] > n for other in later))
    if strategy == "on_state_change":
        return bool(acted) or (turn in CHANGING and bool(beyond))
    return bool(beyond)


def judge(lines: list[list[Any]]) -> tuple[list[str], collections.Counter[str]]:
    """The events repeated although they were written, and how many reads of each strategy were repeated at all."""
    wrong: list[str] = []
    again: collections.Counter[str] = collections.Counter()
    for label, parts in segments(lines).items():
        strategy = label.partition(" ")[0]
        rule = "every_iteration" if strategy == "rounds" else strategy
        for place, part in enumerate(parts):
            after = {event for other in parts[place + 1 :] for event in other}
            for at, event in enumerate(part):
                if event in after and event[0] == "change":
                    wrong.append(f"{label}: {event} happened twice")
                elif event in after and durable(rule, event, part[at + 1 :]):
                    wrong.append(f"{label}: {event} was written and done again: {parts}")
                again[strategy] += event in after and event[0] == "look"
            twice = [event for event, times in collections.Counter(part).items() if times > 1]
            wrong += [f"{label}: {event} twice in one process" for event in twice]
    return wrong, again


def expected_result(label: str) -> Any:
    """The result of a task."""
    return [f"seen {number}.0" for number in range(ROUNDS)] if label.startswith("rounds") else f"{label} done"


if __name__ == "__main__":
    plant(json.loads(sys.argv[1]).get("plant", ""))
    crew.build = build
    sys.exit(crew.main())
