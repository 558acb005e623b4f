"""A machine that calls the verbs of a store in random order, beside a plain Python model of the expected state.

After every step the tables are compared with the model in full, and the census must be empty. So the invariants of a
durable queue are checked in every state it gets into: accepted tasks are there (I1), ended tasks never change (I2),
only the holder of the next number writes (I3, I4), no two workers hold a task (I6), every unfinished task is ready,
held or waiting for an event that will come (I7), crashes are counted (I8), and journals have no gaps (I9).
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from onward.app.connect import open_store
from onward.core import record as r
from onward.core.task import State
from onward.store.port.core import SUSPECT_AFTER, Batch, Claimed, End, Store, Wait
from onward.store.sqlite.store import SqliteStore
from tests.kit import HandClock, new, row, sql

NEWS = {r.STEP_STARTED, r.STEP_RETRY, r.STEP_WAITS, r.ARTIFACT, r.PROGRESS}
LEASE_S = 10.0
LAST = {
    "completed": r.COMPLETED,
    "failed": r.FAILED,
    "retry": r.RETRY,
    "later": r.HANDED_BACK,
    "back": r.HANDED_BACK,
    "parked": r.PARKED,
    "quarantined": r.QUARANTINED,
}
index = st.integers(0, 1000)
steps = st.lists(st.sampled_from([r.STEP_DONE, r.STEP_STARTED, r.STEP_FAILED, r.PROGRESS]), max_size=3)
endings = st.sampled_from(["step", *LAST])
requests = st.lists(
    st.tuples(st.sampled_from([None, None, "a", "b"]), st.integers(-1, 1), st.sampled_from([0.0, 0.0, 5.0])),
    min_size=1,
    max_size=3,
)


MET: collections.Counter[str] = collections.Counter()
"""How often the machine met each case. A case that it never met is not proved."""

MUST_BE_MET = (
    "a crash, number 1",
    "a crash, number 2",
    "a holder cancelled",
    "a save of a zombie before another claim",
    "a stale save refused",
    "a stale save refused beside a good one",
    "completed",
    "failed",
    "later",
    "woken",
)


@dataclasses.dataclass
class Model:
    """The expected state of a task."""

    id: str
    key: str | None
    priority: int
    position: int
    due_at: float | None
    reason: str
    worker: str | None = None
    attempt: int = 1
    crashes: int = 0
    ended: State | None = None
    first_priority: int = 0
    journal: list[tuple[int, str]] = dataclasses.field(default_factory=lambda: [(0, r.SUBMITTED)])

    @property
    def ready(self) -> bool:
        return self.ended is None and self.worker is None and self.due_at is None

    @property
    def shift_got_something_done(self) -> bool:
        shift = self.journal[-1][0]
        return any(kind not in NEWS and kind != r.SHIFT for number, kind in self.journal if number == shift)


@dataclasses.dataclass
class Held:
    """A task that a worker believes it holds. It may be wrong, on purpose."""

    worker: str
    id: str
    shift: int
    seq: int
    attempt: int


@dataclasses.dataclass
class Bench:
    """The parts of a machine: a store of its own, its clock, and a function that closes it."""

    store: Store
    clock: HandClock
    move: Callable[[float], None]
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    close: Callable[[], None] = lambda: None


class Machine(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench, self.store = bench, bench.store
        self.tasks: dict[str, Model] = {}
        self.workers: dict[str, float] = {}
        self.holds: list[Held] = []
        self.sent: list[tuple[Batch, set[str]]] = []
        self.count = 0

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.bench.run(work)

    @property
    def now(self) -> float:
        return self.bench.clock.time

    def next(self) -> int:
        self.count += 1
        return self.count

    def pick(self, things: Any, number: int) -> Any:
        things = list(things)
        return things[number % len(things)]

    # ── ways in ──────────────────────────────────────────────────────────────────────────────────────────────────

    @initialize(requests=requests, room=st.integers(1, 3))
    def begin(self, requests: list[tuple[str | None, int, float]], room: int) -> None:
        self.join()
        self.join()
        self.submit_all([*requests, (None, 0, 0.0), (None, 1, 0.0)])
        self.claimed(self.pick(self.workers, 0), room, alone=False)

    @rule(requests=requests)
    def submit(self, requests: list[tuple[str | None, int, float]]) -> None:
        self.submit_all(requests)

    def submit_all(self, requests: list[tuple[str | None, int, float]]) -> None:
        batch = [new(key=key, priority=priority, delay=delay) for key, priority, delay in requests]
        answers = self.do(self.store.submit(batch))
        for task, answer in zip(batch, answers, strict=True):
            known = next((m for m in self.tasks.values() if task.key is not None and m.key == task.key), None)
            assert (answer.id, answer.created) == ((known.id, False) if known else (task.id, True))
            if known is None:
                due = self.now + task.delay if task.delay else None
                reason = "delayed" if task.delay else "queued"
                self.tasks[task.id] = Model(
                    task.id, task.key, task.priority, self.next(), due, reason, first_priority=task.priority
                )

    @rule()
    def join(self) -> None:
        name = f"w{self.next()}"
        self.do(self.store.workers.join(row(name), LEASE_S))
        self.workers[name] = self.now + LEASE_S

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    def candidates(self, worker: str, *, alone: bool) -> list[Model]:
        if self.workers.get(worker, -1.0) <= self.now:
            return []
        ready = [t for t in self.tasks.values() if t.ready and (t.crashes >= SUSPECT_AFTER) == alone]
        return sorted(ready, key=lambda t: (-t.priority, t.position))

    @precondition(lambda self: any(task.ready for task in self.tasks.values()))
    @rule(number=index, room=st.integers(1, 3))
    def claim(self, number: int, room: int) -> None:
        living = [worker for worker, until in self.workers.items() if until > self.now]
        if not living:
            self.join()
            living = [worker for worker, until in self.workers.items() if until > self.now]
        self.claimed(self.pick(living, number), room, alone=False)

    @precondition(lambda self: self.workers)
    @rule(number=index, room=st.integers(1, 2), alone=st.booleans())
    def claim_in_vain(self, number: int, room: int, alone: bool) -> None:
        """A claim of any worker, with or without ready tasks."""
        self.claimed(self.pick(self.workers, number), room, alone=alone)

    @precondition(lambda self: any(task.ready and task.crashes >= SUSPECT_AFTER for task in self.tasks.values()))
    @rule()
    def claim_a_suspect(self) -> None:
        self.join()
        self.claimed(list(self.workers)[-1], 1, alone=True)

    def claimed(self, worker: str, room: int, *, alone: bool) -> None:
        got: list[Claimed] = self.do(self.store.claim(worker, "default", ["work"], room, alone=alone))
        expected = self.candidates(worker, alone=alone)[:room]
        assert [(c.id, c.shift, c.attempt, c.crashes) for c in got] == [
            (t.id, len(t.journal) + 1, t.attempt, t.crashes) for t in expected
        ]
        MET["nothing for a worker without a lease"] += self.workers[worker] <= self.now and any(
            t.ready for t in self.tasks.values()
        )
        for task in expected:
            MET["a suspect alone"] += task.crashes >= SUSPECT_AFTER
            seq = len(task.journal) + 1
            task.journal.append((seq, r.SHIFT))
            task.worker, task.reason = worker, "running"
            self.holds.append(Held(worker, task.id, seq, seq + 1, task.attempt))

    @precondition(lambda self: self.holds)
    @rule(requests=st.lists(st.tuples(index, steps, endings), min_size=1, max_size=3))
    def save(self, requests: list[tuple[int, list[str], str]]) -> None:
        """Steps and settles of several holds, living and stale, in one commit."""
        self.saved(requests)

    @precondition(lambda self: {self.stale(held) for held in self.holds} == {True, False})
    @rule(number=index, kinds=steps, ending=endings)
    def save_both(self, number: int, kinds: list[str], ending: str) -> None:
        """A stale hold beside a living one, which chance alone meets too seldom."""
        by_life = [[n for n, held in enumerate(self.holds) if self.stale(held) == life] for life in (True, False)]
        self.saved(
            [(self.pick(places, number), kinds, end) for places, end in zip(by_life, ("step", ending), strict=True)]
        )

    def stale(self, held: Any) -> bool:
        return bool(held.seq != len(self.tasks[held.id].journal) + 1)

    @precondition(lambda self: self.holds)
    @rule(number=index, kinds=steps)
    def step(self, number: int, kinds: list[str]) -> None:
        self.saved([(number, kinds, "step")])

    @precondition(lambda self: self.holds)
    @rule(number=index, ending=endings)
    def settle(self, number: int, ending: str) -> None:
        self.saved([(number, [], ending)])

    def saved(self, requests: list[tuple[int, list[str], str]]) -> None:
        batch, plans, seen = Batch(), [], set()
        for number, kinds, ending in requests:
            held = self.pick(self.holds, number)
            if held.id not in seen:
                seen.add(held.id)
                plans.append((held, self.records(held, kinds, ending, batch), ending))
        refused = self.do(self.store.save("whoever", batch))
        expected = {held.id for held, _, _ in plans if self.stale(held)}
        assert refused == expected
        MET["a stale save refused"] += len(expected)
        MET["a stale save refused beside a good one"] += 0 < len(expected) < len(plans)
        for held, kinds, ending in plans:
            if held.id in refused:
                self.holds.remove(held)
            else:
                self.settled(held, kinds, ending)
        self.sent.append((batch, refused))

    def records(self, held: Held, kinds: list[str], ending: str, batch: Batch) -> list[str]:
        kinds = [*kinds, LAST[ending]] if ending in LAST else kinds or [r.STEP_DONE]
        for offset, kind in enumerate(kinds):
            batch.entries.append((held.id, held.seq + offset, held.shift, kind, "s", b"{}", self.now))
        seq = held.seq + len(kinds) - 1
        match ending:
            case "completed" | "failed":
                batch.ends.append(End(held.id, State(ending), held.attempt, seq))
            case "later" | "retry":
                reason, attempt = ("asleep", held.attempt) if ending == "later" else ("retrying", held.attempt + 1)
                batch.waits.append(Wait(held.id, self.now + 3, reason, attempt))
            case "back":
                batch.waits.append(Wait(held.id, None, "queued", held.attempt))
            case "parked" | "quarantined":
                batch.waits.append(Wait(held.id, math.inf, ending, held.attempt))
        return kinds

    def settled(self, held: Held, kinds: list[str], ending: str) -> None:
        task = self.tasks[held.id]
        MET["a save of a zombie before another claim"] += task.worker != held.worker
        MET["crashes forgiven by a wait"] += bool(task.crashes) and ending not in {"step", "completed", "failed"}
        task.journal += [(held.shift, kind) for kind in kinds]
        held.seq += len(kinds)
        MET[ending] += 1
        if ending == "step":
            return
        self.holds.remove(held)
        task.worker, task.crashes = None, 0
        match ending:
            case "completed" | "failed":
                task.ended, task.attempt = State(ending), held.attempt
            case "later":
                task.due_at, task.reason, task.attempt = self.now + 3, "asleep", held.attempt
            case "retry":
                task.due_at, task.reason, task.attempt = self.now + 3, "retrying", held.attempt + 1
            case "back":
                task.due_at, task.reason, task.attempt = None, "queued", held.attempt
            case _:
                task.due_at, task.reason, task.attempt = math.inf, ending, held.attempt

    @precondition(lambda self: self.sent)
    @rule(number=index)
    def send_again(self, number: int) -> None:
        """Sends a commit again whose answer was lost, at any later time: it returns the answer of the first, and
        changes nothing (the invariant checks that)."""
        batch, refused = self.pick(self.sent, number)
        assert self.do(self.store.save("whoever", batch)) == refused

    @rule(seconds=st.sampled_from([1.0, 3.0, 5.0, 11.0]), beating=st.booleans())
    def time_passes(self, seconds: float, beating: bool) -> None:
        self.bench.move(seconds)
        for worker in self.workers if beating else ():
            self.beaten(worker)

    @precondition(lambda self: any(task.due_at is not None for task in self.tasks.values()))
    @rule()
    def wake(self) -> None:
        due = [t for t in self.tasks.values() if t.ended is None and t.due_at is not None and t.due_at <= self.now]
        outlook = self.do(self.store.wake())
        MET["woken"] += len(due)
        for task in due:
            task.due_at, task.reason = None, "queued"
        assert outlook.woken == bool(due)
        ready = [t for t in self.tasks.values() if t.ready]
        assert outlook.queues == (("default",) if ready else ())
        assert outlook.suspects == (("default",) if any(t.crashes >= SUSPECT_AFTER for t in ready) else ())
        later = [
            t.due_at for t in self.tasks.values() if t.ended is None and t.due_at is not None and t.due_at < math.inf
        ]
        assert outlook.next_due_in == (min(later) - self.now if later else None)

    # ── outsiders ────────────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.tasks)
    @rule(number=index)
    def cancel(self, number: int) -> None:
        task = self.pick(self.tasks.values(), number)
        assert self.do(self.store.cancel(task.id)).won == (task.ended is None)
        MET["a holder cancelled"] += task.worker is not None and task.ended is None
        if task.ended is None:
            task.journal += [(0, r.CANCEL), (0, r.CANCELLED)]
            task.ended = State.CANCELLED

    @precondition(
        lambda self: any(t.ended is State.FAILED or t.reason in {"parked", "quarantined"} for t in self.tasks.values())
    )
    @rule(number=index)
    def resume(self, number: int) -> None:
        wanted = [t for t in self.tasks.values() if t.ended is State.FAILED or t.reason in {"parked", "quarantined"}]
        task = self.pick([*wanted, *self.tasks.values()] if number % 5 == 0 else wanted, number)
        possible = task.ended is State.FAILED or (
            task.ended is None and task.worker is None and task.reason in {"parked", "quarantined"}
        )
        assert self.do(self.store.resume(task.id)) == possible
        MET[f"resumed from {task.ended or task.reason}"] += possible
        if not possible:
            return
        if task.ended is State.FAILED:
            task.ended, task.attempt, task.position, task.priority = None, 1, self.next(), task.first_priority
        task.due_at, task.reason, task.crashes = None, "queued", 0
        task.journal.append((0, r.RESUMED))

    @precondition(lambda self: self.tasks)
    @rule(number=index, priority=st.integers(-2, 2))
    def prioritize(self, number: int, priority: int) -> None:
        task = self.pick(self.tasks.values(), number)
        assert self.do(self.store.prioritize(task.id, priority)) == (task.ended is None)
        if task.ended is None:
            task.priority = priority

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def beaten(self, worker: str) -> None:
        beat = self.do(self.store.workers.heartbeat(worker, LEASE_S, 0.0))
        assert (beat.alive, beat.now) == (True, self.now)
        assert beat.held == {t.id for t in self.tasks.values() if t.worker == worker and t.ended is None}
        self.workers[worker] = self.now + LEASE_S

    @precondition(lambda self: any(task.worker for task in self.tasks.values()))
    @rule(number=index)
    def a_holder_dies(self, number: int) -> None:
        """A holder is declared dead, and another worker joins."""
        busy = sorted({t.worker for t in self.tasks.values() if t.worker is not None and t.ended is None})
        if busy:
            self.rescued([self.pick(busy, number)], None)
            self.join()

    @precondition(lambda self: self.workers)
    @rule(late=st.booleans())
    def rescue_the_late(self, late: bool) -> None:
        self.rescued([], LEASE_S / 2 if late else None)

    def rescued(self, named: list[str], lease: float | None) -> None:
        freed = self.do(self.store.workers.rescue(named, lease))
        dead = {*named, *(w for w, until in self.workers.items() if lease is not None and until < self.now)}
        self.workers = {w: until for w, until in self.workers.items() if w not in dead}
        orphaned = [t for t in self.tasks.values() if t.ended is None and t.worker in dead]
        assert freed == len(orphaned)
        for task in orphaned:
            task.crashes = 0 if task.shift_got_something_done else task.crashes + 1
            task.worker, task.reason = None, "queued"
            MET[f"a crash, number {min(task.crashes, SUSPECT_AFTER + 1)}"] += 1

    @precondition(lambda self: self.workers)
    @rule(number=index)
    def leave(self, number: int) -> None:
        worker = self.pick(self.workers, number)
        self.do(self.store.workers.leave(worker))
        del self.workers[worker]
        for task in self.tasks.values():
            if task.worker == worker and task.ended is None:
                task.worker, task.reason = None, "queued"

    @precondition(lambda self: self.holds)
    @rule(number=index, other=index, late=st.booleans())
    def release(self, number: int, other: int, late: bool) -> None:
        """Releases a task of the worker and one that another may hold, in time or too late."""
        held, foreign = self.pick(self.holds, number), self.pick(self.holds, other)
        self.do(self.store.release(held.worker, [held.id, foreign.id], 0.0 if late else 1e12))
        for task in (self.tasks[held.id], self.tasks[foreign.id]):
            if task.worker == held.worker and task.ended is None and not late:
                task.worker, task.reason = None, "queued"

    # ── invariants ───────────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def the_tables_are_as_the_model_says(self) -> None:
        queue = self.do(
            sql(self.store, "SELECT task_id, worker, due_at, reason, attempt, crashes, priority FROM onward_queue")
        )
        assert sorted(queue) == sorted(
            (t.id, t.worker, t.due_at, t.reason, t.attempt, t.crashes, t.priority)
            for t in self.tasks.values()
            if t.ended is None
        )
        outcomes = self.do(sql(self.store, "SELECT task_id, state, attempt, seq FROM onward_outcomes"))
        assert sorted(outcomes) == sorted(
            (t.id, t.ended.value, t.attempt, len(t.journal)) for t in self.tasks.values() if t.ended is not None
        )
        journal = self.do(sql(self.store, "SELECT task_id, seq, shift, kind FROM onward_journal ORDER BY task_id, seq"))
        assert journal == [
            (t.id, seq + 1, shift, kind)
            for t in sorted(self.tasks.values(), key=lambda t: t.id)
            for seq, (shift, kind) in enumerate(t.journal)
        ]

    @invariant()
    def the_census_is_empty(self) -> None:
        assert self.do(self.store.health.census()) == []

    @invariant()
    def readers_see_it(self) -> None:
        if not self.tasks:
            return
        task = self.pick(self.tasks.values(), self.count)
        seen = self.do(self.store.get(task.id))
        assert seen is not None
        assert seen.ended == (task.ended is not None)
        assert (seen.worker, seen.attempt) == (None if task.ended else task.worker, task.attempt)

    def teardown(self) -> None:
        self.do(self.store.close())
        self.bench.close()


def _run(machine: Callable[[], Machine], *, examples: int, steps: int = 50, chance: bool = False) -> None:
    """Runs the same examples every time, so that a failure repeats on every machine; with `chance`, others each time."""
    MET.clear()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=not chance,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"met: {dict(sorted(MET.items()))}")
    if examples >= 100:
        assert [thing for thing in MUST_BE_MET if not MET[thing]] == []


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """An inline store waits for nothing, so its verbs need no loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("an inline store has waited for something")


