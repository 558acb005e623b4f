"""Helpers of the tests: small makers of the store's values, a clock that is moved by hand, and raw SQL."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import heapq
import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from onward import Onward, testing
from onward.core import record as r
from onward.core.encryption import parse_keys
from onward.core.ids import Ids
from onward.core.record import Entry
from onward.core.task import NewTask, State, Task
from onward.engine.background import spawn
from onward.engine.worker.worker import Worker
from onward.store.port.core import Batch, Claimed, End, Store, Wait
from onward.store.port.workers import WorkerRow
from onward.store.sqlite.file import MEMORY
from onward.store.sqlite.store import SqliteStore
from onward.testing import MemoryApp
from rig.base import Server
from rig.server import Unavailable

T = TypeVar("T")

KINDS = ("sqlite file", "sqlite memory", "postgres")
only_postgres = pytest.mark.parametrize("kind", ["postgres"], indirect=True)
only_memory = pytest.mark.parametrize("kind", ["sqlite memory"], indirect=True)
only_file = pytest.mark.parametrize("kind", ["sqlite file"], indirect=True)
not_memory = pytest.mark.parametrize("kind", ["sqlite file", "postgres"], indirect=True)

next_id = Ids(time.time, random.Random(1))
_numbers = itertools.count(1)
SEEDS = itertools.count(1)
"""For apps that share a store and a clock: two with the same seed would give two tasks the same id. Here and not in a `conftest.py`,
which is loaded once as a plugin and once by each import."""


# ── servers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

S = TypeVar("S", bound=Server)


@contextlib.contextmanager
def running(server: S, missing: str = "") -> Iterator[S]:
    """Starts a server of the rig, and closes it. If this machine cannot have it, the test is skipped with this reason.

    A fixture of the session starts one server for each process of pytest-xdist. A test that kills a server starts its own.
    """
    try:
        server.start()
    except Unavailable as error:
        pytest.skip(f"{missing}: {error}" if missing else str(error))
    with server:
        yield server


# ── encryption ───────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_KEYS = "k1=" + base64.b64encode(bytes(range(32))).decode()
"""The setting `encryption_keys` of tests that run encrypted."""


def encrypt(store: Store, keys: str = TEST_KEYS, **options: Any) -> None:
    """Make a store encrypt its payloads, as the settings of an app do."""
    store.data_keys.use(parse_keys(keys), inline=store.inline, **options)


# ── the store's values ───────────────────────────────────────────────────────────────────────────────────────────────


def new(task: str = "work", **over: Any) -> NewTask:
    """A task to submit. For the store its fingerprint stands for its input."""
    values: dict[str, Any] = {
        "id": next_id(),
        "task": task,
        "input": b'{"n":1}',
        "options": b"{}",
        "queue": "default",
        "priority": 0,
        "delay": 0.0,
        "key": None,
        "fingerprint": "f1",
    }
    return NewTask(**values | over)


def row(worker: str, **over: Any) -> WorkerRow:
    values: dict[str, Any] = {
        "machine": "boot/ns",
        "host": "here",
        "pid": 1,
        "slots": 10,
        "names": ("work",),
        "queues": (),
        "address": "",
        "version": "0",
    }
    return WorkerRow(id=worker, **values | over)


async def join(store: Store, *workers: str, lease: float = 10.0) -> None:
    for worker in workers:
        await store.workers.join(row(worker), lease)


async def submit(store: Store, *tasks: NewTask) -> list[str]:
    return [answer.id for answer in await store.submit(tasks or [new()])]


async def claim(store: Store, worker: str = "w1", room: int = 10, queue: str = "default", **over: Any) -> list[Claimed]:
    return await store.claim(worker, queue, over.pop("names", ["work"]), room, **over)


async def begun(store: Store, worker: str = "w1") -> Claimed:
    """A task that this worker has just claimed."""
    await join(store, worker)
    await submit(store)
    (claimed,) = await claim(store, worker, 1)
    return claimed


def entry(
    held: Claimed, ahead: int = 1, kind: str = r.STEP_DONE, key: str = "s", data: bytes = b'{"result":1}'
) -> Entry:
    """The record `ahead` numbers after the start of the shift. A second call makes the same record, as a repeated commit has it."""
    return (held.id, held.shift + ahead, held.shift, kind, key, data, held.claimed_at)


def completion(held: Claimed, ahead: int = 1, state: State = State.COMPLETED) -> Batch:
    kind = {State.COMPLETED: r.COMPLETED, State.FAILED: r.FAILED}[state]
    data = b'{"result":42}' if state is State.COMPLETED else b'{"error":{"type":"E","message":"m"}}'
    return Batch([entry(held, ahead, kind, "", data)], [End(held.id, state, held.attempt, held.shift + ahead)])


def waiting(held: Claimed, due_at: float | None, reason: str, attempt: int | None = None, ahead: int = 1) -> Batch:
    kind = {"retrying": r.RETRY, "parked": r.PARKED, "quarantined": r.QUARANTINED}.get(reason, r.HANDED_BACK)
    wait = Wait(held.id, due_at, reason, held.attempt if attempt is None else attempt)
    return Batch([entry(held, ahead, kind, "", b"{}")], waits=[wait])


def together(*batches: Batch) -> Batch:
    return Batch(
        [e for b in batches for e in b.entries],
        [e for b in batches for e in b.ends],
        [w for b in batches for w in b.waits],
    )


async def kinds(store: Store, task_id: str) -> list[str]:
    return [record.kind for record in await store.journal(task_id, limit=100_000)]


async def dense(store: Store, task_id: str) -> bool:
    seqs = [record.seq for record in await store.journal(task_id, limit=100_000)]
    return seqs == list(range(1, len(seqs) + 1))


async def sql(store: Any, statement: str) -> list[tuple[Any, ...]]:
    """Runs SQL past the port: to plant rows that must not exist, and to read columns that no verb returns."""
    if isinstance(store, SqliteStore):
        return await store._db.writing(lambda c: [tuple(row) for row in c.execute(statement)])
    async with store._db.connection() as connection:
        return [tuple(row) for row in await connection.fetch(statement)]


async def crashes(store: Store, task_id: str) -> int:
    ((count,),) = await sql(store, f"SELECT crashes FROM onward_queue WHERE task_id = '{task_id}'")
    return int(count)


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class HandClock:
    """A clock that stands still until it is moved. It wakes its sleepers in the order of their times."""

    def __init__(self, start: float = 2_000_000_000.0) -> None:
        self.time = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, delay: float) -> None:
        if delay <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.time + delay, next(_numbers), future))
        await future

    def jump(self, seconds: float) -> None:
        """Moves the time at once, as when a laptop wakes."""
        self.time += seconds
        while self._sleepers and self._sleepers[0][0] <= self.time:
            self._ring()

    def _ring(self) -> None:
        due, _, future = heapq.heappop(self._sleepers)
        self.time = max(self.time, due)
        if not future.done():
            future.set_result(None)

    async def until(self, awaited: Awaitable[T], at_most: float = 600.0) -> T:
        """Moves the time from one sleeper to the next, without real waits, until `awaited` is done."""
        task = asyncio.ensure_future(awaited)
        end = self.time + at_most
        while True:
            await calm()
            if task.done():
                return task.result()
            if not self._sleepers or self._sleepers[0][0] > end:
                task.cancel()
                raise AssertionError(f"not done after {at_most:g} s of a clock moved by hand")
            self._ring()


async def calm() -> None:
    """Waits until all callbacks that can run have run (now and then, threads get a moment too)."""
    for _ in range(12):
        await asyncio.sleep(0)
    if next(_numbers) % 5 == 0:
        await asyncio.sleep(0.0003)


class Time:
    """The database's time, movable on every store."""

    def __init__(self, clock: HandClock, on_move: Callable[[float], None] | None = None) -> None:
        self._clock, self._on_move = clock, on_move

    @property
    def now(self) -> float:
        return self._clock.time

    def move(self, seconds: float) -> None:
        self._clock.jump(seconds)
        if self._on_move is not None:
            self._on_move(self._clock.time)


