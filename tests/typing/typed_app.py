"""An application that type checkers accept in their strict modes, and the types that they infer in it (`assert_type`).

It is checked and not run. `typed_mistakes.py` has the same calls with mistakes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from typing import Any, assert_type

from pydantic import BaseModel

from onward import Client, Context, Handle, Onward, Retry, SyncClient
from onward.core.event import Event
from onward.engine.context.sync_context import SyncContext
from onward.testing import drain, memory_app

app = Onward("sqlite://:memory:")


class Order(BaseModel):
    """An input and a result that is a pydantic model."""

    sku: str
    count: int = 1


@dataclasses.dataclass
class Receipt:
    """The same, as a dataclass."""

    number: int


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def build(service: str, tag: str = "latest") -> str:
    return f"{service}:{tag}"


async def remove(service: str, tag: str = "latest") -> None:
    del service, tag


def count_hosts(region: str, /, *, spare: int = 0) -> int:
    return len(region) + spare


async def send(address: str, *, subject: str) -> bool:
    return bool(address and subject)


def pack(order: Order) -> Receipt:
    return Receipt(order.count)


async def total(amounts: list[float]) -> float:
    return sum(amounts)


class Registry:
    """Methods and callable objects are steps too."""

    async def push(self, image: str, attempts: int = 1) -> int:
        return len(image) * attempts

    def __call__(self, image: str) -> bytes:
        return image.encode()


# ── children ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.task
async def roll_out(ctx: Context, image: str, region: str = "eu") -> int:
    return await ctx.step(count_hosts, region) + len(image) + ctx.attempt


@app.task(retry=2, deadline="10m")
async def tidy(ctx: Context) -> list[str]:
    return [ctx.task_id]


@app.task
async def move(ctx: Context, source: str, target: str) -> bool:
    return bool(ctx.task_id and source and target)


@app.task
async def fulfil(ctx: Context, order: Order) -> Receipt:
    return await ctx.step(pack, order)


@app.task
def plainly(ctx: SyncContext, image: str) -> float:
    assert_type(ctx.step(build, image, retry=2), str)
    assert_type(ctx.step(send, image, subject="done"), bool)
    assert_type(ctx.map(count_hosts, ["eu", "us"]), list[int])
    assert_type(ctx.gather(ctx.submit(roll_out, image)), list[int])
    assert_type(ctx.transaction(pay, 7), int)
    ctx.sleep("2s")
    with ctx.saga():
        return float(ctx.step(len, image, name="length"))


@app.task
async def add_up(ctx: Context, amounts: list[float]) -> float:
    return await ctx.step(total, amounts, retry=2)


# ── the handler ──────────────────────────────────────────────────────────────────────────────────────────────────────


@app.task
async def deploy(ctx: Context, service: str) -> str:
    image = await ctx.step(build, service)
    assert_type(image, str)
    assert_type(await ctx.step(build, service, "v2"), str)
    assert_type(await ctx.step(build, service, tag="v2"), str)
    assert_type(await ctx.step(build, service, name="build again", retry=3, timeout="30s", undo=remove), str)
    assert_type(await ctx.step(build, service, "v2", retry=Retry(attempts=3), effect="once"), str)
    assert_type(await ctx.step(count_hosts, "eu"), int)
    assert_type(await ctx.step(count_hosts, "eu", spare=2), int)
    assert_type(await ctx.step(count_hosts, "eu", retry=2), int)
    assert_type(await ctx.step(send, "a@example.com", subject="done"), bool)
    assert_type(await ctx.step(pack, Order(sku="a")), Receipt)
    assert_type(await ctx.step(Registry().push, image), int)
    assert_type(await ctx.step(Registry().push, image, 2, name="push"), int)
    assert_type(await ctx.step(Registry(), image, retry=2), bytes)
    assert_type(await ctx.step(lambda: 1, name="one"), int)
    assert_type(await ctx.step(lambda: build(service), name="later"), str)
    assert_type(await ctx.step(functools.partial(build, tag="v3"), service, retry=2), str)
    assert_type(await ctx.step(asyncio.sleep, 1, name="nap"), None)
    assert_type(await ctx.step(len, image, name="length"), int)
    assert_type(await ctx.step(total, [1, 2]), float)
    assert_type(await ctx.step(total, [1.0, 2.0], retry=2), float)

    password = app.secret("PASSWORD")
    token: Any = await ctx.step(build, password, makes="TOKEN", retry=2)
    await ctx.step(build, token, name="with a secret")

    # several at once
    assert_type(await ctx.map(build, ["web", "api"], limit=2, retry=2), list[str])
    assert_type(await ctx.map(count_hosts, ("eu", "us")), list[int])
    assert_type(await ctx.map(lambda number: number + 1, range(3), name="count"), list[int])
    built, hosts = await ctx.gather(ctx.step(build, service), ctx.step(count_hosts, "eu"))
    assert_type(built, str)
    assert_type(hosts, int)
    assert_type(await ctx.gather(*[ctx.step(build, name) for name in ("a", "b")], limit=1), list[str])
    (maybe,) = await ctx.gather(ctx.step(build, service), return_exceptions=True)
    assert_type(maybe, str | BaseException)

    # children
    child = await ctx.submit(roll_out, image, queue="slow", labels={"team": "web"})
    assert_type(await child, int)
    assert_type(await child.result(timeout="1h"), int)
    assert_type(await (await ctx.submit(roll_out, {"image": image, "region": "us"})), int)
    assert_type(await (await ctx.submit(tidy)), list[str])
    assert_type(await (await ctx.submit(move, {"source": "a", "target": "b"})), bool)
    assert_type(await (await ctx.submit(plainly, image)), float)
    assert_type(await (await ctx.submit(fulfil, Order(sku="a"))), Receipt)
    first, second = await ctx.gather(await ctx.submit(tidy), await ctx.submit(roll_out, image))
    assert_type(first, list[str])
    assert_type(second, int)
    unknown: Any = await (await ctx.submit("by name", {"any": "thing"}, priority=5))
    anything: list[Any] = await ctx.map("by name", [1, 2], priority=5)

    # waits, blocks and the rest
    await ctx.sleep("2s")
    assert_type(await ctx.now(), float)
    assert_type((await ctx.approve("Go on?"))["decision"], Any)
    async with ctx.saga():
        await ctx.step(build, service, undo=remove)
    assert_type(await ctx.transaction(pay, 7), int)
    assert_type(await ctx.transaction(pay, 7, currency="EUR"), int)
    assert_type(await ctx.transaction(pay, 7, "EUR", name="pay", retry=2), int)
    async with ctx.transaction(name="block") as connection:
        await connection.execute("SELECT 1")
        return f"{image} {unknown} {anything}"  # a block never swallows an error, so nothing is reached after it


async def pay(connection: Any, amount: int, currency: str = "USD") -> int:
    await connection.execute("INSERT INTO payments VALUES ($1, $2)", amount, currency)
    return amount


# ── outside ──────────────────────────────────────────────────────────────────────────────────────────────────────────

agent = app.agent("helper", model="openai:gpt-5")


@app.on("task.completed", name="log")
async def on_completed(event: Event) -> None:
    assert_type(event.task_id, str)


@app.on("task.failed")
def on_failed(event: Event) -> None:
    del event


async def main() -> None:
    async with app, app.worker(slots=10):
        task = await app.submit(deploy, "web", key="deploy-web-42", priority=10)
        assert_type(task, Handle[str])
        assert_type(await task.result(timeout="1m"), str)
        assert_type(await (await app.submit(deploy, input={"service": "web"})).result(), str)
        assert_type(await (await app.submit(tidy)).result(), list[str])
        assert_type(await (await app.submit(move, {"source": "a", "target": "b"}, delay=5)).result(), bool)
        assert_type(await (await app.submit(plainly, "web")).result(), float)
        assert_type(await (await app.submit(fulfil, Order(sku="a"))).result(), Receipt)
        assert_type(await (await app.submit(fulfil, {"sku": "a"})).result(), Receipt)
        assert_type([await each.result() for each in await app.submit_many(deploy, ["web", "api"])], list[str])
        assert_type([await each.result() for each in await app.submit_many(move, [{"source": "a"}])], list[bool])
        kept: dict[str, Handle] = {"bare": task, "by id": app.handle(task.id), "by name": await app.submit("x", 1)}
        result: Any = await kept["by name"].result()
        goal: Any = await (await app.submit(agent, "Tidy up.")).result()
        assert_type((await task.get()).task_id, str)
        del result, goal


async def test_it() -> None:
    async with memory_app(app) as mine:
        task = await mine.submit(roll_out, "web")
        assert_type([left.task_id for left in await drain(mine)], list[str])
        assert_type(await task.result(), int)


async def elsewhere() -> None:
    async with Client("https://onward.example.com", key="onw_…") as client:
        task = await client.submit("deploy", "web")
        result: Any = await task.result(timeout="5m")
        assert_type((await client.get(task.id)).task_id, str)
        del result
    with SyncClient("https://onward.example.com") as blocking:
        assert_type(blocking.get(blocking.submit("deploy", "web").id).task_id, str)
