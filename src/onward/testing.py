"""Tests of your own handlers: a database in memory, a clock that you move, and `drain`, which runs all tasks to their end.

    from onward.testing import drain, memory_app

    async def test_the_reminder_goes_out_after_a_month():
        app = memory_app(my_app)            # the handlers of my_app, nothing of its database
        async with app:
            reminder = await app.submit("remind", {"who": "Ada"})
            assert await drain(app) == []   # nothing is left over; the month took milliseconds
            assert await reminder.result() == "sent"

`crashes` goes further: it runs your test once for every moment in which a crash could do harm, and kills the worker there.

    async def test_a_crash_changes_nothing():
        async for app in crashes(my_app):
            charge = await app.submit("charge", {"order": 7}, key="order-7")
            await drain(app)
            assert await charge.result() == "paid"
            assert bank.charges("order-7") == 1

`drain` stops where a task asks a person, or decides in the person's place: `await drain(app, decide=lambda ask: "approve")`.

All parts are real except the time and the place: the same worker, the same journal, the same SQL as in production.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import inspect
import itertools
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any

from onward.app.application import Onward
from onward.core import crash
from onward.core.durations import Duration, seconds
from onward.core.task import ASKS_A_PERSON, Reason, State, Task
from onward.core.views import Ask
from onward.engine.background import spawn
from onward.engine.worker.relay import Relay
from onward.engine.worker.worker import Worker
from onward.errors import UsageError
from onward.store.port.outbox import FUNCTION_LANE
from onward.store.sqlite.file import MEMORY
from onward.store.sqlite.store import SqliteStore

__all__ = ["Killed", "MemoryApp", "MovableClock", "crashes", "drain", "memory_app"]

START_TIME = 1_800_000_000.0
"""The time at which a movable clock begins, in seconds since 1970: a moment in January 2027, the same in every run."""

log: logging.Logger = logging.getLogger("onward.testing")

KILL_TIMEOUT_S = 10.0
"""Real seconds in which the tasks of a killed worker must have ended."""

MAX_STRIDES = 1_000
"""A move of the clock stops at most at so many moments; a long move takes longer strides."""

_shift: contextvars.ContextVar[str] = contextvars.ContextVar("onward_testing_shift")


class _Sleeper:
    """A coroutine that sleeps until a moment. `shift` names the task in whose shift it runs, if it runs in one; an alarm only watches
    over work that may be busy with something else."""

    __slots__ = ("alarm", "at", "future", "number", "shift")

    def __init__(self, at: float, number: int) -> None:
        self.at, self.number, self.shift = at, number, _shift.get(None)
        task = asyncio.current_task()
        self.alarm = task is not None and getattr(task.get_coro(), "cr_code", None) is MovableClock.sleep.__code__
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __lt__(self, other: _Sleeper) -> bool:
        return (self.at, self.number) < (other.at, other.number)


class MovableClock:
    """A Clock that does not move by itself. Wall time and monotonic time move together."""

    def __init__(self, start: float = START_TIME) -> None:
        self._start, self._elapsed = start, 0.0
        self._sleepers: list[_Sleeper] = []
        self._numbers = itertools.count()
        self.slept: int = 0
        """How many sleeps were begun."""

    def now(self) -> float:
        """Seconds since 1970."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._elapsed

    async def sleep(self, delay: float) -> None:
        """Sleep until the clock has been moved by that much."""
        self.slept += 1
        if delay <= 0:
            await asyncio.sleep(0)
            return
        sleeper = _Sleeper(self._elapsed + delay, next(self._numbers))
        heapq.heappush(self._sleepers, sleeper)
        await sleeper.future

    async def move(self, duration: Duration) -> None:
        """Move the clock. Sleepers wake in the order of their moments, and each one runs before the next wakes. In a long move many
        moments may become one, as on a machine that was suspended."""
        delay = seconds(duration, "move")
        await _run_ready_callbacks()  # a coroutine that is about to sleep sleeps from here
        end, stride = self._elapsed + delay, delay / MAX_STRIDES
        while (moment := self.next_moment()) <= end:
            self._elapsed = min(end, max(moment, self._elapsed + stride))
            self._wake()
            await _run_ready_callbacks()
        self._elapsed = end
        await _run_ready_callbacks()

    def next_moment(self, *, of_shifts: bool = False) -> float:
        """The next (monotonic) moment at which a sleeper wakes, or infinity; `of_shifts` leaves out the worker's own sleepers."""
        return min((s.at for s in self._alive() if s.shift is not None or not of_shifts), default=math.inf)

    def resting(self) -> set[str]:
        """The shifts that only sleep on this clock."""
        return {sleeper.shift for sleeper in self._alive() if sleeper.shift is not None and not sleeper.alarm}

    def _alive(self) -> Iterator[_Sleeper]:
        return (sleeper for sleeper in self._sleepers if not sleeper.future.done())

    def _wake(self) -> None:
        while self._sleepers and (self._sleepers[0].at <= self._elapsed or self._sleepers[0].future.done()):
            sleeper = heapq.heappop(self._sleepers)
            if not sleeper.future.done():
                sleeper.future.set_result(None)


