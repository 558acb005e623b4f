"""Random handlers, killed at random moments: in the middle of a step, before a commit, after one whose answer was lost.

Whatever the program and wherever it is killed, its result is the one of a run without kills. Every step is in the
journal once, and was called again at most once for each kill. A lock that a second task takes too has one task in its block at a time, each
with a larger token than all before it.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import itertools
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward import Retry, State, StepFailed
from onward.core import record as r
from onward.core.lock import Busy, LockRequest, Taken
from onward.store.port.core import SUSPECT_AFTER
from onward.store.shared.locks import Locks
from tests.kit import HandClock, Lab, Through, calm, dense

OPERATIONS = ["step", "plain", "again", "broken", "nap", "sleep", "now", "random", "tell", "boom", "lock"]
programs = st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=12)
crashes = st.lists(
    st.tuples(st.sampled_from(["in a step", "before a commit", "after a commit"]), st.integers(1, 6)), max_size=4
)

RIVAL_TURNS = 3
"""How often a second task takes the lock."""

MET: collections.Counter[str] = collections.Counter()


@dataclasses.dataclass
class Reaper:
    """Stops the worker for good at the n-th passing of a point; the test then removes it."""

    where: str = ""
    left: int = 0
    struck: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def passing(self, point: str) -> None:
        if point == self.where and not self.struck.is_set():
            self.left -= 1
            if self.left == 0:
                self.struck.set()
                await asyncio.Event().wait()

    def arm(self, where: str, count: int) -> None:
        self.where, self.left = where, count
        self.struck.clear()


class World:
    """One program in one store, with the calls of its steps counted outside."""

    def __init__(self, program: list[str]) -> None:
        self.program = program
        self.clock, self.reaper = HandClock(), Reaper()
        self.lab = Lab(self.clock)
        self.calls: collections.Counter[str] = collections.Counter()
        self.inside: str | None = None
        """The task in the block of the lock."""
        self.token = 0
        self.faults: list[str] = []
        self.real = self.lab.store
        self.lab.app._join(Through(self.real, save=self.save))  # type: ignore[arg-type]
        self.lab.app.task(self.handler, name="program", retry=Retry(attempts=20, first=0.3, factor=1))  # type: ignore[call-overload]
        self.lab.app.task(self.rival, name="rival", retry=Retry(attempts=20, first=0.3, factor=1))  # type: ignore[call-overload]

    async def save(self, worker: str, batch: Any) -> Any:
        await self.reaper.passing("before a commit")
        answer = await self.real.save(worker, batch)
        await self.reaper.passing("after a commit")
        return answer

    async def call(self, name: str, answer: Any) -> Any:
        self.calls[name] += 1
        await self.reaper.passing("in a step")
        return answer

    async def rival(self, ctx: Any) -> None:
        for place in range(RIVAL_TURNS):
            await self.locked(ctx, f"rival{place}", place)
            await ctx.sleep(0.3)

    async def locked(self, ctx: Any, name: str, answer: Any) -> Any:
        async with ctx.lock("resource") as lock:
            return await ctx.step(self.write, name, ctx.task_id, lock.token, answer, name=name)

    async def write(self, name: str, task_id: str, token: int, answer: Any) -> Any:
        """Write to the resource that the lock protects."""
        self.calls[name] += 1
        if self.inside not in {None, task_id}:
            self.faults.append(f"{name} is in the block beside another task")
        if token <= self.token:
            self.faults.append(f"{name} has the token {token} after {self.token}")
        self.inside, self.token = task_id, token
        await self.reaper.passing("in a step")
        await self.clock.sleep(0.1)
        self.inside = None
        return answer

    async def handler(self, ctx: Any) -> list[Any]:
        values: list[Any] = []
        for place, operation in enumerate(self.program):
            values.append(await self.operate(ctx, place, operation))
        return [value for value in values if not isinstance(value, float)]

    async def operate(self, ctx: Any, place: int, operation: str) -> Any:
        name = f"{operation}{place}"
        match operation:
            case "step":
                return await ctx.step(self.call, name, place, name=name)
            case "plain":
                return await ctx.step(lambda: self.calls.update([name]) or place, name=name)
            case "again":
                return await ctx.step(
                    self.flaky, name, name=name, retry=Retry(attempts=9, first=0.4, factor=5, jitter=0)
                )
            case "broken":
                try:
                    return await ctx.step(self.broken, name, name=name)
                except StepFailed as failed:
                    return f"{failed.kind} in {failed.step}"
            case "nap" | "sleep":
                return await ctx.sleep(0.5 if operation == "nap" else 4, name=name)
            case "lock":
                return await self.locked(ctx, name, place)
            case "now":
                return await ctx.now()
            case "random":
                return await ctx.random()
            case "tell":
                return ctx.progress(name)
            case _:
                if ctx.attempt <= self.program[: place + 1].count("boom"):
                    raise ConnectionError(name)
                return "survived"

    async def flaky(self, name: str) -> str:
        await self.call(name, None)
        if self.calls[name] < 3:
            raise ConnectionError(name)
        return name

    async def broken(self, name: str) -> None:
        await self.call(name, None)
        raise ValueError(name)

    def expected(self) -> list[Any]:
        plain = {
            "step": lambda place: place,
            "plain": lambda place: place,
            "lock": lambda place: place,
            "again": lambda place: f"again{place}",
            "broken": lambda place: f"ValueError in broken{place}",
            "boom": lambda _: "survived",
        }
        silent = {"now", "random"}
        return [plain[op](place) if op in plain else None for place, op in enumerate(self.program) if op not in silent]

    async def live(self, crashes: list[tuple[str, int]]) -> None:
        async with self.lab.app:
            task_id = await self.lab.submit("program")
            rival = await self.lab.submit("rival") if "lock" in self.program else None
            killed = 0
            for where, count in crashes:
                self.reaper.arm(where, count)
                await self.lab.start()
                if await self.until_struck(task_id):
                    MET[where] += 1
                    killed += 1
                await self.lab.crash()
                self.inside = None  # its process is gone
            self.reaper.arm("never", 1)
            await self.lab.start()
            await self.check(task_id, killed)
            if rival is not None:
                await self.resumed(rival, killed)
                assert (await self.lab.ended(rival)).state == State.COMPLETED
            assert not self.faults
            await self.lab.stop()

    async def until_struck(self, task_id: str) -> bool:
        async def either() -> bool:
            while not self.reaper.struck.is_set():
                if (await self.lab.app.get(task_id)).ended:
                    return False
                await self.clock.sleep(0.05)
            return True

        await calm()
        return await self.clock.until(either())

    async def resumed(self, task_id: str, killed: int) -> None:
        """A task that was killed again and again at one place is quarantined: a person would resume it."""
        task = await self.lab.settled(task_id)
        if task.reason == "quarantined":
            assert killed > SUSPECT_AFTER
            await self.lab.app.resume(task_id)

    async def check(self, task_id: str, killed: int) -> None:
        await self.resumed(task_id, killed)
        task = await self.lab.ended(task_id)
        assert (task.state, task.error) == (State.COMPLETED, None)
        assert task.result == self.expected()
        assert task.attempt == 1 + self.program.count("boom")
        records = await self.real.journal(task_id, limit=100_000)
        kept = [record.key for record in records if record.kind == r.STEP_DONE]
        assert len(kept) == len(set(kept)), "each step is recorded once"
        booms = self.program.count("boom")
        needed = {"step": 1, "plain": 1, "broken": 1, "again": 3, "lock": 1, "rival": 1}
        for name, count in self.calls.items():
            least = needed[name.rstrip("0123456789")]
            # A task that is tried again comes back to a failed step; the replay cannot know that the handler had caught the failure.
            most = least + killed + (booms if name.startswith("broken") else 0)
            assert least <= count <= most, (name, count)
        assert records[-1].kind == r.COMPLETED
        assert await dense(self.real, task_id)
        assert await self.real.health.census() == []


def _run(examples: int, *, chance: bool = False) -> None:
    MET.clear()

    @settings(max_examples=examples, derandomize=not chance, suppress_health_check=list(HealthCheck))
    @given(programs, crashes)
    def prove(program: list[str], crashes: list[tuple[str, int]]) -> None:
        asyncio.run(World(program).live(crashes))

    prove()
    print(f"met: {dict(MET)}")
    assert all(MET[where] for where in ("in a step", "before a commit", "after a commit")), MET


@pytest.mark.slow
def test_random_programs_survive_random_kills() -> None:
    _run(50)


@pytest.mark.slow
@pytest.mark.usefixtures("at_length")
def test_random_programs_survive_random_kills_at_length() -> None:
    _run(3_000, chance=True)


# ── faults that are planted in the lock ──────────────────────────────────────────────────────────────────────────────


def _token_per_holder() -> Any:
    """A task that takes the lock again gets the token that it had."""
    take, tokens = Locks.take, dict[str, int]()

    async def faulty(locks: Locks, request: LockRequest, *, wait: bool = True) -> Taken | Busy:
        taken = await take(locks, request, wait=wait)
        return Taken(tokens.setdefault(request.owner, taken.token)) if isinstance(taken, Taken) else taken

    return mock.patch.object(Locks, "take", faulty)


def _two_holders() -> Any:
    """A lock that another task holds is given all the same."""
    take, last = Locks.take, itertools.count(1_000_000)

    async def faulty(locks: Locks, request: LockRequest, *, wait: bool = True) -> Taken | Busy:
        taken = await take(locks, request, wait=wait)
        return taken if isinstance(taken, Taken) else Taken(next(last))

    return mock.patch.object(Locks, "take", faulty)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "finding"), [(_token_per_holder, "has the token"), (_two_holders, "beside another task")]
)
def test_a_fault_in_the_lock_is_found(plant: Any, finding: str) -> None:
    world = World(["lock", "nap", "lock", "step", "lock"])
    with plant(), pytest.raises(AssertionError):
        asyncio.run(world.live([("in a step", 2)]))
    assert any(finding in fault for fault in world.faults), world.faults


def test_a_program_and_its_rival_take_turns_at_a_lock() -> None:
    asyncio.run(World(["lock", "nap", "lock", "step", "lock"]).live([("in a step", 2), ("before a commit", 3)]))
