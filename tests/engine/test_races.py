"""Cancel races with completion, answer, child start and timeout: one end, and all callers get the same one."""

from __future__ import annotations

import asyncio
import collections
import random
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from onward.core.task import State
from onward.errors import AlreadyDecided, OnwardError, StateConflict, TaskCancelled
from tests.kit import not_memory

SCENES = ("completion", "answer", "child", "timeout")


def racing(app: Onward) -> Onward:
    @app.task(retry=1)
    async def completion(ctx: Any, wait: float) -> str:
        await ctx.step(asyncio.sleep, wait)
        return "done"

    @app.task(retry=1)
    async def answer(ctx: Any, wait: float) -> Any:
        return await ctx.ask("?")

    @app.task(retry=1)
    async def young(ctx: Any) -> str:
        return "young"

    @app.task(retry=1)
    async def child(ctx: Any, wait: float) -> Any:
        await ctx.step(asyncio.sleep, wait)
        return await (await ctx.submit("young"))

    @app.task(retry=1)
    async def timeout(ctx: Any, wait: float) -> Any:
        return await ctx.signal("never", timeout=wait, default="late")

    return app


async def race(app: Onward, scene: str, rng: random.Random) -> str:
    """Cancels and finishes one task at about the same moment; returns the state in which it ended."""
    wait = rng.uniform(0, 0.01)
    task = await app.submit(scene, wait)
    waiting = asyncio.ensure_future(_result(task))

    async def cancel() -> str:
        await asyncio.sleep(rng.uniform(0, 0.15))
        try:
            await app.cancel(task.id)
        except StateConflict as conflict:
            return conflict.state
        return State.CANCELLED

    async def say() -> None:
        while scene == "answer" and not (await task.get()).ended:
            for ask in await app.asks():
                if ask.task_id == task.id:
                    try:
                        await app.answer(ask.id, "done")
                    except (AlreadyDecided, StateConflict):
                        return
                    return
            await asyncio.sleep(rng.uniform(0, 0.005))

    state, _ = await asyncio.gather(cancel(), say())
    result = await asyncio.wait_for(waiting, 60)
    ended = await task.get()
    records = await app.service.journal(task.id)
    ends = [record.kind for record in records if record.kind in r.ENDS]
    assert len(ends) == 1, [record.kind for record in records]
    assert records[-1].kind in r.ENDS
    assert state == ended.state, (state, ended.state)
    assert (result == "cancelled") == (ended.state is State.CANCELLED)
    return str(ended.state)


async def _result(task: Any) -> str:
    try:
        await task.result(60)
    except TaskCancelled:
        return "cancelled"
    except OnwardError as error:
        return type(error).__name__
    return "completed"


async def _open(app: Onward) -> list[Any]:
    return [task for state in ("pending", "running", "waiting") for task in (await app.list(state=state))[0]]


async def _races(url: str, count: int, seed: int) -> collections.Counter[str]:
    app = racing(Onward(url, poll_s=0.05))
    rng, met = random.Random(seed), collections.Counter[str]()
    async with app.worker(slots=100):
        for start in range(0, count, 20):
            scenes = [SCENES[(start + n) % len(SCENES)] for n in range(20)]
            ends = await asyncio.gather(*[race(app, scene, rng) for scene in scenes])
            met.update(f"{scene} {end}" for scene, end in zip(scenes, ends, strict=True))
        for _ in range(200):  # the children of cancelled tasks end too
            if not await _open(app):
                break
            await asyncio.sleep(0.05)
        assert await _open(app) == []
        assert await app.store.health.census() == []
    return met


@pytest.mark.slow
@not_memory
async def test_races_of_cancel(url: str) -> None:
    met = await _races(url, 120, 31)
    assert sum(met.values()) == 120
    assert {outcome.split()[1] for outcome in met} == {"cancelled", "completed"}, "both must win sometimes"


@pytest.mark.slow
@not_memory
async def test_two_thousand_races_of_cancel(url: str, prove: bool) -> None:
    count = 2000 if prove else 200
    met = await _races(url, count, 32)
    print(f"\n  races · {sum(met.values())} · {dict(met)}")
    assert sum(met.values()) == count
    for scene in SCENES:
        assert met[f"{scene} cancelled"], scene
    assert sum(met[f"{scene} completed"] for scene in SCENES) > count / 40
