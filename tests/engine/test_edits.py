"""Edits of a handler's code under a living task: the harmful ones park it before anything happens, the harmless ones do not,
and `check` says so beforehand, with the same words."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onward import Retry, State
from onward.engine.check.deploy_check import Verdict
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.replay import Replay
from tests.kit import Lab, value

LONG_SLEEP_S = 100


class World:
    """The effects outside, and the steps that received the result of another step."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.wrong: list[str] = []

    async def do(self, ctx: Any, name: str, *args: Any, **options: Any) -> str:
        """A step whose result says which step it was."""
        mine = f"{name}{args}"

        async def happen(*_: Any) -> str:
            self.effects.append(mine)
            return mine

        if options.get("undo"):
            options["undo"] = self.undo
        got = await ctx.step(options.pop("function", happen), *args, name=name, **options)
        if got != mine:
            self.wrong.append(f"{mine} got {got}")
        return str(got)

    async def undo(self, *args: Any) -> None:
        self.effects.append(f"undo{args}")


Body = Callable[[Any, World], Awaitable[Any]]


async def _wait(ctx: Any) -> None:
    """The wait in which the task is when the code is changed."""
    await ctx.sleep(LONG_SLEEP_S, name="a long time")


def line(*names: Any) -> Body:
    """Steps one after the other, then a long sleep, then one more."""

    async def body(ctx: Any, w: World) -> str:
        for name in names:
            await (w.do(ctx, *name) if isinstance(name, tuple) else w.do(ctx, name))
        await _wait(ctx)
        await w.do(ctx, "last")
        return "done"

    return body


def bare(*makers: Callable[[Any, World], Awaitable[Any]]) -> Body:
    """Runs the makers one after the other."""

    async def body(ctx: Any, w: World) -> str:
        for make in makers:
            await make(ctx, w)
        return "done"

    return body


def do(name: str, *args: Any, **options: Any) -> Body:
    return lambda ctx, w: w.do(ctx, name, *args, **options)


def nap(ctx: Any, w: World) -> Awaitable[Any]:
    return _wait(ctx)


def saga(*makers: Body, name: str = "saga") -> Body:
    async def body(ctx: Any, w: World) -> None:
        async with ctx.saga(name):
            for make in makers:
                await make(ctx, w)

    return body


def gather(*makers: Body, **options: Any) -> Body:
    return lambda ctx, w: ctx.gather(*[make(ctx, w) for make in makers], **options)


def steps(*makers: Body) -> Body:
    return bare(*makers)


def ask(text: str, **options: Any) -> Body:
    return lambda ctx, w: ctx.ask(text, **options)


def approve(text: str, **options: Any) -> Body:
    return lambda ctx, w: ctx.approve(text, **options)


def signal(name: str) -> Body:
    return lambda ctx, w: ctx.signal(name)


def children(first: Any, second: Any, *, swapped: bool = False) -> Body:
    async def body(ctx: Any, w: World) -> None:
        begun = [await ctx.submit("grow", first), await ctx.submit("grow", second)]
        for child, mine in [*zip(begun, (first, second), strict=True)][:: -1 if swapped else 1]:
            if (got := await child) != mine:
                w.wrong.append(f"child {mine} gave {got}")

    return body


def returns(kind: Any) -> Body:
    async def body(ctx: Any, w: World) -> Any:
        async def make() -> Any:
            w.effects.append("make")
            return {"x": 1}

        make.__annotations__["return"] = kind
        return await ctx.step(make)

    return body


@dataclasses.dataclass
class Old:
    x: int


@dataclasses.dataclass
class New:
    x: int
    y: int


def stumbles(name: str) -> Body:
    """A step that fails at first and is tried again after a long time: it has no result yet that a replay could return."""

    async def body(ctx: Any, w: World) -> None:
        async def happen() -> str:
            w.effects.append(f"{name}?")
            if w.effects.count(f"{name}?") == 1:
                raise OSError("not yet")
            return name

        await ctx.step(happen, name=name, retry=Retry(attempts=3, first=LONG_SLEEP_S, jitter=0))

    return body


def fails(ctx: Any, w: World) -> Any:
    raise ValueError("a check that was not there before")


a, b, c, x = do("a"), do("b"), do("c"), do("x")
go = signal("go")

