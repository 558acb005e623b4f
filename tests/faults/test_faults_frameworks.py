"""Agents of other frameworks in workers that are killed with -9: right answers, nothing recorded is done again, no effect twice."""

from __future__ import annotations

import asyncio
import collections
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward import Onward, State
from onward.engine.context.arguments import is_async
from onward.engine.context.call import Call
from onward.engine.shift.scope import SCOPE
from onward.engine.shift.steps import Steps
from onward.testing import MemoryApp, crashes, drain, memory_app
from rig.ledger import Ledger
from rig.server import Unavailable
from tests.faults.band import Crew, Place, resume_quarantined
from tests.faults.test_faults_branches import insist

pytestmark = pytest.mark.slow

WORKERS, AT_ONCE = 3, 6
SETTINGS = {"lease_s": 1.0, "heartbeat_s": 0.2, "poll_s": 0.1, "slots": 10}
HANG_TIMEOUT_S = 240
PAUSE_S, MAX_PAUSE_S = 0.02, 3.0
"""How often a killer looks for work that was done, and after how long it kills a worker anyway."""
PROGRAMS = {"pydantic ai": "clerks", "openai agents": "shops", "langgraph": "graphs", "claude": "claudes"}
"""The modules of the agents, by their frameworks."""
SMALL = {("sqlite", "openai agents"), ("postgres", "pydantic ai"), ("postgres", "langgraph"), ("sqlite", "claude")}
"""Outside of `make prove`: each framework once, and each store."""
MAX_DECISIONS = 10
"""Approvals and doubts of one agent, after which it does not get on."""
AGAIN = "done again although recorded"


def program_of(framework: str) -> Any:
    """The module of the agents. Skips the test where the framework cannot be installed."""
    try:
        return importlib.import_module(f"tests.faults.{PROGRAMS[framework]}")
    except Unavailable as missing:
        pytest.skip(f"the framework cannot be installed here: {missing}")


class Run:
    """Submits agents and looks after them until so many workers were killed."""

    def __init__(self, program: Any, place: Place, app: Onward, kills: int) -> None:
        self.program, self.place, self.app, self._kills = program, place, app, kills
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    async def agents(self) -> None:
        while self.counts["killed"] < self._kills:
            task = await insist(lambda: self.app.submit("clerk", self.program.GOAL))
            await asyncio.wait_for(self._look_after(task.id), HANG_TIMEOUT_S)

    async def _look_after(self, task_id: str) -> None:
        """Approve what the agent asks, and say of an effect in doubt what the ledger knows."""
        while not (task := await insist(lambda: self.app.get(task_id))).ended:
            if task.state is State.WAITING:
                for ask in await insist(self.app.asks):
                    if ask.task_id == task_id:
                        await insist(lambda ask=ask: self.app.decide(ask.id, "approve"))
                for _ in await insist(lambda: self.app.doubts(task_id)):
                    verdict = verdict_of(self.program, self.place.ledger, task_id)
                    await insist(lambda verdict=verdict: self.app.resolve(task_id, *verdict))
                    self.counts["in doubt"] += 1
            await asyncio.sleep(0.05)
        self.counts["agents"] += 1
        if task.result != self.program.ANSWER:
            self.wrong.append(f"{task_id} is {task.state}: {task.result} {task.error}")

    async def _some_work(self, lines: int) -> None:
        """Wait until the agents have noted some work: a worker that has done nothing is not worth killing."""
        enough = len(self.place.ledger.read()) + lines
        for _ in range(int(MAX_PAUSE_S / PAUSE_S)):
            if len(self.place.ledger.read()) >= enough:
                return
            await asyncio.sleep(PAUSE_S)

    async def kill(self, crew: Crew, rng: random.Random) -> None:
        while self.counts["killed"] < self._kills:
            await self._some_work(rng.randint(1, 6))
            await asyncio.sleep(rng.uniform(0, 0.1))
            for pid in crew.pick(rng):
                crew.kill9(pid)
                self.counts["killed"] += 1
            self.counts["set free"] += await resume_quarantined(self.place, self.app)
        while True:  # the last kills may have put tasks into quarantine too
            await asyncio.sleep(0.5)
            self.counts["set free"] += await resume_quarantined(self.place, self.app)


def verdict_of(program: Any, ledger: Ledger, task_id: str) -> tuple[Any, ...]:
    """What a person says of a payment in doubt: the ledger knows."""
    paid = any(line[:2] == ["paid", task_id] for line in ledger.read())
    return ("happened", program.PAID) if paid else ("not_happened",)


