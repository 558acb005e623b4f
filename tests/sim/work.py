"""The tasks of the simulated cluster: random programs of steps, and a ledger of every effect that really happened."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from onward import Context, Fatal, Onward, Retry, StepFailed
from tests.sim.clock import SimClock
from tests.sim.loop import Process, SimLoop
from tests.sim.watch import Watch

Op = list[Any]
STUBBORN_S = 5
"""A step of this many seconds ignores a cancellation."""


class Flaky(Exception):
    """A failure of the handler's own."""


@dataclasses.dataclass(slots=True)
class Effect:
    """A step that began, and whether it failed."""

    task: str
    key: str
    process: Process
    began: float
    token: str
    failed: bool = False


class Ledger:
    """The outside world. Judges each effect at the moment it begins."""

    def __init__(self, loop: SimLoop, watch: Watch, lease: float) -> None:
        self._loop, self._watch, self._lease = loop, watch, lease
        self.effects: dict[tuple[str, str], list[Effect]] = {}
        self.falls: Counter[str] = Counter()
        self.closed = False
        self.deadly: Callable[[Process], None] = Process.kill

    def begin(self, process: Process, task: str, effect_key: str, before: list[str], *, timed: bool) -> Effect:
        owner, _, key = effect_key.partition(":")
        if owner != task:
            self._watch.fault(f"the effect key of task {task} is {effect_key}")
        known = self.effects.setdefault((task, key), [])
        effect = Effect(task, key, process, self._loop.time(), f"{key}@{len(known) + 1}")
        if self.closed:
            return effect
        known.append(effect)
        if process.dead:
            self._watch.fault(f"the dead process {process} runs {key} of {task[-4:]}")
        self._judge(effect, before, timed)
        if len(known) > 1 and not known[-2].failed:
            self._watch.seen["a step ran again because its record was not there"] += 1
        return effect

    def _judge(self, effect: Effect, before: list[str], timed: bool) -> None:
        picture = self._watch.tasks[effect.task]
        self._watch.note(f"{effect.process} runs {effect.key} of {effect.task[-4:]}")
        missing = [key for key in before if key not in picture.done and key not in picture.failed]
        if missing:
            self._watch.fault(f"step {effect.key} of {effect.task[-4:]} runs, but {missing} before it is not recorded")
        stopped = timed and effect.process.resumed_at == self._loop.time()
        excused = stopped or self._loop.time() - self._watch.jumped_at < 2 * self._lease
        if effect.task in self._watch.paused and not excused:
            self._watch.fault(f"step {effect.key} of {effect.task[-4:]} begins although its pause was answered")
        if effect.key not in picture.done:
            return
        # A lease depends on the clocks. When the database's is set forward, or a process is stopped between its look at
        # the clock and its call (a step with a timeout begins a turn later), the same step can begin twice; the fence still
        # keeps the second record out.
        if excused:
            self._watch.seen["a clock made a recorded step run again"] += 1
        else:
            self._watch.fault(
                f"step {effect.key} of {effect.task[-4:]} runs again on {effect.process} after its record"
            )

    def fall(self, task: str, most: int) -> bool:
        """Whether the handler raises once more."""
        self.falls[task] += 1
        return self.falls[task] <= most