HARMFUL: dict[str, tuple[Body, Body]] = {
    "a step inserted at the beginning": (line("a", "b"), line("x", "a", "b")),
    "a step inserted": (line("a", "b"), line("a", "x", "b")),
    "a step inserted before the wait": (line("a", "b"), line("a", "b", "x")),
    "a step removed": (line("a", "b", "c"), line("a", "c")),
    "the last step removed": (line("a", "b"), line("a")),
    "all steps removed": (line("a", "b"), bare(do("last"))),
    "a step renamed": (line("a", "b"), line("a", "x")),
    "steps reordered": (line("a", "b"), line("b", "a")),
    "other arguments": (line("a", ("b", 1)), line("a", ("b", 2))),
    "an argument more": (line("a", ("b", 1)), line("a", ("b", 1, 2))),
    "a loop that runs once less": (line("a", "a", "a"), line("a", "a")),
    "an early return": (line("a", "b"), bare(a)),
    "a check that raises early": (line("a", "b"), bare(a, fails)),
    "a step became a sleep": (bare(a, nap, x), bare(lambda ctx, w: ctx.sleep(1, name="a"), nap, x)),
    "a wait of another kind": (bare(a, nap, x), bare(a, lambda ctx, w: ctx.signal("a long time"), x)),
    "a signal became a question": (bare(a, go, x), bare(a, ask("go?"), x)),
    "another signal": (bare(a, go, x), bare(a, signal("stop"), x)),
    "another question, answered": (bare(ask("eu?"), nap, x), bare(ask("us?"), nap, x)),
    "another approval, open": (bare(a, approve("drop the test table?"), x), bare(a, approve("drop the table?"), x)),
    "an approval with other data": (
        bare(approve("drop?", data={"table": "test"}), nap, x),
        bare(approve("drop?", data={"table": "users"}), nap, x),
    ),
    "a child with another input": (bare(children(1, 2), nap, x), bare(children(1, 3), nap, x)),
    "children awaited in another order": (bare(children(1, 2), nap, x), bare(children(1, 2, swapped=True), nap, x)),
    "a result that does not fit any more": (bare(returns(Old), nap, x), bare(returns(New), nap, x)),
    "the time asked for in between": (line("a", "b"), bare(a, lambda ctx, w: ctx.now(), b, nap, x)),
    # sagas
    "a step inserted in a finished saga": (bare(saga(a), nap, x), bare(saga(a, c), nap, x)),
    "a step moved out of an open saga": (bare(saga(a, b, nap), x), bare(saga(a), b, nap, x)),
    "a saga taken away": (bare(saga(a, nap), x), bare(a, nap, x)),
    "a saga put around": (bare(a, nap, x), bare(saga(a), nap, x)),
    "a saga renamed": (bare(saga(a, nap), x), bare(saga(a, nap, name="other"), x)),
    "a step removed from an open saga": (bare(saga(a, b, nap), x), bare(saga(a, nap), x)),
    "an open saga that now fails early": (
        bare(saga(do("a", undo=True), b, nap), x),
        bare(saga(do("a", undo=True), fails), x),
    ),
    # branches
    "a step inserted before a gather": (bare(gather(a, b), nap, x), bare(c, gather(a, b), nap, x)),
    "a step inserted before an open gather": (bare(gather(a, steps(b, go)), x), bare(c, gather(a, steps(b, go)), x)),
    "a step added to a branch that is over": (bare(gather(a, b), nap, x), bare(gather(a, steps(b, c)), nap, x)),
    "a branch added to a gather that is over": (bare(gather(a, b), nap, x), bare(gather(a, b, c), nap, x)),
    "branches exchanged": (bare(gather(a, b), nap, x), bare(gather(b, a), nap, x)),
    "branches exchanged, one of them not done": (
        bare(gather(steps(go, a), b), x),
        bare(gather(b, steps(go, a)), x),
    ),
    "branches exchanged, one of them without a record": (
        bare(gather(stumbles("a"), b), x),
        bare(gather(b, stumbles("a")), x),
    ),
    "a branch inserted in front, the others not done": (
        bare(gather(steps(a, go), steps(b, go)), x),
        bare(gather(c, steps(a, go), steps(b, go)), x),
    ),
    "the last branch removed, another not done": (bare(gather(steps(go, a), b), x), bare(gather(steps(go, a)), x)),
    "a branch that ends early, another not done": (
        bare(gather(steps(go, a), steps(b, c)), x),
        bare(gather(steps(go, a), b), x),
    ),
    "a branch that raises early, another not done": (
        bare(gather(steps(a, go), steps(b, c)), x),
        bare(gather(steps(a, go), steps(b, fails)), x),
    ),
    "a gather became a sequence": (bare(gather(a, b), nap, x), bare(a, b, nap, x)),
    "a sequence became a gather": (bare(a, b, nap, x), bare(gather(a, b), nap, x)),
    "two gathers became one": (bare(gather(a, b), gather(c, x), nap), bare(gather(a, b, c, x), nap)),
    "a gather taken away": (bare(gather(a, b), nap, x), bare(nap, x)),
    "a saga in a branch changed, another not done": (
        bare(gather(steps(go, a), saga(b)), x),
        bare(gather(steps(go, a), saga(b, c)), x),
    ),
    "questions in branches exchanged": (
        bare(gather(ask("eu?"), ask("us?")), nap, x),
        bare(gather(ask("us?"), ask("eu?")), nap, x),
    ),
}


