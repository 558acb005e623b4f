"""Time that does not behave: a worker cut off for longer than its lease, and a database whose clock jumps."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onward.core import record as r
from rig.proxy import Proxy
from tests.faults.band import Client, Crew, Place, busy, until, until_all_ended
from tests.faults.crew import Act

pytestmark = pytest.mark.slow

LEASE_S = 1.5


def _story(rng: random.Random) -> list[Act]:
    return [{"act": "step", "name": f"s{number}", "ms": rng.randint(50, 300)} for number in range(6)]


async def test_worker_cut_off_for_longer_than_its_lease(
    postgres_place: Place, prove: bool, print_proof: Callable[..., None]
) -> None:
    """The worker cannot reach the database, and gets no error either. It stops starting steps when its
    lease ends by its own clock, and another goes on. When it is back, the store refuses its late records."""
    rounds = 10 if prove else 2
    rng = random.Random(24)
    late = taken = 0
    server = postgres_place.server
    assert server is not None
    settings = {"lease_s": LEASE_S, "heartbeat_s": 0.3, "slots": 10}
    with Proxy("127.0.0.1", server.port) as proxy:
        beyond = Place("postgres", proxy.url_for(postgres_place.url), postgres_place.home, server)
        async with postgres_place.app(lease_s=LEASE_S, heartbeat_s=0.3) as app:
            client = Client(app, rng)
            with Crew(postgres_place, 2, **settings).ready(2) as crew, Crew(beyond, 1, **settings).ready(1) as far:
                (pid,) = far.alive
                async with busy(postgres_place, client, about=30, acts=lambda: _story(rng)):
                    for _ in range(rounds):
                        await asyncio.sleep(1)
                        name = far.alive[pid]
                        proxy.pause()
                        cut = time.time()
                        await asyncio.sleep(3 * LEASE_S)
                        declared_dead = not postgres_place.rows(f"SELECT 1 FROM onward_workers WHERE id = '{name}'")
                        back = time.time()
                        proxy.resume()
                        taken += declared_dead
                        if declared_dead:
                            await asyncio.to_thread(far.until, lambda: far.alive[pid] != name, 20)
                        late += sum(
                            line[0] == "start" and line[5] == pid and cut + LEASE_S + 0.2 < line[6] < back
                            for line in postgres_place.ledger.read()
                        )
                await until_all_ended(postgres_place, 60)
                await asyncio.to_thread(crew.stop)
                await asyncio.to_thread(far.stop)
    verdict = await postgres_place.judge(client.acked)
    print_proof(
        "cut off for 3 leases",
        f"{rounds} times, {taken} taken over",
        f"{late} steps started without a lease",
        verdict,
        f"{verdict.repeated} of its steps refused and done again",
    )
    verdict.must_be_clean()
    assert late == 0
    assert taken, "VOID: no worker took its tasks"
    assert verdict.repeated, "VOID: it had done nothing that was refused"


class _Clock:
    """The time of a database, moved for all its clients at once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.file = place.home / "offset"
        self.file.write_bytes(struct.pack("d", 0.0))
        if place.kind == "postgres":
            place.rows("CREATE TABLE offset_of_time AS SELECT 0.0::float8 AS seconds")
            place.rows(
                "CREATE OR REPLACE FUNCTION onward_now() RETURNS float8 LANGUAGE sql STABLE AS "
                "'SELECT extract(epoch FROM now())::float8 + seconds FROM offset_of_time'"
            )

    def jump(self, seconds: float) -> None:
        if self._place.kind == "postgres":
            self._place.rows(f"UPDATE offset_of_time SET seconds = seconds + {seconds}")
        else:
            (now,) = struct.unpack("d", self.file.read_bytes())
            with Path(self.file).open("r+b") as file:
                file.write(struct.pack("d", now + seconds))


async def test_clock_of_the_database_jumps(place: Place, print_proof: Callable[..., None]) -> None:
    """Ten minutes ahead, and a little back: nothing runs twice, sleepers wake once, and a worker that the clock declared
    dead comes back."""
    rng = random.Random(25)
    async with place.app(lease_s=LEASE_S, heartbeat_s=0.3) as app:
        clock = _Clock(place)
        client = Client(app, rng)
        with Crew(place, 4, lease_s=LEASE_S, heartbeat_s=0.3, slots=10, offset=str(clock.file)).ready(4) as crew:
            async with busy(place, client, about=30):
                for seconds in (600, -3, 600, -3):
                    await asyncio.sleep(1.5)
                    clock.jump(seconds)
                await asyncio.sleep(1)
            await until_all_ended(place, 60)
            taken = len(crew.names) - 4
            pids = sorted(crew.alive)
            await until(lambda: sorted(pid for (pid,) in place.rows("SELECT pid FROM onward_workers")) == pids)
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked)
    slept = [row.key for journal in place.look().journals.values() for row in journal if row.kind == r.SLEPT]
    print_proof(
        "clock jumps",
        place.kind,
        "+600, -3, +600, -3 s",
        verdict,
        f"{len(slept)} sleeps",
        f"{taken} living taken for dead",
    )
    verdict.must_be_clean()
    assert slept
