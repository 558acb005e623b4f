"""Checkpoint strategies: killed anywhere, an agent loses no more than its strategy allows; and each is cheaper than the last."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import Any, ClassVar

import pytest

from onward import Onward
from onward.agent.loop import CHECKPOINT_EVERY_TURNS
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import record as r
from onward.core.crash import crashpoint
from onward.core.journal.checkpoint import STRATEGIES
from onward.engine.context.context import Context
from onward.engine.shift.reads import DeferringSteps
from onward.errors import BadSetting
from onward.store.writer import MAX_DEFERRED
from onward.testing import Killed, MemoryApp, crashes, drain
from tests.kit import Lab, dense, value


class World:
    """The log of a run, in order: reads, effects and questions to the model, each of them a place to be killed at."""

    SCRIPT: ClassVar[Any] = [
        [("look", {"n": 1}), ("look", {"n": 2}), ("look", {"n": 3})],
        [("look", {"n": 4}), ("record_fact", {"key": "k", "value": 1, "source": "look"})],
        [("look", {"n": 5}), ("change", {"n": 1}), ("look", {"n": 6})],
        [("look", {"n": 7})],
        "done",
    ]
    TURN: ClassVar[dict[int, int]] = {1: 0, 2: 0, 3: 0, 4: 1, 5: 2, 6: 2, 7: 3}
    """The turn of each look."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.keys: set[str] = set()

    def agent(self, app: MemoryApp, strategy: Any) -> Any:
        async def did(entry: str) -> None:
            with contextlib.suppress(Killed):
                for _ in range(5):  # records from before are committed by now
                    await asyncio.sleep(0)
                if not app._dead:
                    self.done.append(entry)
                    crashpoint(f"in {entry}")
                    return
            await asyncio.Event().wait()  # a killed worker does nothing more

        @tool
        async def look(n: int) -> str:
            """Look."""
            await did(f"look {n}")
            return f"seen {n}"

        @tool(risk="write_local", idempotent=True)
        async def change(ctx: Any, n: int) -> str:
            """Change."""
            self.keys.add(ctx.key)
            await did(f"change {n}")
            return "changed"

        class Model(ScriptedModel):
            async def ask(self, request: Any, emit: Any) -> Any:
                await did(f"model {sum(message['role'] == 'assistant' for message in request.conversation)}")
                return await super().ask(request, emit)

        model = Model(self.SCRIPT)
        return app.agent("a", model=model, tools=[look, change], checkpoint=strategy)

    @property
    def again(self) -> set[str]:
        return {entry for entry, times in collections.Counter(self.done).items() if times > 1}


def broken_promises(world: World, strategy: str, killed_at: str | None) -> list[str]:
    """The entries that were repeated and should not have been."""
    again, where = world.again, (killed_at or "").removeprefix("in ")
    wrong = [f"{entry} again, killed at {killed_at}" for entry in again if world.done.count(entry) > 2]
    wrong += [f"several keys: {world.keys}" for _ in range(len(world.keys) > 1)]
    if killed_at is None:
        return wrong + sorted(again)
    if where.startswith("change"):  # with every strategy it begins after all before it is durable
        wrong += sorted(again - {where})
    if where.startswith("model"):
        turn = int(where[6:])
        durable = strategy != "on_state_change" or turn == 2  # the turn before that one changed the state
        allowed = {where} if durable else {where} | {f"look {n}" for n, of in world.TURN.items() if of == turn - 1}
        wrong += sorted(again - allowed)
    if where.startswith("look") and (n := int(where[5:])):
        together = {m for m, of in world.TURN.items() if of == world.TURN[n] == 0}
        if strategy == "every_step":
            allowed = {f"look {m}" for m in together | {n}}
        else:
            allowed = {f"look {m}" for m, of in world.TURN.items() if of == world.TURN[n]}
            allowed -= {"look 5"} if n == 6 else set()  # the change came in between
        wrong += sorted(again - allowed)
    models = [entry for entry in again if entry.startswith("model")]
    return wrong + (sorted(models) if len(models) > 1 else [])