def quiet(ctx: Any, w: World) -> Any:
    logging.getLogger("shop").info("a line more")
    return ctx.gather()


def renamed_helper(ctx: Any, w: World) -> Any:
    async def a_better_name() -> str:
        w.effects.append("a()")
        return "a()"

    return w.do(ctx, "a", function=a_better_name)


def versioned(new: Body, old: Body | None = None) -> Body:
    async def body(ctx: Any, w: World) -> None:
        if await ctx.version("a change"):
            await new(ctx, w)
        elif old is not None:
            await old(ctx, w)

    return body


async def other_numbers(ctx: Any, w: World) -> str:
    """Code between the steps, and the result of the task, are the handler's own."""
    numbers = sorted(range(10), reverse=True)
    ctx.progress(f"{len(numbers)} numbers")
    await line("a", "b")(ctx, w)
    return "done"


HARMLESS: dict[str, tuple[Body, Body]] = {
    "nothing": (line("a", "b"), line("a", "b")),
    "logging, comments, variables": (line("a", "b"), other_numbers),
    "an empty gather": (line("a", "b"), bare(quiet, line("a", "b"))),
    "a step added at the end": (bare(a, nap, b), bare(a, nap, b, x)),
    "a step added where nothing was done yet": (bare(a, nap, b), bare(a, nap, x, b)),
    "a helper renamed, with the name of its step": (bare(a, nap, b), bare(renamed_helper, nap, b)),
    "another retry, timeout and effect": (
        bare(a, nap, b),
        bare(do("a", retry=5, timeout=9, effect="idempotent"), nap, do("b", effect="once")),
    ),
    "an undo added to a step": (bare(saga(a, nap), b), bare(saga(do("a", undo=True), nap), b)),
    "a longer sleep": (bare(a, nap, b), bare(a, lambda ctx, w: ctx.sleep(LONG_SLEEP_S * 9, name="a long time"), b)),
    "a loop that runs once more": (bare(a, a, nap, a), bare(a, a, nap, a, a)),
    "a marked change, that the task has passed": (bare(a, b, nap, x), bare(a, versioned(c), b, nap, x)),
    "a marked change, the old way kept": (bare(a, b, nap, x), bare(a, versioned(c, b), nap, x)),
    "a marked change ahead": (bare(a, nap, b), bare(a, nap, versioned(c), b)),
    "a marked change in a finished saga": (bare(saga(a), nap, x), bare(saga(a, versioned(c)), nap, x)),
    "a marked change in a branch that is over": (
        bare(gather(a, b), nap, x),
        bare(gather(a, steps(b, versioned(c))), nap, x),
    ),
    "the mark of a change taken away": (bare(a, versioned(c), nap, x), bare(a, c, nap, x)),
    "the mark of a change moved": (bare(a, versioned(c), nap, x), bare(versioned(bare()), a, c, nap, x)),
    "a branch added to an open gather": (bare(gather(a, steps(b, go)), x), bare(gather(a, steps(b, go), c), x)),
    "a smaller limit of an open gather": (
        bare(gather(steps(go, a), steps(go, b), c), x),
        bare(gather(steps(go, a), steps(go, b), c, limit=1), x),
    ),
    "another way to time out a question": (bare(ask("eu?"), nap, x), bare(ask("eu?", timeout=9, default="no"), nap, x)),
}