class Killed(BaseException):
    """Raised in a worker at the point where `crashes` kills it."""


class MemoryApp(Onward):
    """An app with a database in memory and a clock that you move (`app.clock`)."""

    killed_at: str | None = None
    """The point at which `crashes` killed its worker, such as `save.before`."""
    killed_in: tuple[str, ...] = ()
    """The steps that ran then, by their names in the journal. Of a step in a saga only the saga is known."""
    _worker: Worker | None = None

    def __init__(self, **settings: Any) -> None:
        self.clock: MovableClock = MovableClock()
        self._dead = False
        self._point: Callable[[str], None] | None = None
        store = SqliteStore(MEMORY, clock=self.clock, inline=True)
        settings.setdefault("artifacts", "database")  # whatever the environment says
        super().__init__(clock=self.clock, rng=random.Random(1), store=store, **settings)  # noqa: S311 -- the same in every run

    @contextlib.asynccontextmanager
    async def relay(self) -> AsyncIterator[Relay]:
        """As `Onward.relay`. At the end of the block the clock moves until the deliveries under way have ended, or their grace."""
        block = super().relay()
        relay = await block.__aenter__()
        try:
            yield relay
        finally:
            stopping = spawn(block.__aexit__(None, None, None), "onward-relay-stop")
            while not stopping.done():
                await self.clock.move(0.01)
                await asyncio.sleep(0.001)
            await stopping


def memory_app(like: Onward | None = None, **settings: Any) -> MemoryApp:
    """An app in memory, with the handlers of the app `like`. Ids and jitter are the same in every run. Settings are keyword arguments
    as for Onward, also `secrets={"NAME": "a value for tests"}`."""
    app = MemoryApp(**settings)
    if like is not None:
        app.handlers |= like.handlers
        app._handler_specs |= like._handler_specs
        app._queue_limits |= like._queue_limits
        app._models += like._models
        app.secrets = app.secrets.like(like.secrets, own="secrets" in settings)
        app._listeners |= like._listeners
        app.approval_rules += () if "approval_rules" in settings else like.approval_rules
    return app


async def crashes(like: Onward | None = None, *, most: int = 10_000, **settings: Any) -> AsyncIterator[MemoryApp]:
    """An app in memory for every point at which a crash could do harm: just before a commit, just after it, before and after an effect
    that must not happen twice. `drain` kills its worker at that point, as kill -9 would, and continues with another. The last
    app is one without a crash. Raises UsageError when a task has more than `most` points."""
    for number in range(1, most + 1):
        app, passed = memory_app(like, **settings), itertools.count(1)

        def point(name: str, app: MemoryApp = app, passed: Iterator[int] = passed, number: int = number) -> None:
            if app.killed_at is None and next(passed) == number:
                app.killed_at, app.killed_in, app._dead = name, _running_steps(app._worker), True
                log.info("crashes: the worker is killed at point %d, %s", number, _place_of_death(app))
            if app._dead:
                raise Killed(name)

        async with app:
            app._point = point
            yield app
        if app.killed_at is None:
            return
    raise UsageError(f"after {most} points there is still another; give a smaller task, or a larger `most`")


MAX_NAMED_STEPS = 3
"""Steps that a message names."""


def _running_steps(worker: Worker | None) -> tuple[str, ...]:
    names: list[str] = []
    for shift in () if worker is None else worker._shifts.values():
        branches = shift._branches.scopes if shift._branches else ()
        names += [scope.key for scope in (shift._root, *branches) if scope.key is not None] or shift._journal.sagas
    return tuple(sorted(names))


def _place_of_death(app: MemoryApp) -> str:
    names = ", ".join(app.killed_in[:MAX_NAMED_STEPS]) + (", …" if len(app.killed_in) > MAX_NAMED_STEPS else "")
    return f"{app.killed_at}, in {names}" if names else str(app.killed_at)


Decide = Callable[[Ask], Any]
"""Decides in a person's place: returns "approve" or "deny" for an approval, the answer for a question, and None to leave it open."""


