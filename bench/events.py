"""Events out: how many events a second one relay puts on a broker, beside a producer that has nothing to remember.

    make bench BENCH=events
    python -m bench events --broker redis nats --store sqlite

The bare producer sends the same bytes with the client of the broker, acknowledged, and no database behind it. The aim is 3,000 events a second
on a machine of two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from onward import Onward
from rig.base import Server

BROKERS = ("redis", "nats", "kafka", "rabbitmq")
PLACE = "onward.bench"
TASKS, STEPS = 1_000, 17
"""With the records of its submit, start and end, a task has 20 events."""

AIM = 3_000
AT_ONCE = 500
BODY = b'{"specversion":"1.0","id":"%s","data":"' + b"x" * 400 + b'"}'

Send = Callable[[int], Awaitable[None]]


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench events", description=__doc__.splitlines()[0])
    parser.add_argument("--broker", choices=BROKERS, nargs="+", default=list(BROKERS))
    parser.add_argument("--store", choices=("postgres", "sqlite"), nargs="+", default=["postgres", "sqlite"])
    parser.add_argument("--quick", action="store_true", help="a fifth of the work")
    return parser.parse_args(words)


def run(options: argparse.Namespace, empty: Callable[[str], str]) -> int:
    """Measure each broker with each store; 1 when the aim is missed."""
    tasks = TASKS // 5 if options.quick else TASKS
    missed = False
    print(f"{'':20} {'bare':>10} {'onward':>10} {'ratio':>8}      events/s")
    for kind in options.broker:
        with _server(kind) as server:
            uvloop.run(_make_place(kind, server))
            bare = uvloop.run(_bare(kind, server, tasks * (STEPS + 3)))
            for store in options.store:
                rate = uvloop.run(_onward(server, empty(store), tasks))
                missed |= rate < AIM
                print(f"{kind + ', ' + store:20} {bare:>10,.0f} {rate:>10,.0f} {rate / bare:>8.2f}", flush=True)
    return int(missed)


async def _onward(server: Any, url: str, tasks: int) -> float:
    """Tasks are done by a worker that does not publish; then one relay publishes all that waits."""
    app, quiet = Onward(url, brokers={"events": server.url}), Onward(url)
    app.publish("bench", to=f"events/{PLACE}", types=["*"])

    async def work(ctx: Any) -> None:
        for number in range(STEPS):
            await ctx.step(lambda: 1, name=f"step {number}")

    quiet.task(name="work")(work)
    async with app:
        await app.save_subscriptions()
        async with quiet.worker():
            for handle in await quiet.submit_many("work", [None] * tasks):
                await handle.result("300s")
        (depth,) = await app.store.outbox.depths("broker:")
        began = time.perf_counter()
        async with app.relay():
            while await app.store.outbox.lanes():  # noqa: ASYNC110 -- the store has no event for this
                await asyncio.sleep(0.01)
            return depth.events / (time.perf_counter() - began)


async def _bare(kind: str, server: Any, count: int) -> float:
    send, close = await _BARE[kind](server)
    await send(AT_ONCE)  # the first is slower
    began = time.perf_counter()
    for _ in range(count // AT_ONCE):
        await send(AT_ONCE)
    rate = count // AT_ONCE * AT_ONCE / (time.perf_counter() - began)
    await close()
    return rate


def _server(kind: str) -> Server:
    if kind == "redis":
        from rig.valkey import Valkey

        return Valkey()
    if kind == "nats":
        from rig.nats import Nats

        return Nats()
    if kind == "kafka":
        from rig.kafka import Kafka

        return Kafka()
    from rig.rabbitmq import RabbitMQ

    return RabbitMQ()


async def _make_place(kind: str, server: Any) -> None:
    if kind == "nats":
        import nats
        from nats.js.api import StreamConfig

        client = await nats.connect(server.url)
        await client.jetstream().add_stream(StreamConfig(name="BENCH", subjects=[PLACE]))
        await client.close()
    if kind == "kafka":
        server.topic(PLACE)
    if kind == "rabbitmq":
        import aio_pika

        async with await aio_pika.connect(server.url) as connection:
            await (await connection.channel()).declare_queue(PLACE, durable=True)


async def _redis(server: Any) -> tuple[Send, Callable[[], Awaitable[None]]]:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(server.url)

    async def send(count: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for number in range(count):
            pipeline.xadd(PLACE, {"data": BODY % str(number).encode()})
        await pipeline.execute()

    return send, client.aclose


async def _nats(server: Any) -> tuple[Send, Callable[[], Awaitable[None]]]:
    import nats

    client = await nats.connect(server.url)
    stream = client.jetstream()

    async def send(count: int) -> None:
        await asyncio.gather(*[stream.publish(PLACE, BODY % str(number).encode()) for number in range(count)])

    return send, client.close


async def _kafka(server: Any) -> tuple[Send, Callable[[], Awaitable[None]]]:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": server.servers, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
    )

    def produce(count: int) -> None:
        for number in range(count):
            producer.produce(PLACE, BODY % str(number).encode(), key=str(number % 20))
        producer.flush()

    async def close() -> None: ...

    return lambda count: asyncio.to_thread(produce, count), close


async def _rabbitmq(server: Any) -> tuple[Send, Callable[[], Awaitable[None]]]:
    import aio_pika

    connection = await aio_pika.connect(server.url)
    channel = await connection.channel(publisher_confirms=True)

    async def send(count: int) -> None:
        messages = [
            aio_pika.Message(BODY % str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            for number in range(count)
        ]
        await asyncio.gather(
            *[channel.default_exchange.publish(message, PLACE, mandatory=True) for message in messages]
        )

    return send, connection.close


_BARE: dict[str, Callable[[Any], Awaitable[tuple[Send, Callable[[], Awaitable[None]]]]]] = {
    "redis": _redis,
    "nats": _nats,
    "kafka": _kafka,
    "rabbitmq": _rabbitmq,
}
