"""Branches that wait side by side, in workers that are killed and frozen: every message is taken once, and no program hangs."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from onward import Onward, State
from onward.core.record import Record
from onward.errors import StateConflict, StoreUnavailable
from tests.faults import branching
from tests.faults.band import Crew, Place, resume_quarantined

pytestmark = pytest.mark.slow

WORKERS, AT_ONCE, LEASE_S = 3, 40, 1.0
SETTINGS = {"lease_s": LEASE_S, "heartbeat_s": 0.2, "poll_s": 0.1, "slots": 40}
PROGRAM = "tests.faults.branching"
HANG_TIMEOUT_S = 120
"""A program that has not ended after this time hangs."""


class Run:
    """Runs many programs, `AT_ONCE` at a time, and sends each the signals that it needs."""

    def __init__(self, place: Place, app: Onward, seeds: range) -> None:
        self.place, self.app, self._seeds = place, app, iter(seeds)
        self.wrong: list[str] = []
        self.done = self.messages = 0

    async def all(self) -> None:
        await asyncio.gather(*(self._some() for _ in range(AT_ONCE)))

    async def _some(self) -> None:
        for seed in self._seeds:
            wrong = await self._one(seed)
            self.wrong += [f"seed {seed}: {sentence}" for sentence in wrong]
            self.done += 1

    async def _one(self, seed: int) -> list[str]:
        rng = random.Random(seed)
        branches = branching.draw(rng)
        named = random.Random(f"named {seed}").random() < 0.3
        task_input = {"branches": branches, "named": named}
        task = await insist(lambda: self.app.submit("program", task_input, key=f"p{seed}"))
        names = branching.signals(branches)
        rng.shuffle(names)
        words = rng.randint(0, 2)
        for number, name in enumerate([*names, *["message"] * words]):
            await asyncio.sleep(rng.choice([0, 0, 0, 0.02, 0.2]))
            for _ in range(rng.choice([1, 1, 2])):
                if not await self._signal(task.id, name, f"{name}-{number}"):
                    break
        ended = await self._ended(task.id)
        if ended is not State.COMPLETED:
            return [f"it is {ended}"]
        records = await journal(self.app, task.id)
        copied = [record for record in records if record.kind == "message.received"]
        self.messages += len(copied)
        kin = sum(record.value["kind"] == "child" for record in copied)
        missing = [] if kin == branching.children(branches) else [f"{kin} ends of children"]
        return [*branching.judge(records), *missing]

    async def _signal(self, task_id: str, name: str, value: str) -> bool:
        try:
            await insist(lambda: self.app.signal(task_id, name, value, id=value))
        except StateConflict:  # the program has ended: its waits had timeouts
            return False
        return True

    async def _ended(self, task_id: str) -> State | str:
        end = time.monotonic() + HANG_TIMEOUT_S
        while time.monotonic() < end:
            task = await insist(lambda: self.app.get(task_id))
            if task.ended:
                return task.state
            await asyncio.sleep(0.25)
        return f"still {task.state} ({task.reason}) after {HANG_TIMEOUT_S} s"


async def insist(ask: Callable[[], Any]) -> Any:
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(0.1)


async def journal(app: Onward, task_id: str) -> list[Record]:
    records: list[Record] = []
    while page := await insist(lambda: app.store.journal(task_id, records[-1].seq if records else 0, 2_000)):
        records += page
    return records


async def disturb(crew: Crew, place: Place, app: Onward, rng: random.Random, counts: dict[str, int]) -> None:
    """Kill one worker, freeze another for longer than its lease, and so on."""
    for trouble in itertools.cycle(["kill", "freeze", "kill"]):
        await asyncio.sleep(rng.uniform(0.3, 1.2))
        for pid in crew.pick(rng):
            if trouble == "kill":
                crew.kill9(pid)
                counts["killed"] += 1
            else:
                crew.freeze(pid)
                await asyncio.sleep(2.5 * LEASE_S)
                crew.thaw(pid)
                counts["frozen"] += 1
        counts["set free"] += await resume_quarantined(place, app)


async def trial(place: Place, seeds: range, **options: Any) -> tuple[Run, Crew, dict[str, int]]:
    rng, counts = random.Random(seeds.start), {"killed": 0, "frozen": 0, "set free": 0}
    app = branching.app_of({"db": place.url}, **SETTINGS)
    async with app:
        run = Run(place, app, seeds)
        with Crew(place, WORKERS, program=PROGRAM, **SETTINGS, **options).ready(WORKERS) as crew:
            trouble = asyncio.ensure_future(disturb(crew, place, app, rng, counts))
            try:
                await run.all()
            finally:
                trouble.cancel()
                await asyncio.gather(trouble, return_exceptions=True)
                for pid in list(crew.alive):
                    crew.thaw(pid)
            await asyncio.to_thread(crew.stop)
        census = await app.store.health.census()
        assert not census or options, census
    return run, crew, counts


async def test_branches_that_wait_take_each_message_once(
    place: Place, prove: bool, print_proof: Callable[..., None]
) -> None:
    run, crew, counts = await trial(place, range(10_000 if prove else 120))
    print_proof(
        "branches", place.kind, f"{run.done} programs", f"{run.messages} messages", counts, f"{len(run.wrong)} wrong"
    )
    assert not run.wrong, "\n".join(run.wrong[:20])
    assert not crew.unexpected_errors, crew.unexpected_errors
    assert counts["killed"], "VOID: no worker was killed"


async def test_several_readers_of_one_inbox_are_found(place: Place, print_proof: Callable[..., None]) -> None:
    run, _, counts = await trial(place, range(120), planted="several readers")
    print_proof("planted · several readers", place.kind, counts, f"{len(run.wrong)} wrong, the first: {run.wrong[:1]}")
    assert any("twice" in wrong for wrong in run.wrong), "the planted fault was not found"
