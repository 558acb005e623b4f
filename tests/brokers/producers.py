"""Foreign programs at a broker: they send messages to a place, and look at it, with the client of the broker alone."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import aio_pika
import confluent_kafka
import nats
import nats.js.errors
import redis.asyncio
from nats.js.api import StreamConfig

from rig.kafka import Kafka
from rig.nats import Nats
from rig.rabbitmq import RabbitMQ
from rig.valkey import Valkey

_NUMBERS = itertools.count(1)
UNKNOWN = 1_000_000
"""How many messages are left at a broker that has just started, and does not say it yet."""


def fresh_place() -> str:
    return f"place-{os.getpid()}-{next(_NUMBERS)}"


class Producer(Protocol):
    """A place at a broker."""

    url: str
    place: str
    """As `BROKER/PLACE` of an intake has it, without the broker."""
    identity: str
    """How the identity of a plain message begins: `at` for its position, `id` for the id of its sender."""

    async def send(self, bodies: Sequence[bytes], headers: Mapping[str, str] = ...) -> None:
        """Send messages. They are safe when this returns."""
        ...

    async def unacknowledged(self) -> int:
        """Messages that were not acknowledged."""
        ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class RedisProducer:
    def __init__(self, server: Valkey) -> None:
        self._server, self.identity = server, "at"
        self.place = fresh_place()
        self.url = f"{server.url}?claim_after=1"

    async def send(self, bodies: Sequence[bytes], headers: Mapping[str, str] = {}) -> None:
        async with redis.asyncio.Redis.from_url(self._server.url) as client:
            for start in range(0, len(bodies), 500):
                pipeline = client.pipeline(transaction=False)
                for body in bodies[start : start + 500]:
                    pipeline.xadd(self.place, {**headers, "data": body})
                await pipeline.execute()

    async def unacknowledged(self) -> int:
        async with redis.asyncio.Redis.from_url(self._server.url) as client:
            groups: list[Any] = await client.xinfo_groups(self.place)
            if not groups:
                return int(await client.xlen(self.place))
            return sum(group["pending"] + (group["lag"] or 0) for group in groups)

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


class NatsProducer:
    def __init__(self, server: Nats) -> None:
        self._server, self.identity = server, "at"
        self.place = fresh_place()
        self.url = f"{server.url}?ack_wait=1"

    async def send(self, bodies: Sequence[bytes], headers: Mapping[str, str] = {}) -> None:
        async with await nats.connect(self._server.url) as client:
            jetstream = client.jetstream(publish_async_max_pending=1000)
            await jetstream.add_stream(StreamConfig(name=self.place, subjects=[f"{self.place}.>"]))
            sent = [
                await jetstream.publish_async(
                    f"{self.place}.orders", body, wait_stall=30, headers=dict(headers) or None
                )
                for body in bodies
            ]
            for future in sent:
                await future

    async def unacknowledged(self) -> int:
        async with await nats.connect(self._server.url) as client:
            jetstream = client.jetstream()
            consumers = await jetstream.consumers_info(self.place)
            if not consumers:
                return (await jetstream.stream_info(self.place)).state.messages
            return sum((info.num_pending or 0) + (info.num_ack_pending or 0) for info in consumers)

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


KAFKA_SETTINGS = {"group.min.session.timeout.ms": "500"}
"""Settings of the Kafka of the tests: the partitions of a killed consumer are free after two seconds."""


class KafkaProducer:
    """A topic with four partitions."""

    def __init__(self, server: Kafka) -> None:
        self._server, self.identity = server, "at"
        self.place = server.topic(fresh_place())
        self.url = f"{server.url}?session_timeout=2"

    async def send(self, bodies: Sequence[bytes], headers: Mapping[str, str] = {}) -> None:
        await asyncio.to_thread(self._send, bodies, headers)

    def _send(self, bodies: Sequence[bytes], headers: Mapping[str, str]) -> None:
        settings = {"bootstrap.servers": self._server.servers, "acks": "all", "linger.ms": 5, "log_level": 0}
        client = confluent_kafka.Producer({**settings, "sticky.partitioning.linger.ms": 0})
        for body in bodies:
            client.produce(self.place, body, headers=list(headers.items()))
        assert client.flush(60) == 0

    async def unacknowledged(self) -> int:
        return await asyncio.to_thread(self._unacknowledged)

    def _unacknowledged(self) -> int:
        return min(self._behind(group) for group in GROUPS)

    def _behind(self, group: str) -> int:
        settings = {"bootstrap.servers": self._server.servers, "group.id": group, "log_level": 0}
        client = confluent_kafka.Consumer(settings)
        try:
            places = [confluent_kafka.TopicPartition(self.place, number) for number in range(4)]
            left = 0
            for committed in client.committed(places, timeout=30):
                low, high = client.get_watermark_offsets(committed, timeout=30)
                left += high - max(low, committed.offset)
            return left
        except confluent_kafka.KafkaException:
            return UNKNOWN
        finally:
            client.close()

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


GROUPS = ("onward-orders", "onward-mail")
"""The consumer groups of the intakes of the tests. Each test has one of them."""


class RabbitProducer:
    """A durable quorum queue. Each message has an id of its own, since a queue has no positions."""

    def __init__(self, server: RabbitMQ) -> None:
        self._server, self.identity = server, "id"
        self.place = fresh_place()
        self.url = server.url
        self.arguments: dict[str, Any] = {"x-queue-type": "quorum"}

    async def send(self, bodies: Sequence[bytes], headers: Mapping[str, str] = {}) -> None:
        async with await aio_pika.connect(self._server.url) as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.declare_queue(self.place, durable=True, arguments=self.arguments)
            for start in range(0, len(bodies), 500):
                await asyncio.gather(*[self._publish(channel, body, headers) for body in bodies[start : start + 500]])

    async def _publish(self, channel: Any, body: bytes, headers: Mapping[str, str]) -> None:
        message = aio_pika.Message(
            body,
            headers=dict(headers),
            content_type=headers.get("content-type"),
            message_id=f"m{next(_NUMBERS)}",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await channel.default_exchange.publish(message, self.place, mandatory=True)

    async def unacknowledged(self) -> int:
        """Also those that a consumer holds, which AMQP does not tell."""
        try:
            return await asyncio.to_thread(self._server.messages, self.place)
        except RuntimeError:
            return UNKNOWN

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


def json_bodies(count: int) -> list[bytes]:
    return [json.dumps({"n": number}).encode() for number in range(count)]


def cloud_event(number: int, kind: str = "order.created") -> bytes:
    """A CloudEvent in structured form."""
    event = {"specversion": "1.0", "id": f"e{number}", "source": "/shop", "type": kind, "data": {"n": number}}
    return json.dumps(event).encode()
