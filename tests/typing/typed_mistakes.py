"""Mistakes that type checkers find: each line with one ends with `# wrong`, and no other line is reported."""

from __future__ import annotations

from onward import Context, Onward
from onward.engine.context.sync_context import SyncContext
from tests.typing.typed_app import Order, build, count_hosts, fulfil, move, pay, plainly, roll_out, send, tidy, total

app = Onward("sqlite://:memory:")


@app.task
async def steps(ctx: Context, service: str) -> str:
    await ctx.step(build, 7)  # wrong
    await ctx.step(build)  # wrong
    await ctx.step(build, service, 7)  # wrong
    await ctx.step(build, service, "v2", "v3")  # wrong
    await ctx.step(build, service, tga="v2")  # wrong
    await ctx.step(build, 7, retry=3)  # wrong
    await ctx.step(build, retry=3)  # wrong
    await ctx.step(build, service, "v2", "v3", retry=3)  # wrong
    await ctx.step(build, service, retry="3")  # wrong
    await ctx.step(build, service, effect="twice")  # wrong
    await ctx.step(count_hosts, 7)  # wrong
    await ctx.step(count_hosts, 7, name="count")  # wrong
    await ctx.step(count_hosts, "eu", spare="2")  # wrong
    await ctx.step(send, "a@example.com")  # wrong
    await ctx.step(total, ["1"])  # wrong
    hosts: str = await ctx.step(count_hosts, "eu")  # wrong
    (await ctx.step(build, service)).append("x")  # wrong
    image: int = await ctx.step(build, service, retry=3, timeout="30s")  # wrong
    await ctx.transaction(pay, "7")  # wrong
    paid: str = await ctx.transaction(pay, 7)  # wrong
    await ctx.transaction(pay, "7", retry=2)  # wrong
    del hosts, image, paid
    return await ctx.step(count_hosts, "eu")  # wrong


@app.task
async def several(ctx: Context, service: str) -> list[int]:
    await ctx.map(build, [1, 2])  # wrong
    await ctx.map(build, ["web"], retries=2)  # wrong
    built, hosts = await ctx.gather(ctx.step(build, service), ctx.step(count_hosts, "eu"))
    hosts.upper()  # wrong
    built.upper()
    return await ctx.map(build, [service])  # wrong


@app.task
async def children(ctx: Context, service: str) -> int:
    await ctx.submit(roll_out, 7)  # wrong
    await ctx.submit(roll_out)  # wrong
    await ctx.submit(tidy, "all")  # wrong
    await ctx.submit(move, "a")  # wrong
    await ctx.submit(fulfil, "a")  # wrong
    await ctx.submit(plainly, 7)  # wrong
    await ctx.submit(roll_out, service, queu="slow")  # wrong
    await ctx.submit(roll_out, service, key="a child has a key of its own")  # wrong
    image: str = await (await ctx.submit(roll_out, service))  # wrong
    del image
    child = await ctx.submit(tidy)
    return await child.result()  # wrong


@app.task
def plain(ctx: SyncContext, service: str) -> str:
    ctx.step(build, 7)  # wrong
    ctx.step(build, service, retries=2)  # wrong
    ctx.submit(roll_out, 7)  # wrong
    ctx.stepp(build, service)  # wrong
    return ctx.step(count_hosts, "eu")  # wrong


@app.on("task.completed")  # wrong
def not_of_events(count: int) -> None:
    del count


async def outside() -> str:
    await app.submit(roll_out, 7)  # wrong
    await app.submit(roll_out, ["web"])  # wrong
    await app.submit(move, 7)  # wrong
    await app.submit(roll_out, "web", priority="high")  # wrong
    await app.submit_many(roll_out, [1, 2])  # wrong
    task = await app.submit(roll_out, "web")
    (await task.result()).upper()  # wrong
    receipt = await (await app.submit(fulfil, Order(sku="a"))).result()
    receipt["number"]  # wrong
    return await task.result()  # wrong
