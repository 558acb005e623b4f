"""Handlers and steps through the public API: what goes in, what comes out, and what a replay sees of it."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import functools
import math
import threading
import time
from typing import Any

import pydantic
import pytest

from onward import Context, Onward, State, StepFailed
from onward.core import record as r
from onward.core.control import Suspend
from onward.errors import InvalidInput, TaskFailed, UsageError
from tests.kit import Lab, claim, dense, eventually, value


class Order(pydantic.BaseModel):
    item: str
    count: int = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


# ── what goes in ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_object_becomes_arguments_where_the_handler_takes_them(lab: Lab) -> None:
    app = lab.app

    @app.task
    async def two(ctx: Any, a: int, b: int = 5) -> list[int]:
        return [a, b]

    @app.task
    async def one(ctx: Any, whole: dict[str, int]) -> dict[str, int]:
        return whole

    @app.task
    async def rest(ctx: Any, **rest: Any) -> Any:
        return rest

    @app.task
    async def none(ctx: Any) -> str:
        return "none"

    @app.task
    async def order(ctx: Any, order: Order, when: datetime.date | None = None) -> Any:
        assert type(order) is Order
        return [order.item, order.count, when]

    @app.task
    async def point(ctx: Any, at: Point) -> int:
        assert type(at) is Point
        return at.x + at.y

    @app.task
    async def untyped(ctx, a, b=None):
        return [a, b]

    for handler, given, got in [
        (two, {"a": 1}, [1, 5]),
        (two, {"a": 1, "b": 2}, [1, 2]),
        (two, 7, [7, 5]),
        (one, {"x": 1}, {"x": 1}),
        (one, {"whole": {"x": 1}}, {"x": 1}),
        (rest, {"p": 1, "q": [2]}, {"p": 1, "q": [2]}),
        (rest, {}, {}),
        (none, None, "none"),
        (none, {}, "none"),
        (order, {"item": "tea"}, ["tea", 1, None]),
        (order, {"order": {"item": "tea", "count": "3"}, "when": "2026-01-02"}, ["tea", 3, "2026-01-02"]),
        (point, {"x": 1, "y": 2}, 3),
        (point, {"at": {"x": 4}}, 4),
        (untyped, [1, 2], [[1, 2], None]),
        (untyped, None, [None, None]),
        (untyped, "text", ["text", None]),
    ]:
        assert (await lab.run(handler, given)).result == got, (handler.__name__, given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (1, "takes an object with a: int, b: str, and the input is 1"),
        ({"a": 1}, "takes an object with a: int, b: str"),
        ({"a": 1, "b": "x", "c": 3}, "takes an object with a: int, b: str"),
        ({"a": "one", "b": "x"}, r"the input for 'a' does not fit: .*integer.* \(got 'one'\)"),
        (None, "takes an object with"),
    ],
)
async def test_an_input_that_does_not_fit_is_refused_at_submit(lab: Lab, given: Any, sentence: str) -> None:
    @lab.app.task
    async def strict(ctx: Any, a: int, b: str) -> None: ...

    with pytest.raises(InvalidInput, match=sentence):
        await lab.submit(strict, given)
    assert (await lab.app.list())[0] == []


@pytest.mark.parametrize("given", [math.nan, [math.inf], b"bytes", {1, 2}, "\ud800", {"a": object()}], ids=lambda v: type(v).__name__)
async def test_an_input_that_is_no_json_is_refused_at_submit(lab: Lab, given: Any) -> None:
    @lab.app.task
    async def any_(ctx: Any, a: Any) -> None: ...

    with pytest.raises(InvalidInput, match="the input of task 'any_'"):
        await lab.submit(any_, given)


async def test_positional_only_and_keyword_only_arguments(lab: Lab) -> None:
    @lab.app.task
    async def positional(ctx: Any, a: int, /, b: int = 2) -> list[int]:
        return [a, b]

    @lab.app.task
    async def keyword(ctx: Any, *, a: int) -> int:
        return a

    assert (await lab.run(keyword, 1)).result == 1
    assert (await lab.run(keyword, {"a": 2})).result == 2
    assert (await lab.run(positional, 1)).result == [1, 2]
    assert (await lab.run(positional, {"a": 3, "b": 4})).result == [3, 4]


def test_a_handler_without_a_context_is_refused_at_once() -> None:
    app = Onward("sqlite://:memory:")
    with pytest.raises(UsageError, match=r"takes no context; write `def nothing\(ctx"):

        @app.task
        async def nothing() -> None: ...


# ── what comes out ───────────────────────────────────────────────────────────────────────────────────────────────────

VALUES: list[Any] = [
    None,
    0,
    "",
    [],
    {},
    "nul \x00 and \U0001f600",
    2**80,
    1e300,
    [[[[1]]]],
    {"ü": {"deep": [None, True, 1.5]}},
    "x" * 1_000_000,
]


async def test_results_come_back_as_they_were(app: Onward) -> None:
    @app.task
    async def give(ctx: Any, n: int) -> Any:
        kept = await ctx.step(lambda: VALUES[n], name="kept")
        assert kept == VALUES[n]
        return kept

    async with app.worker():
        handles = await app.submit_many(give, list(range(len(VALUES))))
        assert [await handle.result(timeout=20) for handle in handles] == VALUES


async def test_rich_results(lab: Lab) -> None:
    @lab.app.task
    async def rich(ctx: Any) -> Any:
        model = await ctx.step(make_order)
        point = await ctx.step(make_point)
        pair = await ctx.step(lambda: (1, (2, 3)), name="pair")
        assert (type(model), type(point), pair) == (Order, Point, [1, [2, 3]])
        if not seen:
            seen.append(1)
            raise ConnectionError("once more, from the journal")
        return {"model": model, "point": point, "when": datetime.date(2026, 1, 2)}

    seen: list[int] = []
    task = await lab.run(rich)
    assert task.result == {"model": {"item": "tea", "count": 2}, "point": {"x": 1, "y": 2}, "when": "2026-01-02"}
    assert task.attempt == 2


async def make_order() -> Order:
    return Order(item="tea", count=2)


def make_point() -> Point:
    return Point(1, 2)


@pytest.mark.parametrize(
    "bad", [math.nan, b"bytes", {1, 2}, "\ud800", object()], ids=["nan", "bytes", "set", "surrogate", "object"]
)
async def test_a_result_that_is_no_json_fails_the_task_with_a_sentence(lab: Lab, bad: Any) -> None:
    @lab.app.task
    async def give(ctx: Any) -> Any:
        return bad

    task = await lab.run(give)
    assert task.state is State.FAILED
    assert "the result of the task cannot be kept as JSON" in task.error["message"]  # type: ignore[index]


async def test_a_step_whose_result_is_no_json_is_not_tried_again(lab: Lab) -> None:
    calls: list[int] = []

    @lab.app.task
    async def give(ctx: Any) -> Any:
        return await ctx.step(lambda: calls.append(1) or {1, 2}, name="bad", retry=5)

    task = await lab.run(give)
    assert task.state is State.FAILED
    assert "the result of step 'bad' cannot be kept as JSON (set is not JSON)" in task.error["message"]  # type: ignore[index]
    assert len(calls) == 1, "the same code would give the same again"


async def test_a_result_that_is_too_large(app: Onward) -> None:
    @app.task
    async def give(ctx: Any) -> str:
        return "x" * 17_000_000

    async with app.worker():
        with pytest.raises(TaskFailed, match=r"17,000,0.. bytes, more than the 16,777,216"):
            await (await app.submit(give)).result(timeout=20)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_runs_once_whatever_happens_after_it(app: Onward) -> None:
    calls: list[str] = []

    @app.task
    async def work(ctx: Any, n: int) -> Any:
        first = await ctx.step(lambda: calls.append("first") or n + 1, name="first")
        second = await ctx.step(functools.partial(add, 10), first)
        if len(calls) == 2:
            calls.append("failure")
            raise ConnectionError("now")
        return [first, second, ctx.attempt]

    def add(a: int, b: int) -> int:
        calls.append("add")
        return a + b

    app.handlers["work"] = dataclasses.replace(app.handlers["work"], retry=_quick())
    async with app.worker():
        handle = await app.submit(work, 1)
        assert await handle.result(timeout=10) == [2, 12, 2]
    assert calls == ["first", "add", "failure"]
    assert await dense(app.store, handle.id)


def _quick(**over: Any) -> Any:
    from onward import Retry

    return Retry(**{"attempts": 4, "first": 0.01} | over)


async def test_steps_of_one_name_are_told_apart(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> list[int]:
        found = [await ctx.step(number, n) for n in range(3)]
        found += [await ctx.step(number, 9, name="other"), await ctx.step(number, 3)]
        if ctx.attempt == 1:
            raise ConnectionError
        return found

    async def number(n: int) -> int:
        return n

    task = await lab.run(work)
    assert task.result == [0, 1, 2, 9, 3]
    keys = [x.key for x in await lab.store.journal(task.task_id) if x.kind == r.STEP_DONE]
    assert keys == ["number", "number#2", "number#3", "other", "number#4"]


@pytest.mark.parametrize("name", ["", "[a", "step#2", "a\nb", "nul\x00", "\ud800"])
async def test_names_that_a_step_cannot_have(lab: Lab, name: str) -> None:
    @lab.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        return await ctx.step(lambda: 1, name=name or None) if name else await ctx.step(_Nameless())

    task = await lab.run(work)
    assert task.state is State.FAILED
    assert "a step cannot be named" in task.error["message"]  # type: ignore[index]


class _Nameless:
    __name__ = ""

    def __call__(self) -> int:
        return 1


async def test_time_chance_and_names_are_the_same_in_every_replay(lab: Lab) -> None:
    seen: list[Any] = []

    @lab.app.task
    async def work(ctx: Any) -> int:
        seen.append([await ctx.now(), await ctx.random(), await ctx.uuid(), await ctx.now(), await ctx.random()])
        if ctx.attempt < 3:
            raise ConnectionError
        return len(seen)

    task = await lab.run(work)
    assert task.result == 3
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][1] != seen[0][4]
    assert 0 <= seen[0][1] < 1
    assert len(seen[0][2]) == 36


async def test_the_effect_key_is_the_same_in_every_attempt_and_of_no_other_step(lab: Lab) -> None:
    keys: list[str] = []

    @lab.app.task
    async def pay(ctx: Any) -> None:
        with pytest.raises(UsageError, match=r"ctx\.key names the effect of a running step"):
            _ = ctx.key

        async def charge() -> None:
            keys.append(ctx.key)
            if len(keys) < 3:
                raise ConnectionError

        def sync_charge() -> None:
            keys.append(ctx.key)

        await ctx.step(charge, retry=2)
        await ctx.step(charge)
        await ctx.step(sync_charge)

    task = await lab.run(pay)
    assert task.state is State.COMPLETED
    first, second, third, *rest = keys
    assert first == second == third == f"{task.task_id}:charge"
    assert rest == [f"{task.task_id}:charge#2", f"{task.task_id}:sync_charge"]


async def test_progress_is_told_once(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> None:
        ctx.progress("begin", 1, 3)
        await ctx.step(lambda: 1, name="one")
        ctx.progress("middle", 2)
        if ctx.attempt == 1:
            raise ConnectionError
        ctx.progress()

    task = await lab.run(work)
    told = [value(x) for x in await lab.store.journal(task.task_id) if x.kind == r.PROGRESS]
    assert told[:2] == [{"message": "begin", "step": 1, "total": 3}, {"message": "middle", "step": 2, "total": 0}]
    assert told[-1] == {"message": "", "step": 0, "total": 0}
    assert [t["message"] for t in told].count("begin") == 1, "what is replayed was told before"


# ── plain functions ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_plain_functions_as_handlers_and_steps(app: Onward) -> None:
    threads: set[int] = set()

    @app.task
    def plain(ctx: Any, n: int) -> Any:
        threads.add(threading.get_ident())
        one = ctx.step(double, n)
        two = ctx.step(double_later, one)
        ctx.progress("half")
        ctx.sleep(0.01)
        three = ctx.step(lambda: ctx.key, name="key")
        return [one, two, three, ctx.task_id, ctx.attempt, isinstance(ctx.random(), float), ctx.now() > 0]

    def double(n: int) -> int:
        threads.add(threading.get_ident())
        return n * 2

    async def double_later(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    async with app.worker():
        handle = await app.submit(plain, 1)
        assert await handle.result(timeout=10) == [2, 4, f"{handle.id}:key", handle.id, 1, True, True]
    assert threading.get_ident() not in threads
    assert len(threads) == 2


async def test_a_plain_handler_sleeps_and_comes_back(lab: Lab) -> None:
    calls: list[str] = []

    @lab.app.task
    def plain(ctx: Any) -> str:
        ctx.step(lambda: calls.append("step"), name="once")
        ctx.sleep(8)
        calls.append("after")
        return "done"

    start = lab.clock.time
    task = await lab.run(plain)
    assert (task.state, task.result) == (State.COMPLETED, "done")
    assert calls == ["step", "after"]
    assert lab.clock.time >= start + 8


async def test_a_plain_handler_that_fails(lab: Lab) -> None:
    @lab.app.task(retry=2)
    def plain(ctx: Any) -> None:
        with pytest.raises(StepFailed, match="step 'bad' was tried once and failed: ZeroDivisionError"):
            ctx.step(lambda: 1 / 0, name="bad")
        next(iter(()))  # StopIteration, which no future can carry

    task = await lab.run(plain)
    assert task.state is State.FAILED
    assert "StopIteration" in str(task.error)


async def test_context_variables_reach_the_thread(lab: Lab) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    @lab.app.task
    async def work(ctx: Any) -> str:
        variable.set("seen")
        return str(await ctx.step(variable.get, name="look"))

    assert (await lab.run(work)).result == "seen"


async def test_callables_of_every_kind(lab: Lab) -> None:
    class Tool:
        def __call__(self, n: int) -> int:
            return n + 1

        async def method(self, n: int) -> int:
            return n + 2

        @staticmethod
        def static(n: int) -> int:
            return n + 3

    class Later:
        async def __call__(self, n: int) -> int:
            return n + 4

    def gives_a_coroutine(n: int) -> Any:
        return Tool().method(n)

    @lab.app.task
    async def work(ctx: Any) -> list[int]:
        calls = [Tool(), Tool().method, Tool.static, Later(), gives_a_coroutine, functools.partial(Tool().method), abs]
        return [await ctx.step(call, 1) for call in calls]

    task = await lab.run(work)
    assert task.result == [2, 3, 4, 5, 3, 3, 1]
    keys = [x.key for x in await lab.store.journal(task.task_id) if x.kind == r.STEP_DONE]
    assert keys == ["Tool", "method", "static", "Later", "gives_a_coroutine", "method#2", "abs"]


# ── code that was changed under a living task ────────────────────────────────────────────────────────────────────────


async def _changed(lab: Lab, before: Any, after: Any, *, sleeps: bool = True) -> Any:
    """A task that slept in one version of a handler and woke up in another (which does not sleep, unless it `sleeps`)."""
    versions = [before]

    @lab.app.task
    async def work(ctx: Any) -> Any:
        answer = await versions[-1](ctx)
        if len(versions) == 1 or sleeps:
            await ctx.sleep(100)
        return answer

    await lab.start()
    task_id = await lab.submit(work)
    assert (await lab.settled(task_id)).reason == "asleep"
    versions.append(after)
    lab.clock.jump(200)
    return await lab.settled(task_id, no_more="asleep")


def _steps(*names: str, **args: Any) -> Any:
    async def run(ctx: Any) -> str:
        for name in names:
            await (
                ctx.sleep(5000, name=name[1:])
                if name.startswith("~")
                else ctx.step(_echo, args.get(name, 0), name=name)
            )
        return "done"

    return run


async def _echo(n: Any) -> Any:
    return n


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (_steps("a", "x", "b"), "the code asks for step 'x' where the journal has 'b'"),
        (_steps("b", "a"), "the code asks for step 'b' where the journal has 'a'"),
        (_steps("a", "c"), "the code asks for step 'c' where the journal has 'b'"),
        (_steps("a", "b", b=1), "the code calls step 'b' with other arguments"),
        (_steps("a"), "without asking for step 'b', which the journal has"),
        (_steps(), "without asking for step 'a', which the journal has"),
        (_steps("a", "~b"), "the code asks for 'b' as sleep.started where the journal has step.completed"),
    ],
    ids=[
        "inserted",
        "reordered",
        "renamed",
        "other arguments",
        "removed the last",
        "removed all",
        "step became a sleep",
    ],
)
async def test_changed_code_parks_the_task(lab: Lab, after: Any, reason: str) -> None:
    task = await _changed(lab, _steps("a", "b"), after, sleeps="without asking" not in reason)
    assert (task.state, task.reason, task.due_at) == (State.WAITING, "parked", math.inf)
    last = (await lab.store.journal(task.task_id))[-1]
    assert last.kind == r.PARKED
    assert reason in value(last)["reason"]
    assert await lab.store.census() == []
    lab.clock.jump(1e6)
    assert (await lab.settled(task.task_id)).reason == "parked", "never guessed at, however long it takes"


@pytest.mark.parametrize(("before", "after"), [((), (1,)), ((1,), ()), ((1,), (1, 2)), (({1},), (1,))], ids=repr)
async def test_arguments_that_came_or_went_park_the_task_too(lab: Lab, before: Any, after: Any) -> None:
    def with_(args: Any) -> Any:
        async def run(ctx: Any) -> None:
            await ctx.step(lambda *_: 1, *args, name="a")

        return run

    assert (await _changed(lab, with_(before), with_(after))).reason == "parked"


async def test_code_that_was_not_changed_goes_on(lab: Lab) -> None:
    task = await _changed(lab, _steps("a", "b"), _steps("a", "b"))
    assert (task.state, task.result) == (State.COMPLETED, "done")


async def test_code_that_goes_further_than_the_journal_goes_on(lab: Lab) -> None:
    async def further(ctx: Any) -> Any:
        await _steps("a")(ctx)
        await ctx.sleep(100)
        return await _steps("b", "c")(ctx)

    assert (await _changed(lab, _steps("a"), further, sleeps=False)).result == "done"


async def test_a_parked_task_goes_on_when_the_code_is_as_it_was(lab: Lab) -> None:
    answers = [["a", "b"], ["a", "x"], ["a", "b"]]
    round_ = 0

    @lab.app.task
    async def work(ctx: Any) -> str:
        for name in answers[round_]:
            await ctx.step(_echo, 1, name=name)
        await ctx.sleep(100)
        return "done"

    await lab.start()
    task_id = await lab.submit(work)
    await lab.settled(task_id)
    round_ = 1
    lab.clock.jump(200)
    assert (await lab.settled(task_id, no_more="asleep")).reason == "parked"
    round_ = 2
    await lab.app.resume(task_id)
    assert (await lab.ended(task_id)).result == "done"
    assert [x.key for x in await lab.store.journal(task_id) if x.kind == r.STEP_DONE] == ["a", "b"]


async def test_a_parked_task_can_be_cancelled(lab: Lab) -> None:
    task = await _changed(lab, _steps("a"), _steps("z"))
    assert task.reason == "parked"
    assert (await lab.app.cancel(task.task_id)).state is State.CANCELLED


async def test_a_handler_that_catches_everything_cannot_talk_itself_out_of_parking(lab: Lab) -> None:
    async def stubborn(ctx: Any) -> str:
        for name in ("z", "y", "x"):
            try:
                await ctx.step(_echo, 0, name=name)
            except BaseException:
                continue
        return "I am fine"

    task = await _changed(lab, _steps("a"), stubborn)
    assert (task.state, task.reason) == (State.WAITING, "parked")


# ── what a handler may not do ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["gather steps", "gather a sleep", "gather sleeps", "a step in a step"])
async def test_two_at_once_are_refused_with_a_sentence(lab: Lab, how: str) -> None:
    async def slow(n: int) -> int:
        await lab.clock.sleep(0.3)
        return n

    @lab.app.task(retry=3)
    async def work(ctx: Any) -> Any:
        async def nested() -> Any:
            return await ctx.step(slow, 1, name="inner")

        match how:
            case "gather steps":
                return await asyncio.gather(*[ctx.step(slow, n) for n in range(3)])
            case "gather a sleep":
                return await asyncio.gather(ctx.sleep(0.5), ctx.step(slow, 1))
            case "gather sleeps":
                return await asyncio.gather(ctx.sleep(0.5, name="a"), ctx.sleep(0.6, name="b"))
            case _:
                return await ctx.step(nested)

    task = await lab.run(work)
    assert task.state is State.FAILED
    assert "ctx.gather" in task.error["message"]  # type: ignore[index]
    assert task.attempt == 1, "the same code would do the same again"
    lab.clock.jump(5)
    await asyncio.sleep(0.05)
    assert (await lab.kinds(task.task_id))[-1] == r.FAILED, "what was left running has nothing to say any more"
    assert await dense(lab.store, task.task_id)


@pytest.mark.parametrize("swallow", [Exception, BaseException])
async def test_a_handler_that_swallows_a_suspension(lab: Lab, swallow: type[BaseException], caplog: Any) -> None:
    calls: list[str] = []

    @lab.app.task
    async def work(ctx: Context) -> str:
        try:
            await ctx.sleep(9)
        except swallow:
            calls.append("swallowed")
            with pytest.raises(Suspend):
                await ctx.step(lambda: calls.append("must not run"), name="next")
        return "done"

    start = lab.clock.time
    task = await lab.run(work)
    assert (task.state, task.result) == (State.COMPLETED, "done")
    assert lab.clock.time >= start + 9
    assert calls == (["swallowed"] if swallow is BaseException else [])
    assert ("caught Suspend and returned" in caplog.text) == (swallow is BaseException)


async def test_finally_blocks_run_when_a_task_goes_to_sleep(lab: Lab) -> None:
    calls: list[str] = []

    @lab.app.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.sleep(9)
        finally:
            calls.append("closed")

    await lab.run(work)
    assert calls == ["closed", "closed"], "once for each shift"


# ── sleeping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_sleeping_frees_the_slot(lab: Lab) -> None:
    @lab.app.task
    async def sleepy(ctx: Any, n: int) -> int:
        await ctx.sleep("0.2m")
        return n

    await lab.start(slots=1)
    start = lab.clock.time
    handles = await lab.app.submit_many(sleepy, list(range(20)))
    for handle in handles:
        await lab.ended(handle.id)
    assert lab.clock.time < start + 20, "all of them slept at the same time, with one slot"


async def test_a_sleep_counts_from_when_it_was_first_reached(lab: Lab) -> None:
    @lab.app.task
    async def sleepy(ctx: Any) -> float:
        await ctx.sleep(100)
        return float(await ctx.now())

    await lab.start()
    start = lab.clock.time
    task_id = await lab.submit(sleepy)
    await lab.settled(task_id)
    assert lab.worker.running == 0
    await lab.crash()
    lab.clock.jump(70)
    await lab.start()
    task = await lab.ended(task_id)
    assert start + 100 <= task.result < start + 110
    assert task.attempt == 1


async def test_an_overdue_sleep_ends_at_once_and_once(lab: Lab) -> None:
    calls: list[str] = []

    @lab.app.task
    async def sleepy(ctx: Any) -> str:
        await ctx.sleep(10)
        await ctx.step(lambda: calls.append("awake"), name="note")
        await ctx.sleep(10)
        return "done"

    await lab.start()
    task_id = await lab.submit(sleepy)
    await lab.settled(task_id)
    lab.clock.jump(8 * 3600)  # the lid was closed
    assert (await lab.ended(task_id)).result == "done"
    assert calls == ["awake"]
    assert (await lab.kinds(task_id)).count(r.SLEPT) == 2


async def test_a_short_sleep_is_spent_in_memory(lab: Lab) -> None:
    @lab.app.task
    async def sleepy(ctx: Any) -> None:
        await ctx.sleep(0.5)

    task = await lab.run(sleepy)
    assert await lab.kinds(task.task_id) == [r.SUBMITTED, r.SHIFT, r.SLEEP, r.SLEPT, r.COMPLETED]


@pytest.mark.parametrize("wrong", [-1, "soon", math.inf, math.nan])
async def test_sleeps_that_make_no_sense(lab: Lab, wrong: Any) -> None:
    @lab.app.task(retry=1)
    async def sleepy(ctx: Any) -> None:
        await ctx.sleep(wrong)

    assert "duration" in (await lab.run(sleepy)).error["message"]  # type: ignore[index]


async def test_sleeping_on_every_store(app: Onward) -> None:
    """On real time, so a short one that is still long enough to leave memory."""

    @app.task
    async def sleepy(ctx: Any) -> str:
        await ctx.step(lambda: 1, name="before")
        await ctx.sleep(1.1)
        return "done"

    async with app.worker(slots=1) as worker:
        handle = await app.submit(sleepy)
        started = time.monotonic()

        async def asleep() -> bool:
            return (await handle.get()).reason == "asleep"

        await eventually(asleep)
        assert worker.running == 0
        assert await handle.result(timeout=10) == "done"
        assert 1.0 < time.monotonic() - started < 5
    assert await claim(app.store) == []
