"""NATS JetStream as a way in.

All processes of an intake share one durable pull consumer of the stream. A process asks for messages before it needs them, so the next ones
arrive while it commits. Messages of a process that dies come again after `ack_wait`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType

from onward.brokers.message import Received
from onward.brokers.options import Options
from onward.brokers.port import Finding
from onward.core.clock import Clock
from onward.errors import BrokerUnavailable

ACK_WAIT_S = 30.0
"""Seconds after which the server gives a message to another process. A process that holds messages resets that time."""

CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 10.0
"""Seconds for a connection, and for an answer."""

PING_INTERVAL_S, MAX_PINGS = 10, 2
"""Seconds between two pings, and how many of them may be without an answer before the connection counts as lost."""

PULL_S = 10.0
"""Seconds after which a request for messages ends at the server, and the source makes another."""

LOST_PULL_S = 5.0
"""Seconds after the end of a request without a word from the server: the request was lost."""

MAX_PULL_BYTES = 16 << 20
"""Bytes that one request brings."""

MAX_ACK_PENDING = 100_000
"""Messages that all processes of an intake may hold together. Each process holds two batches at most."""

PULL_ENDS = frozenset({"404", "408", "409"})
"""Statuses with which the server ends a request for messages: there are none, its time is over, or something changed."""


class NatsSource:
    """One stream, or the messages of a stream with a subject. `place` is STREAM or STREAM/SUBJECT. `url` may have `?ack_wait=SECONDS`."""

    def __init__(self, broker: str, url: str, place: str, group: str, consumer: str, clock: Clock) -> None:
        options = Options(broker, url)
        self._ack_wait_s = options.seconds("ack_wait", ACK_WAIT_S, 1.0, 3600.0)
        options.finish()
        self._servers = _servers(options.url)
        self._broker, self._clock, self._process = broker, clock, consumer
        self._stream, _, self._subject = place.partition("/")
        self._durable = group.replace(
            ".", "="
        )  # a dot is not allowed, and an equals sign is not in the name of an intake
        self._client: Client | None = None
        self._inbox = ""
        self._arrived: collections.deque[Msg] = collections.deque()
        self._news = asyncio.Event()
        self._pulling = 0
        """How many messages of the open request are still to come."""
        self._pull_ends = 0.0
        self._oversize = False
        """The next message is larger than a request may bring."""
        self._problem = ""

    async def open(self) -> None:
        """Connect, and make the consumer where it is missing."""
        async with self._connected() as client:
            jetstream = client.jetstream(timeout=ANSWER_TIMEOUT_S)
            await jetstream.add_consumer(
                self._stream,
                ConsumerConfig(
                    name=self._durable,
                    durable_name=self._durable,
                    deliver_policy=DeliverPolicy.ALL,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=self._ack_wait_s,
                    max_deliver=-1,
                    max_ack_pending=MAX_ACK_PENDING,
                    filter_subject=self._subject or None,
                ),
            )
            self._inbox = client.new_inbox()
            await client.subscribe(self._inbox, cb=self._take)

    async def fetch(self, most: int, wait: float) -> Sequence[Received]:
        """The messages that arrived; it asks for the next ones before it returns."""
        async with self._answers() as client:
            await self._pull(client, most)
            if not self._arrived:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wait_for_one(client, most)
            taken = [self._arrived.popleft() for _ in range(min(most, len(self._arrived)))]
            await self._pull(client, most)
        return [self._received(message) for message in taken]

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Acknowledge all, and wait for the answer to the last: the server handles them in order."""
        async with self._answers() as client:
            for item in received[:-1]:
                await client.publish(item.token)
            await client.request(received[-1].token, timeout=ANSWER_TIMEOUT_S)

    async def hold(self, received: Sequence[Received]) -> None:
        """Tell the server that these, and those that wait here, are in progress."""
        async with self._answers() as client:
            for reply in [*[item.token for item in received], *[message.reply for message in self._arrived]]:
                await client.publish(reply, Msg.Ack.Progress)

    async def lag(self) -> int | None:
        """Messages that the consumer has not delivered, and those that are not acknowledged."""
        async with self._answers() as client:
            jetstream = client.jetstream(timeout=ANSWER_TIMEOUT_S)
            info = await jetstream.consumer_info(self._stream, self._durable)
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def check(self) -> Sequence[Finding]:
        """Whether the stream exists, and whether it is on disk."""
        async with self._connected() as client:
            if not self._stream:
                return []
            info = await client.jetstream(timeout=ANSWER_TIMEOUT_S).stream_info(self._stream)
        if info.config.storage == StorageType.MEMORY:
            text = f"the stream {self._stream} is in memory and loses messages in a restart; make it with file storage"
            return [Finding(None, text)]
        return []

    async def close(self) -> None:
        """Give back the messages that wait here, and disconnect."""
        if self._client is None:
            return
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._client.is_connected:
                    for message in self._arrived:
                        await self._client.publish(message.reply, Msg.Ack.Nak)
                await self._client.close()

    async def _wait_for_one(self, client: Client, most: int) -> None:
        while not self._arrived:
            self._news.clear()
            await self._news.wait()
            if self._problem or client.is_closed:
                raise nats.errors.Error(self._problem or "the connection is closed")
            await self._pull(client, most)

    async def _pull(self, client: Client, most: int) -> None:
        """Ask for messages, unless a request is open or enough of them are here."""
        now = self._clock.monotonic()
        if len(self._arrived) >= most or (self._pulling > 0 and now < self._pull_ends + LOST_PULL_S):
            return
        request = {"batch": most, "expires": int(PULL_S * 1e9), "max_bytes": max(MAX_PULL_BYTES, client.max_payload)}
        if self._oversize:
            request = {"batch": 1, "expires": int(PULL_S * 1e9)}
        self._pulling, self._pull_ends, self._oversize = request["batch"], now + PULL_S, False
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._durable}"
        await client.publish(subject, json.dumps(request).encode(), self._inbox)

    async def _take(self, message: Msg) -> None:
        """A message, or a status that ends a request."""
        if message.reply.startswith("$JS.ACK."):
            self._arrived.append(message)
            self._pulling -= 1
        else:
            headers = message.headers or {}
            status, why = headers.get("Status", ""), headers.get("Description", "")
            self._pulling = 0
            self._oversize = "exceeds maxbytes" in why.lower()
            if status not in PULL_ENDS or "deleted" in why.lower():
                self._problem = f"the server gives no messages: {status} {why}"
        self._news.set()

    def _received(self, message: Msg) -> Received:
        headers = {name.lower(): value for name, value in (message.headers or {}).items()}
        position = f"{self._stream}/{_position(message.reply)}"
        return Received(headers, message.data, position, headers.get("nats-msg-id", ""), message.reply)

    async def _failed(self, error: Exception) -> None:
        """Keep the reason for which the client gives up."""
        self._problem = f"{type(error).__name__}: {error}"
        self._news.set()

    async def _closed(self) -> None:
        self._problem = self._problem or "the server closed the connection"
        self._news.set()

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        """Connect; errors of the block as BrokerUnavailable."""
        self._client = client = Client()
        async with self._answers():
            await client.connect(
                self._servers,
                name=f"onward {self._process}",
                connect_timeout=int(CONNECT_TIMEOUT_S),
                allow_reconnect=False,
                # The client tries each server twice, and sleeps for this time before the second attempt.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                ping_interval=PING_INTERVAL_S,
                max_outstanding_pings=MAX_PINGS,
                error_cb=self._failed,
                closed_cb=self._closed,
            )
            yield client

    @contextlib.asynccontextmanager
    async def _answers(self) -> AsyncIterator[Client]:
        """The client; its errors as BrokerUnavailable."""
        assert self._client is not None
        try:
            yield self._client
        except nats.js.errors.NotFoundError as error:
            raise BrokerUnavailable(self._broker, self._missing(error)) from None
        except nats.errors.NoRespondersError:
            raise BrokerUnavailable(
                self._broker, "the server has no JetStream; start it with -js, or let the account use it"
            ) from None
        except (nats.errors.Error, OSError, TimeoutError) as error:
            why = self._problem or f"{type(error).__name__}: {error}"
            raise BrokerUnavailable(self._broker, why) from None

    def _missing(self, error: nats.js.errors.NotFoundError) -> str:
        if error.err_code != NO_STREAM:
            return f"{error.description}"
        subject = self._subject or "'SUBJECT.>'"
        return f"there is no stream {self._stream}; make it with `nats stream add {self._stream} --subjects {subject} --defaults`"


NO_STREAM = 10059
"""The code of an error of JetStream."""


def _servers(url: str) -> list[str]:
    """One URL for each server of `nats://USER:PASSWORD@HOST,HOST`."""
    scheme, _, rest = url.partition("://")
    login, at, hosts = rest.rstrip("/").rpartition("@")
    return [f"{scheme}://{login}{at}{host}" for host in hosts.split(",")]


def _position(reply: str) -> str:
    """The sequence of a message in its stream, and its time: in a stream that was deleted and made again, sequences begin anew. Both are in
    the subject for the acknowledgement: `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.NUMBER.TIME…` with 9 parts, or with a domain and an account
    before the stream."""
    parts = reply.split(".")
    skipped = 0 if len(parts) == 9 else 2
    return f"{parts[5 + skipped]}@{parts[7 + skipped]}"
