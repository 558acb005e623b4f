"""The brokers that the tests use: what they acknowledged is there after kill -9."""

from __future__ import annotations

from collections.abc import Iterator

import aio_pika
import nats
import pytest
import redis.asyncio
from confluent_kafka import Consumer, Producer
from nats.js.api import StreamConfig

from rig import server
from rig.kafka import Kafka
from rig.nats import Nats
from rig.rabbitmq import RabbitMQ
from rig.valkey import Valkey
from tests.kit import eventually, running


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with running(Valkey()) as broker:
        yield broker


@pytest.fixture
def nats_server() -> Iterator[Nats]:
    with running(Nats(token="secret")) as broker:
        yield broker


async def test_valkey_keeps_what_it_answered(valkey: Valkey) -> None:
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        for number in range(100):
            await client.xadd("stream", {"n": str(number)})
    pid, url = valkey.pid, valkey.url
    valkey.kill()
    assert valkey.pid is None
    valkey.start()
    assert (valkey.url, valkey.pid != pid) == (url, True)
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        assert await client.xlen("stream") == 100


async def test_nats_keeps_what_it_acknowledged(nats_server: Nats) -> None:
    client = await nats.connect(nats_server.url)
    await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
    for number in range(100):
        await client.jetstream().publish("s.x", str(number).encode())
    await client.close()
    nats_server.kill()
    nats_server.start()
    client = await nats.connect(nats_server.url)
    assert (await client.jetstream().stream_info("S")).state.messages == 100
    await client.close()


def test_a_closed_server_leaves_nothing(valkey: Valkey) -> None:
    pid, home = valkey.pid, valkey.home
    valkey.close()
    assert pid is not None
    assert not server.alive(pid)
    assert not home.exists()


@pytest.mark.slow
def test_kafka_keeps_what_it_acknowledged() -> None:
    with running(Kafka()) as broker:
        broker.topic("events")
        producer = Producer({"bootstrap.servers": broker.servers, "acks": "all", "log_level": 0})
        for number in range(100):
            producer.produce("events", str(number).encode())
        assert producer.flush(60) == 0
        broker.kill()
        broker.start()
        consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "a", "auto.offset.reset": "earliest"})
        consumer.subscribe(["events"])
        received: list[object] = []
        while len(received) < 100 and (batch := consumer.consume(100, timeout=60)):
            received += batch
        consumer.close()
        assert len(received) == 100


@pytest.mark.slow
async def test_rabbitmq_keeps_what_it_confirmed() -> None:
    with running(RabbitMQ()) as broker:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.declare_queue("events", durable=True)
            for number in range(100):
                message = aio_pika.Message(str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(message, "events", mandatory=True)
        broker.kill()
        broker.start()
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()

            async def all_there() -> bool:  # the node answers before its queues have read their messages
                queue = await channel.declare_queue("events", durable=True)
                return queue.declaration_result.message_count == 100

            await eventually(all_there, 30)