async def killed_everywhere(strategy: str) -> tuple[list[str], set[str], int]:
    """The faults, all repeated entries, and the number of points."""
    wrong: list[str] = []
    again: set[str] = set()
    points = 0
    async for app in crashes():
        world = World()
        handle = await app.submit(world.agent(app, strategy), "go")
        await drain(app)
        assert await handle.result(timeout=1) == "done", app.killed_at
        assert await dense(app.store, handle.id)
        assert await app.store.health.census() == []
        wrong += broken_promises(world, strategy, app.killed_at)
        again |= world.again
        points += 1
    return wrong, again, points


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_killed_anywhere_it_loses_no_more_than_allowed(strategy: str) -> None:
    wrong, again, points = await killed_everywhere(strategy)
    assert wrong == []
    assert points > 25
    assert {entry for entry in again if entry.startswith("look")}, "VOID: no read was ever lost"


@pytest.mark.slow
async def test_a_turn_that_is_not_flushed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Context) -> None:
        """The planted fault."""

    monkeypatch.setattr(Context, "flush", never)
    wrong, _, _ = await killed_everywhere("every_iteration")
    assert any(sentence.startswith("look") for sentence in wrong)


@pytest.mark.slow
async def test_an_effect_that_does_not_wait_for_the_reads_before_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: DeferringSteps, call: Any) -> Any:
        """The planted fault."""
        steps = self._reads if call.effect == "read" else super(DeferringSteps, self)
        return await steps.run(call)

    monkeypatch.setattr(DeferringSteps, "run", at_once)
    wrong, _, _ = await killed_everywhere("on_state_change")
    assert "look 5" in wrong


# ── costs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

READS = 4


async def commits(lab: Lab, strategy: str, *, changes: bool) -> float:
    """Commits for each turn, of an agent alone on an idle machine: four reads one after the other, and perhaps a fact."""
    turns = 10

    @tool
    async def look(n: int) -> str:
        """Look."""
        for _ in range(4):  # so that one read is committed before the next
            await lab.clock.sleep(0)
        return f"seen {n}"

    fact = [("record_fact", {"key": "k", "value": 1, "source": "look"})] if changes else []
    script = [[*[("look", {"n": n}) for n in range(READS)], *fact]] * turns + ["done"]
    lab.app.agent("a", model=ScriptedModel(script), tools=[look], checkpoint=strategy)
    await lab.start()
    before = lab.worker.writer.commits
    await lab.run("a", "go")
    return (lab.worker.writer.commits - before) / turns


