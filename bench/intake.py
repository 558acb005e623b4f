"""How fast messages of a broker become tasks, beside a bare consumer of the same client, and beside bare submits.

    make bench BENCH=intake
    python -m bench intake --broker redis nats --store sqlite --messages 10000

All messages are there before the clock starts, and it starts with the first task: joining a group is not counted. The bare consumer fetches as
many messages at once as the intake does, and acknowledges them. The bare submits are `submit_many` with as many tasks in a call.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import aio_pika
import confluent_kafka
import nats
import redis.asyncio
import uvloop

from bench.workloads import query
from onward import Context, Onward
from rig.base import Server
from rig.kafka import Kafka
from rig.nats import Nats
from rig.rabbitmq import RabbitMQ
from rig.valkey import Valkey
from tests.brokers.producers import (
    KAFKA_SETTINGS,
    KafkaProducer,
    NatsProducer,
    Producer,
    RabbitProducer,
    RedisProducer,
    json_bodies,
)

BATCH = 200
AIMS = {"redis": 4000, "nats": 4000, "kafka": 4000, "rabbitmq": 1500}
"""Messages a second."""
AIM_OF_SUBMITS = 0.5
TIMEOUT_S = 120
SERVERS: dict[str, tuple[Callable[[], Server], Callable[[Any], Producer]]] = {
    "redis": (Valkey, RedisProducer),
    "nats": (Nats, NatsProducer),
    "kafka": (lambda: Kafka(settings=KAFKA_SETTINGS), KafkaProducer),
    "rabbitmq": (RabbitMQ, RabbitProducer),
}


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench intake", description=__doc__.splitlines()[0])
    parser.add_argument("--broker", choices=tuple(SERVERS), nargs="+", default=list(SERVERS))
    parser.add_argument("--store", choices=("postgres", "sqlite"), nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3, help="report the median of so many rounds")
    return parser.parse_args(words)


def run(options: argparse.Namespace, empty: Callable[[str], str]) -> int:
    """Measure; 1 when an aim is missed."""
    missed = 0
    print(f"{'':22}{'intake/s':>10}{'bare/s':>10}{'ratio':>7}{'submits/s':>11}{'ratio':>7}")
    for kind in options.broker:
        start, producer = SERVERS[kind]
        with start() as server:
            for store in options.store:
                rounds = [_round(producer, server, store, empty, options.messages) for _ in range(options.repeat)]
                intake, bare, submits = (statistics.median(column) for column in zip(*rounds, strict=True))
                print(
                    f"{kind:10}{store:12}{intake:>10,.0f}{bare:>10,.0f}{intake / bare:>7.2f}{submits:>11,.0f}{intake / submits:>7.2f}",
                    flush=True,
                )
                missed += intake < AIMS[kind] or intake / submits < AIM_OF_SUBMITS
    return int(missed > 0)


def _round(
    producer: Callable[[Any], Producer], server: Any, store: str, empty: Callable[[str], str], count: int
) -> tuple[float, float, float]:
    submits = uvloop.run(_submits(empty(store), count))
    intake = uvloop.run(_intake(empty(store), producer(server), count))
    return intake, uvloop.run(_bare(producer(server), count)), submits


def _app(url: str, **settings: Any) -> Onward:
    app = Onward(url, **settings)

    @app.task
    async def ship(ctx: Context, n: int) -> int:
        return n

    return app


async def _submits(url: str, count: int) -> float:
    async with _app(url) as app:
        await app.submit("ship", {"n": 0})
        start = time.perf_counter()
        for first in range(0, count, BATCH):
            await app.submit_many("ship", [{"n": n} for n in range(first, first + BATCH)])
        return count / (time.perf_counter() - start)


async def _intake(url: str, producer: Producer, count: int) -> float:
    await producer.send(json_bodies(count))
    app = _app(url, brokers={"shop": producer.url})
    app.intake("orders", from_=f"shop/{producer.place}", task="ship", batch=BATCH)
    async with app, app.intakes():
        first = await _counted(url, 1)
        start = time.perf_counter()
        seen = await _counted(url, count)
        assert seen == count
        return (count - first) / (time.perf_counter() - start)


async def _counted(url: str, least: int) -> int:
    """How many tasks there are, as soon as there are so many."""
    deadline = time.perf_counter() + TIMEOUT_S
    while (count := int(await asyncio.to_thread(query, url, "SELECT count(*) FROM onward_tasks"))) < least:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{count} tasks after {TIMEOUT_S} s")
        await asyncio.sleep(0.01)
    return count


async def _bare(producer: Producer, count: int) -> float:
    await producer.send(json_bodies(count))
    left, start = count, 0.0
    async with aclosing(_CONSUMERS[type(producer)](producer)) as batches:
        async for size in batches:
            start = start or time.perf_counter()
            left -= size
            if left <= 0:
                break
    return count / (time.perf_counter() - start)


async def _bare_redis(producer: RedisProducer) -> AsyncIterator[int]:
    async with redis.asyncio.Redis.from_url(producer.url.partition("?")[0]) as client:
        await client.xgroup_create(producer.place, "bare", id="0")
        while True:
            answer: Any = await client.xreadgroup("bare", "one", {producer.place: ">"}, count=BATCH, block=1000)
            entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
            await client.xack(producer.place, "bare", *[entry[0] for entry in entries])
            yield len(entries)


async def _bare_nats(producer: NatsProducer) -> AsyncIterator[int]:
    async with await nats.connect(producer.url.partition("?")[0]) as client:
        consumer = await client.jetstream().pull_subscribe("", "bare", stream=producer.place)
        while True:
            messages = await consumer.fetch(BATCH, timeout=5)
            for message in messages[:-1]:
                await message.ack()
            await messages[-1].ack_sync()
            yield len(messages)


async def _bare_kafka(producer: KafkaProducer) -> AsyncIterator[int]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": producer.url.partition("://")[2].partition("?")[0],
            "group.id": "bare",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([producer.place])
    try:
        while True:
            if (first := consumer.poll(5)) is None:
                continue
            messages = [first, *consumer.consume(BATCH - 1, timeout=0)]
            consumer.commit(asynchronous=False)
            yield len(messages)
    finally:
        consumer.close()


async def _bare_rabbitmq(producer: RabbitProducer) -> AsyncIterator[int]:
    async with await aio_pika.connect(producer.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=500)
        queue = await channel.declare_queue(producer.place, passive=True)
        size = 0
        async with queue.iterator() as messages:
            async for message in messages:
                size += 1
                if size == BATCH:
                    await message.ack(multiple=True)
                    yield size
                    size = 0


_CONSUMERS: dict[type, Callable[[Any], Any]] = {
    RedisProducer: _bare_redis,
    NatsProducer: _bare_nats,
    KafkaProducer: _bare_kafka,
    RabbitProducer: _bare_rabbitmq,
}
