"""A client that vanishes in the middle of a transaction, with its locks: the work of all others goes on.

A closed laptop or a lost network: the server hears nothing, and would keep the locks for hours. They block the journal of
the task, and so the writer of its worker with all its other tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

import pytest

from rig.proxy import Proxy
from tests.faults.band import Client, Crew, Place, until
from tests.faults.crew import Act

pytestmark = pytest.mark.slow

# Its records are written by then, and not committed.
HALFWAY = """SELECT 1 FROM pg_stat_activity
WHERE state = 'idle in transaction' AND datname = current_database() AND query LIKE '%INSERT INTO onward_outcomes%'"""


async def test_canceller_vanishes_halfway(postgres_place: Place, print_proof: Callable[..., None]) -> None:
    server = postgres_place.server
    assert server is not None
    acts: list[Act] = [{"act": "step", "name": f"s{number}", "ms": 200} for number in range(30)]
    with Proxy("127.0.0.1", server.port) as proxy:
        beyond = Place("postgres", proxy.url_for(postgres_place.url), postgres_place.home, server)
        async with postgres_place.app() as app, beyond.app() as far:
            client = Client(app, random.Random(23))
            with Crew(postgres_place, 1).ready(1) as crew:
                victim = await client.submit([{"act": "step", "name": f"s{number}", "ms": 3000} for number in range(2)])
                others = [await client.submit(acts) for _ in range(10)]
                await asyncio.sleep(0.5)
                proxy.delay = 0.1
                cancelling = asyncio.create_task(far.cancel(victim))
                await until(lambda: postgres_place.rows(HALFWAY), every=0.01)
                proxy.pause()
                start = time.monotonic()
                for task_id in others:
                    await app.service.wait(task_id, 60)
                took = time.monotonic() - start
                proxy.delay = 0.0
                proxy.cut()
                proxy.resume()
                with contextlib.suppress(Exception):
                    await cancelling
                state = (await app.cancel(victim)).state if not (await app.get(victim)).ended else None
                await asyncio.to_thread(crew.stop)
    verdict = await postgres_place.judge(dict.fromkeys(others, acts))
    print_proof(
        "canceller vanishes halfway", f"10 other tasks of its worker done after {took:.1f} s (6 s of work)", verdict
    )
    verdict.must_be_clean()
    assert took < 40, f"a stranger's open transaction held up the worker ({state})"
