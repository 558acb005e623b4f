"""A worker of Cadence in a process of its own, for tests that kill it: `python -m tests.engines.cadence_worker URL LEDGER FAULT`."""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path
from typing import Any

from onward import Onward
from onward.core.record import Record
from onward.engines.session import SessionStore
from rig.ledger import Ledger

STEPS = 10
STEP_S = 0.05
CHARGE_S = 2.0
"""Seconds of the charge: long enough that a kill meets it."""


def make_app(url: str, ledger: Ledger, fault: str = "") -> Onward:
    """An app whose steps write to the ledger when they begin. The record of a step has the name of its run."""
    app = Onward(engine=url, lease_s=2.0, heartbeat_s=0.3)

    @app.task(retry=1)
    async def work(ctx: Any) -> list[str]:
        async def step(number: int) -> str:
            run = uuid.uuid4().hex
            ledger.write("step", ctx.task_id, number, run)
            await asyncio.sleep(STEP_S)
            return run

        async def charge() -> str:
            ledger.write("charge", ctx.task_id)
            await asyncio.sleep(CHARGE_S)
            return "charged"

        runs = [await ctx.step(step, number, name=f"step {number}") for number in range(STEPS // 2)]
        await ctx.step(charge, **({} if fault == "charge again" else {"effect": "once"}))
        return runs + [await ctx.step(step, number, name=f"step {number}") for number in range(STEPS // 2, STEPS)]

    return app


async def _read_nothing(store: SessionStore) -> list[Record]:
    """The fault "forget": a shift that does not read the journal."""
    return [store._started]


async def _main(url: str, ledger: Ledger, fault: str) -> None:
    if fault == "forget":
        SessionStore._own_records = _read_nothing  # type: ignore[method-assign]
    async with make_app(url, ledger, fault).worker():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Ledger(Path(sys.argv[2])), sys.argv[3]))
