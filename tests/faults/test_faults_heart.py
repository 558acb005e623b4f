"""An unexpected error must not stop the heartbeat thread, which keeps the lease."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.band import Client, Crew, Place, until_all_ended


@pytest.mark.parametrize("error", [RuntimeError("unexpected"), ValueError("unexpected too")])
async def test_heart_survives_a_strange_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path / 'onward.db'}", tmp_path)
    async with place.app(lease_s=0.6, heartbeat_s=0.1, poll_s=0.05) as app:
        beat, beats = app.store.workers.heartbeat, 0

        async def strange(*args: Any) -> Any:
            nonlocal beats
            beats += 1
            if beats == 3:
                raise error
            return await beat(*args)

        monkeypatch.setattr(app.store.workers, "heartbeat", strange)
        client = Client(app, random.Random(28))
        async with app.worker() as worker:
            name = worker.id
            await asyncio.sleep(1.2)  # two leases
            task_id = await client.submit([{"act": "step", "name": "s", "ms": 1}])
            await app.handle(task_id).result(timeout=60)
            assert worker.id == name
    assert beats > 5
    (await place.judge(client.acked)).must_be_clean()


@pytest.mark.slow
async def test_heart_is_not_held_up_by_a_connection_that_died_without_a_word(
    postgres_place: Place, print_proof: Callable[..., None]
) -> None:
    """A firewall forgets a connection: nothing comes back on it, and a new one would work at once. (Here the server's
    end of it is frozen.) The heartbeat must not wait on the old one for as long as the lease."""
    place = postgres_place
    client_app = place.app()
    async with client_app:
        client = Client(client_app, random.Random(29))
        settings = {"lease_s": 6.0, "heartbeat_s": 1.0, "slots": 10}
        with Crew(place, 1, **settings).ready(1) as crew, Crew(place, 1, **settings).ready(1) as other:
            before = dict(crew.alive), dict(other.alive)
            for _ in range(10):
                await client.submit([{"act": "step", "name": f"s{number}", "ms": 500} for number in range(20)])
            await asyncio.sleep(1.5)
            beating = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%SET lease_until%' AND pid <> pg_backend_pid()"
            backends = [pid for (pid,) in place.rows(beating)]
            for pid in backends:
                os.kill(pid, signal.SIGSTOP)
            try:
                await until_all_ended(place, 60)
            finally:
                for pid in backends:
                    os.kill(pid, signal.SIGCONT)
            after = dict(crew.alive), dict(other.alive)
            await asyncio.to_thread(crew.stop)
            await asyncio.to_thread(other.stop)
    verdict = await place.judge(client.acked)
    print_proof("heartbeat's connection dies without a word", f"{len(backends)} of them", verdict)
    verdict.must_be_clean()
    assert len(backends) == 2, "VOID: their connections were not found"
    assert after == before, "they were taken for dead"
