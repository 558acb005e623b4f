"""A worker of Temporal in a process of its own, for tests that kill it: `python -m tests.engines.temporal_worker URL LEDGER [DATABASE [FAULT]]`.

The database is a mirror; an empty name means none. A fault is planted to show that the tests find it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import temporalio.worker

from onward import Onward
from onward.engines.session import SessionWriter
from onward.engines.temporal.worker import TemporalWorker
from rig.ledger import Ledger

STEPS = 10
STEP_S = 0.05
LONG_STEP_S = 6.0
EARLY, ZOMBIE, POLLING = "early", "zombie", "polling"
ZOMBIE_LEASE_S = 1e6


def make_app(url: str, ledger: Ledger, db: str | None = None) -> Onward:
    """An app whose steps write to the ledger when they begin. The record of a step has the name of its run."""
    app = Onward(db, engine=url)

    @app.task(retry=1)
    async def work(ctx: Any) -> list[str]:
        async def step(number: int) -> str:
            run = uuid.uuid4().hex
            ledger.write("step", ctx.task_id, number, run, os.getpid(), time.time())
            await asyncio.sleep(STEP_S)
            return run

        async def charge() -> str:
            ledger.write("charge", ctx.task_id, None, None, os.getpid(), time.time())
            await asyncio.sleep(STEP_S)
            return "charged"

        runs = [await ctx.step(step, number, name=f"step {number}") for number in range(STEPS // 2)]
        await ctx.step(charge, effect="once")
        return runs + [await ctx.step(step, number, name=f"step {number}") for number in range(STEPS // 2, STEPS)]

    @app.task(retry=1)
    async def plod(ctx: Any) -> str:
        async def step() -> str:
            ledger.write("step", ctx.task_id, 0, "", os.getpid(), time.time())
            await asyncio.sleep(LONG_STEP_S)
            return "done"

        return str(await ctx.step(step))

    return app


def _plant(fault: str) -> None:
    if fault == EARLY:  # steps go on before the server has their records
        append = SessionWriter.append

        def append_early(self: SessionWriter, *args: Any) -> asyncio.Future[None]:
            append(self, *args)
            self._wanted.clear()
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_result(None)
            return future

        SessionWriter.append = append_early  # type: ignore[method-assign]
    elif (
        fault == POLLING
    ):  # no fault: each activity goes through the task queue, where the server may give it to any worker
        temporalio.worker.Worker.__init__ = functools.partialmethod(  # type: ignore[method-assign]
            temporalio.worker.Worker.__init__, disable_eager_activity_execution=True
        )
    elif fault == ZOMBIE:  # a worker that was frozen does not notice it
        start = TemporalWorker.start

        async def start_with_long_lease(self: TemporalWorker) -> None:
            self._shared.lease.duration = ZOMBIE_LEASE_S
            await start(self)

        TemporalWorker.start = start_with_long_lease  # type: ignore[method-assign]


async def _main(url: str, ledger: Ledger, db: str | None = None) -> None:
    async with make_app(url, ledger, db).worker():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    database, fault = (*sys.argv[3:5], "", "")[:2]
    _plant(fault)
    asyncio.run(_main(sys.argv[1], Ledger(Path(sys.argv[2])), database or None))
