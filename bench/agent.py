"""W7, an agent's long conversation: 300 turns, each with a tool output of 100 kB, and what the last of them costs.

The model answers at once, so that what is measured is Onward's own: the slice that a model call is shown, the way from a tool's
result to the next model call, the memory of the worker, the bytes in the database, and, after a kill -9 in the middle of a
model call, how long a worker that is up takes from its claim to that call.

`python -m bench.agent worker URL` is the worker in another process.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from bench.measure import (
    W7_BYTES,
    W7_MEMORY,
    W7_RESUME,
    W7_SLICE,
    W7_TURN,
    Figure,
    percentile,
)
from bench.peers import child
from bench.workloads import figure, query, resident, until
from onward import Onward
from onward.agent import loop
from onward.agent.conversation import Conversation
from onward.agent.model import Reply, Request, ToolCall
from onward.agent.tools import tool
from rig.ledger import Ledger

TURNS = 300
OUTPUT = 100_000
STOPS = (0, 1, 5, 10, 15, 18)
"""Turns after the last one of the conversation in which the worker is killed: from the checkpoint to the next one."""

STORED = "SELECT (SELECT coalesce(sum(length(data)), 0) FROM onward_journal) + (SELECT coalesce(sum(length(data)), 0) FROM onward_contents)"  # what we wrote


class Talker:
    """A model that looks once more, whatever it is shown; killed where its plan says, it never answers."""

    name = "talker"

    def __init__(self, url: str, ledger: Ledger, turns: int) -> None:
        self._url, self._ledger, self._turns = url, ledger, turns
        self.sliced = [0.0, 0.0]
        """Seconds spent on the slice of this call, by the clock and of this thread alone."""
        self.told = 0.0
        """When the last output was there."""

    async def ask(self, request: Request, emit: Any) -> Reply:
        now, wall = time.perf_counter(), time.time()
        content = str(request.conversation[-1]["content"])
        turn = int(content.split()[1]) + 1 if request.conversation[-1]["role"] == "tool" else 1
        stored = query(self._url, STORED) if turn in {1, *(self._turns * third // 3 for third in (1, 2, 3))} else 0
        took = now - self.told if self.told else 0.0
        self._ledger.write("asked", turn, wall, resident(), self.sliced, took, stored)
        if turn - self._turns in STOPS and self._first(turn):
            await asyncio.sleep(3600)
        if turn >= self._turns + STOPS[-1]:
            return Reply("enough")
        return Reply("", (ToolCall(f"call_{turn}", "dump", f'{{"turn":{turn}}}'),), finish="tool_calls")

    def _first(self, turn: int) -> bool:
        try:
            os.close(os.open(self._ledger.path.parent / f"stop {turn}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def make_app(url: str, ledger: Ledger, turns: int) -> Onward:
    app, talker = Onward(url), Talker(url, ledger, turns)

    @tool
    async def dump(turn: int) -> str:
        """100 kB that cannot be made smaller."""
        rng = random.Random(turn)
        lines = [f"output {turn} of the tool:", *(rng.randbytes(50).hex() for _ in range(OUTPUT // 101))]
        talker.told = time.perf_counter()
        return "\n".join(lines)

    def timed(owner: Any, name: str, *, first: bool = False) -> None:
        whole = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            if first:  # what is replayed asks for its slices too
                talker.sliced = [0.0, 0.0]
            start = time.perf_counter(), time.thread_time()
            try:
                return whole(*args, **kwargs)
            finally:
                ends = time.perf_counter(), time.thread_time()
                talker.sliced = [sum(part) for part in zip(talker.sliced, ends, map(operator.neg, start), strict=True)]

        setattr(owner, name, run)

    timed(Conversation, "shown", first=True)
    timed(loop, "_state_text")
    app.agent("talk", model=talker, tools=[dump], compact=False)
    return app


def w7(store: str, url: str, quick: bool) -> list[Figure]:
    """300 turns in one process, then kills in further turns, each taken over by a worker that is up."""
    turns = 60 if quick else TURNS
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger")
        resumes = uvloop.run(_talk(url, ledger, turns))
        asked = [line[1:] for line in ledger.read()]
    first = {turn: line for line in reversed(asked) if (turn := line[0]) <= turns}
    slices, alone = ([line[3][how] * 1000 for line in asked if line[0] > turns // 2] for how in (0, 1))
    early, late = ([first[turn][4] for turn in range(at - 40, at)] for at in (50, turns))
    marks = [first[turn][5] for turn in (1, *(turns * third // 3 for third in (1, 2, 3)))]
    thirds = [after - before for before, after in itertools.pairwise(marks)]
    memory = {turn: first[turn][2] for turn in (turns // 6, turns // 2, turns)}
    return [
        figure(
            W7_SLICE,
            store,
            percentile(slices, 50),
            "ms",
            f"max {max(slices):.1f} ms, {max(alone):.1f} ms without others, in the last {turns // 2} turns",
        ),
        figure(
            W7_TURN,
            store,
            percentile(late, 50) * 1000,
            "ms",
            f"from a tool's output to the next model call, at turn {turns}; {percentile(early, 50) * 1000:.1f} ms at turn 50",
        ),
        figure(
            W7_RESUME,
            store,
            percentile(resumes, 50) * 1000,
            "ms",
            f"claim to model call at turn {turns}, max {max(resumes) * 1000:.0f} ms of {len(resumes)} kills",
        ),
        figure(
            W7_MEMORY,
            store,
            max(0.0, memory[turns] - memory[turns // 6]),
            "MB",
            "at turn " + ", ".join(f"{turn}: {size:.0f} MB" for turn, size in memory.items()),
        ),
        figure(
            W7_BYTES, store, thirds[2] / thirds[0], "ratio", "MB: " + ", ".join(f"{size / 1e6:.2f}" for size in thirds)
        ),
    ]


async def _talk(url: str, ledger: Ledger, turns: int) -> list[float]:
    """Seconds from each claim after a kill to the model call."""
    resumes = []
    async with make_app(url, ledger, turns) as app:
        with ExitStack() as stack:
            worker, spare = (_started(stack, url, ledger, turns) for _ in range(2))
            task = await app.submit("talk", "Look around, for a long time.")
            for stop in STOPS:
                await _until(lambda at=turns + stop: (ledger.path.parent / f"stop {at}").exists())
                holder = query(
                    url, "SELECT pid FROM onward_workers WHERE id = (SELECT worker FROM onward_queue LIMIT 1)"
                )
                if holder != worker.pid:
                    worker, spare = spare, worker
                asked = len(ledger.read())
                worker.kill9()
                await _until(lambda then=asked: len(ledger.read()) > then)
                claimed = query(url, "SELECT max(at) FROM onward_journal WHERE kind = 'shift.started'")
                resumes.append(ledger.read()[asked][2] - claimed)
                worker = _started(stack, url, ledger, turns)
            assert await task.result(60) == "enough"
    return resumes


async def _until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition)


def _started(stack: ExitStack, url: str, ledger: Ledger, turns: int) -> child.Worker:
    worker = stack.enter_context(child.Worker("worker", url, ledger.path, turns, module="bench.agent"))
    worker.hear()
    worker.tell("go")
    worker.hear()
    return worker


async def _worker(url: str, ledger: str, turns: str) -> None:
    app = make_app(url, Ledger(Path(ledger)), int(turns))
    async with app:
        await asyncio.to_thread(child.wait_to_be_told)
        async with app.worker(slots=10):
            child.say("up")
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    child.main({}, {"worker": lambda url, ledger, turns: uvloop.run(_worker(url, ledger, turns))})
