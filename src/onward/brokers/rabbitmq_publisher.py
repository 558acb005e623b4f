"""RabbitMQ as a way out: persistent messages, each confirmed by the broker, and refused when no queue gets them.

Events of different tasks are under way at the same time. An event of a task is sent when the one before is confirmed: a queue that is full
refuses one message and may take the next. All events that can be sent at a time are written to the socket as one piece.
"""

from __future__ import annotations

import asyncio
import collections
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aio_pika
import aio_pika.exceptions
import pamqp.frame
from aio_pika.abc import AbstractConnection
from aiormq.abc import ChannelFrame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from onward.brokers.options import client_url
from onward.brokers.publishing import SEND_TIMEOUT_S, Publication
from onward.engine.worker.sinks import SendResult

CONNECT_TIMEOUT_S = 5.0

WRITE_BYTES = 262_144
"""Bytes of events that go to the socket as one piece, with the event that goes beyond them."""

CONFIRMED = SendResult(True, "confirmed")
LOST = SendResult(False, "the connection to the broker was lost", down=True)

_TOO_LARGE = re.compile(r"larger than configured max size (\d+)")


class RabbitPublisher:
    """A queue, or `EXCHANGE/ROUTING KEY`."""

    def __init__(self, url: str, place: str) -> None:
        exchange, slash, key = place.partition("/")
        self._url, self._exchange, self._key = client_url(url), exchange if slash else "", key if slash else place
        self._connection: AbstractConnection | None = None
        self._channel: Any = None
        """The channel of aiormq below that of aio-pika. Its own `basic_publish` takes six times as long for an event."""
        self._method = b""
        """The frame with which each event begins."""
        self._gone: asyncio.Future[None] | None = None
        self._trouble = ""

    async def open(self) -> None:
        """Connect, and see that the exchange or the queue is there."""
        self._gone = asyncio.get_running_loop().create_future()
        self._connection = await aio_pika.connect(self._url, timeout=CONNECT_TIMEOUT_S)
        self._connection.close_callbacks.add(self._closed)
        channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        channel.close_callbacks.add(self._closed)
        if self._exchange:
            await channel.get_exchange(self._exchange)
        else:
            await channel.declare_queue(self._key, passive=True)
        self._channel = await channel.get_underlay_channel()
        method = Basic.Publish(exchange=self._exchange, routing_key=self._key, mandatory=True)
        self._method = pamqp.frame.marshal(method, self._channel.number)

    async def send(self, batch: Sequence[Publication]) -> list[SendResult]:
        """Send tasks side by side, and await every confirmation."""
        results = await self._send(batch)
        limit = _TOO_LARGE.search(self._trouble)
        why = f"RabbitMQ: {self._trouble}" if self._trouble else ""
        for position, result in enumerate(results):
            if result.ok or not why:
                continue
            # One message that is too large closes the channel, with all that are under way on it.
            refused = limit is not None and len(batch[position].body) > int(limit[1])
            results[position] = SendResult(False, why, down=not refused, refused=refused)
        return results

    async def _send(self, batch: Sequence[Publication]) -> list[SendResult]:
        """The results of all events. Ends when all are answered, when the connection is lost, or after `SEND_TIMEOUT_S`."""
        assert self._gone is not None
        lines: dict[str, collections.deque[int]] = {}
        for position, publication in enumerate(batch):
            lines.setdefault(publication.task_id, collections.deque()).append(position)
        results, answers = [LOST] * len(batch), _Answers()
        ready, waiting = [line.popleft() for line in lines.values()], 0
        self._gone.add_done_callback(answers.wake)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                while (ready or waiting) and not self._gone.done():
                    waiting += len(ready)
                    await self._write(batch, ready, answers)
                    ready = []
                    for position, result in await answers.take():
                        waiting -= 1
                        results[position] = result
                        self._channel.message_id_delivery_tag.pop(batch[position].id, None)
                        line = lines[batch[position].task_id]
                        if result.ok and line:
                            ready.append(line.popleft())
                        elif not result.ok:
                            for later in line:
                                results[later] = result
        except TimeoutError:
            late = SendResult(False, f"no answer within {SEND_TIMEOUT_S:g} s", down=True)
            results = [late if result is LOST else result for result in results]
        finally:
            self._gone.remove_done_callback(answers.wake)
        return results

    async def _write(self, batch: Sequence[Publication], positions: Sequence[int], answers: _Answers) -> None:
        """Write these events to the socket, and wait until it has taken them. The broker numbers the events of a channel in the order in
        which they come, and so does this."""
        assert self._gone is not None
        channel, size = self._channel, 0
        parts: list[bytes] = []
        for number, position in enumerate(positions, 1):
            publication = batch[position]
            channel.delivery_tag += 1
            channel.confirmations[channel.delivery_tag] = answers.expect(position, self._result)
            channel.message_id_delivery_tag[publication.id] = channel.delivery_tag
            parts += self._frames(publication)
            size += len(publication.body)
            if size >= WRITE_BYTES or number == len(positions):
                taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                await channel.write_queue.put(ChannelFrame(b"".join(parts), should_close=False, drain_future=taken))
                await asyncio.wait([taken, self._gone], return_when=asyncio.FIRST_COMPLETED)
                parts, size = [], 0

    def _frames(self, publication: Publication) -> Iterator[bytes]:
        body, number = publication.body, self._channel.number
        properties = Basic.Properties(
            content_type=publication.headers["content-type"],
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            headers={name: value for name, value in publication.headers.items() if name != "content-type"},
            message_id=publication.id,
        )
        yield self._method
        yield pamqp.frame.marshal(ContentHeader(properties=properties, body_size=len(body)), number)
        for start in range(0, len(body), self._channel.max_content_size):
            yield pamqp.frame.marshal(ContentBody(body[start : start + self._channel.max_content_size]), number)

    def _result(self, error: BaseException | None) -> SendResult:
        if error is None:
            return CONFIRMED
        if isinstance(error, aio_pika.exceptions.PublishError):
            why = f"no queue gets messages with the routing key {self._key!r}; bind one to it"
            return SendResult(False, why, down=True)
        return SendResult(False, f"{type(error).__name__}: {error}", down=True)

    def _closed(self, _: Any, error: BaseException | None = None) -> None:
        if error is not None and not self._trouble:
            self._trouble = str(error)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()


class _Answers:
    """The answers of the broker that have come and were not taken yet."""

    def __init__(self) -> None:
        self._come: list[tuple[int, SendResult]] = []
        self._news = asyncio.Event()

    def expect(self, position: int, to_result: Callable[[BaseException | None], SendResult]) -> asyncio.Future[Any]:
        """The future that the client completes with the answer for an event."""

        def come(done: asyncio.Future[Any]) -> None:
            self._come.append((position, LOST if done.cancelled() else to_result(done.exception())))
            self._news.set()

        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(come)
        return future

    def wake(self, _: object) -> None:
        """End the waiting: no more answers will come."""
        self._news.set()

    async def take(self) -> list[tuple[int, SendResult]]:
        """The positions and results that have come, as soon as there is one."""
        await self._news.wait()
        self._news.clear()
        come, self._come = self._come, []
        return come
