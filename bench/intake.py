"""How fast messages of a broker become tasks, beside a bare consumer of the same client, and beside bare submits.

    make bench BENCH=intake
    python -m bench intake --broker redis nats --store sqlite --messages 10000

All messages are there before the clock starts. It starts with the first batch that is acknowledged, so joining a group is not counted, and ends
with the last. The bare consumer fetches as many messages at once as the intake does, and acknowledges them. The bare submits are `submit_many`
with the same inputs and as many tasks in a call: once without idempotency keys, and once with the identities of the messages as keys, as
the intake has them. All take turns in one process; a ratio is the median of the ratios of the rounds.
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
from onward.brokers.intakes import Intakes
from onward.service.submission import SubmitRequest
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
    print(
        f"{'':22}{'intake/s':>10}{'bare/s':>10}{'ratio':>7}{'submits/s':>11}{'ratio':>7}{'with keys':>11}{'ratio':>7}"
    )
    for kind in options.broker:
        start, producer = SERVERS[kind]
        with start() as server:
            for store in options.store:
                rounds = [_round(producer, server, store, empty, options.messages) for _ in range(options.repeat)]
                intake, *others = (statistics.median(column) for column in zip(*rounds, strict=True))
                ratios = [statistics.median(round_[0] / round_[column] for round_ in rounds) for column in (1, 2, 3)]
                cells = [
                    f"{rate:>{width},.0f}{ratio:>7.2f}"
                    for rate, ratio, width in zip(others, ratios, (10, 11, 11), strict=True)
                ]
                print(f"{kind:10}{store:12}{intake:>10,.0f}{''.join(cells)}", flush=True)
                missed += intake < AIMS[kind] or ratios[1] < AIM_OF_SUBMITS
    return int(missed > 0)


def _round(
    producer: Callable[[Any], Producer], server: Any, store: str, empty: Callable[[str], str], count: int
) -> tuple[float, float, float, float]:
    submits = uvloop.run(_submits(empty(store), count, keys=False))
    keyed = uvloop.run(_submits(empty(store), count, keys=True))
    intake = uvloop.run(_intake(empty(store), producer(server), count))
    return intake, uvloop.run(_bare(producer(server), count)), submits, keyed


def _app(url: str, **settings: Any) -> Onward:
    app = Onward(url, **settings)

    @app.task
    async def ship(ctx: Context, n: int) -> int:
        return n

    return app


async def _submits(url: str, count: int, *, keys: bool) -> float:
    async with _app(url) as app:
        await app.submit("ship", {"n": 0})
        start = time.perf_counter()
        for first in range(0, count, BATCH):
            numbers = range(first, first + BATCH)
            if keys:  # `submit_many` takes none, and does the same otherwise
                requests = [
                    SubmitRequest("ship", {"n": n}, f"at:place-10000-1/{1_700_000_000_000 + n}-0") for n in numbers
                ]
                await app.service.submit(requests)
            else:
                await app.submit_many("ship", [{"n": n} for n in numbers])
        return count / (time.perf_counter() - start)


async def _intake(url: str, producer: Producer, count: int) -> float:
    await producer.send(json_bodies(count))
    app = _app(url, brokers={"shop": producer.url})
    app.intake("orders", from_=f"shop/{producer.place}", task="ship", batch=BATCH)
    async with app, app.intakes() as intakes:
        first = await _acknowledged(intakes, 1)
        start = time.perf_counter()
        await _acknowledged(intakes, count)
        rate = (count - first) / (time.perf_counter() - start)
    assert query(url, "SELECT count(*) FROM onward_tasks") == count
    return rate


async def _acknowledged(intakes: Intakes, least: int) -> int:
    """How many messages are acknowledged, as soon as there are so many."""
    deadline = time.perf_counter() + TIMEOUT_S
    while intakes.taken < least:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{intakes.taken} messages after {TIMEOUT_S} s")
        await asyncio.sleep(0.002)
    return intakes.taken


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
