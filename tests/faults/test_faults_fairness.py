"""Under a backlog, sleepers, suspects and tasks of another queue still get their turn."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from onward.store.port.core import SUSPECT_AFTER
from tests.faults.band import Client, Crew, Place, busy
from tests.faults.crew import Act

pytestmark = pytest.mark.slow

TIMEOUT_S = 25.0


def _short(rng: random.Random) -> list[Act]:
    return [{"act": "step", "name": f"s{number}", "ms": rng.randint(1, 60)} for number in range(3)]


async def _until_ended(place: Place, task_id: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if not await asyncio.to_thread(place.rows, f"SELECT 1 FROM onward_queue WHERE task_id = '{task_id}'"):
            return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("waiting_task", ["sleeper", "other queue"])
async def test_a_backlog_starves_no_task(place: Place, waiting_task: str, print_proof: Callable[..., None]) -> None:
    rng = random.Random(17)
    options = {"delay": 0.3, "priority": 10} if waiting_task == "sleeper" else {"queue": "another"}
    async with place.app() as app:
        client = Client(app, rng)
        for _ in range(60):
            await client.submit([{"act": "step", "name": "s", "ms": 100}])
        async with app.worker(slots=1):
            start = time.monotonic()
            task_id = await client.submit([{"act": "step", "name": "s", "ms": 1}], **options)
            await _until_ended(place, task_id)
            took = time.monotonic() - start
            left = place.rows("SELECT count(*) FROM onward_queue")[0][0]
    print_proof(
        f"{waiting_task} behind a backlog", place.kind, f"done after {took:.1f} s", f"{left} of the backlog left"
    )
    assert left > 0, "it had to wait until the backlog was done"


async def test_suspect_is_not_starved(place: Place, print_proof: Callable[..., None]) -> None:
    """A suspect gets a worker for itself, also under a load that never ends."""
    rng = random.Random(16)
    async with place.app(lease_s=2.0, heartbeat_s=0.4) as app:
        client = Client(app, rng)
        with Crew(place, 2, lease_s=2.0, heartbeat_s=0.4, slots=5).ready(2) as crew:
            async with busy(place, client, about=40, acts=lambda: _short(rng)):
                suspect = await client.submit(_short(rng), delay="1h")
                await asyncio.sleep(1)
                place.rows(
                    f"UPDATE onward_queue SET crashes = {SUSPECT_AFTER}, due_at = NULL, reason = 'queued' WHERE task_id = '{suspect}'"
                )
                start = time.monotonic()
                await _until_ended(place, suspect)
                took = time.monotonic() - start
            await asyncio.to_thread(crew.stop)
    print_proof("suspect under load", place.kind, f"had its chance after {took:.1f} s")
    assert suspect in place.look().outcomes, "it never had its chance"
