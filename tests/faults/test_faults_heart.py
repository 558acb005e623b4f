"""The heart beats on: an error that nobody thought of must not stop the thread that keeps the lease."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.faults.band import Client, Place


@pytest.mark.parametrize("error", [RuntimeError("nobody thought of this"), ValueError("nor of this")])
async def test_heart_survives_a_strange_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path / 'onward.db'}", tmp_path)
    async with place.app(lease_s=0.6, heartbeat_s=0.1, poll_s=0.05) as app:
        beat, beats = app.store.beat, 0

        async def strange(*args: Any) -> Any:
            nonlocal beats
            beats += 1
            if beats == 3:
                raise error
            return await beat(*args)

        monkeypatch.setattr(app.store, "beat", strange)
        client = Client(app, random.Random(28))
        async with app.worker() as worker:
            name = worker.id
            await asyncio.sleep(1.2)  # two leases
            task_id = await client.submit([{"act": "step", "name": "s", "ms": 1}])
            await app.handle(task_id).result(timeout=5)
            assert worker.id == name
    assert beats > 5
    (await place.judge(client.acked)).must_be_clean()
