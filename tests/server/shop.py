"""An app for servers that are started as processes of their own."""

from __future__ import annotations

from typing import Any

from onward import Budget, Onward
from onward.agent.models.scripted import ScriptedModel

app = Onward(lease_s=1.0, heartbeat_s=0.2, poll_s=0.05, grace_s=1.0)


@app.task
async def echo(ctx: Any, value: Any = None) -> Any:
    """Return the input."""
    return await ctx.step(lambda: value, name="say")


@app.task
async def steps(ctx: Any, n: int = 3, pause: float = 0.0) -> int:
    """So many steps."""
    for number in range(n):
        await ctx.step(lambda number=number: number, name="step")
        ctx.progress("on the way", step=number + 1, total=n)
        if pause:
            await ctx.sleep(pause)
    return n


@app.task
async def large(ctx: Any, n: int, size: int) -> int:
    """So many steps with results of so many characters."""
    for _ in range(n):
        await ctx.step(lambda: "x" * size, name="step")
    return n


@app.task
async def leaves(ctx: Any, size: int) -> None:
    """Leaves an artifact of so many bytes behind."""
    await ctx.artifact(b"x" * size, type="bytes")


@app.task(retry=1)
async def fails(ctx: Any) -> None:
    """Always."""
    raise ValueError("as it should")


@app.task
async def waits(ctx: Any) -> Any:
    """For the signal `go`."""
    return await ctx.signal("go")


@app.task
async def asks(ctx: Any) -> str:
    """Two people."""
    await ctx.approve("go on?", risk="external_action")
    return str(await ctx.ask("how?"))


app.agent("helper", model=ScriptedModel(["what a day", "good night"]), budget=Budget(max_steps=5))
