"""The program of the crews that work while their database is backed up and restored: tasks with effects that must not happen twice."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from pathlib import Path
from typing import Any

from onward import Onward
from onward.core import record as r
from onward.engine.shift.replay import Replay
from onward.store.postgres import database as postgres_database
from onward.store.sqlite.database import SqliteDatabase
from rig.ledger import Ledger

STEPS = ("read", "book", "pay", "mail", "ship")
RESULT = [f"{name} done" for name in STEPS]


def app_of(options: dict[str, Any], **settings: Any) -> Onward:
    FAULTS[options.get("fault", "")]()
    return build(options["db"], options["ledger"], **settings)


def build(db: str, ledger: str, **settings: Any) -> Onward:
    """The app of crews and clients."""
    app, book = Onward(db, **settings), Ledger(Path(ledger))

    @app.task(name="sell", retry=1)
    async def sell(ctx: Any, ms: int) -> list[str]:
        async def work(name: str) -> str:
            book.write(name, ctx.task_id, ctx.key, os.getpid(), time.time())
            await asyncio.sleep(ms / 1000)
            return f"{name} done"

        async def was_mailed(name: str) -> str | None:
            mailed = any(line[0] == name and line[1] == ctx.task_id for line in book.read())
            return f"{name} done" if mailed else None

        return [
            await ctx.step(work, "read", name="read", effect="read"),
            await ctx.step(work, "book", name="book", effect="idempotent"),
            await ctx.step(work, "pay", name="pay", effect="once"),
            await ctx.step(work, "mail", name="mail", reconcile=was_mailed),
            await ctx.step(work, "ship", name="ship", effect="once"),
        ]

    return app


# ── planted faults ───────────────────────────────────────────────────────────────────────────────────────────────────


def _no_fence() -> None:
    """Workers write in every epoch."""
    SqliteDatabase._check_epoch = lambda *_: None  # type: ignore[method-assign]
    connect = postgres_database.connect

    async def in_any(url: str, *, pooled: bool, epoch: str | None = None) -> Any:
        return await connect(url, pooled=pooled)

    postgres_database.connect = in_any


def _no_doubt() -> None:
    """Workers do not notice that a task was restored."""
    read = Replay._read

    def blind(self: Replay, record: Any) -> None:
        if record.kind != r.RESTORED:
            read(self, record)

    Replay._read = blind  # type: ignore[method-assign]


FAULTS = {"": functools.partial(bool), "no fence": _no_fence, "no doubt": _no_doubt}
