"""kill -9 of a relay between two instructions, again and again: nothing is lost, and what comes twice is the same to the byte."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

import pytest

from onward import Onward
from rig.processes import Child
from tests.kit import eventually, not_memory
from tests.sinks.conftest import SECRET
from tests.sinks.receiver import Receiver

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


async def ended(url: str, receiver: Receiver, count: int) -> set[str]:
    """Tasks that have ended, and of which nobody was told yet; the ids that have to arrive."""
    app = Onward(url, webhook_secret=SECRET, webhook_allow_private="true")
    worker = Onward(url)  # without a secret: it tells nobody
    for one in (app, worker):
        one.task(name="work")(lambda ctx, value: value)
    async with app, worker.worker():
        tasks = await app.submit_many("work", list(range(count)), webhook=receiver.url())
        for task in tasks:
            await task.result("60s")
    return {f"{task.id}.3" for task in tasks}


def relay(url: str, fault: str = "", crash: str = "") -> Child:
    return Child.module("tests.sinks.crew", url, SECRET, fault, cwd=ROOT, env={"ONWARD_CRASH": crash} if crash else {})


async def killed(url: str, receiver: Receiver, wanted: set[str], kills: int, fault: str = "") -> None:
    """Relays that die at points that hurt and at any other, and at last one that lives, until all has arrived or it is quiet."""
    rng = random.Random(7)
    for _ in range(kills):
        point = rng.choice(["deliver.sent", "deliver.before", "deliver.after", "deliver.marked", ""])
        with relay(url, fault, f"{point}:{rng.randint(1, 2)}" if point else "") as child:
            seen = len(receiver.got)
            await asyncio.to_thread(child.wait_for, "ready")
            await _until_more(receiver, seen, rng)
            child.kill9()
    with relay(url, fault) as child:
        await asyncio.to_thread(child.wait_for, "ready")
        app = Onward(url)
        async with app:

            async def all_told() -> bool:
                return not (await app.deliveries(state="pending"))[0]

            await eventually(all_told, 60)
    assert wanted


async def _until_more(receiver: Receiver, seen: int, rng: random.Random) -> None:
    """Until it has sent something, or had its time."""
    for _ in range(150):
        if len(receiver.got) > seen + rng.randint(0, 8):
            return
        await asyncio.sleep(0.01)


def verdict(receiver: Receiver, wanted: set[str]) -> dict[str, int]:
    """How often ids came, and how many came with different bytes."""
    bodies: dict[str, list[bytes]] = defaultdict(list)
    for got in receiver.got:
        bodies[got.id].append(got.body)
    return {
        "lost": len(wanted - bodies.keys()),
        "strange": len(bodies.keys() - wanted),
        "changed": sum(len(set(some)) > 1 for some in bodies.values()),
        "twice": sum(len(some) > 1 for some in bodies.values()),
    }


@not_memory
async def test_nothing_is_lost_and_nothing_changes(url: str, prove: bool, receiver: Receiver) -> None:
    wanted = await ended(url, receiver, 400 if prove else 60)
    await killed(url, receiver, wanted, 60 if prove else 8)
    found = verdict(receiver, wanted)
    print(f"  {len(wanted)} webhooks, {60 if prove else 8} relays killed: {found}")
    assert (found["lost"], found["strange"], found["changed"]) == (0, 0, 0)
    assert found["twice"] > 0, "the kills came where it hurts"


@not_memory
@pytest.mark.parametrize(("fault", "shows"), [("marked first", "lost"), ("new bytes", "changed")])
async def test_the_proof_sees_what_is_planted(url: str, receiver: Receiver, fault: str, shows: str) -> None:
    wanted = await ended(url, receiver, 60)
    await killed(url, receiver, wanted, 8, fault)
    assert verdict(receiver, wanted)[shows] > 0
