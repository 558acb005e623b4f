"""RabbitMQ as a way in: a classic or quorum queue.

All processes of an intake consume the same queue. The broker sends messages ahead, up to `prefetch`, and gives the messages of a process
that ends to the others. A queue has no positions, so each message needs an id (`message_id`, or the id of a CloudEvent). This source never
returns a message to the queue by itself: quorum queues count deliveries, and drop a message that was returned too often.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aio_pika
import aiormq.exceptions
from aio_pika.abc import AbstractConnection
from aiormq.abc import AbstractChannel, DeliveredMessage

from onward.brokers.message import Received
from onward.brokers.options import Options
from onward.brokers.port import Finding
from onward.brokers.progress import Progress
from onward.errors import BrokerUnavailable

PREFETCH = 500
"""Messages that the broker sends ahead."""

CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 10.0
"""Seconds for a connection, and for an answer."""

HEARTBEAT_S = 20
"""Seconds between two heartbeats of the connection."""

UNLIMITED_DELIVERIES = -1
"""How often a quorum queue delivers a message before it drops it, for queues that this source makes. RabbitMQ 4 has 20 without it, which
consumers that come and go may reach."""

FIRST_VERSION_WITH_LIMIT = 4

DEFAULT_LIMIT = 20
"""Deliveries of a message of a quorum queue that RabbitMQ allows from that version on."""

MAX_ARGUMENTS = 20
"""Arguments of a queue that are looked at."""

_DIFFERS = re.compile(
    r"inequivalent arg '(?P<name>[^']+)'.*but current is (?:none|the value '(?P<value>[^']*)' of type '(?P<type>\w+)')"
)
_NUMBERS = frozenset({"byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint"})
"""Types of AMQP whose values are whole numbers."""

_ERRORS = (aiormq.exceptions.AMQPException, aiormq.exceptions.ChannelInvalidStateError, OSError, TimeoutError)


class RabbitSource:
    """One queue. `url` may have `?prefetch=MESSAGES`, and options of the client such as `heartbeat=SECONDS`."""

    def __init__(self, broker: str, url: str, queue: str, consumer: str) -> None:
        options = Options(broker, url)
        self._prefetch = options.number("prefetch", PREFETCH, 1, 65_535)
        self._url = options.url_with_rest(heartbeat=str(HEARTBEAT_S))
        self._broker, self._queue, self._name = broker, queue, consumer
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._tag = ""
        self._arrived: collections.deque[DeliveredMessage] = collections.deque()
        self._progress = Progress(last=0)
        self._acknowledged = 0
        """The last delivery up to which the broker got an acknowledgement."""
        self._news = asyncio.Event()
        self._problem = ""

    async def open(self) -> None:
        """Connect, make the queue where it is missing, and consume it."""
        async with self._answers():
            connection = await self._connect()
            connection.close_callbacks.add(self._closed)
            await self._declare(connection)
            channel = await connection.channel(publisher_confirms=False)
            channel.close_callbacks.add(self._closed)
            await channel.set_qos(prefetch_count=self._prefetch, timeout=ANSWER_TIMEOUT_S)
            # The channel below that of aio-pika: it calls with each message once, and starts one asyncio task less for it.
            self._channel = await channel.get_underlay_channel()
            consumed = await self._channel.basic_consume(self._queue, self._take, timeout=ANSWER_TIMEOUT_S)
            self._tag = consumed.consumer_tag or ""

    async def fetch(self, most: int, wait: float) -> Sequence[Received]:
        """The messages that arrived."""
        async with self._answers() as channel:
            if not self._arrived:
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._news.wait()
            if not self._arrived:
                self._check(channel)
            taken = [self._arrived.popleft() for _ in range(min(most, len(self._arrived)))]
        return [_received(message) for message in taken]

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Acknowledge all deliveries up to the last before which all are done."""
        for item in received:
            self._progress.finish(item.token)
        if self._progress.last > self._acknowledged:
            async with self._answers() as channel:
                await channel.basic_ack(self._progress.last, multiple=True)
                self._acknowledged = self._progress.last

    async def hold(self, _received: Sequence[Received]) -> None:
        """The broker waits as long as the connection lives."""
        async with self._answers() as channel:
            self._check(channel)

    async def lag(self) -> int | None:
        """Messages that wait in the queue, and those that this process holds."""
        async with self._answers():
            assert self._connection is not None
            async with self._connection.channel() as channel:
                queue = await channel.declare_queue(self._queue, passive=True, timeout=ANSWER_TIMEOUT_S)
                return (queue.declaration_result.message_count or 0) + len(self._progress)

    async def check(self) -> Sequence[Finding]:
        """Whether the queue exists, and whether it limits the deliveries of a message."""
        async with self._answers():
            connection = await self._connect()
            if self._queue:
                channel = await connection.channel()
                try:
                    await channel.declare_queue(self._queue, passive=True, timeout=ANSWER_TIMEOUT_S)
                except aiormq.exceptions.ChannelNotFoundEntity:
                    return [Finding(None, f"there is no queue {self._queue} yet; the intake makes a durable one")]
                if (limit := await self._delivery_limit(connection)) is not None:
                    return [Finding(None, _about_limit(self._queue, limit))]
        return []

    async def _delivery_limit(self, connection: AbstractConnection) -> int | None:
        """How many deliveries of a message the arguments of the queue allow; None where they set no limit, or the broker does not say. AMQP
        has no call that reads arguments: the broker names one that differs when a queue that exists is declared again, which changes
        nothing."""
        arguments = _arguments(connection)
        for _ in range(MAX_ARGUMENTS):
            channel = await connection.channel()
            try:
                await channel.declare_queue(self._queue, durable=True, arguments=arguments, timeout=ANSWER_TIMEOUT_S)
            except aiormq.exceptions.ChannelPreconditionFailed as error:
                differs = _DIFFERS.search(str(error))
                if differs is None or differs["name"] == "x-queue-type":
                    return None  # only quorum queues have a limit
                if differs["name"] == "x-delivery-limit":
                    return DEFAULT_LIMIT if differs["value"] is None else int(differs["value"])
                value = differs["value"]
                arguments[differs["name"]] = int(value) if value and differs["type"] in _NUMBERS else value
            except aiormq.exceptions.ChannelAccessRefused:
                return None
            else:
                await channel.close()
                return None
        return None

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            with contextlib.suppress(*_ERRORS):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._connection.close()

    async def _connect(self) -> AbstractConnection:
        self._connection = await aio_pika.connect(
            self._url, timeout=CONNECT_TIMEOUT_S, client_properties={"connection_name": f"onward {self._name}"}
        )
        return self._connection

    async def _declare(self, connection: AbstractConnection) -> None:
        """Make the queue, unless there is one. A queue that exists keeps its kind and its arguments."""
        channel = await connection.channel()
        try:
            await channel.declare_queue(self._queue, passive=True, timeout=ANSWER_TIMEOUT_S)
        except aiormq.exceptions.ChannelNotFoundEntity:  # which closes the channel
            channel = await connection.channel()
            arguments = _arguments(connection)
            await channel.declare_queue(self._queue, durable=True, arguments=arguments, timeout=ANSWER_TIMEOUT_S)
        await channel.close()

    async def _take(self, message: DeliveredMessage) -> None:
        assert message.delivery_tag is not None
        self._progress.deliver(message.delivery_tag)
        self._arrived.append(message)
        if "x-stream-offset" in (message.header.properties.headers or {}):
            self._problem = f"{self._queue} is a stream, which has no consumer groups; name a queue"
            self._arrived.clear()
        self._news.set()

    def _closed(self, _sender: object, error: BaseException | None = None) -> None:
        self._problem = self._problem or f"the connection was closed: {error}"
        self._news.set()

    def _check(self, channel: AbstractChannel) -> None:
        if self._problem or channel.is_closed:
            raise BrokerUnavailable(self._broker, self._problem or "the channel is closed")
        if self._tag not in getattr(channel, "consumers", {self._tag}):
            raise BrokerUnavailable(self._broker, f"the queue {self._queue} was deleted")

    @contextlib.asynccontextmanager
    async def _answers(self) -> AsyncIterator[Any]:
        """The channel; its errors as BrokerUnavailable."""
        try:
            yield self._channel
        except _ERRORS as error:
            why = self._problem or f"{type(error).__name__}: {error}"
            raise BrokerUnavailable(self._broker, why) from None