# ── apps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def inline_app(clock: HandClock, store: Store | None = None, **settings: Any) -> Onward:
    """An app in memory whose whole life runs in the test's loop, on a clock moved by hand."""
    return Onward(
        store=store or SqliteStore(MEMORY, clock=clock, inline=True), clock=clock, rng=random.Random(7), **settings
    )


async def eventually(check: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    """The first true value of `check`."""
    end = time.monotonic() + seconds
    while not (answer := await check()):
        if time.monotonic() > end:
            raise AssertionError(f"not true within {seconds:g} s: {check}")
        await asyncio.sleep(0.01)
    return answer


async def drain(app: MemoryApp) -> list[Task]:
    """`onward.testing.drain` for handlers that use threads and servers: a busy machine may give those no time for seconds."""
    return await testing.drain(app, patience=60)


async def states(app: Onward, ids: Sequence[str]) -> list[State]:
    return [(await app.get(task_id)).state for task_id in ids]


def value(record: r.Record) -> Any:
    return json.loads(record.data)


class Through:
    """A store in front of another: it passes every verb on, except those that a test replaces with its own. A verb of another port
    has a dotted name, as `workers.join`."""

    def __init__(self, store: Any, **verbs: Any) -> None:
        self._store = store
        for name, verb in verbs.items():
            port, _, rest = name.rpartition(".")
            if port and port not in self.__dict__:
                self.__dict__[port] = Through(getattr(store, port, None))
            (self.__dict__[port].__dict__ if port else self.__dict__)[rest] = verb

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@dataclasses.dataclass
class Gate:
    """A caller waits here until the test opens the gate; the test sees in `reached` that a caller waits."""

    reached: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    opened: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()


class Lab:
    """An app in memory whose whole life runs in the test's loop, on a clock moved by hand, so that an hour passes at once."""

    def __init__(self, clock: HandClock, **settings: Any) -> None:
        self.clock, self.app = clock, inline_app(clock, **settings)
        self.workers: list[tuple[Worker, list[asyncio.Task[Any]]]] = []

    @property
    def store(self) -> Store:
        return self.app.store

    @property
    def worker(self) -> Worker:
        return self.workers[-1][0]

    async def start(self, **options: Any) -> Worker:
        """One more worker."""
        tasks: list[asyncio.Task[Any]] = []

        def spawn_and_keep(coroutine: Any, name: str) -> asyncio.Task[Any]:
            tasks.append(spawn(coroutine, name))
            return tasks[-1]

        worker = self.app._make_worker(spawn=spawn_and_keep, **options)
        self.workers.append((worker, tasks))
        await worker.start()
        return worker

    async def crash(self) -> None:
        """Ends the last worker between two instructions, and declares it dead."""
        worker, tasks = self.workers.pop()
        for task in [*tasks, worker._heart._task]:
            if task is not None:
                task.cancel()
        await calm()
        worker.threads.close()
        await self.store.workers.rescue([worker.id])

    async def stop(self) -> None:
        while self.workers:
            worker, _ = self.workers.pop()
            await self.clock.until(worker.stop(1.0))

    async def submit(self, handler: Any, value: Any = None, **options: Any) -> str:
        return (await self.app.submit(handler, value, **options)).id

    async def ended(self, task_id: str, within: float = 600.0) -> Task:
        """The task once it has ended, however long that takes on this clock."""
        return await self.clock.until(self.app.service.wait(task_id), within)

    async def settled(self, task_id: str, within: float = 600.0, no_more: str = "") -> Task:
        """The task once it has ended or waits for a person or a time, with another reason than `no_more`."""

        async def look() -> Task:
            while True:
                task = await self.app.get(task_id)
                waits = task.state is State.WAITING or task.reason in {"retrying", "delayed"}
                if task.ended or (waits and task.reason != no_more):
                    return task
                await self.clock.sleep(0.05)

        return await self.clock.until(look(), within)

    async def run(self, handler: Any, value: Any = None, **options: Any) -> Task:
        """Submits the task and returns it when it has ended."""
        if not self.workers:
            await self.start()
        return await self.ended(await self.submit(handler, value, **options))

    async def kinds(self, task_id: str) -> list[str]:
        return [kind for kind in await kinds(self.store, task_id) if kind != r.STEP_STARTED]
