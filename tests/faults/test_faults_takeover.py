"""Fast takeover: a worker is killed while it holds a hundred tasks, and another goes on with them at once.

With the default lease of 10 s. The test prints the measured figures. Its bounds are far above them and far below the
lease, because a machine that runs tests is busy.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from tests.faults.band import Client, Crew, Place
from tests.faults.crew import Act
from tests.faults.verdict import percentile, resume_times

pytestmark = pytest.mark.slow

TASKS = 100
LAST_STEP_S = 2.0
STORY: list[Act] = [
    {"act": "step", "name": "first", "ms": 100},
    {"act": "step", "name": "second", "ms": 2500},  # time for another worker to start
    {"act": "step", "name": "last", "ms": int(LAST_STEP_S * 1000)},
]


async def test_takeover_after_kill9(place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    rounds = 10 if prove else 1
    firsts, lasts = [], []
    died: dict[str, float] = {}
    async with place.app() as app:
        client = Client(app, random.Random(10))
        for _ in range(rounds):
            first, last = await _one_round(place, client, died)
            firsts.append(first)
            lasts.append(last)
    verdict = await place.judge(client.acked)
    times = resume_times(place.look(), died)
    print_proof(
        "takeover",
        place.kind,
        f"{TASKS} tasks in flight, {rounds} kills",
        f"first goes on after {min(firsts) * 1000:.0f} to {max(firsts) * 1000:.0f} ms",
        f"resumed p50 {percentile(times, 0.5) * 1000:.0f} ms p99 {percentile(times, 0.99) * 1000:.0f} ms",
        f"all done after {min(lasts):.2f} to {max(lasts):.2f} s with {LAST_STEP_S:g} s of work left",
        verdict,
    )
    verdict.must_be_clean()
    assert verdict.resumed == TASKS * rounds, "VOID: it did not have all of them"
    assert max(firsts) < 3
    assert max(lasts) < 8


async def _one_round(place: Place, client: Client, died: dict[str, float]) -> tuple[float, float]:
    """Seconds until the first task went on, and until all were done, after their worker was killed."""
    with Crew(place, 1).ready(1) as crew:
        # all at once, so that they run side by side
        ids = await asyncio.gather(*(client.submit(STORY) for _ in range(TASKS)))
        await _until_all_in(place, ids, "second")
        with Crew(place, 1).ready(1) as other:
            await _until_all_in(place, ids, "last")
            died |= {name: time.time() for name in crew.names}
            killed = time.time()
            crew.leader.kill9()  # the kernel kills its worker with it, and no leader starts a new one
            for task_id in ids:
                await client.app.service.wait(task_id, 30)
            done = time.time()
            await asyncio.to_thread(other.stop)
    ours = set(ids)
    again = [line[6] for line in place.ledger.read() if line[0] == "start" and line[1] in ours and line[6] > killed]
    return min(again) - killed, done - killed


async def _until_all_in(place: Place, ids: list[str], step: str) -> None:
    waiting = set(ids)
    while waiting:
        waiting -= {line[1] for line in place.ledger.read() if line[0] == "start" and line[2] == step}
        await asyncio.sleep(0.02)
