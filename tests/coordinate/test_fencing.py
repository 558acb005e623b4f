"""Proofs with real processes: frozen holders, many contenders, killed leaders. The resource checks the tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from onward import Onward
from rig.processes import Child
from tests.coordinate.crew import TTL_S, Resource

pytestmark = pytest.mark.slow

Start = Callable[..., Child]


@pytest.fixture
def resource(tmp_path: Path) -> Resource:
    return Resource(str(tmp_path / "resource.db"))


@pytest.fixture
def start(url: str, coordinator: str, resource: Resource) -> Iterator[Start]:
    """Starts processes of the crew."""
    if ":memory:" in url:
        pytest.skip("several processes need a file or a server")
    with ExitStack() as stack:

        def start(mode: str, *more: str) -> Child:
            arguments = (mode, url, coordinator, resource.path, *more)
            return stack.enter_context(Child.module("tests.coordinate.crew", *arguments))

        yield start


def freeze(child: Child, url: str) -> None:
    """Freeze a process, but not inside of a transaction of SQLite: a frozen writer keeps all other writers of its file out, for as long as
    it is frozen, whatever the locks of this test."""
    while True:
        child.freeze()
        if not url.startswith("sqlite") or _writable(url.removeprefix("sqlite:///")):
            return
        child.thaw()
        time.sleep(0.01)


def _writable(file: str) -> bool:
    connection = apsw.Connection(file)
    connection.set_busy_timeout(200)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


def tell(resource: Resource, child: Child, what: object) -> None:
    (Path(resource.path).parent / f"go-{child.pid}-{what}").touch()


def number(line: str) -> int:
    return int(line.split()[1])


def test_a_holder_frozen_past_its_lease_writes_with_a_stale_token(
    start: Start, url: str, resource: Resource, prove: bool
) -> None:
    rounds = 200 if prove else 3
    first, second = start("hold", str(rounds)), start("hold", str(rounds))
    for turn in range(rounds):
        # Both want the lock; the one that has it is frozen, and the other gets it when the lease has ended.
        frozen = _holder(first, second)
        freeze(frozen.child, url)
        other = second if frozen.child is first else first
        token = number(other.wait_for("held", timeout=60))
        assert token > frozen.token
        tell(resource, other, turn)
        assert other.line(60) == "accepted"
        frozen.child.thaw()
        tell(resource, frozen.child, turn)
        assert frozen.child.line(60) == "refused", f"round {turn}: token {frozen.token} after {token}"
    tokens = [token for token, *_ in resource.writes()]
    assert tokens == sorted(tokens)
    assert len(tokens) == rounds


class _Holder(NamedTuple):
    child: Child
    token: int


def _holder(*children: Child) -> _Holder:
    """The child that holds the lock, and its token."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in children:
            try:
                line = child.line(0.05)
            except TimeoutError:
                continue
            return _Holder(child, number(line))
    raise AssertionError("no child holds the lock")


async def _tasks_of_frozen_workers(
    start: Start, app: Onward, resource: Resource, rounds: int, fault: str = ""
) -> list[str]:
    """What the resource answered to each worker that was frozen inside a step, and whose successor had written meanwhile."""
    workers = [start("work", *([fault] if fault else [])) for _ in range(2)]
    for worker in workers:
        await asyncio.to_thread(worker.wait_for, "ready")
    answers = []
    for _ in range(rounds):
        task = await app.submit("deploy")
        frozen = await asyncio.to_thread(_holder, *workers)
        await asyncio.to_thread(freeze, frozen.child, app.settings.db)
        other = next(worker for worker in workers if worker is not frozen.child)
        token = number(await asyncio.to_thread(other.wait_for, "in ", 60))
        tell(resource, other, token)
        assert await asyncio.to_thread(other.line, 60) == "accepted"
        frozen.child.thaw()
        tell(resource, frozen.child, frozen.token)
        answers.append(await asyncio.to_thread(frozen.child.line, 60))
        assert await task.result(60) is True
    return answers


async def test_a_worker_frozen_in_the_block_writes_with_a_stale_token(
    start: Start, url: str, coordinator: str, resource: Resource, prove: bool
) -> None:
    rounds = 200 if prove else 2
    async with Onward(url, coordinator=coordinator) as app:
        app.task(name="deploy", retry=1)(_never)
        answers = await _tasks_of_frozen_workers(start, app, resource, rounds)
        assert answers == ["refused"] * rounds
        assert (await app.locks.list())[0] == []


async def test_the_planted_fault_a_token_per_holder_is_caught(
    start: Start, url: str, coordinator: str, resource: Resource
) -> None:
    async with Onward(url, coordinator=coordinator) as app:
        app.task(name="deploy", retry=1)(_never)
        answers = await _tasks_of_frozen_workers(start, app, resource, 1, "token-per-holder")
        assert answers == ["accepted"], "with one token for both, the resource cannot refuse the frozen one"


async def _never(ctx: Any) -> bool:
    """The handler of this process, which has no worker."""
    raise AssertionError


def test_many_contenders_are_served_one_at_a_time(start: Start, resource: Resource, prove: bool) -> None:
    processes, contenders, turns = (5, 10, 20) if prove else (2, 5, 4)
    children = [start("turns", str(contenders), str(turns)) for _ in range(processes)]
    for child in children:
        assert child.line(500) == "all served"
    writes = resource.writes()
    assert len(writes) == processes * contenders * turns
    assert len({who for _, who, _ in writes}) == processes * contenders, "each of them had its turns"
    tokens = [token for token, *_ in writes]
    assert tokens == sorted(set(tokens)), "never two at once"


def test_a_killed_leader_is_followed_within_its_lease_and_a_second(
    start: Start, url: str, resource: Resource, prove: bool
) -> None:
    crew = [start("lead"), start("lead")]
    for child in crew:
        child.wait_for("ready")
    first = _holder(*crew)
    leader, token = first.child, first.token
    took = []
    for turn in range(20 if prove else 2):
        (other,) = [child for child in crew if child is not leader]
        time.sleep(0.2)  # some writes of this term
        began = time.monotonic()
        if turn % 2:  # frozen, and it wakes when the other leads
            freeze(leader, url)
        else:
            leader.kill9()
        next_token = number(other.wait_for("leads", timeout=60))
        took.append(time.monotonic() - began)
        assert next_token > token
        if turn % 2:
            leader.thaw()
            leader.wait_for(f"lost {token}")
            leader.kill9()
        leader, token = other, next_token
        crew = [other, start("lead")]
        crew[1].wait_for("ready")
    tokens = [token for token, *_ in resource.writes()]
    assert tokens == sorted(tokens), "no two terms overlap"
    assert max(took) < TTL_S + 1, took
