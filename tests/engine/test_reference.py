"""The reference task, killed at every one of its writes, inside this process. (tests/faults does it with kill -9.)"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from rig.ledger import Ledger
from tests.engine import reference
from tests.killer import Killer
from tests.kit import not_memory, sql

BETWEEN = {"save.after", "effect.before", "effect.after", "save.before"}


async def see_through(app: Onward, task: Any, home: Path) -> bool:
    """Answers questions and resolves steps in doubt by the world's ledger; returns whether a step was in doubt."""
    doubted = False
    while not (await task.get()).ended:
        for ask in await app.asks():
            await app.answer(ask.id, "yes")
        for doubt in await app.doubts(task.id):
            doubted = True
            happened = any(line[0] == "unkeyed" for line in Ledger(home / "world").read())
            await app.resolve(task.id, "happened" if happened else "not_happened", "sent", step=doubt.step)
        await asyncio.sleep(0.005)
    return doubted


async def judge(app: Onward, task: Any, home: Path, *, doubted: bool, killed_at: str | None) -> None:
    assert await task.result(1) == reference.RESULT, killed_at
    world = [tuple(line) for line in Ledger(home / "world").read()]
    assert sum(effect == "unkeyed" for effect, _ in world) == 1, killed_at
    assert len({line for line in world if line[1]}) == 3, "keyed effects and the child's, each under one key"
    assert await sql(app.store, f"SELECT count(*) FROM bookings WHERE task = '{task.id}'") == [(1,)]
    records = await app.service.journal(task.id)
    kinds = [record.kind for record in records]
    assert (r.DOUBTED in kinds) == doubted
    tasks, _ = await app.list()
    assert sorted(item.task for item in tasks) == ["helper", "reference"], "the child was started once"
    assert await app.store.health.census() == []


@pytest.mark.slow
@not_memory
async def test_killed_at_every_write(fresh_url: str, tmp_path: Path) -> None:
    number, doubts = 0, set()
    while True:
        number += 1
        home = tmp_path / str(number)
        home.mkdir()
        app = reference.make(Onward(fresh_url, poll_s=0.02), home)
        async with app:
            for table in ("tasks", "queue", "journal", "outcomes", "inbox", "workers"):
                await sql(app.store, f"DELETE FROM onward_{table}")
            await sql(app.store, "DROP TABLE IF EXISTS bookings")
            await sql(app.store, "CREATE TABLE bookings (task TEXT)")
            killer = Killer(app, number)
            task = await app.submit("reference")
            doubted = await killer.until(lambda app=app, task=task, home=home: see_through(app, task, home))  # type: ignore[misc]
            await judge(app, task, home, doubted=doubted, killed_at=killer.killed_at)
            records = await app.service.journal(task.id)
        if doubted:
            doubts.add((killer.killed_at, [x.kind for x in records].index(r.ANNOUNCED)))
        if killer.killed_at is None:
            break
    assert {point for point, _ in doubts} == BETWEEN, (
        "in doubt between the announcement and the record, and nowhere else"
    )
    assert len(doubts) == 4
    assert number > 30


@pytest.fixture
def fresh_url(url: str) -> str:
    return url
