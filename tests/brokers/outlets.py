"""Places of real brokers that events are published to, and programs that read them with the client of the broker alone."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import aio_pika
import nats
import pytest
import redis.asyncio
from cloudevents.core.bindings import http
from confluent_kafka import Consumer, TopicPartition
from nats.js.api import DeliverPolicy, StreamConfig

from rig.base import Server
from rig.kafka import Kafka
from rig.nats import Nats
from rig.rabbitmq import RabbitMQ
from rig.server import Unavailable
from rig.valkey import Valkey

QUICK, SLOW = ("redis", "nats"), ("kafka", "rabbitmq")
"""Brokers that start at once, and those that take seconds."""

BROKERS = [*QUICK, *[pytest.param(name, marks=pytest.mark.slow) for name in SLOW]]

DROPS_REPEATS = frozenset({"redis", "nats"})
"""Brokers that leave out an event whose id they know."""

_STARTED: dict[str, Server] = {}
_PLACES = itertools.count(1)


class Arrived(NamedTuple):
    """An event as a consumer got it."""

    id: str
    """The id that the broker's own header or field has."""
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body)
        return content

    @property
    def line(self) -> tuple[str, int]:
        return self.json["subject"], int(self.json["sequence"])

    def cloud_event(self) -> Any:
        """As the SDK of CloudEvents reads it, from the content type and the bytes alone."""
        message = http.HTTPMessage({"content-type": self.headers["content-type"]}, self.body)
        return http.from_http_event(message)


class Outlet:
    """A place of a broker. `server` is the broker itself."""

    kind: str

    def __init__(self, server: Any) -> None:
        self.server = server
        self.place = f"onward.t{next(_PLACES)}"

    @property
    def url(self) -> str:
        url: str = self.server.url
        return url

    async def make(self) -> None:
        """Make the place."""

    async def read(self) -> list[Arrived]:
        """All events of the place, in the order in which they arrived."""
        raise NotImplementedError


class RedisOutlet(Outlet):
    kind = "redis"

    async def read(self) -> list[Arrived]:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            entries: list[Any] = []
            while page := await client.xrange(
                self.place, f"({entries[-1][0].decode()}" if entries else "-", count=5000
            ):
                entries += page
        fields = [{name.decode(): value for name, value in entry.items()} for _, entry in entries]
        return [
            Arrived(
                entry["id"].decode(),
                entry["data"],
                {name: value.decode() for name, value in entry.items() if name != "data"},
            )
            for entry in fields
        ]


DUPLICATE_WINDOW_S = 3600
"""As the guide advises. An event whose relays die one after the other is sent again after more than the usual two minutes."""


class NatsOutlet(Outlet):
    kind = "nats"

    def _stream(self) -> str:
        return self.place.replace(".", "_")

    async def make(self) -> None:
        client = await nats.connect(self.url)
        config = StreamConfig(name=self._stream(), subjects=[self.place], duplicate_window=DUPLICATE_WINDOW_S)
        await client.jetstream().add_stream(config)
        await client.close()

    async def read(self) -> list[Arrived]:
        client = await nats.connect(self.url)
        stream = client.jetstream()
        left = (await stream.stream_info(self._stream())).state.messages
        options = {"stream": self._stream(), "ordered_consumer": True, "deliver_policy": DeliverPolicy.ALL}
        subscription = await stream.subscribe(self.place, **options)
        arrived = []
        for _ in range(left):
            message = await subscription.next_msg(timeout=10)
            headers = {name.lower(): value for name, value in (message.headers or {}).items()}
            arrived.append(Arrived(headers["nats-msg-id"], message.data, headers))
        await client.close()
        return arrived


class KafkaOutlet(Outlet):
    kind = "kafka"

    async def make(self) -> None:
        await asyncio.to_thread(self.server.topic, self.place, partitions=3)

    async def read(self) -> list[Arrived]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[Arrived]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        arrived: list[Arrived] = []
        try:
            for partition in range(3):
                _, end = consumer.get_watermark_offsets(TopicPartition(self.place, partition), timeout=20)
                consumer.assign([TopicPartition(self.place, partition, 0)])
                while consumer.position([TopicPartition(self.place, partition)])[0].offset < end and end:
                    for message in consumer.consume(500, timeout=1):
                        headers = {name: value.decode() for name, value in message.headers()}
                        assert message.key().decode() == json.loads(message.value())["subject"]
                        arrived.append(Arrived(headers["id"], message.value(), headers))
                    if not arrived:
                        continue
        finally:
            consumer.close()
        return arrived


class RabbitOutlet(Outlet):
    kind = "rabbitmq"

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._arrived: list[Arrived] = []

    async def make(self) -> None:
        async with await aio_pika.connect(self.url) as connection:
            await (await connection.channel()).declare_queue(self.place, durable=True)

    async def read(self) -> list[Arrived]:
        """A queue gives each message once: those of earlier calls are remembered."""
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(self.place, passive=True)
            while (message := await queue.get(fail=False)) is not None:
                headers = {"content-type": str(message.content_type)}
                headers |= {name: str(value) for name, value in message.headers.items()}
                self._arrived.append(Arrived(str(message.message_id), message.body, headers))
                await message.ack()
        return list(self._arrived)


_MAKERS: dict[str, tuple[Callable[[], Server], type[Outlet]]] = {
    "redis": (Valkey, RedisOutlet),
    "nats": (Nats, NatsOutlet),
    "kafka": (Kafka, KafkaOutlet),
    "rabbitmq": (RabbitMQ, RabbitOutlet),
}


async def outlet_of(kind: str) -> Outlet:
    """A new place at a broker, which all tests of this process share; the test is skipped where the broker cannot be had."""
    maker, outlet = _MAKERS[kind]
    try:
        server = _STARTED.setdefault(kind, maker())
        await asyncio.to_thread(server.start)
    except Unavailable as why:
        pytest.skip(str(why))
    place = outlet(server)
    await place.make()
    return place


def verdict(arrived: Iterable[Arrived], wanted: set[tuple[str, int]]) -> dict[str, int]:
    """How many events are lost, came twice, came under two ids, or came after a later one of their task."""
    ids: dict[tuple[str, int], set[str]] = defaultdict(set)
    last: dict[str, int] = defaultdict(int)
    twice = late = 0
    for event in arrived:
        task_id, seq = event.line
        if (task_id, seq) in ids:
            twice += 1
        else:
            late += seq < last[task_id]
            last[task_id] = max(seq, last[task_id])
        ids[task_id, seq].add(event.id)
    return {
        "lost": len(wanted - ids.keys()),
        "strange": len(ids.keys() - wanted),
        "twice": twice,
        "changed": sum(len(some) > 1 for some in ids.values()),
        "late": late,
    }
