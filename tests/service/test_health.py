"""The doctor and the figures of a cluster in large databases: the counts, how often they run, and the checks that `deep` adds."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from onward import Onward
from onward.service import cluster as place
from onward.service.cluster import Cluster
from onward.service.health import Doctor
from onward.service.intakes import Intakes
from onward.service.locks import Locks
from onward.service.shared_read import SharedRead
from onward.store.port.core import Store
from onward.store.port.overview import Unfinished
from onward.store.shared import health as census
from onward.store.sqlite import file as sqlite_file
from tests.kit import HandClock, Through, begun, eventually, new, not_memory, only_file, sql, submit
from tests.store.test_store_readers import ended_before


class Counts:
    """A store whose count of unfinished tasks takes a second of a clock moved by hand."""

    def __init__(self, clock: HandClock, tasks: int) -> None:
        self.reads, self._clock, self._tasks = 0, clock, tasks
        self.overview = self

    async def unfinished(self, whose: str | None = None) -> list[Unfinished]:
        await self._read()
        return [Unfinished("default", "queued", self._tasks, 1.0)]

    async def reasons(self, whose: str | None = None) -> dict[str, int]:
        await self._read()
        return {"queued": self._tasks}

    async def _read(self) -> None:
        self.reads += 1
        await asyncio.sleep(0)
        self._clock.time += 0.1


@pytest.mark.parametrize("whose", [None, ""])
@pytest.mark.parametrize("figure", ["_first_queues", "_reasons"])
@pytest.mark.parametrize(("tasks", "reads"), [(place.MAX_FRESH_COUNT, 10), (place.MAX_FRESH_COUNT + 1, 1)])
async def test_many_callers_share_a_count_of_many_tasks(
    clock: HandClock, tasks: int, reads: int, figure: str, whose: str | None
) -> None:
    """A few tasks are counted anew for each caller, so that callers see their own changes."""
    counts = Counts(clock, tasks)
    cluster: Any = Cluster(counts, clock)  # type: ignore[arg-type]
    read = getattr(cluster, figure)[whose]
    await asyncio.gather(*[read() for _ in range(10)])
    assert counts.reads == reads
    clock.time += 1.05
    await read()
    assert counts.reads == reads + 1, "and no count is used for much longer than ten times its duration"


async def test_a_read_that_is_slow_twice_is_kept(clock: HandClock) -> None:
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        clock.time += seconds
        return reads

    shared, seconds = SharedRead(clock, read), 0.3
    assert [await shared() for _ in range(4)] == [1, 2, 2, 2]
    shared.forget()
    assert await shared() == 3, "this process changed it"
    clock.time += 3.0
    assert await shared() == 4, "kept for ten times as long as it took"
    clock.time += 3.1
    seconds = 0.1
    assert [await shared() for _ in range(3)] == [5, 6, 7], "quick again"


async def test_an_answer_from_before_a_change_is_not_kept(clock: HandClock) -> None:
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        clock.time += 0.3
        if reads == 2:
            shared.forget()  # this process changes the answer while the store reads it
        return reads

    shared = SharedRead(clock, read)
    assert [await shared() for _ in range(4)] == [1, 2, 3, 3]


class Slow:
    """A read that ends when the test allows it, and takes `seconds` seconds of a clock moved by hand."""

    def __init__(self, clock: HandClock, seconds: float) -> None:
        self.begun, self.seconds, self._clock = 0, seconds, clock
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        await self.go.wait()
        self._clock.time += self.seconds
        return number

    async def known(self, shared: SharedRead[int]) -> None:
        """Runs the read once, so that the callers know how long it takes."""
        self.go.set()
        await shared()
        await shared()
        self.go.clear()


async def test_quick_reads_run_side_by_side(clock: HandClock) -> None:
    read = Slow(clock, 0.0)
    shared = SharedRead(clock, read)
    await read.known(shared)
    callers = asyncio.gather(*[shared() for _ in range(3)])
    await asyncio.sleep(0.01)
    assert read.begun == 5, "each of the three reads, and none waits for another"
    read.go.set()
    assert await callers == [3, 4, 5]


async def test_callers_share_the_slow_read_in_flight(clock: HandClock) -> None:
    """Also when it takes longer than an answer is kept."""
    read = Slow(clock, 6.0)
    shared = SharedRead(clock, read)
    await read.known(shared)
    callers = asyncio.gather(*[shared() for _ in range(3)])
    await asyncio.sleep(0.01)
    shared.forget()
    later = asyncio.ensure_future(shared())
    await asyncio.sleep(0.01)
    read.go.set()
    assert await callers == [3, 3, 3]
    assert await later == 4, "its caller knows of a change that the read in flight may not have seen"


async def test_a_caller_that_goes_away_takes_no_answer_from_the_others(clock: HandClock) -> None:
    read = Slow(clock, 6.0)
    shared = SharedRead(clock, read)
    await read.known(shared)
    first, second = (asyncio.ensure_future(shared()) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    read.go.set()
    assert await second == 4
    assert first.cancelled()


def doctor(store: Store, clock: Any) -> Doctor:
    return Doctor(store, clock, Cluster(store, clock), 1000, Locks(store), Intakes(store, clock))


async def test_the_doctor_reads_no_history_unless_it_goes_deep(store: Store, clock: HandClock) -> None:
    async def refused(*_: Any) -> Any:
        raise AssertionError("that reads all of history")

    await begun(store)
    ids = await ended_before(store, 500)
    await sql(store, f"DELETE FROM onward_journal WHERE seq = 3 AND task_id = '{ids[5]}'")
    quick: Any = Through(store, **{"health.census": refused, "listing.list": refused})
    (tasks,) = [check for check in await doctor(quick, clock).checks() if check.name == "tasks"]
    assert (tasks.fine, "--deep" in tasks.detail) == (True, True)
    seen: list[int] = []
    (tasks,) = [
        check for check in await doctor(store, clock).checks(deep=True, seen=seen.append) if check.name == "tasks"
    ]
    assert (tasks.fine, tasks.detail) == (False, f"{ids[5]} ended without an ending in its journal")
    assert seen == [census.SLICE_RECORDS]


@not_memory
async def test_others_read_between_the_slices_of_a_census(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "SLICE_RECORDS", 5)
    await ended_before(store, 100)
    (task_id,) = await submit(store)
    first = asyncio.Event()
    whole = asyncio.ensure_future(store.health.census(lambda _: first.set()))
    await first.wait()
    assert await store.get(task_id) is not None
    assert not whole.done(), "a reader came in between"
    assert await whole == []


async def test_tasks_that_wait_for_people_are_counted_not_listed(app: Onward) -> None:
    @app.task
    async def asks(ctx: Any) -> Any:
        return await ctx.ask("What?")

    async with app.worker():
        for _ in range(3):
            await app.submit(asks)

        async def waits() -> bool:
            return (await app.service.cluster.stats()).people == 3

        await eventually(waits)
        (people,) = [check for check in await app.service.health.checks() if check.name == "people"]
    assert (people.fine, people.detail) == (None, "3 tasks wait for a person (3 question): onward list --state waiting")


async def test_more_ended_tasks_than_are_counted_are_estimated(store: Store) -> None:
    await ended_before(store, 400)
    assert await store.overview.ended(1000) == (400, 0, 0, True)
    completed, *_, exact = await store.overview.ended(100)
    assert not exact
    assert 100 <= completed <= 1600, "by the size of the table, also before the server has counted its rows"


@only_file
@pytest.mark.usefixtures("kind")
async def test_the_doctor_names_a_log_that_cannot_be_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "LARGE_LOG_BYTES", 8_000_000)
    path = tmp_path / "onward.db"
    async with Onward(f"sqlite:///{path}") as app:

        async def log() -> tuple[bool, str]:
            return next(
                (fine, text) for name, fine, text in await app.store.health.doctor() if name == "write-ahead log"
            )

        async def work() -> None:
            for _ in range(30):
                await app.store.submit([new(input=b'"' + b"x" * 400_000 + b'"')])

        await work()
        assert (await log())[0]
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN")
        list(reader.execute("SELECT count(*) FROM onward_tasks"))
        await work()
        fine, text = await log()
        assert not fine
        assert f"`fuser {path}` lists the programs that have the file open" in text
        reader.close()
        await work()
        assert (await log())[0]


async def test_the_doctor_names_a_file_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "onward.db"
    old = os.umask(0)
    try:
        async with Onward(f"sqlite:///{path}") as app:
            assert _modes(tmp_path) == {"onward.db": 0o600, "onward.db-shm": 0o600, "onward.db-wal": 0o600}
            assert await _file_mode(app) == (True, "other users of this machine cannot read the database")
            path.chmod(0o644)
            fine, text = await _file_mode(app)
            assert not fine
            assert f"chmod o= {path}" in text
            assert path.stat().st_mode & 0o777 == 0o644, "it is the owner's to change"
    finally:
        os.umask(old)


def _modes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}


async def _file_mode(app: Onward) -> tuple[bool, str]:
    (check,) = [(fine, text) for name, fine, text in await app.store.health.doctor() if name == "file mode"]
    return check
