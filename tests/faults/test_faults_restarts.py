"""PostgreSQL goes away under load and comes back: no task is lost, and no living worker is declared dead."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.postgres import Postgres
from rig.proxy import Proxy
from tests.faults.band import Client, Crew, Place, busy, until, until_all_ended
from tests.faults.crew import Act

pytestmark = pytest.mark.slow

WORKERS = 4


@pytest.fixture
def own(own_server: Postgres, tmp_path: Path) -> Place:
    return Place("postgres", own_server.database("own"), tmp_path, own_server)


def _story(rng: random.Random) -> list[Act]:
    return [{"act": "step", "name": f"s{number}", "ms": rng.randint(5, 150)} for number in range(6)]


async def _under_load(place: Place, trouble: Callable[[], object], times: int, *, pause: float) -> tuple[Client, Crew]:
    """Repeats a trouble while workers with the default lease run stories that have no retry."""
    rng = random.Random(4)
    async with place.app() as app:
        client = Client(app, rng)
        with Crew(place, WORKERS, slots=20).ready(WORKERS) as crew:
            before = dict(crew.alive)
            async with busy(place, client, about=40, acts=lambda: _story(rng), task="once"):
                for _ in range(times):
                    await asyncio.sleep(pause * rng.uniform(0.5, 1.5))
                    await asyncio.to_thread(trouble)
                await asyncio.sleep(pause)
            await until_all_ended(place, 90)
            assert crew.alive == before, f"some were taken for dead, or died: {crew.ends}\n{crew.log}"
            rows = dict(place.rows("SELECT pid, id FROM onward_workers"))
            await asyncio.to_thread(crew.stop)
    assert rows == before
    assert not crew.unexpected_errors, crew.unexpected_errors
    return client, crew


@pytest.mark.parametrize("how", ["immediate", "kill -9"])
async def test_database_restarted(own: Place, how: str, prove: bool, print_proof: Callable[..., None]) -> None:
    times = 20 if prove else 3
    server = own.server
    assert server is not None

    def trouble() -> None:
        if how == "kill -9":
            server.kill()
            server.start()
        else:
            server.restart("immediate")

    client, _ = await _under_load(own, trouble, times, pause=1.0)
    verdict = await own.judge(client.acked)
    print_proof(
        f"PostgreSQL restarted ({how})",
        f"{times} times",
        verdict,
        f"{client.refused} submits had to be sent again",
        "0 living taken for dead",
    )
    verdict.must_be_clean()


async def test_database_away_for_longer_than_the_lease(own: Place, print_proof: Callable[..., None]) -> None:
    """All leases end while it is down; the first worker that is back must not declare the others dead."""
    rng = random.Random(5)
    server = own.server
    assert server is not None
    async with own.app() as app:
        client = Client(app, rng)
        with Crew(own, WORKERS, lease_s=2.0, heartbeat_s=0.5, slots=20).ready(WORKERS) as crew:
            before = dict(crew.alive)
            async with busy(own, client, about=30, acts=lambda: _story(rng), task="once"):
                await asyncio.sleep(1)
                await asyncio.to_thread(server.stop, None, "immediate")
                await asyncio.sleep(5)
                await asyncio.to_thread(server.start)
                await asyncio.sleep(1)
            await until_all_ended(own, 60)
            after = dict(crew.alive)
            await asyncio.to_thread(crew.stop)
    verdict = await own.judge(client.acked)
    print_proof("PostgreSQL away for 5 s, lease 2 s", verdict, f"{len(crew.names) - WORKERS} living taken for dead")
    verdict.must_be_clean()
    assert after == before, f"a living worker was declared dead\n{crew.log}"


async def test_all_connections_cut(postgres_place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    """The database stays up, but every connection breaks, presence locks included, and can be made again."""
    times = 20 if prove else 3
    server = postgres_place.server
    assert server is not None
    with Proxy("127.0.0.1", server.port) as proxy:
        place = Place("postgres", proxy.url_for(postgres_place.url), postgres_place.home, server)
        client, _ = await _under_load(place, proxy.cut, times, pause=0.7)
        verdict = await place.judge(client.acked)
    print_proof("all connections cut", f"{times} times", verdict, "0 living taken for dead")
    verdict.must_be_clean()


async def test_slow_database(postgres_place: Place, print_proof: Callable[..., None]) -> None:
    """More than half a second for every answer: slower, and nothing else. Heartbeats are answered late as well."""
    server = postgres_place.server
    assert server is not None
    rng = random.Random(30)
    async with postgres_place.app() as app:
        client = Client(app, rng)
        with Proxy("127.0.0.1", server.port) as proxy:
            place = Place("postgres", proxy.url_for(postgres_place.url), postgres_place.home, server)
            with Crew(place, 2, slots=20, lease_s=4.0, heartbeat_s=1.0).ready(2) as crew:
                before = dict(crew.alive)
                beats = "SELECT count(*) FROM onward_workers WHERE lease_until > started_at + 4.5"
                await until(lambda: postgres_place.rows(beats) == [(2,)])  # both heartbeats have their connections
                proxy.delay = 0.3
                start = time.monotonic()
                for _ in range(20):
                    await client.submit(_story(rng), task="once")
                await until_all_ended(postgres_place, 60)
                took = time.monotonic() - start
                proxy.delay = 0.0
                after = dict(crew.alive)
                await asyncio.to_thread(crew.stop)
    verdict = await postgres_place.judge(client.acked)
    print_proof("slow database (600 ms for an answer)", f"120 steps in {took:.1f} s", verdict)
    verdict.must_be_clean()
    assert after == before, f"a living worker was declared dead\n{crew.log}"
