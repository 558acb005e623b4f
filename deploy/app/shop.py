"""The example app of the deploy kit. Put your own modules in its place: the image has the folder of the build argument APP in /app."""

from __future__ import annotations

from onward import Context, Onward

app = Onward()


async def reserve(item: str) -> str:
    return f"reserved {item}"


async def ship(item: str) -> str:
    return f"shipped {item}"


@app.task
async def order(ctx: Context, item: str) -> str:
    await ctx.step(reserve, item)
    return await ctx.step(ship, item)
