"""Workers that stop, and an event loop that stands still."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from onward.core import record as r
from rig.proxy import Proxy
from tests.faults.band import Client, Crew, Place, until_all_ended
from tests.faults.crew import Act

pytestmark = pytest.mark.slow


async def _until_started(place: Place, count: int, timeout: float = 60) -> None:
    end = time.monotonic() + timeout
    while sum(line[0] == "start" for line in place.ledger.read()) < count:
        assert time.monotonic() < end, "they do not start"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("steps", ["step", "thread"])
async def test_sigterm_hands_running_steps_back(place: Place, steps: str, print_proof: Callable[..., None]) -> None:
    """Twenty steps that take longer than the grace: handed back, none of them a failure or a crash of its task."""
    long: list[Act] = [{"act": "step", "name": "quick", "ms": 1}, {"act": steps, "name": "long", "ms": 4000}]
    async with place.app() as app:
        client = Client(app, random.Random(11))
        with Crew(place, 1, grace_s=0.5).ready(1) as crew:
            for _ in range(20):
                await client.submit(long, task="once")
            await _until_started(place, 40)
            start = time.monotonic()
            status = await asyncio.to_thread(crew.stop)
            took = time.monotonic() - start
        picture = place.look()
        left = [row for row in picture.queue.values() if row[0] is not None or row[3] or row[4] != 1]
        back = sum(row.kind == r.HANDED_BACK for row in picture.records)
        with Crew(place, 1).ready(1) as crew:
            await until_all_ended(place, 30)
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked)
    print_proof(
        "SIGTERM",
        place.kind,
        f"20 running ({steps})",
        f"{back} handed back",
        f"{len(left)} burned",
        f"exit {status} after {took:.2f} s",
    )
    assert status == 0
    assert took < 0.5 + 5
    assert back == 20
    assert not left, "held still, or with a crash or an attempt counted"
    assert not picture.workers, "it took its leave"
    verdict.must_be_clean()


async def test_sigterm_lets_short_steps_finish(place: Place) -> None:
    """Within the grace a running step ends and is recorded; another worker runs the steps after it."""
    acts: list[Act] = [{"act": "step", "name": f"s{number}", "ms": 400} for number in range(3)]
    async with place.app() as app:
        client = Client(app, random.Random(12))
        with Crew(place, 1, grace_s=10).ready(1) as crew:
            for _ in range(20):
                await client.submit(acts)
            await _until_started(place, 20)
            assert await asyncio.to_thread(crew.stop) == 0
        starts = [line for line in place.ledger.read() if line[0] == "start"]
        with Crew(place, 1).ready(1) as crew:
            await until_all_ended(place, 30)
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked)
    verdict.must_be_clean()
    assert len(starts) < 60, "VOID: all was done before the signal came"
    assert verdict.repeated == 0, "a step was cut off although it had the time"


async def test_blocked_loop_keeps_its_lease(place: Place, print_proof: Callable[..., None]) -> None:
    """A step that holds the loop and a core for twice the lease: the heartbeat's thread keeps the lease meanwhile."""
    async with place.app() as app:
        client = Client(app, random.Random(13))
        with Crew(place, 2, lease_s=2.0, heartbeat_s=0.2, slots=5).ready(2) as crew:
            before = dict(crew.alive)
            blocking = await client.submit([{"act": "block", "name": "busy", "ms": 4000}])
            await _until_started(place, 1)
            for _ in range(10):
                await client.submit([{"act": "step", "name": "s", "ms": 20}])
            gaps = await _gaps(place, 3.0)
            await until_all_ended(place, 30)
            after = dict(crew.alive)
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked)
    shifts = sum(row.kind == r.SHIFT for row in place.look().journals[blocking])
    print_proof(
        "loop blocked for 2 leases", place.kind, f"longest gap between heartbeats {gaps:.2f} s", f"{shifts} shift"
    )
    verdict.must_be_clean()
    assert after == before
    assert shifts == 1


async def _gaps(place: Place, seconds: float) -> float:
    """The longest time in which a worker's lease was not prolonged."""
    since: dict[str, tuple[float, float]] = {}
    longest = 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = time.monotonic()
        for worker, until in await asyncio.to_thread(place.rows, "SELECT id, lease_until FROM onward_workers"):
            if worker not in since or since[worker][0] != until:
                since[worker] = (until, now)
            longest = max(longest, now - since[worker][1])
        await asyncio.sleep(0.05)
    return longest


async def test_hung_loop_loses_its_tasks_safely(place: Place, print_proof: Callable[..., None]) -> None:
    """A loop that stands still for more than three leases is given up: others go on, and the worker comes back under a new name."""
    async with place.app() as app:
        client = Client(app, random.Random(14))
        with Crew(place, 2, lease_s=1.0, heartbeat_s=0.2, slots=5).ready(2) as crew:
            before = dict(crew.alive)
            hung = await client.submit(
                [{"act": "step", "name": "a", "ms": 1}, {"act": "hang", "name": "b", "ms": 6500}]
            )
            await _until_started(place, 2)
            for _ in range(10):
                await client.submit([{"act": "step", "name": "s", "ms": 20}])
            await until_all_ended(place, 40)
            await asyncio.to_thread(crew.until, lambda: crew.alive != before, 15)
            after = dict(crew.alive)
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked)
    print_proof("loop hung for 6 leases", place.kind, verdict)
    verdict.must_be_clean()
    assert len(place.look().journals[hung]) > 5, "VOID: no worker took it over"
    assert sum(after[pid] != before[pid] for pid in before) == 1


@pytest.mark.parametrize("away", ["refuses", "says nothing"])
async def test_sigterm_while_the_database_is_away(
    postgres_place: Place, away: str, print_proof: Callable[..., None]
) -> None:
    """The worker cannot hand its tasks back. It ends in time all the same, and another goes on when its lease has ended."""
    server = postgres_place.server
    assert server is not None
    with Proxy("127.0.0.1", server.port) as proxy:
        beyond = Place("postgres", proxy.url_for(postgres_place.url), postgres_place.home, server)
        async with postgres_place.app() as app:
            client = Client(app, random.Random(27))
            with Crew(beyond, 1, lease_s=2.0, heartbeat_s=0.4, grace_s=1.0).ready(1) as crew:
                for _ in range(20):
                    await client.submit([{"act": "step", "name": f"s{number}", "ms": 500} for number in range(8)])
                await _until_started(postgres_place, 40)
                if away == "refuses":
                    proxy.close()
                else:
                    proxy.pause()
                start = time.monotonic()
                status = await asyncio.to_thread(crew.stop, 60)
                took = time.monotonic() - start
            with Crew(postgres_place, 1, lease_s=2.0, heartbeat_s=0.4).ready(1) as other:
                await until_all_ended(postgres_place, 40)
                await asyncio.to_thread(other.stop)
    verdict = await postgres_place.judge(client.acked)
    print_proof(f"SIGTERM while the database {away}", f"exit {status} after {took:.1f} s", verdict)
    verdict.must_be_clean()
    assert status == 0
    assert took < 30, "the stop of a container takes half a minute at most"
