"""Agents of other frameworks in workers that are killed with -9: right answers, nothing recorded is done again, no effect twice."""

from __future__ import annotations

import asyncio
import collections
import importlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from onward import Onward, State
from rig.server import Unavailable
from tests.faults import clerks
from tests.faults.band import Crew, Place, resume_quarantined
from tests.faults.test_faults_branches import insist

pytestmark = pytest.mark.slow

WORKERS, AT_ONCE = 3, 6
SETTINGS = {"lease_s": 1.0, "heartbeat_s": 0.2, "poll_s": 0.1, "slots": 10}
HANG_TIMEOUT_S = 240
SMALL = {("sqlite", "tests.faults.shops"), ("postgres", "tests.faults.clerks")}
"""Outside of `make prove`: each store once, and each framework once."""


class Run:
    """Submits agents and looks after them until so many workers were killed."""

    def __init__(self, place: Place, app: Onward, kills: int) -> None:
        self.place, self.app, self._kills = place, app, kills
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    async def agents(self) -> None:
        while self.counts["killed"] < self._kills:
            task = await insist(lambda: self.app.submit("clerk", "Look around, deposit and pay."))
            await asyncio.wait_for(self._look_after(task.id), HANG_TIMEOUT_S)

    async def _look_after(self, task_id: str) -> None:
        """Approve what the agent asks, and say of an effect in doubt what the ledger knows."""
        while not (task := await insist(lambda: self.app.get(task_id))).ended:
            if task.state is State.WAITING:
                for ask in await insist(self.app.asks):
                    if ask.task_id == task_id:
                        await insist(lambda ask=ask: self.app.decide(ask.id, "approve"))
                for _ in await insist(lambda: self.app.doubts(task_id)):
                    paid = any(line[:2] == ["paid", task_id] for line in self.place.ledger.read())
                    verdict = ("happened", "paid 7") if paid else ("not_happened",)
                    await insist(lambda verdict=verdict: self.app.resolve(task_id, *verdict))
                    self.counts["in doubt"] += 1
            await asyncio.sleep(0.05)
        self.counts["agents"] += 1
        if task.result != clerks.ANSWER:
            self.wrong.append(f"{task_id} is {task.state}: {task.result} {task.error}")

    async def kill(self, crew: Crew, rng: random.Random) -> None:
        while self.counts["killed"] < self._kills:
            await asyncio.sleep(rng.uniform(0.1, 0.6))
            for pid in crew.pick(rng):
                crew.kill9(pid)
                self.counts["killed"] += 1
            self.counts["set free"] += await resume_quarantined(self.place, self.app)
        while True:  # the last kills may have put tasks into quarantine too
            await asyncio.sleep(0.5)
            self.counts["set free"] += await resume_quarantined(self.place, self.app)


def check(run: Run) -> None:
    """Judge the ledger: what was done, by which task, and whether the journal had it already."""
    lines = run.place.ledger.read()
    run.counts["requests"] = sum(line[0] == "asked" for line in lines)
    again = [line for line in lines if line[3]]
    assert not again, f"done again although recorded: {again[:5]}"
    paid = collections.Counter(line[1] for line in lines if line[0] == "paid")
    assert all(count == 1 for count in paid.values()), f"paid twice: {paid.most_common(3)}"
    keys = collections.defaultdict(set)
    for line in lines:
        if line[0] == "deposited":
            keys[line[1]].add(line[4])
    assert all(len(of_task) == 1 for of_task in keys.values()), "a repeated deposit has another key"
    assert len(paid) == len(keys) == run.counts["agents"]


@pytest.mark.parametrize("program", ["tests.faults.clerks", "tests.faults.shops"], ids=["pydantic ai", "openai agents"])
async def test_agents_survive_kill_9(
    place: Place, prove: bool, print_proof: Callable[..., None], program: str, request: pytest.FixtureRequest
) -> None:
    if (place.kind, program) not in SMALL:
        request.getfixturevalue("at_length")
    kills = 100 if prove else 15
    options: dict[str, Any] = {"db": place.url, "ledger": str(place.ledger.path)}
    try:
        app = importlib.import_module(program).app_of(options, **SETTINGS)
    except Unavailable as missing:
        pytest.skip(f"the framework cannot be installed here: {missing}")
    async with app:
        run = Run(place, app, kills)
        with Crew(place, WORKERS, program=program, **SETTINGS).ready(WORKERS) as crew:
            killing = asyncio.ensure_future(run.kill(crew, random.Random(1)))
            try:
                await asyncio.gather(*(run.agents() for _ in range(AT_ONCE)))
            finally:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
            await asyncio.to_thread(crew.stop)
        assert await app.store.health.census() == []
    check(run)
    print_proof(program, place.kind, dict(run.counts), f"{len(run.wrong)} wrong")
    assert not run.wrong, "\n".join(run.wrong[:10])
    assert not crew.unexpected_errors, crew.unexpected_errors
    assert run.counts["killed"] >= kills