async def drain(
    app: MemoryApp, *, decide: Decide | None = None, within: Duration = "1000d", patience: Duration = 1
) -> list[Task]:
    """Work until nothing is left to do, moving the clock over every sleep, delay and retry. Returns the tasks that have not ended then:
    they wait for a person or a signal, are parked or quarantined, or have a name that this app has no handler for.

    Drain stops where people are asked: it does not move the clock to a moment at which a question or an approval expires, or at which
    the deadline ends a task that waits for a person. Decide (`app.decide`, `app.answer`) and drain again, move the clock
    yourself (`await app.clock.move("1d")`), or give `decide`. It is called once for each open question and approval (`Ask`), may
    be async, and returns "approve" or "deny" for an approval, or the answer to a question. It returns None to leave it open.

    Drain waits for a step that takes real time (a thread, a socket), while the clock does not move. When nothing happens for
    `patience` real seconds it moves the clock, so that a timeout can end a step that hangs. Raises UsageError when the clock was
    moved by more than `within` and there is still work: a task that never ends.
    """
    try:
        return await _drain(app, decide, within, patience)
    except Exception as error:
        if app.killed_at is not None:
            error.add_note(f"(crashes: the worker of this app was killed at {_place_of_death(app)})")
        raise


async def _drain(app: MemoryApp, decide: Decide | None, within: Duration, patience: Duration) -> list[Task]:
    end = app.clock.monotonic() + seconds(within, "within")
    shown: set[str] = set()
    async with app:
        while True:
            async with _worker(app) as worker:
                await _until_idle(app, worker, seconds(patience, "patience"), end)
                killed = app._dead
            if killed:
                continue
            left, asks = await _unfinished(app), await _open_asks(app)
            if decide is not None and (new := [ask for ask in asks if ask.id not in shown]):
                for ask in new:
                    shown.add(ask.id)
                    await _decide(app, decide, ask)
                continue
            delay = _next_moment(app, left, asks) - app.clock.now()
            if math.isinf(delay) and app.clock.monotonic() <= end:
                return left
            if app.clock.monotonic() + delay > end:
                raise UsageError(_endless_message(left, within))
            await app.clock.move(max(delay, 0.0))


async def _until_idle(app: MemoryApp, worker: Worker, patience: float, end: float) -> None:
    """Run until the worker has no task and could claim none, or the time is over."""
    clock, empty_polls, poll = app.clock, 0, app.settings.poll_s
    while clock.monotonic() <= end and not app._dead:
        await _settle(worker, clock)
        if not worker.running:
            if empty_polls > 20 or not (
                any(_ready(app, task) for task in await _unfinished(app)) or await _has_due_events(app)
            ):
                return
            empty_polls += 1  # the worker looks again at its next poll
            await clock.move(poll)
            continue
        empty_polls = 0
        if len(clock.resting()) >= worker.running or not await _wait_for_progress(app, worker, patience):
            moment = clock.next_moment(of_shifts=True)
            if math.isfinite(moment):
                await clock.move(max(0.0, moment - clock.monotonic()))


