"""Poison: tasks that end the process which runs them. They are quarantined, and no other task is."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable

import pytest

from onward.core import record as r
from onward.store.port.core import SUSPECT_AFTER
from tests.faults.band import Client, Crew, Place
from tests.faults.crew import Act
from tests.faults.verdict import Picture

pytestmark = pytest.mark.slow

RELEASES = r.ENDS | {r.HANDED_BACK, r.RETRY, r.QUARANTINED, r.PARKED}
CLOCK_SLACK_S = 0.05


@pytest.mark.parametrize("poison", ["exit", "kill", "segv"])
async def test_poison_among_good_ones(place: Place, poison: str, prove: bool, print_proof: Callable[..., None]) -> None:
    good = 200 if prove else 30
    rng = random.Random(15)
    async with place.app(lease_s=2.0, heartbeat_s=0.4) as app:
        client = Client(app, rng)
        with Crew(place, 2, lease_s=2.0, heartbeat_s=0.4, slots=8).ready(2) as crew:
            # A first step with a record, so that a crash in the second step is the third event of the task.
            bad = [
                await client.submit([{"act": "step", "name": "before", "ms": 5}, {"act": poison, "name": "bad"}])
                for _ in range(2)
            ]
            for _ in range(good):
                await client.submit(_story(rng))
            for task_id in client.acked:
                await _until_judged(place, task_id)
            crashes = len([status for _, status in crew.ends if status != 0])
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked, frozenset(bad))
    picture = place.look()
    print_proof(f"poison ({poison})", place.kind, f"2 among {good}", f"{crashes} workers died", verdict)
    verdict.must_be_clean()
    for task_id in bad:
        last = picture.journals[task_id][-1]
        assert last.kind == r.QUARANTINED
        assert str(SUSPECT_AFTER + 1) in json.loads(last.data)["reason"]
        assert _was_alone(picture, task_id), "its last chance was not its own"
        assert (await _state(place, task_id)) == ("waiting", "quarantined")


def _story(rng: random.Random) -> list[Act]:
    return [{"act": "step", "name": f"s{number}", "ms": rng.randint(1, 60)} for number in range(3)]


async def _until_judged(place: Place, task_id: str, timeout: float = 60) -> None:
    for _ in range(int(timeout / 0.05)):
        sql = f"SELECT reason FROM onward_queue WHERE task_id = '{task_id}'"
        rows = await asyncio.to_thread(place.rows, sql)
        if not rows or rows[0][0] == "quarantined":
            return
        await asyncio.sleep(0.05)


async def _state(place: Place, task_id: str) -> tuple[str, str | None]:
    async with place.app() as app:
        task = await app.get(task_id)
        return task.state.value, task.reason


def _was_alone(picture: Picture, task_id: str) -> bool:
    """Whether the worker held no other task when this task crashed it for the last time."""
    *_, last, verdict = [row for row in picture.journals[task_id] if row.kind == r.SHIFT]
    worker = json.loads(last.data)["worker"]
    for other, journal in picture.journals.items():
        if other == task_id:
            continue
        for row, following in itertools.pairwise([row for row in journal if row.kind in {r.SHIFT, *RELEASES}]):
            theirs = row.kind == r.SHIFT and json.loads(row.data)["worker"] == worker
            if theirs and row.at < verdict.at and following.at > last.at + CLOCK_SLACK_S:
                return False
    return True
