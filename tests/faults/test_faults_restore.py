"""A database that loses confirmed commits, under living workers: a restore from a backup, a failover to a replica that
lagged behind. No journal gets a hole, and every task that the backup has goes on to its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import apsw
import psycopg
import pytest

from tests.faults.band import Client, Crew, Place, until_all_ended

pytestmark = pytest.mark.slow

LEASE_S = 2.0
TASKS = 40
WORKERS = 3
TABLES = ("tasks", "queue", "journal", "outcomes", "inbox", "contents", "workers")
GAPS = "SELECT count(*) FROM (SELECT task_id FROM onward_journal GROUP BY task_id HAVING count(*) <> max(seq)) AS g"


def _back_up(place: Place) -> None:
    if place.kind == "sqlite":
        _copy(place.url.removeprefix("sqlite:///"), place.home / "backup.db")
        return
    with psycopg.connect(place.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for table in TABLES:
            connection.execute(f"DROP TABLE IF EXISTS backup_{table}")
            connection.execute(f"CREATE TABLE backup_{table} AS TABLE onward_{table}")


def _restore(place: Place) -> None:
    if place.kind == "sqlite":
        _copy(str(place.home / "backup.db"), Path(place.url.removeprefix("sqlite:///")))
        return
    with psycopg.connect(place.url) as connection:
        names = ", ".join(f"onward_{table}" for table in TABLES)
        connection.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
        connection.execute(f"TRUNCATE {names}")
        for table in TABLES:
            connection.execute(f"INSERT INTO onward_{table} OVERRIDING SYSTEM VALUE TABLE backup_{table}")


def _copy(source: str, target: Path) -> None:
    """Copies a database into one that others have open, with SQLite's backup API."""
    from_connection, to_connection = apsw.Connection(source), apsw.Connection(str(target))
    to_connection.set_busy_timeout(20_000)
    while True:
        try:
            with to_connection.backup("main", from_connection, "main") as copying:
                while not copying.done:
                    copying.step(-1)
            break
        except (apsw.BusyError, apsw.LockedError):
            continue
    from_connection.close()
    to_connection.close()


async def test_a_restore_under_living_workers(place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    rng = random.Random(8)
    gaps = 0
    async with place.app(lease_s=LEASE_S, heartbeat_s=0.4) as app:
        client = Client(app, rng)
        with Crew(place, WORKERS, lease_s=LEASE_S, heartbeat_s=0.4, slots=20).ready(WORKERS) as crew:
            for _ in range(TASKS):
                await client.submit([{"act": "step", "name": f"s{n}", "ms": rng.randint(50, 250)} for n in range(20)])
            for _ in range(5 if prove else 2):
                await asyncio.sleep(0.7)
                await asyncio.to_thread(_back_up, place)
                await asyncio.sleep(0.9)
                await asyncio.to_thread(_restore, place)
                await asyncio.sleep(0.5)
                gaps += place.rows(GAPS)[0][0]
                crew.kill9(crew.pick(rng)[0])
            await until_all_ended(place, 90)
            log = crew.log
            await asyncio.to_thread(crew.stop)
    gaps += place.rows(GAPS)[0][0]
    ends = dict(place.rows("SELECT state, count(*) FROM onward_outcomes GROUP BY state"))
    waiting = place.rows("SELECT reason, count(*) FROM onward_queue GROUP BY reason")
    print_proof("restored", place.kind, f"{gaps} journals with holes", ends, waiting)
    assert gaps == 0
    assert (ends, waiting) == ({"completed": TASKS}, []), log
    assert not crew.unexpected_errors, crew.unexpected_errors
    assert any("lost its last commits" in line for line in crew.leader.errors), "VOID: no worker wrote after the loss"
