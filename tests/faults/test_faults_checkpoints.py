"""kill -9 of workers whose agents write their reads late: each checkpoint strategy loses no more than it may; and journals that
are rotated under running tasks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from onward.core import record as r
from onward.core.journal.checkpoint import STRATEGIES
from onward.errors import ResultTimeout
from tests.faults.band import Crew, Place
from tests.faults.readers import KEEP, ROUNDS, ReaderPlace, build, expected_result, judge

pytestmark = pytest.mark.slow

WORKERS = 6
SETTINGS: dict[str, Any] = {"lease_s": 5.0, "heartbeat_s": 0.5, "poll_s": 0.05}


async def result_with_resumes(handle: Any, times: int = 3) -> Any:
    """The result. Several kills in a row can hit a harmless task by chance: it is quarantined, and resumed here a few times."""
    end = asyncio.get_running_loop().time() + 180
    while True:
        with contextlib.suppress(ResultTimeout):
            return await handle.result(timeout=1)
        task = await handle.get()
        if task.reason == "quarantined" and times > 0:
            times -= 1
            await handle._app.resume(handle.id)
        assert asyncio.get_running_loop().time() < end, task


async def killed(
    place: Place,
    kills: int,
    each: int,
    plant: str = "",
    names: tuple[str, ...] = STRATEGIES,
    enough: Callable[[], bool] = lambda: True,
    most: int = 300,
) -> Any:
    """The ids of the tasks by label, after `kills` kills and the end of all tasks; and how many processes died.

    `enough` says whether the kills hit a task at work: on a slow machine most do not, and then there are more, up to `most`."""
    rng = random.Random(3)
    home = ReaderPlace(place.kind, place.url, place.home, place.server)
    app = build(home.url, str(home.ledger.path), **SETTINGS)
    async with app:
        with Crew(home, WORKERS, slots=1, plant=plant, **SETTINGS).ready(WORKERS) as crew:
            ids: dict[str, str] = {}
            running: set[asyncio.Task[Any]] = set()
            struck = asyncio.Event()

            async def run_task(name: str, number: int) -> None:
                label = f"{name} {number}"
                handle = await app.submit(name, label)
                ids[label] = handle.id
                assert await result_with_resumes(handle) == expected_result(label)

            async def feed() -> None:
                number = 0
                while not struck.is_set() or number < each * len(names):
                    if len(running) < 2 * WORKERS:
                        task = asyncio.ensure_future(run_task(names[number % len(names)], number))
                        running.add(task)
                        number += 1
                    await asyncio.wait(running, timeout=0.02)
                    for task in [task for task in running if task.done()]:
                        running.discard(task)
                        task.result()
                await asyncio.gather(*running)

            feeding = asyncio.ensure_future(feed())
            while len(crew.died) < kills or (not enough() and len(crew.died) < most):
                await asyncio.sleep(rng.expovariate(1 / 0.2))
                await asyncio.to_thread(crew.ready, WORKERS // 2)
                crew.kill9(*crew.pick(rng))
                assert not feeding.done(), feeding.exception()
            struck.set()
            await feeding
            await asyncio.to_thread(crew.stop)
            assert await app.store.health.census() == []
            return ids, len(crew.died)


async def test_each_strategy_repeats_no_more_than_it_may(
    place: Place, prove: bool, print_proof: Callable[..., None]
) -> None:
    kills = 300 if prove else 20

    def enough() -> bool:
        return sum(judge(place.ledger.read())[1].values()) > kills / 20

    ids, died = await killed(place, kills, 10, names=(*STRATEGIES, "rounds"), enough=enough, most=10 * kills)
    wrong, again = judge(place.ledger.read())
    print_proof("checkpoints", place.kind, f"{died} kills", f"{len(ids)} tasks", f"reads done again: {dict(again)}")
    assert wrong == []
    assert died >= kills
    assert sum(again.values()) > kills / 20, "VOID: the kills hit no worker that read"
    rotated = 0
    for label, task_id in ids.items():
        rows = place.rows(f"SELECT kind, data FROM onward_journal WHERE task_id = '{task_id}' ORDER BY seq")
        if label.startswith("rounds"):
            saved = [bytes(data) for kind, data in rows if kind == r.CHECKPOINT]
            whole = [number for number, data in enumerate(saved, 1) if b"dropped" not in data]
            assert len(saved) == ROUNDS
            assert whole[-KEEP:] == [ROUNDS - 1, ROUNDS], "the last are whole"
            assert len(whole) <= KEEP + 1, "one more, where a worker died between the last checkpoint and its rotation"
            rotated += 1
    assert rotated >= 10


@pytest.mark.parametrize(("fault", "name"), [("turns", "every_iteration"), ("effects", "on_state_change")])
async def test_the_judge_finds_a_planted_fault(sqlite: Place, fault: str, name: str) -> None:
    def judged_wrong() -> bool:
        return judge(sqlite.ledger.read())[0] != []

    await killed(sqlite, 1, 2, plant=fault, names=(name,), enough=judged_wrong)
    wrong, _ = judge(sqlite.ledger.read())
    assert wrong