def check(lines: list[list[Any]], agents: int) -> None:
    """Judge the ledger: what was done, by which task, and whether the journal or the transcript had it already."""
    again = [line for line in lines if line[3]]
    assert not again, f"{AGAIN}: {again[:5]}"
    recorded: set[tuple[str, str]] = set()
    for event, task_id, what, *_ in lines:
        if event == "recorded":
            recorded.add((task_id, what))
        assert (task_id, f"result of {what}" if event == "looked" else what) not in recorded or event == "recorded", (
            f"{AGAIN}: {event} {what} of {task_id}"
        )
    paid = collections.Counter(line[1] for line in lines if line[0] == "paid")
    assert all(count == 1 for count in paid.values()), f"paid twice: {paid.most_common(3)}"
    assert len(paid) == agents
    keys = collections.defaultdict(set)
    for line in lines:
        if line[0] == "deposited":
            keys[line[1]].add(line[4])
    assert all(len(of_task) == 1 for of_task in keys.values()), "a repeated deposit has another key"
    assert len(keys) == (agents if keys else 0)


@pytest.mark.parametrize("framework", PROGRAMS)
async def test_agents_survive_kill_9(
    place: Place, prove: bool, print_proof: Callable[..., None], framework: str, request: pytest.FixtureRequest
) -> None:
    if (place.kind, framework) not in SMALL:
        request.getfixturevalue("at_length")
    kills = 100 if prove else 15
    program = program_of(framework)
    app = program.app_of({"db": place.url, "ledger": str(place.ledger.path)}, **SETTINGS)
    async with app:
        run = Run(program, place, app, kills)
        with Crew(place, WORKERS, program=program.__name__, **SETTINGS).ready(WORKERS) as crew:
            killing = asyncio.ensure_future(run.kill(crew, random.Random(1)))
            try:
                await asyncio.gather(*(run.agents() for _ in range(AT_ONCE)))
            finally:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
            await asyncio.to_thread(crew.stop)
        assert await app.store.health.census() == []
    lines = place.ledger.read()
    run.counts["requests"] = sum(line[0] == "asked" for line in lines)
    print_proof(framework, place.kind, dict(run.counts), f"{len(run.wrong)} wrong")
    check(lines, run.counts["agents"])
    assert not run.wrong, "\n".join(run.wrong[:10])
    assert not crew.unexpected_errors, crew.unexpected_errors
    assert run.counts["killed"] >= kills


# ── at every point ───────────────────────────────────────────────────────────────────────────────────────────────────


async def _kill_at_every_point(framework: str, folder: Path) -> int:
    """Run one agent for each point at which a kill could do harm. Returns the number of points."""
    program, base, points = program_of(framework), memory_app(), 0
    ledger = Ledger(folder / "ledger")
    world = program.add(base, ledger)
    async for app in crashes(base):
        ledger.path.write_text("")
        world.app = app
        task = await app.submit("clerk", program.GOAL)
        result = await _run_to_end(app, program, ledger, task.id)
        assert result == program.ANSWER, app.killed_at
        check(ledger.read(), 1)
        points += 1
    return points


async def _run_to_end(app: MemoryApp, program: Any, ledger: Ledger, task_id: str) -> Any:
    for _ in range(MAX_DECISIONS):
        if not await drain(app):
            return (await app.get(task_id)).result
        for ask in await app.asks():
            await app.decide(ask.id, "approve")
        for _ in await app.doubts(task_id):
            await app.resolve(task_id, *verdict_of(program, ledger, task_id))
    raise AssertionError(f"it does not end: {await app.get(task_id)}")


@pytest.mark.parametrize("framework", PROGRAMS)
async def test_agents_survive_a_kill_at_every_point(
    framework: str, tmp_path: Path, print_proof: Callable[..., None]
) -> None:
    points = await _kill_at_every_point(framework, tmp_path)
    print_proof(framework, f"{points} points")
    assert points > 10


@pytest.mark.parametrize("framework", PROGRAMS)
async def test_a_replay_that_does_recorded_work_again_is_caught(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above find a replay that asks the model, or calls a tool, although it has the result."""
    run = Steps.run

    async def repeating(self: Steps, call: Call) -> Any:
        function, called = call.function, []

        async def noting(*args: Any, **kwargs: Any) -> Any:
            called.append(True)
            return await function(*args, **kwargs)

        if not is_async(function):
            return await run(self, call)
        call.function = noting
        result = await run(self, call)
        if not called:
            scope = SCOPE.get()
            scope.key = scope.prefix + scope.last_name
            try:
                await function(*call.args, **call.kwargs)
            finally:
                scope.key = None
        return result

    monkeypatch.setattr(Steps, "run", repeating)
    with pytest.raises(AssertionError, match=AGAIN):
        await _kill_at_every_point(framework, tmp_path)
