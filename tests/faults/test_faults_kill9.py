"""kill -9 of workers, at random moments and by the hundred: no task is lost, no recorded step runs again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.faults.band import Client, Crew, Place, busy, resume_quarantined, until_all_ended
from tests.faults.verdict import percentile, resume_times

pytestmark = pytest.mark.slow

WORKERS = 8
KILL_INTERVAL_S = {"sqlite": 0.25, "postgres": 0.35}
"""The mean time between two kills: with eight workers each lives for two or three seconds."""


async def test_kill9_at_random_moments(place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    kills = 500 if prove else 25
    rng = random.Random(1)
    async with place.app(lease_s=1.0, heartbeat_s=0.2) as app:
        client = Client(app, rng)
        with Crew(place, WORKERS, lease_s=1.0, heartbeat_s=0.2, slots=10).ready(WORKERS) as crew:
            async with busy(place, client, about=40):
                for _ in range(kills):
                    await asyncio.sleep(rng.expovariate(1 / KILL_INTERVAL_S[place.kind]))
                    await asyncio.to_thread(crew.ready, WORKERS // 2)  # or a slow start would leave no worker to go on
                    crew.kill9(*crew.pick(rng))
            stall = await until_all_ended(place, 60)
            if freed := await resume_quarantined(place, app):
                await until_all_ended(place, 30)
            died = dict(crew.died)
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked)
    times = resume_times(place.look(), died)
    print_proof(
        "kill -9",
        place.kind,
        f"{len(died)} kills",
        verdict,
        f"{verdict.repeated} unrecorded steps repeated",
        f"{freed} quarantined by chance",
        f"resume p50 {percentile(times, 0.5) * 1000:.0f} ms p99 {percentile(times, 0.99) * 1000:.0f} ms",
        f"all done {stall:.1f} s after the last",
    )
    verdict.must_be_clean()
    assert not crew.unexpected_errors, crew.unexpected_errors
    assert len(died) == kills
    assert verdict.resumed > kills / 4, "VOID: the kills hit no worker with a task"