def _arguments(connection: AbstractConnection) -> dict[str, Any]:
    """The arguments of a queue that Onward makes."""
    limits = _version(connection) >= FIRST_VERSION_WITH_LIMIT
    return {"x-queue-type": "quorum"} | ({"x-delivery-limit": UNLIMITED_DELIVERIES} if limits else {})


def _about_limit(queue: str, limit: int) -> str:
    return (
        f"the queue {queue} drops or dead-letters a message after {limit} deliveries, and each process that ends while it holds the message "
        "counts as one; declare the queue with x-delivery-limit=-1, or set a large delivery-limit by policy, which is not seen here"
    )


def _version(connection: AbstractConnection) -> int:
    """The major version of the broker; 0 where it does not say."""
    transport = connection.transport
    properties = transport.connection.server_properties if transport is not None else {}
    major = _text(properties.get("version", "")).partition(".")[0]
    return int(major) if major.isdecimal() else 0


def _received(message: DeliveredMessage) -> Received:
    properties = message.header.properties
    headers = {name.lower(): _text(value) for name, value in (properties.headers or {}).items()}
    if properties.content_type:
        headers["content-type"] = properties.content_type
    return Received(headers, message.body, "", properties.message_id or "", message.delivery_tag)


def _text(value: Any) -> str:
    """The value of a header, which may have one of many types."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, Mapping | list):
        return json.dumps(value, default=str)
    return str(value)
