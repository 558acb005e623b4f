"""Zombies: workers that stand still for longer than their lease and then go on as if nothing had happened.

SIGSTOP looks from outside like a paused virtual machine, a swapped-out process or a closed laptop. While a worker
stands still, another takes its tasks. When it wakes, it runs steps of tasks that it no longer holds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import apsw
import pytest

from onward.app.connect import open_store
from onward.errors import StoreUnavailable
from tests.faults.band import Client, Crew, Place, busy, resume_quarantined, until_all_ended
from tests.faults.crew import Act

pytestmark = pytest.mark.slow

WORKERS, AT_ONCE = 8, 4
LEASE_S = 1.0


def _story(rng: random.Random) -> list[Act]:
    """A story long enough that a worker is always in the middle of some. No threads: one that is frozen between the decision to
    start a step and its first line starts it when it wakes, and the oracle could not tell it from a faulty worker."""
    return [{"act": "step", "name": f"s{number}", "ms": rng.randint(50, 400)} for number in range(5)]


async def test_zombies(place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    await _zombies(place, 25 if prove else 3, print_proof)


async def test_zombies_behind_a_pooler(pooled_place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    """Each statement is a transaction of its own there, and a worker that stands still in one holds its locks. Its session is
    not its own: without a timeout in the transaction itself nothing would ever end it."""
    await _zombies(pooled_place, 25 if prove else 3, print_proof)


async def test_a_worker_frozen_in_a_transaction_behind_a_pooler_blocks_no_other(
    pooled_place: Place, print_proof: Callable[..., None]
) -> None:
    """Frozen between the lock of a queue row and its commit."""
    held: Any = open_store(pooled_place.url)
    await held.open()
    async with pooled_place.app(lease_s=LEASE_S, heartbeat_s=0.2) as app:
        task = await app.submit("story", {"acts": [{"act": "step", "name": "s", "ms": 1}]})
        loan = held._db.connection()
        connection = await loan.__aenter__()
        await connection.execute("SELECT 1 FROM onward_queue FOR UPDATE")
        async with app.worker():
            start = time.monotonic()
            assert await task.result(timeout=60) == ["s done"]
    print_proof("frozen in a transaction", "pooled", f"its locks were gone after {time.monotonic() - start:.1f} s")
    with pytest.raises(StoreUnavailable):
        await _use(loan, connection)
    await held.close()


async def _use(loan: Any, connection: Any) -> None:
    try:
        await connection.execute("SELECT 1")
    except BaseException as error:
        await loan.__aexit__(type(error), error, None)
        raise


async def _zombies(place: Place, rounds: int, print_proof: Callable[..., None]) -> None:
    rng = random.Random(2)
    woken = taken_over = mistaken = 0
    async with place.app(lease_s=LEASE_S, heartbeat_s=0.2) as app:
        client = Client(app, rng)
        with Crew(place, WORKERS, lease_s=LEASE_S, heartbeat_s=0.2, slots=10).ready(WORKERS) as crew:
            async with busy(place, client, about=40, acts=lambda: _story(rng)):
                # a worker frozen in a commit on SQLite's file cannot be declared dead: others are tried
                wanted = rounds * AT_ONCE / 2
                for number in range(3 * rounds):
                    if number >= rounds and taken_over > wanted:
                        break
                    await asyncio.sleep(rng.uniform(0.3, 0.6))
                    before = dict(crew.alive)
                    zombies = {pid: before[pid] for pid in crew.pick(rng, AT_ONCE)}
                    for pid in zombies:
                        crew.freeze(pid)
                    await asyncio.sleep(3 * LEASE_S)
                    for _ in range(100):  # on a busy machine the others take a while to declare them dead
                        buried = zombies.keys() - {pid for (pid,) in place.rows("SELECT pid FROM onward_workers")}
                        if buried == zombies.keys():
                            break
                        await asyncio.sleep(0.05)
                    for pid in zombies:
                        crew.thaw(pid)
                    await asyncio.to_thread(
                        crew.until, lambda: all(crew.alive[pid] != zombies[pid] for pid in buried), 15
                    )
                    woken += len(zombies)
                    taken_over += len(buried)
                    mistaken += sum(crew.alive[pid] != name for pid, name in before.items() if pid not in zombies)
            await until_all_ended(place, 60)
            if freed := await resume_quarantined(place, app):
                await until_all_ended(place, 30)
            pids = sorted(set(crew.names.values()))
            for _ in range(200):
                left = sorted(pid for (pid,) in place.rows("SELECT pid FROM onward_workers"))
                if left == pids:
                    break
                await asyncio.sleep(0.05)
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked)
    print_proof(
        "zombies",
        place.kind,
        f"{woken} frozen for {3 * LEASE_S:g} s",
        f"{taken_over} taken over, all rejoined",
        f"{mistaken} living taken for dead",
        verdict,
        f"{verdict.refused} late appends refused",
        f"{freed} quarantined by chance",
    )
    verdict.must_be_clean()
    assert not crew.unexpected_errors, crew.unexpected_errors
    assert not crew.ends or all(status == 0 for _, status in crew.ends), f"a zombie ended: {crew.ends}"
    assert taken_over > wanted, "VOID: hardly any worker was declared dead"
    assert verdict.refused, "VOID: no zombie ever tried to write"
    assert left == pids, "each process has one row, and no more"
    assert mistaken <= woken / 2, "the living were taken for dead, and not just for a moment of a busy machine"


@pytest.mark.parametrize("times", [2])
async def test_sqlite_writer_frozen_in_a_commit(sqlite: Place, times: int, print_proof: Callable[..., None]) -> None:
    """A process that stands still in the middle of a commit stops all writers of the file, heartbeats included. When it
    goes on every lease has ended, and none of their owners is dead."""
    # after the freeze all workers queue for the writer: the last heartbeat must come within a lease
    lease = 2 * LEASE_S
    rng = random.Random(3)
    async with sqlite.app(lease_s=lease, heartbeat_s=0.2) as app:
        client = Client(app, rng)
        with Crew(sqlite, 4, lease_s=lease, heartbeat_s=0.2, slots=10).ready(4) as crew:
            before = dict(crew.alive)
            async with busy(sqlite, client, about=20, acts=lambda: _story(rng)):
                for _ in range(times):
                    await asyncio.sleep(1.5 * lease)
                    await asyncio.to_thread(_hold_the_writer, sqlite, 3 * lease)
            await until_all_ended(sqlite, 60)
            after = dict(crew.alive)
            await asyncio.to_thread(crew.stop)
    verdict = await sqlite.judge(client.acked)
    print_proof(
        "writer frozen",
        "sqlite",
        f"{times} times for {3 * lease:g} s",
        verdict,
        f"{len(crew.names) - 4} taken for dead",
    )
    verdict.must_be_clean()
    assert after == before, "a living worker was declared dead"
    assert client.refused == 0


def _hold_the_writer(place: Place, seconds: float) -> None:
    connection = apsw.Connection(place.url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(20_000)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(seconds)
    connection.execute("COMMIT")
    connection.close()
