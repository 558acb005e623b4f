"""A planted fault: without BEGIN IMMEDIATE, two processes that write to one SQLite file fail in the middle.

A transaction that begins by reading holds a snapshot; when another has written since, SQLite refuses to let it write, at
once and without asking the busy handler. Two stores on one real file, each with its own connection and thread, claim and
save side by side; only the word after BEGIN differs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from onward.core import record as r
from onward.core.ids import Ids
from onward.core.task import NewTask, State
from onward.errors import StoreUnavailable
from onward.store.port.core import Batch, End
from onward.store.port.workers import WorkerRow
from onward.store.sqlite.lane import Threaded
from onward.store.sqlite.store import SqliteStore

TASKS = 120
CALLERS = 3
"""Concurrent callers in each of the two stores."""


async def _two_stores(path: Path) -> list[SqliteStore]:
    stores = [SqliteStore(str(path)) for _ in range(2)]
    for store in stores:
        await store.open()
    ids = Ids(lambda: 1.0, random.Random(1))
    await stores[0].submit([NewTask(ids(), "work", b"{}", b"{}", "default", 0, 0.0, None, "") for _ in range(TASKS)])
    for number, store in enumerate(stores):
        await store.workers.join(WorkerRow(f"w{number}", "here", "here", number, 9, ("work",), (), "", "1"), 60)
    return stores


async def _work(store: SqliteStore, worker: str, done: list[str], errors: Counter[str]) -> None:
    for _ in range(20 * TASKS):
        try:
            claimed = await store.claim(worker, "default", ["work"], 1)
            if not claimed and not any(
                row
                for row in await store.listing.list(state=State.PENDING, task=None, queue=None, limit=1, before=None)
            ):
                return
            for task in claimed:
                entry = (task.id, task.shift + 1, task.shift, r.COMPLETED, "", b'{"result":null}', 1.0)
                assert (
                    await store.save(worker, Batch([entry], [End(task.id, State.COMPLETED, 1, task.shift + 1)]))
                    == set()
                )
                done.append(task.id)
        except StoreUnavailable as error:
            errors[str(error)] += 1


async def _race(path: Path) -> Counter[str]:
    stores = await _two_stores(path)
    done: list[str] = []
    errors: Counter[str] = Counter()
    callers = [_work(store, f"w{n}", done, errors) for n, store in enumerate(stores) for _ in range(CALLERS)]
    try:
        await asyncio.wait_for(asyncio.gather(*callers), 60)
        if not errors:
            assert sorted(set(done)) == sorted(done)
            assert len(done) == TASKS
            assert await stores[0].health.census() == []
        return errors
    finally:
        for store in stores:
            await store.close()


async def test_with_begin_immediate_two_writers_wait_for_each_other(tmp_path: Path) -> None:
    assert await _race(tmp_path / "onward.db") == {}


async def test_without_it_they_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Threaded.__init__

    def deferred(self: Threaded, connect, name, _begin="BEGIN", *rest, **options) -> None:
        begin(self, connect, name, "BEGIN", *rest, **options)

    monkeypatch.setattr(Threaded, "__init__", deferred)
    for attempt in range(5):
        if errors := await _race(tmp_path / f"{attempt}.db"):
            assert all("locked" in text for text in errors)
            return
    pytest.fail("five races of two stores with a deferred BEGIN, and none of them ever failed")
