"""The app whose worker the tests of the command line talk to."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from onward import Context, Fatal, Onward, Retry, tool
from onward.agent.models.scripted import ScriptedModel

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


# ── waits for people, signals and children ───────────────────────────────────────────────────────────────────────────


@app.task
async def ship(ctx: Context, what: str) -> dict[str, Any]:
    """Asks to be allowed to."""
    return await ctx.approve(f"Ship {what}?", risk="external_action", data={"to": "eu"})


@app.task
async def print_book(ctx: Context, size: int) -> dict[str, Any]:
    """Asks to be allowed to, with much data."""
    return await ctx.approve("Print it?", risk="external_action", data="x" * size)


@tool(risk="write_local")
def erase(path: str) -> str:
    """Erase a file."""
    return f"{path} is gone"


def _calls_of_the_goal(request: Any) -> Any:
    """A call for each word of the goal."""
    return [("erase", {"path": path}) for path in request.conversation[1]["content"].split("|")]


app.agent(
    "janitor",
    model=ScriptedModel(
        [_calls_of_the_goal, lambda request: "; ".join(m["content"] for m in request.conversation[3:])]
    ),
    tools=[erase],
    approve=["write_local"],
    approval_timeout="1h",
)


@app.task
async def choose(ctx: Context, choices: list[str] | None = None) -> Any:
    return await ctx.ask("Which region?", choices=choices or ())


@app.task
async def listen(ctx: Context, timeout: float | None = None) -> Any:
    return await ctx.signal("go", timeout=timeout, default="nobody")


@app.task
async def charge(ctx: Context, twice: bool = False) -> Any:
    """Its effect is in doubt."""

    async def pay() -> str:
        raise TimeoutError("no answer from the bank")

    def refund() -> None:
        pass

    if twice:
        return await ctx.gather(*[ctx.step(pay, name="pay", effect="once", undo=refund) for _ in range(2)])
    return await ctx.step(pay, effect="once", undo=refund)


@app.task
async def household(ctx: Context, child: str) -> Any:
    return await (await ctx.submit(child))


@app.task
async def trip(ctx: Context, ends: str = "fails") -> None:
    """Two bookings in two branches, one of which cannot be undone; then it fails, or waits to be cancelled."""

    async def stuck(_: str) -> None:
        raise Fatal("the hotel keeps the money")

    async with ctx.saga("trip"):
        await ctx.step(str, "flight", name="flight", undo=len)
        await ctx.step(str, "hotel", name="hotel", undo=stuck)
        await ctx.gather(ctx.step(str, "car", name="car", undo=len), ctx.step(str, "boat", name="boat"))
        if await ctx.version("insured"):
            await ctx.step(lambda: 1, name="insure")
        if ends == "waits":
            await ctx.signal("never")
        raise Fatal("no visa")
