"""The app whose worker the tests of the command line talk to."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from onward import Context, Fatal, Onward, Retry

app = Onward("sqlite:///never-used.db", heartbeat_s=0.2, lease_s=5, grace_s=5)


def leave(mark: str) -> None:
    Path(mark).touch()


def is_there(mark: str) -> bool:
    return Path(mark).exists()


HOSTILE = "a\x1b[31mred\x1b[0m \u202eltr\u202c \x07 [bold]x[/bold] \x9b2J"


@app.task
async def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"


app.schedule("yearly", greet, "new year", cron="0 0 1 1 *", timezone="Europe/Berlin")


@app.task
async def flaky(ctx: Context) -> str:
    async def call() -> None:
        raise ConnectionError("the API is away")

    for _ in range(2):
        with_retries = Retry(attempts=2, first=0.01)
        try:
            await ctx.step(call, name="call", retry=with_retries)
        except Exception:
            pass
    return "done without it"


@app.task
async def fails(ctx: Context) -> None:
    raise Fatal("nothing to be done")


@app.task(name="hostile")
async def hostile(ctx: Context) -> str:
    await ctx.step(lambda: HOSTILE, name="a\u202estep")
    ctx.progress(HOSTILE, 1, 2)
    return HOSTILE


@app.task
async def slow(ctx: Context, seconds: float = 60) -> str:
    async def nap() -> None:
        await asyncio.sleep(0.05)

    end = time.time() + seconds
    count = 0
    while time.time() < end:
        count += 1
        ctx.progress("napping", count, 1200)
        await ctx.step(nap, name="nap")
    return "awake"


@app.task
async def block(ctx: Context, mark: str) -> None:
    """Holds the event loop, as a handler should not."""

    async def hold() -> None:
        leave(mark)
        time.sleep(30)  # noqa: ASYNC251

    await ctx.step(hold)


@app.task
async def long_step(ctx: Context, mark: str) -> None:
    async def hold() -> None:
        leave(mark)
        await asyncio.sleep(60)

    await ctx.step(hold)


@app.task
async def changed(ctx: Context, flag: str) -> None:
    """Asks for another step after its first shift: the journal and the code disagree, and a person has to look."""
    await ctx.step(lambda: 1, name="after" if is_there(flag) else "before")
    leave(flag)
    await ctx.sleep(1.2)
