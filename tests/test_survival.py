"""What a worker survives: whatever a handler raises, being stopped, cancelled, cut off or taken for dead, and poison."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from onward import Onward, Retry, State, StepFailed
from onward.core import record as r
from onward.errors import StoreUnavailable, TaskFailed
from onward.store.port import SUSPECT_AFTER
from tests.kit import (
    KINDS,
    HandClock,
    Lab,
    Through,
    calm,
    crashes,
    dense,
    eventually,
    inline_app,
    kinds,
    row,
    sql,
    value,
)

# ── whatever a handler raises ────────────────────────────────────────────────────────────────────────────────────────


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("you will not read me")

    __repr__ = __str__


class Rude(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Own(BaseException):
    pass


class Hostile(Exception):
    @property
    def retry_after(self) -> float:
        raise RuntimeError("do not ask me when")


def recursive() -> Exception:
    error = ValueError()
    error.args = (error, [error])
    return error


RAISED: dict[str, Any] = {
    "SystemExit": lambda: SystemExit(1),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "TimeoutError": TimeoutError,
    "unpicklable arguments": lambda: ValueError(lambda: 1, threading.Lock()),
    "recursive arguments": recursive,
    "a __str__ that raises": Mute,
    "a __str__ that exits": Rude,
    "a retry_after that raises": Hostile,
    "a BaseException of one's own": Own,
    "a group": lambda: BaseExceptionGroup("two", [ValueError(), KeyboardInterrupt()]),
}


async def _raise_later(name: str) -> None:
    await asyncio.sleep(0)
    error = RAISED[name]()
    raise error


def _raise(name: str) -> None:
    error = RAISED[name]()
    raise error


@pytest.mark.parametrize(
    "where",
    [
        "async step",
        "plain step",
        "async step with a timeout",
        "plain step with a timeout",
        "async handler",
        "plain handler",
        "async handler with a deadline",
        "async step under a deadline",
        "plain handler with a deadline",
    ],
)
@pytest.mark.parametrize("name", RAISED)
def test_a_worker_survives_whatever_is_raised(name: str, where: str) -> None:
    """In a loop of its own, because what gets out of it must not end the tests either."""
    told = ""
    try:
        asyncio.run(_survives(name, where))
    except BaseException as got_out:  # told in our words: some of these hurt whoever prints them
        told = str(got_out) if isinstance(got_out, AssertionError) else f"{type(got_out).__name__} got out of the loop"
    if told:
        pytest.fail(told, pytrace=False)


async def _survives(name: str, where: str) -> None:
    clock = HandClock()
    lab = Lab(clock)
    app = lab.app
    limit: dict[str, Any] = {"deadline": 1000} if "deadline" in where else {}
    within: dict[str, Any] = {"timeout": 1000} if "timeout" in where else {}
    function = _raise if "plain" in where else _raise_later

    @app.task(name="steps", retry=1, **limit)
    async def steps(ctx: Any) -> Any:
        return await ctx.step(function, name, **within)

    @app.task(name="async", retry=1, **limit)
    async def handler(ctx: Any) -> None:
        await _raise_later(name)

    @app.task(name="plain", retry=1, **limit)
    def plain(ctx: Any) -> None:
        _raise(name)

    @app.task
    async def good(ctx: Any) -> str:
        return str(await ctx.step(lambda: "fine", name="fine"))

    async with app:
        await lab.start(slots=3)
        bad = await lab.submit("steps" if "step" in where else where.split(maxsplit=1)[0])
        task = await lab.ended(bad, 60)
        assert (task.state, task.attempt) == (State.FAILED, 1)
        assert task.error is not None
        assert task.error["message"].isprintable()
        if "step" in where:
            assert r.STEP_FAILED in await lab.kinds(bad)
        assert (await lab.run(good)).result == "fine"
        assert await lab.store.census() == []
        await lab.stop()


@pytest.mark.parametrize("name", ["SystemExit", "CancelledError", "a __str__ that raises", "MemoryError"])
async def test_what_is_raised_is_recorded_and_tried_again_like_any_failure(lab: Lab, name: str) -> None:
    @lab.app.task(retry=Retry(attempts=2))
    async def work(ctx: Any) -> Any:
        if ctx.attempt == 1:
            await ctx.step(_raise_later, name, name="bad", retry=2)
        return "well again"

    # The step fails twice, the task is tried again, and does not ask for the step any more.
    task = await lab.run(work)
    assert task.result == "well again"
    told = [value(x)["error"] for x in await lab.store.journal(task.task_id) if x.kind == r.STEP_FAILED]
    assert [t["type"] for t in told] == [type(RAISED[name]()).__name__]


# ── being stopped ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_stop_hands_back_at_the_next_step_without_burning_an_attempt(app: Onward) -> None:
    """SIGTERM: what runs ends its step, and another worker goes on behind it."""
    began, ran = asyncio.Event(), []  # type: ignore[var-annotated]

    @app.task
    async def work(ctx: Any) -> Any:
        for n in range(4):
            await ctx.step(one, n)
        return [ctx.attempt, ran]

    async def one(n: int) -> None:
        ran.append(n)
        began.set()
        await asyncio.sleep(0.05)

    first = app.make_worker()
    await first.start()
    handle = await app.submit(work)
    await began.wait()
    await first.stop(grace=10)
    task = await handle.get()
    assert (task.state, task.reason, task.attempt, task.worker) == (State.PENDING, "queued", 1, None)
    assert (await kinds(app.store, handle.id))[-1] == r.HANDED_BACK
    assert await crashes(app.store, handle.id) == 0
    assert await app.store.workers() == []
    async with app.worker():
        assert await handle.result(timeout=10) == [1, [0, 1, 2, 3]]
    assert ran == [0, 1, 2, 3], "no step was run twice"


@pytest.mark.parametrize(
    ("kind", "stubborn"), [*[(kind, False) for kind in KINDS], ("sqlite memory", True)], indirect=["kind"]
)
async def test_stop_does_not_wait_for_a_step_beyond_its_grace(app: Onward, stubborn: bool) -> None:
    release, began = asyncio.Event(), asyncio.Event()

    @app.task
    async def work(ctx: Any) -> Any:
        await ctx.step(hang)
        return ctx.attempt

    async def hang() -> str:
        began.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        return "released"

    worker = app.make_worker()
    await worker.start()
    handle = await app.submit(work)
    await began.wait()
    start = time.monotonic()
    await worker.stop(grace=0.1)
    assert time.monotonic() - start < 6
    task = await handle.get()
    assert (task.state, task.attempt) == (State.PENDING, 1)
    before = await kinds(app.store, handle.id)
    release.set()
    await asyncio.sleep(0.05)
    assert await kinds(app.store, handle.id) == before, "what was left behind has nothing to say"
    async with app.worker():
        assert await handle.result(timeout=10) == 1


async def test_stop_of_a_worker_with_a_plain_handler_that_hangs(app: Onward) -> None:
    release, began = threading.Event(), threading.Event()
    said: list[str] = []

    @app.task
    def work(ctx: Any) -> Any:
        began.set()
        if not said:
            release.wait(20)
            try:
                ctx.step(lambda: said.append("ran"), name="after")
            except BaseException as error:
                said.append(type(error).__name__)
                raise
        return ctx.attempt

    worker = app.make_worker()
    await worker.start()
    handle = await app.submit(work)
    await asyncio.to_thread(began.wait, 10)
    await worker.stop(grace=0.1)
    assert (await handle.get()).state is State.PENDING
    release.set()
    await eventually(lambda: _is(bool(said)))
    assert said == ["HandBack"], "its next step tells it that its worker has stopped"
    assert (await kinds(app.store, handle.id))[-1] == r.HANDED_BACK


async def _is(value: bool) -> bool:
    return value


async def test_stopping_twice_and_before_the_start(app: Onward) -> None:
    app.task(_nothing, name="nothing")
    worker = app.make_worker()
    await worker.stop()
    await worker.stop()
    other = app.make_worker()
    await other.start()
    await other.stop()
    await other.stop()


async def _nothing(ctx: Any) -> None:
    pass


# ── cancelled while it runs ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["in a step", "between steps"])
async def test_cancel_stops_a_running_task_within_a_heartbeat(app: Onward, where: str) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()
    after: list[str] = []

    @app.task
    async def work(ctx: Any) -> None:
        try:
            if where == "in a step":
                await ctx.step(hang)
            else:
                await hang()
        finally:
            stopped.set()
        await ctx.step(lambda: after.append("must not run"), name="after")

    async def hang() -> None:
        began.set()
        await asyncio.sleep(30)

    async with app.worker() as worker:
        handle = await app.submit(work)
        await began.wait()
        assert (await handle.cancel()).state is State.CANCELLED
        await asyncio.wait_for(stopped.wait(), 5)
        await eventually(lambda: _is(worker.running == 0))
        assert (await kinds(app.store, handle.id))[-1] == r.CANCELLED
        assert not after
        app.task(_nothing, name="nothing")
        await (await app.submit("nothing")).result(timeout=10)


async def test_cancel_is_noticed_at_the_next_step(lab: Lab) -> None:
    after: list[str] = []

    @lab.app.task
    async def work(ctx: Any) -> None:
        await ctx.step(lab.app.cancel, ctx.task_id, name="cancel myself")
        after.append("must not be reached")

    task = await lab.run(work)
    assert task.state is State.CANCELLED
    await calm()
    assert not after


# ── taken for dead ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_that_was_declared_dead_drops_its_work_and_starts_anew(app: Onward) -> None:
    began, left = asyncio.Event(), asyncio.Event()
    rounds: list[int] = []

    @app.task
    async def work(ctx: Any) -> Any:
        rounds.append(1)
        began.set()
        try:
            if len(rounds) == 1:
                await asyncio.sleep(30)
        finally:
            left.set()
        return len(rounds)

    async with app.worker() as worker:
        handle = await app.submit(work)
        await began.wait()
        name = worker.id
        await app.store.rescue([name])
        await asyncio.wait_for(left.wait(), 5)
        assert await handle.result(timeout=10) == 2
        assert worker.id not in {name, ""}
        assert [w.id for w in await app.store.workers()] == [worker.id]
    assert (await kinds(app.store, handle.id)).count(r.SHIFT) == 2


async def test_the_tasks_of_a_worker_whose_lease_ended_are_freed_by_another(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> str:
        return str(await ctx.step(lambda: "done", name="s"))

    await lab.store.join(row("ghost", names=("work",)), 10)
    task_id = await lab.submit(work)
    await lab.store.claim("ghost", "default", ["work"], 1)
    await lab.start()
    start = lab.clock.time
    assert (await lab.ended(task_id)).result == "done"
    assert 10 <= lab.clock.time - start < 25, "after its lease and not before"
    assert [w.id for w in await lab.store.workers()] == [lab.worker.id]


async def test_a_worker_cut_off_from_its_store_starts_nothing_new(clock: HandClock) -> None:
    """It fences itself by its own clock before others may take over."""
    lab = Lab(clock)
    away = False
    plain = lab.store.beat
    ran: list[float] = []

    async def beat(*args: Any) -> Any:
        if away:
            raise StoreUnavailable("away")
        return await plain(*args)

    lab.app._join(Through(lab.store, beat=beat))  # type: ignore[arg-type]

    @lab.app.task
    async def work(ctx: Any) -> int:
        for n in range(5):
            await ctx.step(one, n)
        return len(ran)

    async def one(n: int) -> None:
        ran.append(clock.time)
        await clock.sleep(4)

    async with lab.app:
        await lab.start()
        task_id = await lab.submit(work)
        await clock.until(clock.sleep(1))
        away, cut = True, clock.time
        await clock.until(clock.sleep(30))
        lease = lab.app.settings.lease_s
        assert len(ran) < 5
        assert max(ran) <= cut + lease, "no step begins after the lease has ended"
        away = False
        assert (await lab.ended(task_id)).result == 5
        await lab.stop()


async def test_tasks_that_a_lost_answer_left_with_us_are_given_back(clock: HandClock) -> None:
    lab = Lab(clock)
    lose = 1
    plain = lab.store.claim

    async def claim(*args: Any, **options: Any) -> Any:
        nonlocal lose
        found = await plain(*args, **options)
        if found and lose:
            lose -= 1
            raise StoreUnavailable("the answer was lost")
        return found

    lab.app._join(Through(lab.store, claim=claim))  # type: ignore[arg-type]

    @lab.app.task
    async def work(ctx: Any) -> int:
        return int(ctx.attempt)

    async with lab.app:
        await lab.start()
        task = await lab.run(work)
        assert (task.state, task.result) == (State.COMPLETED, 1)
        assert await lab.kinds(task.task_id) == [r.SUBMITTED, r.SHIFT, r.SHIFT, r.COMPLETED]
        await lab.stop()


@pytest.mark.parametrize("verb", ["claim", "save", "wake", "journal", "beat", "rescue", "workers", "get"])
async def test_an_outage_of_the_store_is_no_failure_of_a_task(clock: HandClock, verb: str) -> None:
    """Every verb fails now and then: the work goes on, no attempt is burned and no step is lost or done twice."""
    lab = Lab(clock)
    real = lab.store
    plain, calls = getattr(real, verb), 0
    ran: list[int] = []

    async def flaky(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 2:
            raise StoreUnavailable("away for a moment")
        return await plain(*args, **options)

    lab.app._join(Through(lab.store, **{verb: flaky}))  # type: ignore[arg-type]

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> int:
        for n in range(6):
            await ctx.step(one, n)
            if n % 2:
                await ctx.sleep(2)
        return int(ctx.attempt)

    async def one(n: int) -> None:
        ran.append(n)

    async def result(task_id: str) -> Any:
        while True:
            try:
                return await lab.app.service.result(task_id)
            except StoreUnavailable:
                await clock.sleep(0.1)

    async with lab.app:
        await lab.start()
        task_id = await lab.submit(work)
        assert await clock.until(result(task_id)) == 1
        assert ran == [0, 1, 2, 3, 4, 5]
        assert await dense(real, task_id)
        assert calls > 1 or verb in {"rescue", "workers"}
        await lab.stop()


@pytest.mark.parametrize("verb", ["claim", "save", "beat"])
async def test_an_answer_that_is_lost_is_found_again(clock: HandClock, verb: str) -> None:
    """The store did what it was asked and could not say so."""
    lab = Lab(clock)
    plain, calls, ran = getattr(lab.store, verb), 0, []  # type: ignore[var-annotated]

    async def lossy(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = await plain(*args, **options)
        if calls % 2 == 0:
            raise StoreUnavailable("the answer was lost")
        return answer

    lab.app._join(Through(lab.store, **{verb: lossy}))  # type: ignore[arg-type]

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> int:
        for n in range(5):
            await ctx.step(one, n)
        await ctx.sleep(3)
        return int(ctx.attempt)

    async def one(n: int) -> None:
        ran.append(n)

    async with lab.app:
        await lab.start()
        task = await lab.run(work)
        assert (task.state, task.result) == (State.COMPLETED, 1)
        assert ran == [0, 1, 2, 3, 4]
        assert await dense(lab.store, task.task_id)
        assert await lab.store.census() == []
        await lab.stop()


# ── crashes and poison ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_crashed_task_goes_on_from_its_last_record(lab: Lab) -> None:
    ran: list[str] = []
    hang = asyncio.Event()

    @lab.app.task
    async def deploy(ctx: Any) -> list[Any]:
        found = [await ctx.step(piece, n, name="piece") for n in range(10)]
        return [ctx.attempt, found]

    async def piece(n: int) -> int:
        ran.append(f"{n}")
        if n == 7 and ran.count("7") == 1:
            await hang.wait()
        return n

    await lab.start()
    task_id = await lab.submit(deploy)
    while "7" not in ran:
        await calm()
    await lab.crash()
    await lab.start()
    assert (await lab.ended(task_id)).result == [1, list(range(10))]
    assert ran == [*"01234567", *"789"], "and never from the beginning"


async def test_poison_is_quarantined_and_a_person_can_free_it(lab: Lab) -> None:
    """It ends its worker each time. Its neighbours stay innocent: as a suspect it runs alone."""
    cured = False
    hang = asyncio.Event()
    began: list[str] = []

    @lab.app.task
    async def poison(ctx: Any) -> str:
        began.append("poison")
        if not cured:
            await hang.wait()
        return "cured"

    @lab.app.task
    async def good(ctx: Any, n: int) -> int:
        return n

    bad = await lab.submit(poison)
    for n in range(SUSPECT_AFTER + 1):
        await lab.start()
        while len(began) <= n:
            lab.clock.jump(0.1)
            await calm()
        if n == SUSPECT_AFTER:
            assert lab.worker.running == 1
            innocent = await lab.submit(good, 1)
            lab.clock.jump(5)
            await calm()
            assert (await lab.app.get(innocent)).state is State.PENDING, "a suspect runs alone"
        await lab.crash()
    await lab.start()
    task = await lab.settled(bad)
    assert (task.state, task.reason, len(began)) == (State.WAITING, "quarantined", SUSPECT_AFTER + 1)
    assert (await lab.ended(innocent)).result == 1
    last = (await lab.store.journal(bad))[-1]
    assert (last.kind, value(last)["reason"]) == (
        r.QUARANTINED,
        "it ended its worker 4 times in a row, the last time alone",
    )
    assert await lab.store.census() == []
    cured = True
    await lab.app.resume(bad)
    assert (await lab.ended(bad)).result == "cured"


async def test_a_task_that_gets_on_is_never_quarantined(lab: Lab) -> None:
    """Its worker dies in each step, but never in the same one for long."""
    hang = asyncio.Event()
    ran: list[int] = []

    @lab.app.task
    async def unlucky(ctx: Any) -> int:
        for n in range(8):
            await ctx.step(piece, n, name="piece")
        return int(ctx.attempt)

    async def piece(n: int) -> int:
        ran.append(n)
        if ran.count(n) == 1:
            await hang.wait()
        return n

    task_id = await lab.submit(unlucky)
    for n in range(8):
        await lab.start()
        while n not in ran:
            lab.clock.jump(0.05)
            await calm()
        lab.clock.jump(0.5)  # long enough to be announced
        await calm()
        await lab.crash()
    await lab.start()
    assert (await lab.ended(task_id)).result == 1


async def test_a_task_of_a_handler_that_nobody_here_has_is_left_alone(lab: Lab) -> None:
    @lab.app.task
    async def known(ctx: Any) -> int:
        return 1

    await lab.start()
    (foreign,) = await lab.app.service.submit([_wish("foreign")], unchecked=True)
    assert (await lab.run(known)).result == 1
    task = await lab.app.get(foreign)
    assert (task.state, task.attempt) == (State.PENDING, 1)
    assert await lab.kinds(foreign) == [r.SUBMITTED]


def _wish(name: str) -> Any:
    from onward.service import Wish

    return Wish(name)


@pytest.mark.xfail(strict=True, reason="the hold is lost, the task is given back, claimed and run again, for ever")
async def test_a_step_whose_record_cannot_be_saved_fails_its_task_and_no_other(clock: HandClock) -> None:
    """The database refuses the payload for good. The task must come to an end, or wait for a person; as it is, its step is
    run again and again, at the pace of two heartbeats, and no attempt is counted."""
    lab = Lab(clock)
    plain = lab.store.save

    async def save(worker: str, batch: Any) -> Any:
        if any(entry[4] == "poison" for entry in batch.entries):
            raise ValueError("no such thing in this database")
        return await plain(worker, batch)

    lab.app._join(Through(lab.store, save=save))  # type: ignore[arg-type]
    ran: list[str] = []

    @lab.app.task(retry=2)
    async def work(ctx: Any, name: str) -> str:
        await ctx.step(lambda: ran.append(name), name=name)
        return name

    async with lab.app:
        await lab.start()
        bad, good = await lab.submit(work, "poison"), await lab.submit(work, "fine")
        assert (await lab.ended(good)).result == "fine"
        task = await lab.settled(bad, 60)
        assert task.state in {State.FAILED, State.WAITING}
        assert len(ran) < 10
        await lab.stop()


async def test_two_workers_in_one_process_share_the_work(app: Onward) -> None:
    seen: set[str] = set()

    @app.task
    async def work(ctx: Any, n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    async with app.worker(slots=2) as one, app.worker(slots=2) as other:
        handles = await app.submit_many(work, list(range(40)))
        assert [await h.result(timeout=20) for h in handles] == list(range(40))
        assert one.id != other.id
    marks = await sql(app.store, "SELECT data FROM onward_journal WHERE kind = 'shift.started'")
    seen = {json.loads(bytes(data))["worker"] for (data,) in marks}
    assert seen == {one.id, other.id}
    assert one.finished + other.finished == 40 == len(marks)


async def test_slots_are_a_limit(app: Onward) -> None:
    running = most = 0

    @app.task
    async def work(ctx: Any, n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    async with app.worker(slots=3) as worker:
        handles = await app.submit_many(work, list(range(30)))
        for handle in handles:
            await handle.result(timeout=20)
            assert worker.running <= 3
    assert most == 3


async def test_a_worker_serves_the_queues_it_is_told_and_no_others(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    await lab.start(queues=("a", "b"))
    ids = {queue: await lab.submit(work, 1, queue=queue) for queue in ("a", "b", "c")}
    for queue in ("a", "b"):
        assert (await lab.ended(ids[queue])).state is State.COMPLETED
    lab.clock.jump(5)
    await calm()
    assert (await lab.app.get(ids["c"])).state is State.PENDING
    await lab.stop()
    await lab.start()
    assert (await lab.ended(ids["c"])).result == 1, "one without a list serves all"


async def test_a_failed_step_error_tells_its_story(lab: Lab) -> None:
    @lab.app.task(retry=1)
    async def work(ctx: Any) -> None:
        with pytest.raises(StepFailed) as told:
            await ctx.step(_raise, "TimeoutError", name="s")
        assert isinstance(told.value.__cause__, TimeoutError)
        raise told.value

    task = await lab.run(work)
    assert task.error["type"] == "StepFailed"  # type: ignore[index]
    app = inline_app(lab.clock)
    assert app.settings.slots == 100
    with pytest.raises(TaskFailed, match="step 's' was tried once and failed: TimeoutError"):
        await lab.clock.until(lab.app.service.result(task.task_id))
