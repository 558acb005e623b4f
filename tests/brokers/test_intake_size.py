"""Intakes at size: poison among thousands, a store that is away, and a queue that is full. `make prove` runs them at full size."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from onward import Onward
from rig.processes import Child
from tests.brokers.producers import Producer, cloud_event, json_bodies
from tests.brokers.test_intake import drained, inputs
from tests.brokers.test_intake_kills import consumer
from tests.kit import eventually, not_memory

pytestmark = pytest.mark.slow
MAX_GROWTH_MB = 20.0


def poison(n: int) -> bytes:
    """A message that the first deployment cannot take: of a type that it does not know, or with data that its handler refuses."""
    if n % 200:
        return cloud_event(n, "order.late")
    return json.dumps({**json.loads(cloud_event(n)), "data": {"n": {"number": n}}}).encode()


def first_deployment(url: str, producer: Producer) -> Onward:
    app = Onward(url, brokers={"shop": producer.url}, poll_s=0.1)

    @app.task
    async def ship(ctx: Any, n: int) -> int:
        return n

    app.intake("orders", from_=f"shop/{producer.place}", task={"order.created": "ship"})
    return app


def second_deployment(url: str, producer: Producer) -> Onward:
    app = Onward(url, brokers={"shop": producer.url}, poll_s=0.1)

    @app.task
    async def ship(ctx: Any, n: int | dict[str, int]) -> Any:
        return n

    app.intake("orders", from_=f"shop/{producer.place}", task={"order.created": "ship", "order.late": "ship"})
    return app


@not_memory
async def test_poison_among_many_is_dead_letters_and_a_redrive_takes_them(
    url: str, producer: Producer, prove: bool, print_proof: Callable[..., None]
) -> None:
    count = 10_000 if prove else 1_000
    bad = set(range(0, count, 100))
    await producer.send([poison(n) if n in bad else cloud_event(n) for n in range(count)])
    app = first_deployment(url, producer)
    async with app, app.intakes():
        await drained(app, producer)
        assert await inputs(app) == [n for n in range(count) if n not in bad]
        letters = await app.store.intakes.letters(intake="orders", limit=1000)
        late = [letter for letter in letters if "order.late" in letter.reason]
        refused = [letter for letter in letters if "ship" in letter.reason and letter not in late]
        assert (len(late), len(refused)) == (len([n for n in bad if n % 200]), len([n for n in bad if n % 200 == 0]))
    app = second_deployment(url, producer)
    async with app, app.intakes():
        assert await app.dead_letters.redrive(intake="orders") == len(bad)

        async def none_left() -> bool:
            return not await app.store.intakes.letters(intake="orders", limit=1)

        await eventually(none_left, 60)
        tasks = [task async for task in all_tasks(app)]
        assert sorted(number(task.input["n"]) for task in tasks) == list(range(count))
    print_proof("intake", f"{len(bad)} poisoned of {count}", "all taken after the redrive")


async def all_tasks(app: Onward) -> Any:
    cursor: str | None = None
    while True:
        tasks, cursor = await app.list(limit=1000, cursor=cursor)
        for task in tasks:
            yield task
        if cursor is None:
            return


def number(value: Any) -> int:
    return int(value["number"] if isinstance(value, dict) else value)


@contextlib.contextmanager
def away(url: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """The store answers nobody in this block."""
    if url.startswith("sqlite"):
        lock = apsw.Connection(url.removeprefix("sqlite:///"))
        lock.set_busy_timeout(30_000)
        lock.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            lock.execute("ROLLBACK")
            lock.close()
    else:
        server = request.getfixturevalue("postgres")
        server.freeze()
        try:
            yield
        finally:
            server.thaw()


def resident_mb(child: Child) -> float:
    """The memory of a process, without the files that it shares with others."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


@not_memory
async def test_a_store_that_is_away_and_a_full_queue_cost_nothing(
    url: str, producer: Producer, prove: bool, print_proof: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    seconds, count = (60, 4000) if prove else (4, 400)
    bodies = json_bodies(4 * count)
    with consumer(url, producer, ONWARD_QUEUE_LIMIT=str(count)) as child:
        await asyncio.to_thread(child.wait_for, "ready")
        await producer.send(bodies[: count // 2])
        await drained_to(producer, 0)
        before, highest = resident_mb(child), 0.0
        with away(url, request):
            await producer.send(bodies[count // 2 : 2 * count])
            for _ in range(seconds):
                await asyncio.sleep(1)
                highest = max(highest, resident_mb(child))
            assert child.running
        # The store is back, and its queue takes half of them.
        async with Onward(url) as app:
            await eventually(lambda: holds(app, count), 60)
            await producer.send(bodies[2 * count :])
            for _ in range(seconds):
                await asyncio.sleep(1)
                highest = max(highest, resident_mb(child))
            assert child.running
            assert count <= len(await inputs(app)) < count + 500
            app.task(name="ship")(lambda ctx, n: n)
            async with app.worker():
                await drained_to(producer, 0)
            assert await inputs(app) == list(range(4 * count))
            assert await app.store.intakes.letters(limit=10) == []
    print_proof(
        "intake", f"{seconds} s without the store, {seconds} s with a full queue", f"+{highest - before:.1f} MB"
    )
    assert highest - before < MAX_GROWTH_MB


async def drained_to(producer: Producer, left: int) -> None:
    async def few_left() -> bool:
        return await producer.unacknowledged() <= left

    await eventually(few_left, 180)


async def holds(app: Onward, count: int) -> bool:
    return len(await inputs(app)) >= count