async def test_fewer_commits(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.agent.loop.MAX_CONCURRENT_CALLS", 1)
    cost = {}
    for changes in (False, True):
        for strategy in STRATEGIES:
            lab = Lab(clock)
            async with lab.app:
                cost[strategy, changes] = await commits(lab, strategy, changes=changes)
                await lab.stop()
    every_step, every_iteration, on_state_change = (cost[strategy, False] for strategy in STRATEGIES)
    assert every_step - every_iteration >= READS - 1.2, "all reads of a turn share a commit"
    assert every_iteration - on_state_change >= 0.8, "and then not even that"
    assert cost["on_state_change", True] > on_state_change, "a change of the state is written at once"


def test_a_strategy_is_one_of_three() -> None:
    with pytest.raises(BadSetting, match="every_step, every_iteration, on_state_change"):
        Onward().agent("a", model=ScriptedModel([]), checkpoint="sometimes")


# ── reads of handlers ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_any_handler_has_them(lab: Lab, strategy: str) -> None:
    """Reads, an effect, a sleep, a gather, a child, a transaction, a failure: the journal is in order and whole."""
    done: list[str] = []

    @lab.app.task(checkpoint=strategy)
    async def work(ctx: Any) -> Any:
        async def read(name: str) -> str:
            done.append(name)
            return str(ctx.keep(name * 3))

        async def fail() -> None:
            raise RuntimeError("no")

        names = [await ctx.step(read, name, effect="read") for name in "ab"]
        first = await ctx.kept(*names)
        await ctx.sleep("1m")
        names += await ctx.gather(*[ctx.step(read, name, effect="read") for name in "cd"])
        await ctx.transaction(nothing)
        names += [await ctx.step(read, "e", effect="read")]
        try:
            await ctx.step(fail, effect="read")
        except Exception as error:
            done.append(type(error).__name__)
        names += [await ctx.step(read, "f", effect="read")]
        return [text.decode() for text in [*first, *await ctx.kept(*names)]]

    async def nothing(connection: Any) -> None:
        """Writes nothing."""

    task = await lab.run(work)
    assert task.result == ["aaa", "bbb", "aaa", "bbb", "ccc", "ddd", "eee", "fff"]
    assert done == ["a", "b", "c", "d", "e", "StepFailed", "f"]
    assert await dense(lab.store, task.task_id)
    steps = [record.key for record in await lab.store.journal(task.task_id) if record.kind == r.STEP_DONE]
    assert len(steps) == 7


async def test_effects_of_several_branches_wait_for_the_reads_before_them(lab: Lab) -> None:
    missing: list[str] = []

    @lab.app.task(checkpoint="on_state_change")
    async def work(ctx: Any) -> None:
        async def read() -> int:
            return 1

        async def effect(number: int) -> None:
            keys = [record.key for record in await lab.store.journal(ctx.task_id)]
            missing.extend({f"[gather.{number}]read"} - {*keys})

        async def line(number: int) -> None:
            for _ in range(number):  # some branches read while others wait until their reads are written
                await asyncio.sleep(0)
            await ctx.step(read, effect="read")
            await ctx.step(effect, number)

        await ctx.gather(*[line(number) for number in range(8)])

    assert (await lab.run(work)).state == "completed"
    assert missing == []


async def test_reads_without_end_are_written_now_and_then(lab: Lab) -> None:
    @lab.app.task(checkpoint="on_state_change")
    async def work(ctx: Any) -> int:
        async def read() -> int:
            return 1

        for _ in range(3 * MAX_DEFERRED):
            await ctx.step(read, effect="read")
        return len(await lab.store.journal(ctx.task_id, limit=10_000))

    written = (await lab.run(work)).result
    assert written >= 2 * MAX_DEFERRED


async def test_a_worker_that_lost_its_task_learns_it_at_the_next_record(lab: Lab) -> None:
    """Another shift has overtaken this one: the store refuses the records of its reads, and it drops its work."""
    reached: list[str] = []

    @lab.app.task(checkpoint="on_state_change")
    async def work(ctx: Any) -> str:
        async def read() -> int:
            return 1

        await ctx.step(read, effect="read")
        if not reached:
            reached.append("first")
            await lab.app.cancel(ctx.task_id)
        await ctx.step(read, effect="read")
        await ctx.step(lambda: reached.append("effect"), name="effect")
        return "wrong"

    task = await lab.run(work)
    assert (task.state, reached) == ("cancelled", ["first"])
    assert await dense(lab.store, task.task_id)


# ── an agent's checkpoints ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_long_conversation(lab: Lab, strategy: str) -> None:
    turns = CHECKPOINT_EVERY_TURNS + 3

    @tool
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    model = ScriptedModel([[("look", {"n": n})] for n in range(turns)] + ["enough"])
    lab.app.agent("a", model=model, tools=[look], checkpoint=strategy)
    task = await lab.run("a", "go")
    assert task.result == "enough"
    (saved,) = [record for record in await lab.store.journal(task.task_id) if record.kind == r.CHECKPOINT]
    assert (value(saved)["form"], value(saved)["value"]["version"]) == (1, 1)
    assert len(model.asked) == turns + 1
