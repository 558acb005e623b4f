"""The app of the servers in these tests: its tasks write lines to the file LEDGER."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from onward import Context, Onward
from rig.ledger import Ledger

app = Onward(lease_s=1.0, heartbeat_s=0.1, poll_s=0.05)


async def effect(task: str, number: int) -> int:
    Ledger(Path(os.environ["LEDGER"])).write(task, number)
    return number


@app.task
async def work(ctx: Context, n: int) -> int:
    ctx.progress("working")
    return await ctx.step(effect, ctx.task_id, n)


@app.task
async def walk(ctx: Context, steps: int) -> int:
    """Walks so slowly that a test can kill the server on the way."""
    for step in range(steps):
        ctx.progress(f"step {step}", step + 1, steps)
        await ctx.step(effect, ctx.task_id, step)
        await asyncio.sleep(0.05)
    return steps
