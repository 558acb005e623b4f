"""Runs of an agent that are killed with -9 and fail in the end: each finished call is undone once, the last first."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path
from typing import Any

import pytest

from onward import Onward, State
from onward.errors import OnwardError, StateConflict
from rig.processes import Child
from tests.kit import not_memory
from tests.outside.trips import BOOKINGS

ROOT = Path(__file__).parents[2]
WORKERS = 3
WAYS = ("fail", "cancel", "hang", "book")


def _worker(url: str, home: Path) -> Child:
    command = ("-m", "onward", "worker", "tests.outside.trips:app", "--slots", "2", "--db", url)
    return Child(*command, env={"OUTSIDE_HOME": str(home)}, cwd=ROOT)


def _world(home: Path) -> list[list[str]]:
    """The events of the world, each once."""
    text = (home / "world").read_text() if (home / "world").exists() else ""
    return [line.split() for line in dict.fromkeys(text.splitlines())]


def _killed(home: Path) -> int:
    """How many runs have killed their worker."""
    return len(list(home.glob("killed-*")))


@not_memory
@pytest.mark.slow
async def test_each_finished_call_of_a_killed_run_is_undone_once_in_reverse(
    url: str, tmp_path: Path, prove: bool
) -> None:
    runs, rng = (100 if prove else 8), random.Random(3)
    async with Onward(url) as app:
        crew = [_worker(url, tmp_path) for _ in range(WORKERS)]
        try:
            ids: dict[str, str] = {}
            for number in range(runs):
                way = WAYS[number % len(WAYS)]
                deadline = {"deadline": 10.0} if way == "hang" else {}
                ids[(await _submitted(app, f"{way} {number}", **deadline)).id] = way
            await _until_all_ended(app, ids, crew, url, tmp_path, rng)
        finally:
            for worker in crew:
                worker.close()
        world, undone = _world(tmp_path), 0
        for task_id, way in ids.items():
            undone += await _judged(app, task_id, way, world)
        assert _killed(tmp_path) >= runs // 3, "or this shows little"
        assert undone >= runs


async def _submitted(app: Onward, goal: str, **options: Any) -> Any:
    end = time.monotonic() + 60
    while True:  # until a worker has registered its handlers
        try:
            return await app.submit("trip", goal, **options)
        except OnwardError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


async def _until_all_ended(
    app: Onward, ids: dict[str, str], crew: list[Child], url: str, home: Path, rng: random.Random
) -> None:
    """Restarts dead workers, and cancels the runs that are to be cancelled, until all have ended."""
    cancelled = set[str]()
    patience = {task_id: rng.randint(1, len(BOOKINGS)) for task_id in ids}
    end = time.monotonic() + 600
    while time.monotonic() < end:
        booked = [line[1].split("/")[0] for line in _world(home) if line[0] == "booked"]
        tasks = [await app.get(task_id) for task_id in ids]
        if all(task.ended for task in tasks):
            return
        for task in tasks:
            assert task.reason != "parked", task
            wanted = ids[task.task_id] == "cancel" and booked.count(task.task_id) >= patience[task.task_id]
            with contextlib.suppress(StateConflict):
                if wanted and task.task_id not in cancelled:
                    await app.cancel(task.task_id)
                    cancelled.add(task.task_id)
                if task.reason == "quarantined":
                    await app.resume(task.task_id)
        for number, worker in enumerate(crew):
            if not worker.running:
                worker.close()
                crew[number] = _worker(url, home)
        await asyncio.sleep(0.1)
    raise AssertionError(f"not ended: {[task for task in tasks if not task.ended]}")


async def _judged(app: Onward, task_id: str, way: str, world: list[list[str]]) -> int:
    """Checks a run; returns how many of its calls were undone."""
    task = await app.get(task_id)
    records = [record async for record in app.handle(task_id).tail()]
    done = [item for item in records if item.kind == "step.completed" and item.key.startswith("[run]book")]
    back = [item for item in records if item.kind == "step.completed" and item.key.startswith("[run/undo]")]
    took_back = [line[1].split("/")[1] for line in world if line[0] == "cancelled" and line[1].startswith(task_id)]
    if way == "book":
        assert (task.state, task.result) == (State.COMPLETED, "all is booked")
        assert (back, took_back) == ([], [])
        return 0
    assert task.state is (State.CANCELLED if way == "cancel" else State.FAILED), task
    names = list(BOOKINGS[: len(done)])
    assert took_back == names[::-1], "in the world, each once, the last first"
    assert len(back) == len(done), "each undo is recorded once"
    (undone,) = [item for item in records if item.kind == "saga.undone"]
    assert undone.value == {"undone": [item.key for item in reversed(done)], "not_undone": []}
    return len(done)
