"""An agent killed with -9 at every boundary of its turns: after each kill the next request to the model is well formed, no
effect is doubled, and no recorded answer is paid for again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from onward import Onward
from onward.app.connect import open_store
from onward.errors import AlreadyDecided, StateConflict
from tests.faults import errands
from tests.faults.band import Crew, Place
from tests.faults.errands import ANSWER, BOUNDARIES, PAID, goal
from tests.faults.errands_verdict import Finding, judge
from tests.faults.planted import FAULTS

pytestmark = pytest.mark.slow

WORKERS = 4
SETTINGS: dict[str, Any] = {"lease_s": 2.0, "heartbeat_s": 0.4, "poll_s": 0.1}


class Errands:
    """Tasks of the agent, and the person who answers their questions."""

    def __init__(self, place: Place, app: Onward) -> None:
        self._place, self._app = place, app
        self._goals: dict[str, str] = {}
        self._seen: set[str] = set()

    async def submit(self, goal_text: str) -> str:
        handle = await self._app.submit("errand", goal_text)
        self._goals[handle.id] = goal_text
        return handle.id

    async def until_all_ended(self, timeout: float) -> None:
        """Answers and decides until all tasks have ended. After `timeout` it returns too: the verdict finds the rest."""
        end = time.monotonic() + timeout
        sql = "SELECT count(*) FROM onward_queue WHERE reason NOT IN ('quarantined', 'parked')"
        while time.monotonic() < end and (await asyncio.to_thread(self._place.rows, sql))[0][0]:
            await self._attend()
            await asyncio.sleep(0.05)

    async def _attend(self) -> None:
        for ask in await self._app.asks():
            if ask.id in self._seen:
                continue
            self._seen.add(ask.id)
            if ask.kind == "approval":
                self._place.ledger.write("approved", ask.task_id)
                await self._app.decide(ask.id, "approve")
            else:
                await self._app.answer(ask.id, ANSWER)
        sql = "SELECT task_id FROM onward_queue WHERE reason = 'in_doubt'"
        for (task,) in await asyncio.to_thread(self._place.rows, sql):
            for doubt in await self._app.doubts(task):
                with contextlib.suppress(AlreadyDecided, StateConflict):
                    await self._resolve(task, doubt.step)

    async def _resolve(self, task: str, step: str) -> None:
        """Resolves a step in doubt: it happened if the ledger has its effect."""
        lines = [line for line in self._place.ledger.read() if line[1] == task]
        tried = {line[4] for line in lines if line[0] == "start" and line[2] == step}
        happened = any(line[0] == "applied" and line[2] in tried for line in lines)
        await self._app.resolve(task, "happened" if happened else "not_happened", PAID if happened else None, step=step)

    def judged(self, answer: str) -> dict[str, Finding]:
        """The verdict on each boundary."""
        picture, ledger = self._place.look(), self._place.ledger.read()
        by: dict[str, dict[str, str]] = {}
        for task, goal_text in self._goals.items():
            by.setdefault(errands.read_goal(goal_text)[1], {})[task] = goal_text
        return {where: judge(picture, ledger, self._place.home, goals, answer) for where, goals in by.items()}

    def passed(self, task: str) -> Mapping[str, int]:
        """How often the task came to each boundary."""
        paths = [path for path in (self._place.home / "passed").iterdir() if path.name.startswith(task)]
        return {path.name.partition(" ")[2]: path.stat().st_size for path in paths}


def crew(place: Place, fault: str = "") -> Crew:
    return Crew(place, WORKERS, program="tests.faults.errands", slots=1, fault=fault, **SETTINGS).ready(1)


async def census(place: Place) -> list[tuple[str, str]]:
    store = open_store(place.url)
    await store.open()
    try:
        return list(await store.health.census())
    finally:
        await store.close()


async def test_killed_at_every_boundary(place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    kills = 20 if prove else 1
    app, _ = errands.build(place.url, str(place.ledger.path), **SETTINGS)
    async with app:
        work = Errands(place, app)
        with crew(place) as workers:
            whole = await work.submit(goal(0))
            await work.until_all_ended(30)
            answer = str(await app.handle(whole).result(timeout=1))
            passed = work.passed(whole)
            assert set(passed) == set(BOUNDARIES), "VOID: the errand does not come to every boundary"
            kill_points = [
                (boundary, number % passed[boundary] + 1)
                for boundary in BOUNDARIES
                for number in range(max(kills, passed[boundary] if prove else 1))
            ]
            for number, (boundary, passing) in enumerate(kill_points, start=1):
                await work.submit(goal(number, boundary, passing))
            await work.until_all_ended(60 + 4 * len(kill_points))  # a busy machine is no fault
            await asyncio.to_thread(workers.stop)
            deaths = sum(status == -signal.SIGKILL for _, status in workers.ends)
    findings = work.judged(answer)
    orphans = await census(place)
    for boundary, finding in findings.items():
        print_proof(f"agent, kill -9 at {boundary}", place.kind, f"passed {passed.get(boundary, 0)} times", finding)
    print_proof("agent, kill -9", place.kind, f"{deaths} deaths", f"census {len(orphans)}")
    for finding in findings.values():
        finding.must_be_clean()
    assert not orphans
    assert deaths == len(kill_points), "a worker died that should not have"
    assert not workers.unexpected_errors, workers.unexpected_errors


# The results of an errand come in order: plan, fact, look, look, look, look, deposit (7), pay (8), send (9) …
CAUGHT = {
    "a replay that forgets": ("result.saved", 3, "paid_again"),
    "a history without a result": ("nowhere", 0, "unpaired"),
    "a history without a call": ("nowhere", 0, "unpaired"),
    "an announcement that is overlooked": ("result.saving", 8, "doubled"),
    "an effect key that changes": ("result.saving", 7, "doubled"),
    "a reconcile that is never called": ("result.saving", 9, "doubled"),
    "an approval without a decision": ("nowhere", 0, "unapproved"),
    "a checkpoint that loses a result": ("checkpoint.saved", 2, "unpaired"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_is_caught(sqlite: Place, fault: str) -> None:
    boundary, passing, caught = CAUGHT[fault]
    app, _ = errands.build(sqlite.url, str(sqlite.ledger.path), **SETTINGS)
    async with app:
        work = Errands(sqlite, app)
        with crew(sqlite, fault):
            await work.submit(goal(1, boundary, passing))
            await work.until_all_ended(10)
    finding = work.judged("?")[boundary]
    assert not finding.void, finding.void
    assert caught in finding.faults, finding.faults