def on_sqlite() -> Machine:
    clock = HandClock()
    store = SqliteStore(":memory:", clock=clock, inline=True)
    _at_once(store.open())
    return Machine(Bench(store, clock, clock.jump, _at_once))


@pytest.fixture
def on_postgres(recycled: Any) -> Callable[[], Machine]:
    def machine() -> Machine:
        clock, loop = HandClock(), asyncio.new_event_loop()
        store = open_store(recycled.empty())
        recycled.set_clock(clock.time)
        loop.run_until_complete(store.open())

        def move(seconds: float) -> None:
            clock.jump(seconds)
            recycled.set_clock(clock.time)

        return Machine(Bench(store, clock, move, loop.run_until_complete, loop.close))

    return machine


@pytest.mark.slow
def test_sqlite() -> None:
    _run(on_sqlite, examples=100)


@pytest.mark.slow
def test_postgres(on_postgres: Callable[[], Machine]) -> None:
    _run(on_postgres, examples=25, steps=40)


@pytest.mark.slow
@pytest.mark.usefixtures("at_length")
def test_sqlite_at_length() -> None:
    _run(on_sqlite, examples=5_000, steps=80, chance=True)


@pytest.mark.slow
@pytest.mark.usefixtures("at_length")
def test_postgres_at_length(on_postgres: Callable[[], Machine]) -> None:
    _run(on_postgres, examples=1_000, chance=True)
