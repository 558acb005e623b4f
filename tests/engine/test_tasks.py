"""Handlers and steps through the public API: inputs, results, and replays."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple

import pydantic
import pytest

from onward import Onward, State, StepFailed
from onward.core import record as r
from onward.errors import InvalidInput, TaskFailed, UsageError, WaitTimeout
from tests.kit import Lab, value


class Order(pydantic.BaseModel):
    item: str
    count: int = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_object_becomes_arguments_where_the_handler_takes_them(lab: Lab) -> None:
    app = lab.app

    @app.task
    async def two(ctx: Any, a: int, b: int = 5) -> list[int]:
        return [a, b]

    @app.task
    async def single(ctx: Any, whole: dict[str, int]) -> dict[str, int]:
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
        (single, {"x": 1}, {"x": 1}),
        (single, {"whole": {"x": 1}}, {"x": 1}),
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


@pytest.mark.parametrize(
    "given", [math.nan, [math.inf], b"bytes", {1, 2}, "\ud800", {"a": object()}], ids=lambda v: type(v).__name__
)
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


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        assert [await handle.result(timeout=60) for handle in handles] == VALUES


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


async def test_results_have_the_type_that_the_annotation_names_now_and_in_a_replay(lab: Lab) -> None:
    seen: list[Any] = []
    results: dict[Any, Any] = {
        list[Order]: [Order(item="tea"), Order(item="milk")],
        dict[str, Order]: {"first": Order(item="tea")},
        Order | None: Order(item="tea"),
        tuple[Order, Point]: (Order(item="tea"), Point(1)),
        tuple[int, ...]: (1, 2, 3),
        tuple: (1, "a"),
        Sequence[Point]: [Point(1), Point(2)],
        dict[int, list[Point]]: {1: [Point(1)]},
        list[datetime.date]: [datetime.date(2026, 1, 2)],
        datetime.datetime: datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        uuid.UUID: uuid.UUID(int=1),
        decimal.Decimal: decimal.Decimal("1.50"),
        pathlib.Path: pathlib.Path("a"),
        Color: Color.RED,
        Pair: Pair(1, 2),
        Annotated[list[Order], "sorted"]: [Order(item="tea")],
        list[int]: [1, 2],
        dict[str, Any]: {"a": [1]},
        Awaitable[Point]: Point(3),
        object: {"a": (1, 2)},
        Unknown: {"a": 1},
    }

    @lab.app.task
    async def give(ctx: Any) -> int:
        seen.append(
            [await ctx.step(annotated(kind, value), name=str(n)) for n, (kind, value) in enumerate(results.items())]
        )
        seen[-1] += [
            await ctx.step(functools.partial(make_point)),
            await ctx.step(Point, 1, 2),
            await ctx.step(Maker()),
        ]
        if ctx.attempt < 2:
            raise ConnectionError("once more, from the journal")
        return len(seen)

    task = await lab.run(give)
    assert task.result == 2, task.error
    first, again = seen
    assert (
        first == again == [*list(results.values())[:-2], {"a": [1, 2]}, {"a": 1}, Point(1, 2), Point(1, 2), Point(5, 0)]
    )
    assert list(map(type, first)) == list(map(type, again))


async def test_a_result_that_does_not_fit_its_annotation_fails_the_step(lab: Lab) -> None:
    @lab.app.task(retry=1)
    async def give(ctx: Any) -> Any:
        return await ctx.step(annotated(list[Order], [{"no": "order"}]))

    task = await lab.run(give)
    assert task.state is State.FAILED
    assert "Field required" in task.error["message"]  # type: ignore[index]


class Color(enum.Enum):
    RED = "red"


class Pair(NamedTuple):
    a: int
    b: int


class Unknown:
    """A class that no checker knows."""


class Maker:
    def __call__(self) -> Point:
        return Point(5)


def annotated(kind: Any, value: Any) -> Callable[[], Any]:
    """A function that returns the value, with this annotation."""

    def made() -> Any:
        return value

    made.__annotations__["return"] = kind
    return made


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
    assert "its result cannot be kept as JSON (set is not JSON)" in task.error["message"]  # type: ignore[index]
    assert len(calls) == 1, "the same code would give the same again"


async def test_a_result_that_is_too_large(app: Onward) -> None:
    @app.task
    async def give(ctx: Any) -> str:
        return "x" * 17_000_000

    async with app.worker():
        with pytest.raises(TaskFailed, match=r"17,000,0.. bytes, more than the 16,777,216"):
            await (await app.submit(give)).result(timeout=60)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


async def test_progress_is_recorded_once(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> None:
        ctx.progress("begin", 1, 3)
        await ctx.step(lambda: 1, name="one")
        ctx.progress("middle", 2)
        if ctx.attempt == 1:
            raise ConnectionError
        ctx.progress()

    task = await lab.run(work)
    messages = [value(x) for x in await lab.store.journal(task.task_id) if x.kind == r.PROGRESS]
    assert messages[:2] == [{"message": "begin", "step": 1, "total": 3}, {"message": "middle", "step": 2, "total": 0}]
    assert messages[-1] == {"message": "", "step": 0, "total": 0}
    assert [message["message"] for message in messages].count("begin") == 1, "a replay does not report it again"


async def test_arguments_that_are_named_like_an_option_of_step(lab: Lab) -> None:
    def greet(name: str, *, timeout: float, retry: int = 3) -> str:
        return f"{name} {timeout} {retry}"

    def positional(name: str, retry: int = 3) -> str:
        return f"{name} {retry}"

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        with pytest.raises(
            UsageError,
            match=r"greet has a parameter 'name'.* option of ctx\.step.*functools\.partial\(greet, name=…\)",
        ):
            await ctx.step(greet, name="Ada")
        with pytest.raises(
            UsageError, match=r"greet has a parameter 'timeout'.*functools\.partial\(greet, timeout=…\)"
        ):
            await ctx.step(greet, "Ada", timeout=5)
        with pytest.raises(UsageError, match=r"insert has a parameter 'name'.* option of ctx\.transaction"):
            await ctx.transaction(insert, name="Ada")
        return [
            await ctx.step(functools.partial(greet, name="Ada", timeout=5), name="greet"),
            await ctx.step(positional, "Ada", 3, name="greet", retry=2),
            await ctx.step(positional, "Ada", name="greet"),
            await ctx.step(positional, "Ada", 1),
        ]

    async def insert(connection: Any, name: str) -> None: ...

    task = await lab.run(work)
    assert task.result == ["Ada 5 3", "Ada 3", "Ada 3", "Ada 1"], task.error


async def test_an_optional_parameter_does_not_lose_its_value_to_an_option(lab: Lab) -> None:
    async def fetch(url: str, timeout: float = 30.0) -> str:
        return f"{url} {timeout}"

    async def insert(connection: Any, row: int, retry: int = 3) -> int:
        return retry

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        refusal = r"fetch has a parameter 'timeout', and timeout= is an option of ctx\.step"
        with pytest.raises(UsageError, match=refusal):
            await ctx.step(fetch, "a", timeout=5)
        with pytest.raises(UsageError, match=refusal):
            await ctx.map(fetch, ["a", "b"], timeout=5)
        with pytest.raises(UsageError, match=r"insert has a parameter 'retry', and retry= is an option of ctx\.trans"):
            await ctx.transaction(insert, 1, retry=5)
        return [
            await ctx.step(fetch, "a", retry=2),
            await ctx.step(fetch, "a", 5, timeout=60),
            await ctx.step(functools.partial(fetch, timeout=5), "a", timeout=60),
        ]

    task = await lab.run(work)
    assert task.result == ["a 30.0", "a 5", "a 5"], task.error


async def test_the_input_of_a_task_may_have_the_names_of_options(lab: Lab) -> None:
    """Arguments are in the input and options beside it, so that neither can take the place of the other."""

    @lab.app.task
    async def parent(ctx: Any) -> Any:
        return await (await ctx.submit(work, {"key": "k", "delay": 3, "priority": 4}, priority=1))

    @lab.app.task
    async def work(ctx: Any, key: str, delay: int = 0, priority: int = 0) -> list[Any]:
        return [key, delay, priority]

    assert (await lab.run(parent)).result == ["k", 3, 4]
    handle = await lab.app.submit(work, {"key": "k", "delay": 3}, key="other", priority=1)
    task = await lab.app.get(handle.id)
    assert (task.input, task.key, task.priority, task.due_at) == ({"key": "k", "delay": 3}, "other", 1, None)


# ── children ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_child_by_its_function_has_the_name_of_its_handler(lab: Lab) -> None:
    @lab.app.task
    async def parent(ctx: Any) -> Any:
        first, second = await ctx.submit(named), await ctx.submit(plain)
        return [first.task, await first, second.task, await second]

    @lab.app.task(name="another name")
    async def named(ctx: Any) -> str:
        return "done"

    @lab.app.task
    async def plain(ctx: Any) -> str:
        return "plain"

    task = await lab.run(parent)
    assert task.result == ["another name", "done", "plain", "plain"], task.error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"key": "k"},
            "ctx.submit takes no key=: a child has a key of its own, made of the task and the place in its code",
        ),
        ({"connection": object()}, "ctx.submit takes no connection=.*app.submit"),
        ({"queu": "slow"}, "ctx.submit has no option 'queu'; perhaps you meant 'queue'"),
        ({"tenant": "other"}, "ctx.submit has no option 'tenant'"),
    ],
    ids=["key", "connection", "typo", "internal"],
)
async def test_options_that_a_child_cannot_have(lab: Lab, options: dict[str, Any], sentence: str) -> None:
    @lab.app.task(retry=1)
    async def parent(ctx: Any) -> Any:
        with pytest.raises(UsageError, match=sentence):
            await ctx.submit(child, **options)
        with pytest.raises(UsageError, match=sentence):
            await ctx.map("child", [1], **options)
        return await (await ctx.submit(child, priority=1, queue="other", delay=1, labels={"a": "b"}, group="g"))

    @lab.app.task
    async def child(ctx: Any) -> str:
        return "done"

    task = await lab.run(parent)
    assert (task.state, task.result) == (State.COMPLETED, "done"), task.error


# ── plain functions ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_plain_functions_as_handlers_and_steps(app: Onward) -> None:
    threads: set[int] = set()

    @app.task
    def plain(ctx: Any, n: int) -> Any:
        threads.add(threading.get_ident())
        doubled = ctx.step(double, n)
        doubled_again = ctx.step(double_later, doubled)
        ctx.progress("half")
        ctx.sleep(0.01)
        key = ctx.step(lambda: ctx.key, name="key")
        return [doubled, doubled_again, key, ctx.task_id, ctx.attempt, isinstance(ctx.random(), float), ctx.now() > 0]

    def double(n: int) -> int:
        threads.add(threading.get_ident())
        return n * 2

    async def double_later(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    async with app.worker():
        handle = await app.submit(plain, 1)
        assert await handle.result(timeout=60) == [2, 4, f"{handle.id}:key", handle.id, 1, True, True]
    assert threading.get_ident() not in threads
    assert len(threads) == 2


async def test_a_plain_handler_waits_for_the_results_of_its_children(app: Onward) -> None:
    @app.task
    def parent(ctx: Any, n: int) -> Any:
        child = ctx.submit(doubled, n)
        slow, bad = ctx.submit(signalled), ctx.submit(failing)
        with pytest.raises(WaitTimeout):
            slow.result(timeout=0.01)
        with pytest.raises(TaskFailed, match="no way"):
            bad.result()
        return [child.result(), child.result(timeout="1m"), ctx.gather(child), child.id, child.task]

    @app.task
    async def doubled(ctx: Any, n: int) -> int:
        return n * 2

    @app.task
    async def signalled(ctx: Any) -> None:
        await ctx.signal("never")

    @app.task(retry=1)
    async def failing(ctx: Any) -> None:
        raise ValueError("no way")

    async with app.worker():
        handle = await app.submit(parent, 2)
        result = await handle.result(timeout=60)
    assert result[:3] == [4, 4, [4]]
    assert result[4] == "doubled"


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


# ── errors in groups and threads ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_error_inside_of_a_task_group_is_the_error_of_the_task(lab: Lab) -> None:
    async def fail(message: str) -> None:
        raise ValueError(message)

    @lab.app.task(retry=1)
    async def grouped(ctx: Any, messages: list[str]) -> None:
        async with asyncio.TaskGroup() as group:
            for message in messages:
                group.create_task(fail(message))

    single = await lab.run(grouped, ["no disk"])
    assert single.error is not None
    assert (single.error["type"], single.error["message"]) == ("ValueError", "no disk")
    several = await lab.run(grouped, ["no disk", "no net"])
    assert several.error is not None
    assert "ValueError: no disk; ValueError: no net" in several.error["message"]


async def test_a_context_in_a_thread_that_the_handler_started_says_so(app: Onward) -> None:
    @app.task
    def threads(ctx: Any) -> list[str]:
        errors: list[str] = []

        def work() -> None:
            try:
                ctx.step(lambda: 1, name="x")
            except UsageError as error:
                errors.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return errors

    async with app.worker():
        (error,) = await (await app.submit(threads)).result(timeout=60)
    assert "ctx.step was called in a thread that the handler has started" in error