async def _edited(lab: Lab, before: Body, after: Body) -> tuple[Any, Any, World, list[str]]:
    """A task that waits in one version of its handler and goes on in another; the finding of the check; and the effects from
    before the edit."""
    world = World()
    versions = [before]

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        return await versions[-1](ctx, world)

    @lab.app.task
    async def grow(ctx: Any, n: int) -> int:
        return n

    await lab.start()
    task_id = await lab.submit(work)
    await lab.clock.until(_until(lab, task_id, _stands))
    done = list(world.effects)
    versions.append(after)
    (finding,) = [finding for finding in await lab.app.check(patience=5) if finding.task_id == task_id]
    assert world.effects == done, "a check runs no step"
    world.wrong.clear()
    for number in range(3):
        await lab.app.signal(task_id, "go", number)
    lab.clock.jump(LONG_SLEEP_S * 2)
    return await lab.clock.until(_until(lab, task_id, _is_over)), finding, world, done


async def _until(lab: Lab, task_id: str, enough: Callable[[Any], bool]) -> Any:
    """Answers open questions and approvals until `enough` accepts the task."""
    while not enough(task := await lab.app.get(task_id)):
        for ask in await lab.app.asks():
            if not ask.text.startswith("drop the") or enough is _is_over:
                await (lab.app.answer(ask.id, "yes") if ask.kind == "question" else lab.app.decide(ask.id, "approve"))
        await lab.clock.sleep(0.05)
    return task


def _stands(task: Any) -> bool:
    assert not task.ended, task.error
    return task.reason in {"asleep", "signal", "approval", "retrying"}


def _is_over(task: Any) -> bool:
    return task.ended or task.reason == "parked"


def test_there_are_enough_edits() -> None:
    assert (len(HARMFUL) >= 20, len(HARMLESS) >= 10) == (True, True)


@pytest.mark.parametrize("edit", HARMFUL)
async def test_a_harmful_edit_parks_before_anything_happens(lab: Lab, edit: str) -> None:
    task, finding, world, done = await _edited(lab, *HARMFUL[edit])
    assert (task.state, task.reason) == (State.WAITING, "parked")
    assert world.effects == done, "nothing happened after the edit"
    assert world.wrong == []
    parked = value((await lab.store.journal(task.task_id))[-1])["reason"]
    if "raises early" in edit and "branch" not in edit:  # the error may have been temporary: tried again, then parked
        assert finding.verdict is Verdict.RAISES
        assert "without asking for step 'b'" in parked
    else:
        assert (finding.verdict, finding.detail) == (Verdict.PARKS, parked)
    assert await lab.store.health.census() == []


@pytest.mark.parametrize("edit", HARMLESS)
async def test_a_harmless_edit_parks_nothing(lab: Lab, edit: str) -> None:
    task, finding, world, done = await _edited(lab, *HARMLESS[edit])
    assert (task.state, task.result, task.error) == (State.COMPLETED, "done", None)
    assert finding.verdict is Verdict.FINE, finding.detail
    assert world.wrong == []
    assert world.effects[: len(done)] == done
    repeated = [effect for effect in set(done) if world.effects.count(effect) > done.count(effect)]
    assert repeated == [] or "loop" in edit, "no recorded effect happened again"


@pytest.mark.parametrize(
    ("owner", "check", "edit"),
    [
        (Replay, "check_last", "a step inserted in a finished saga"),
        (Replay, "check_last", "a step inserted before an open gather"),
        (Replay, "check_question", "children awaited in another order"),
        (Replay, "check_branches", "the last branch removed, another not done"),
        (Replay, "check_over", "a branch that ends early, another not done"),
        (ShiftJournal, "wait_for_replay", "branches exchanged, one of them without a record"),
    ],
)
async def test_each_check_is_needed(lab: Lab, owner: type, check: str, edit: str, monkeypatch: Any) -> None:
    """Without the check, the replay misses the edit or sees it too late, so the tests above would fail."""

    async def at_once(journal: Any) -> None:
        journal._replay_settled = True

    monkeypatch.setattr(owner, check, at_once if owner is ShiftJournal else lambda *_: None)
    task, _, world, done = await _edited(lab, *HARMFUL[edit])
    assert task.reason != "parked" or world.effects != done or world.wrong
