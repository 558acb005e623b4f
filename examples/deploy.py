"""The deploy of an application as a saga: DNS, certificate, container, monitoring.

    $ onward worker examples.deploy:app
    $ onward submit deploy '{"service": "web"}' --follow
    $ onward approve

When a step fails for good, when a person denies or cancels the deploy, or when its deadline passes, the saga takes everything away
again that it made, the last first. Kill the worker wherever you like: another goes on.
"""

from __future__ import annotations

import asyncio

from onward import Context, Onward, Retry

app = Onward()
WORLD: dict[str, str] = {}
"""The outside world: what exists, by name."""


async def make(kind: str, service: str) -> str:
    """Make something in the world; making it twice is making it once."""
    await asyncio.sleep(0.01)
    WORLD[f"{kind}/{service}"] = "there"
    return f"{kind}/{service}"


async def take_away(kind: str, service: str) -> None:
    """Undo `make`."""
    WORLD.pop(f"{kind}/{service}", None)


async def check(service: str) -> str:
    """Check that the service answers."""
    if service == "broken":
        raise RuntimeError(f"{service} does not answer")
    return "200 OK"


@app.task(retry=Retry(attempts=2, first=0.1), deadline="10m")
async def deploy(ctx: Context, service: str, ask: bool = True) -> str:
    """Make everything that a service needs, and route traffic to it."""
    async with ctx.saga():
        for number, kind in enumerate(["dns", "certificate", "container", "monitoring"], 1):
            ctx.progress(f"{kind} for {service}", number, 5)
            await ctx.step(make, kind, service, name=kind, undo=take_away, timeout=30)
        await ctx.step(check, service, retry=2)
        if ask:
            await ctx.approve(f"Route traffic to {service}?", risk="external_action")
        ctx.progress("done", 5, 5)
    return f"{service} is live"