@contextlib.asynccontextmanager
async def _worker(app: MemoryApp) -> AsyncIterator[Worker]:
    tasks: list[asyncio.Task[Any]] = []

    def keep(coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        tasks.append(_spawn(coroutine, name))
        return tasks[-1]

    app._worker = worker = app._make_worker(spawn=keep)
    crash.install(app._point)
    try:
        await worker.start()
        yield worker
    finally:
        crash.install(None)
        await (_kill(app, worker, tasks) if app._dead else _stop(app, worker))


async def _kill(app: MemoryApp, worker: Worker, tasks: list[asyncio.Task[Any]]) -> None:
    """Kill the worker between two instructions, and free its tasks as another worker would."""
    heart, loop = worker._heart._task, asyncio.get_running_loop()
    tasks += [heart] if heart is not None else []
    end = loop.time() + KILL_TIMEOUT_S
    worker.writer.close()  # a dead worker writes nothing
    while left := [task for task in tasks if not task.done()]:
        if loop.time() > end:
            raise UsageError(_survivors_message(_place_of_death(app), left))
        for task in left:
            task.cancel()
        await app.clock.move(1)
        await asyncio.sleep(0.001)
    for task in tasks:
        task.cancelled() or task.exception()
    worker.threads.close()
    app._dead = False
    await app.store.workers.rescue([worker.id])


async def _stop(app: MemoryApp, worker: Worker) -> None:
    stopping = asyncio.ensure_future(worker.stop(0))
    while not stopping.done():
        await app.clock.move(0.01)
        await asyncio.sleep(0.001 if worker.running else 0)
    await stopping


def _spawn(coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """The worker's own spawn, which also sets the name of the shift for all code that runs in it."""
    if not name.startswith("onward-task-"):
        return spawn(coroutine, name)
    context = contextvars.copy_context()
    context.run(_shift.set, name)
    return context.run(spawn, coroutine, name)


def _activity(worker: Worker, clock: MovableClock) -> tuple[int, ...]:
    return worker.running, worker.finished, worker.writer.commits, clock.slept


async def _settle(worker: Worker, clock: MovableClock) -> None:
    """Run until nothing more happens without a move of the clock."""
    quiet = 0
    while quiet < 10:
        before = _activity(worker, clock)
        await asyncio.sleep(0)
        quiet = quiet + 1 if _activity(worker, clock) == before else 0


async def _wait_for_progress(app: MemoryApp, worker: Worker, patience: float) -> bool:
    """Give real time to steps that take some; False when nothing happens in it."""
    loop, before = asyncio.get_running_loop(), _activity(worker, app.clock)
    until = loop.time() + patience
    while loop.time() < until:
        await asyncio.sleep(0.001)
        if app._dead or _activity(worker, app.clock) != before:
            return True
    return False


async def _run_ready_callbacks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def _unfinished(app: Onward) -> list[Task]:
    tasks: list[Task] = []
    for state in (State.PENDING, State.RUNNING, State.WAITING):
        cursor: str | None = None
        while True:
            page, cursor = await app.list(state=state, limit=1000, cursor=cursor)
            tasks += page
            if cursor is None:
                break
    return tasks


async def _open_asks(app: Onward) -> list[Ask]:
    asks: list[Ask] = []
    cursor: str | None = None
    while True:
        page = await app.asks(limit=1000, cursor=cursor)
        asks += page
        if (cursor := page.next) is None:
            return asks


async def _decide(app: Onward, decide: Decide, ask: Ask) -> None:
    """Decide one approval, or answer one question, in a person's place."""
    decision = decide(ask)
    if inspect.isawaitable(decision):
        decision = await decision
    if decision is None:
        return
    if ask.kind == "question":
        await app.answer(ask.id, decision)
    else:
        await app.decide(ask.id, decision, by="test", reason="decided by drain(decide=…)")


def _next_moment(app: Onward, left: list[Task], asks: list[Ask]) -> float:
    """The moment at which the next task is due; infinity when only people are to act, or when a person would be too late then."""
    expires: dict[str, float] = {}
    """When the silence of people changes something, by task."""
    by_id = {task.task_id: task for task in left}
    for ask in asks:
        if ask.expires_at is not None:
            expires[ask.task_id] = min(ask.expires_at, expires.get(ask.task_id, math.inf))
    for task in left:
        if task.reason in ASKS_A_PERSON or task.task_id in expires:
            _expire_with_ancestors(task, by_id, expires)
    due = min(
        (at for task in left if (at := _due_at(app, task)) < expires.get(task.task_id, math.inf)), default=math.inf
    )
    return due if due < min(expires.values(), default=math.inf) else math.inf


def _expire_with_ancestors(task: Task, by_id: Mapping[str, Task], expires: dict[str, float]) -> None:
    """Note when a deadline, or the end of a wait for a child, cuts a person off who is asked by this task or by one below it."""
    above: Task | None = task
    while above is not None:
        ends = [expires.get(above.task_id), above.deadline_at, above.due_at if above.reason == Reason.CHILD else None]
        expires[above.task_id] = min((at for at in ends if at is not None), default=math.inf)
        above = by_id.get(above.parent) if above.parent is not None else None


async def _has_due_events(app: Onward) -> bool:
    """Whether there are due events for a function of this app."""
    lanes = await app.store.outbox.lanes() or ()
    return any(lane.due_in <= 0 and lane.name.removeprefix(FUNCTION_LANE) in app._listeners for lane in lanes)


def _due_at(app: Onward, task: Task) -> float:
    return math.inf if task.due_at is None or task.task not in app.handlers else task.due_at


def _ready(app: MemoryApp, task: Task) -> bool:
    due = task.due_at is None or task.due_at <= app.clock.now()
    return task.task in app.handlers and task.worker is None and due


def _survivors_message(point: str, left: list[asyncio.Task[Any]]) -> str:
    names = ", ".join(sorted(task.get_name() for task in left))
    return (
        f"the worker was killed at {point}, and {KILL_TIMEOUT_S:g} s later these still run: {names}; a handler that catches "
        "asyncio.CancelledError (or BaseException) must raise it again"
    )


def _endless_message(left: list[Task], within: Duration) -> str:
    names = ", ".join(sorted({task.task for task in left}))
    return (
        f"after {within} of moved clock {len(left)} tasks still run ({names}); drain is for tasks that end: "
        "cancel those that do not, or give a longer `within`"
    )