def register(app: Onward, process: Process, clock: SimClock, ledger: Ledger, *, all_names: bool = True) -> None:
    """Registers the handlers with an app; their effects carry the name of its process."""

    async def program(ctx: Context, ops: list[Op]) -> Any:
        values: list[Any] = []
        before: list[str] = []
        seen: Counter[str] = Counter()

        async def effect(seconds: float, fails: int, timed: bool, kills: int = 0) -> str:
            entry = ledger.begin(process, ctx.task_id, ctx.key, list(before), timed=timed)
            if len(ledger.effects[ctx.task_id, entry.key]) <= kills:
                ledger.deadly(process)
                await asyncio.Event().wait()
            try:
                await clock.sleep(seconds)
            except asyncio.CancelledError:
                if seconds != STUBBORN_S:
                    raise
                await clock.sleep(seconds)
            if len(ledger.effects[ctx.task_id, entry.key]) <= fails:
                entry.failed = True
                raise Flaky(entry.token)
            return entry.token

        async def step(name: str, seconds: float, fails: int, attempts: int, timeout: float | None, *kills: int) -> Any:
            seen[name] += 1
            key = name if seen[name] == 1 else f"{name}#{seen[name]}"
            retry = Retry(attempts=attempts, first=0.2 if attempts % 2 else 1.5, factor=3, cap=4)
            try:
                return await ctx.step(
                    effect, seconds, fails, timeout is not None, *kills, name=name, retry=retry, timeout=timeout
                )
            finally:
                before.append(key)

        async def branch(acts: list[Op]) -> list[Any]:
            taken: list[Any] = []
            for act, *more in acts:
                if act == "sleep":
                    await ctx.sleep(more[0])
                    continue
                value = await ctx.signal(more[0], timeout=more[1], default=None)
                taken.append(value)
                if value is not None:
                    await ctx.step(effect, 0.05, 0, False, name=f"charge {value}")
            return taken

        for op, *args in ops:
            match op:
                case "gather":
                    values.append(await ctx.gather(*(branch(acts) for acts in args[0])))
                case "step":
                    values.append(await step(*args))
                case "try":
                    try:
                        values.append(await step(*args))
                    except StepFailed as error:
                        values.append(error.kind)
                case "sleep":
                    await ctx.sleep(args[0])
                case "now":
                    values.append(await ctx.now())
                case "random":
                    values.append([await ctx.random(), await ctx.uuid()])
                case "progress":
                    ctx.progress("on the way", len(values), len(ops))
                case "fall":
                    if ledger.fall(ctx.task_id, args[0]):
                        raise Flaky("fell")
                case "fatal":
                    raise Fatal("for good")
        return values

    app.task(program, name="patient", retry=Retry(attempts=5, first=0.5, factor=2, cap=8))
    app.task(program, name="hasty", retry=2, deadline=30)
    if all_names:
        app.task(program, name="single", retry=1, queue="side")


def draw_branches(rng: random.Random) -> Op:
    """Branches that wait for signals side by side, each for a time: nothing hangs when no signal comes."""

    def act() -> Op:
        if rng.random() < 0.2:
            return ["sleep", rng.choice([0.1, 0.6, 3.0])]
        return ["take", rng.choice(["go", "order"]), rng.choice([0.1, 0.7, 4.0, 30.0])]

    return ["gather", [[act() for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(2, 5))]]


def draw(rng: random.Random, poison: float) -> tuple[str, list[Op], dict[str, Any]]:
    """A handler's name, a program for it, and the options of its submit."""
    ops: list[Op] = []
    for number in range(rng.randint(1, 6)):
        name = rng.choice(["fetch", "write", f"s{number}"])
        seconds = rng.choice([0, 0, 0, 0.05, 0.05, 0.3, 0.3, 2, 2, 7, STUBBORN_S])
        kind = rng.random()
        if kind < 0.55:
            ops.append(["step", name, seconds, 0, 1, None])
        elif kind < 0.68:
            ops.append(["step", name, seconds, rng.randint(1, 3), rng.randint(1, 4), None])
        elif kind < 0.74:
            ops.append(["step", name, min(seconds, rng.choice([0.3, 2])), 0, 2, 1.0])
        elif kind < 0.80:
            ops.append(["try", name, seconds, rng.randint(1, 3), 1, None])
        elif kind < 0.92:
            ops.append(["sleep", rng.choice([0.2, 0.9, 1.5, 8, 30, 3600, 90_000])])
        else:
            ops.append([rng.choice(["now", "random"])])
        if rng.random() < 0.2:
            ops.append(["progress"])
    if rng.random() < 0.15:
        ops.insert(rng.randrange(len(ops) + 1), ["fall", rng.randint(1, 2)])
    if rng.random() < 0.04:
        ops.append(["fatal"])
    if rng.random() < poison:
        ops.insert(rng.randrange(len(ops) + 1), ["step", "poison", 0, 0, 1, None, rng.choice([1, 3, 5, 9])])
    options: dict[str, Any] = {"priority": rng.choice([0, 0, 0, 5, -5])}
    if rng.random() < 0.15:
        options["delay"] = rng.choice([1.0, 10.0, 4000.0])
    if rng.random() < 0.1:
        options["expires"] = rng.choice([1.0, 20.0])
    if rng.random() < 0.1:
        options["deadline"] = rng.choice([3.0, 15.0, 5000.0])
    return rng.choice(["patient", "patient", "hasty", "single"]), ops, options
