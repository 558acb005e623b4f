"""A tree of tasks, 1 + 10 + 100 + 1,000, under random kill -9: it finishes, is cancelled, and is paused and resumed."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from onward import Onward
from onward.core.task import State
from tests.faults.band import Place


def tree_app(app: Onward) -> Onward:
    @app.task
    async def tree(ctx: Any, widths: list[int]) -> int:
        if not widths:
            return await ctx.step(_one)  # type: ignore[no-any-return]
        children = [await ctx.submit("tree", {"widths": widths[1:]}) for _ in range(widths[0])]
        return 1 + sum(await ctx.gather(*children))

    @app.task
    async def endless(ctx: Any, widths: list[int]) -> None:
        for _ in range(widths[0] if widths else 0):
            await ctx.submit("endless", {"widths": widths[1:]})
        await ctx.signal("never")

    return app


async def _one() -> int:
    return 1


class Workers:
    """Two workers in processes of their own; `kill` ends one with -9 and starts another."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._all = [self._start() for _ in range(2)]

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "ONWARD_DB": self._place.url, "ONWARD_SLOTS": "100"}
        command = [
            sys.executable,
            "-m",
            "onward",
            "worker",
            "tests.faults.test_faults_trees:app",
            "--db",
            self._place.url,
        ]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, rng: random.Random) -> None:
        victim = self._all.pop(rng.randrange(2))
        victim.kill()
        victim.wait()
        self._all.append(self._start())

    def close(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()


async def _kill_now_and_then(workers: Workers, rng: random.Random, count: list[int]) -> None:
    while True:
        await asyncio.sleep(rng.uniform(0.5, 1.5))
        await asyncio.to_thread(workers.kill, rng)
        count[0] += 1


@pytest.mark.slow
async def test_tree_under_random_kills(place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    widths = [10, 10, 10] if prove else [5, 5, 4]
    total = 1 + widths[0] * (1 + widths[1] * (1 + widths[2]))
    rng, kills = random.Random(33), [0]
    async with tree_app(Onward(place.url)) as app:
        workers = Workers(place)
        killing = asyncio.ensure_future(_kill_now_and_then(workers, rng, kills))
        try:
            root = await app.submit("tree", {"widths": widths})
            assert await root.result(240) == total
            assert await _count(app, State.COMPLETED) == total, "no task was started twice"
            await _cancelled(app, widths, total)
            assert await app.store.health.census() == []
        finally:
            killing.cancel()
            await asyncio.to_thread(workers.close)
    print_proof(
        "tree of tasks under kill -9",
        place.kind,
        f"{total} tasks finished, {total} cancelled · {kills[0]} kills · census 0",
    )
    assert kills[0] >= 1


async def _cancelled(app: Onward, widths: list[int], total: int) -> None:
    root = await app.submit("endless", {"widths": widths})
    for _ in range(1200):
        if await _count(app, State.WAITING) == total:
            break
        await asyncio.sleep(0.1)
    assert await _count(app, State.WAITING) == total
    await app.cancel(root.id)
    for _ in range(100):
        if await _count(app, State.CANCELLED) == total:
            return
        await asyncio.sleep(0.1)
    assert await _count(app, State.CANCELLED) == total


async def _count(app: Onward, state: State) -> int:
    count, cursor = 0, None
    while True:
        page, cursor = await app.list(state=state, limit=1000, cursor=cursor)
        count += len(page)
        if cursor is None:
            return count


if db := os.environ.get("ONWARD_DB"):
    app = tree_app(Onward(db))
