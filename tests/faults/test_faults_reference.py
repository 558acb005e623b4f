"""The reference task under a real kill -9 at every one of its writes; another process goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onward import Onward
from onward.core import record as r
from tests.engine import reference
from tests.engine.test_reference import judge, see_through
from tests.faults.band import Place
from tests.kit import sql

POINTS = (
    "claim.before",
    "save.before",
    "save.after",
    "effect.before",
    "effect.after",
    "transaction.before",
    "transaction.after",
)
SAMPLE = {("save.before", 5), ("save.after", 4), ("effect.after", 1), ("transaction.before", 1)}
"""For the ordinary run."""

DOUBTFUL = {"save.before", "save.after", "effect.before", "effect.after"}


@pytest.mark.slow
async def test_reference_task_killed_at_every_write(
    place: Place, tmp_path: Path, prove: bool, print_proof: Callable[..., None]
) -> None:
    killed = doubted = 0
    where: set[str] = set()
    for point in POINTS:
        for count in range(1, 100):
            if not prove and (point, count) not in SAMPLE:
                continue
            home = tmp_path / f"{point}-{count}"
            home.mkdir()
            died, doubt = await _one(place, home, f"{point}:{count}")
            if not died:
                break  # it has no more of these
            killed += 1
            doubted += doubt
            where |= {point} if doubt else set()
    print_proof(
        "reference task, kill -9 at a write",
        place.kind,
        f"{killed} places · {doubted} in doubt, all between announcement and record",
    )
    assert where <= DOUBTFUL
    assert doubted == (4 if prove else 1)
    assert killed == 4 or (prove and killed > 25)


async def _one(place: Place, home: Path, crash: str) -> tuple[bool, bool]:
    app = reference.make(Onward(place.url, poll_s=0.05), home)
    async with app:
        for table in ("tasks", "queue", "journal", "outcomes", "inbox", "workers"):
            await sql(app.store, f"DELETE FROM onward_{table}")
        await sql(app.store, "DROP TABLE IF EXISTS bookings")
        await sql(app.store, "CREATE TABLE bookings (task TEXT)")
        task = await app.submit("reference")
        first = _worker(place, home, crash)
        end = asyncio.ensure_future(see_through(app, task, home))
        second = None
        try:
            while not end.done():
                if second is None and first.poll() is not None:
                    assert first.returncode == -signal.SIGKILL
                    second = _worker(place, home, "")
                await asyncio.wait({end}, timeout=0.02)
            doubted = await end
            await judge(app, task, home, doubted=doubted, killed_at=crash)
            kinds = [record.kind for record in await app.service.journal(task.id)]
            assert not doubted or r.ANNOUNCED in kinds
            return second is not None, doubted
        finally:
            end.cancel()
            for process in (first, second):
                if process is not None and process.poll() is None:
                    process.kill()
                    await asyncio.to_thread(process.wait)


def _worker(place: Place, home: Path, crash: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "REFERENCE_HOME": str(home), "ONWARD_DB": place.url, "ONWARD_POLL_S": "0.05"}
    environment |= {"ONWARD_CRASH": crash} if crash else {}
    command = [sys.executable, "-m", "onward", "worker", "tests.engine.reference:app", "--db", place.url]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
