"""kill -9 of the consumer at its worst moments, of the broker, and of consumers that come and go: each message is exactly one task."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from onward import Onward
from rig.processes import Child
from tests.brokers import crew
from tests.brokers.producers import Producer, json_bodies
from tests.brokers.test_intake import inputs
from tests.kit import eventually, not_memory, only_file

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
POINTS = ("intake.fetched", "intake.read", "intake.committed", "intake.acknowledged")


def consumer(url: str, producer: Producer, crash: str = "", fault: str = "", **settings: str) -> Child:
    env = {**settings, **({"ONWARD_CRASH": crash} if crash else {})}
    return Child.module("tests.brokers.crew", url, producer.url, producer.place, fault, cwd=ROOT, env=env)


async def drained(producer: Producer, seconds: float = 60) -> None:
    async def nothing_left() -> bool:
        return await producer.unacknowledged() == 0

    await eventually(nothing_left, seconds)


async def killed(url: str, producer: Producer, kills: int, fault: str = "", seed: int = 7) -> Counter[int]:
    """How often each message became a task, after so many kills."""
    rng = random.Random(seed)
    count = 0
    for number in range(kills):
        bodies = json_bodies(count + 60)[count:]
        await producer.send(bodies)
        count += len(bodies)
        point = POINTS[number % len(POINTS)]
        with consumer(url, producer, f"{point}:{rng.randint(1, 4)}", fault) as child:
            await asyncio.to_thread(child.wait, 60)
    with consumer(url, producer, fault=fault) as child:
        await asyncio.to_thread(child.wait_for, "ready")
        await drained(producer)
    async with Onward(url) as app:
        counted = Counter(await inputs(app))
        assert await app.store.intakes.letters(limit=1) == []
    return Counter({n: counted[n] for n in range(count)})


@not_memory
async def test_a_killed_consumer_loses_and_doubles_nothing(
    url: str, producer: Producer, prove: bool, print_proof: Callable[..., None]
) -> None:
    kills = 200 if prove else 4
    counted = await killed(url, producer, kills)
    print_proof("intake", f"{kills} kills", f"{len(counted)} messages")
    assert set(counted.values()) == {1}


@only_file
@pytest.mark.parametrize("fault", crew.FAULTS)
async def test_the_kills_catch_a_planted_fault(url: str, producer: Producer, fault: str) -> None:
    counted = await killed(url, producer, 4, fault)
    assert set(counted.values()) != {1}


@not_memory
async def test_a_killed_broker_loses_and_doubles_nothing(
    url: str, producer: Producer, prove: bool, print_proof: Callable[..., None]
) -> None:
    kills, count = (20, 4000) if prove else (2, 400)
    await producer.send(json_bodies(count))
    rng = random.Random(3)
    with consumer(url, producer) as child:
        await asyncio.to_thread(child.wait_for, "ready")
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            await asyncio.to_thread(producer.kill)
            await asyncio.to_thread(producer.start)
        await drained(producer)
    async with Onward(url) as app:
        assert await inputs(app) == list(range(count))
    print_proof("intake", f"{kills} kills of the broker", f"{count} messages")


@not_memory
async def test_consumers_that_come_and_go_share_the_messages(
    url: str, producer: Producer, prove: bool, print_proof: Callable[..., None]
) -> None:
    count, rounds = (10_000, 10) if prove else (1000, 2)
    await producer.send(json_bodies(count))
    crowd = [consumer(url, producer) for _ in range(3)]
    try:
        for _ in range(rounds):
            await asyncio.sleep(2 if prove else 0.5)
            await asyncio.to_thread(crowd.pop(0).close)
            crowd.append(consumer(url, producer))
        await drained(producer, 120)
    finally:
        for child in crowd:
            await asyncio.to_thread(child.close)
    async with Onward(url) as app:
        assert await inputs(app) == list(range(count))
    print_proof("intake", f"{rounds} rebalances", f"{count} messages")
