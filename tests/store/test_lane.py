"""Lanes: how calls reach a SQLite connection. Many calls share a commit, and each succeeds or fails alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from onward.store.sqlite.lane import Inline, Lane, Patient, Threaded


class Rig:
    """A lane on a file, with the commits it makes counted."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.commits, self.fail_next = path, 0, False
        self.lane: Lane = Threaded(self.connect, "test-lane") if kind == "threaded" else Inline(self.connect)

    def connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        list(connection.execute("PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY)"))
        connection.set_commit_hook(self._commit)
        return connection

    def _commit(self) -> bool:
        self.commits += 1
        if self.fail_next:
            self.fail_next = False
            return True
        return False

    def committed(self) -> list[int]:
        """The committed rows, read on another connection."""
        return [n for (n,) in apsw.Connection(str(self.path)).execute("SELECT n FROM t ORDER BY n")]


@pytest.fixture(params=["threaded", "inline"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "lane.db", request.param)
    rig.commits = 0
    yield rig
    rig.lane.close()


@pytest.fixture
def threaded(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "lane.db", "threaded")
    rig.commits = 0
    yield rig
    rig.lane.close()


def insert(n: int) -> Any:
    def job(connection: apsw.Connection) -> int:
        connection.execute("INSERT INTO t VALUES (?)", (n,))
        return n * 10

    return job


def fails(n: int, error: BaseException) -> Any:
    def job(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (?)", (n,))
        raise error

    return job


class Plug:
    """A job that holds the lane until the test pulls it, so that others gather behind it."""

    def __init__(self) -> None:
        self.holds, self.pulled = threading.Event(), threading.Event()

    def __call__(self, connection: apsw.Connection) -> None:
        self.holds.set()
        assert self.pulled.wait(10)


async def gathered(rig: Rig, *calls: Any) -> list[Any]:
    """Runs all calls at once: they gather in the lane behind a plug."""
    plug = Plug()
    first = asyncio.ensure_future(rig.lane.run(plug))
    await asyncio.to_thread(plug.holds.wait, 10)
    rig.commits = 0
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.01)
    plug.pulled.set()
    await first
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_an_answer_comes_after_the_commit(rig: Rig) -> None:
    assert await rig.lane.run(insert(1)) == 10
    assert rig.committed() == [1]


async def test_an_error_reaches_its_caller_and_leaves_nothing(rig: Rig) -> None:
    with pytest.raises(ZeroDivisionError):
        await rig.lane.run(fails(1, ZeroDivisionError()))
    assert rig.committed() == []
    await rig.lane.run(insert(1))
    assert rig.committed() == [1]


async def test_a_commit_that_fails_fails_all_its_callers(rig: Rig) -> None:
    rig.fail_next = True
    with pytest.raises(apsw.ConstraintError):
        await rig.lane.run(insert(1))
    assert rig.committed() == []
    await rig.lane.run(insert(2))
    assert rig.committed() == [2]


async def test_calls_that_gather_share_one_commit(threaded: Rig) -> None:
    answers = await gathered(threaded, *[threaded.lane.run(insert(n)) for n in range(50)])
    assert answers == [n * 10 for n in range(50)]
    assert threaded.committed() == list(range(50))
    assert threaded.commits == 2, "the plug's own, and one for all that gathered behind it"


async def test_one_failing_job_does_not_hurt_its_neighbours(threaded: Rig) -> None:
    run = threaded.lane.run
    answers = await gathered(
        threaded,
        run(insert(1)),
        run(fails(2, ValueError("mine"))),
        run(insert(1)),
        run(insert(3)),
        run(fails(4, KeyError())),
    )
    assert answers[0] == 10
    assert isinstance(answers[1], ValueError)
    assert isinstance(answers[2], apsw.ConstraintError), "a row that is there already"
    assert answers[3] == 30
    assert isinstance(answers[4], KeyError)
    assert threaded.committed() == [1, 3]


async def test_a_shared_commit_that_fails_acknowledges_no_call(threaded: Rig) -> None:
    def arm(connection: apsw.Connection) -> None:
        threaded.fail_next = True

    calls = [threaded.lane.run(insert(n)) for n in range(5)]
    answers = await gathered(threaded, *calls, threaded.lane.run(arm))
    assert [type(answer) for answer in answers] == [apsw.ConstraintError] * 6
    assert threaded.committed() == []


async def test_urgent_goes_first(threaded: Rig) -> None:
    order: list[str] = []

    def note(name: str) -> Any:
        return lambda _: order.append(name)

    run = threaded.lane.run
    await gathered(threaded, run(note("a")), run(note("b")), run(note("heartbeat"), urgent=True), run(note("c")))
    assert order == ["heartbeat", "a", "b", "c"]


async def test_a_cancelled_caller_stops_no_other(threaded: Rig) -> None:
    plug = Plug()
    first = asyncio.ensure_future(threaded.lane.run(plug))
    await asyncio.to_thread(plug.holds.wait, 10)
    cancelled, stays = (asyncio.ensure_future(threaded.lane.run(insert(n))) for n in (1, 2))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    plug.pulled.set()
    await first
    assert await stays == 20
    assert 2 in threaded.committed()


async def test_two_loops_at_one_lane(threaded: Rig) -> None:
    """The heartbeat has a thread and a loop of its own; a loop that has ended disturbs no other caller."""

    def elsewhere(n: int) -> int:
        return int(asyncio.run(threaded.lane.run(insert(n))))

    answers = await asyncio.gather(asyncio.to_thread(elsewhere, 1), threaded.lane.run(insert(2)))
    assert answers == [10, 20]
    assert threaded.committed() == [1, 2]


async def test_closing_runs_the_waiting_calls_and_refuses_later_ones(threaded: Rig) -> None:
    plug = Plug()
    first = asyncio.ensure_future(threaded.lane.run(plug))
    await asyncio.to_thread(plug.holds.wait, 10)
    waiting = asyncio.ensure_future(threaded.lane.run(insert(1)))
    await asyncio.sleep(0.01)
    closing = asyncio.ensure_future(asyncio.to_thread(threaded.lane.close))
    await asyncio.sleep(0.05)
    plug.pulled.set()
    await closing
    await first
    assert await waiting == 10
    assert threaded.committed() == [1]
    with pytest.raises(RuntimeError, match="closed"):
        await threaded.lane.run(insert(2))


def test_the_error_of_a_connection_reaches_the_constructor() -> None:
    def connect() -> apsw.Connection:
        raise apsw.CantOpenError("no")

    with pytest.raises(apsw.CantOpenError):
        Threaded(connect, "test-lane")


def test_the_busy_handler_gives_up_in_time() -> None:
    patient = Patient(0.3)
    start = time.monotonic()
    tries = 0
    while patient(tries):
        tries += 1
    assert time.monotonic() - start >= 0.3
    assert tries > 3, "in short naps"
    assert patient(0), "and begins anew for the next lock"
