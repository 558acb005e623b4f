"""RabbitMQ as a way out: persistent messages, each confirmed by the broker, and refused when no queue gets them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import aio_pika
import aio_pika.exceptions
from aio_pika.abc import AbstractConnection, AbstractExchange

from onward.brokers.options import client_url
from onward.brokers.publishing import Publication, in_order
from onward.engine.worker.sinks import SendResult

CONNECT_TIMEOUT_S = 5.0

_TOO_LARGE = re.compile(r"larger than configured max size (\d+)")


class RabbitPublisher:
    """A queue, or `EXCHANGE/ROUTING KEY`."""

    def __init__(self, url: str, place: str) -> None:
        exchange, slash, key = place.partition("/")
        self._url, self._exchange_name, self._key = client_url(url), exchange if slash else "", key if slash else place
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange | None = None
        self._gone: asyncio.Future[None] | None = None
        self._trouble = ""

    async def open(self) -> None:
        """Connect, and see that the exchange or the queue is there."""
        self._gone = asyncio.get_running_loop().create_future()
        self._connection = await aio_pika.connect(self._url, timeout=CONNECT_TIMEOUT_S)
        self._connection.close_callbacks.add(self._closed)
        channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        channel.close_callbacks.add(self._closed)
        if self._exchange_name:
            self._exchange = await channel.get_exchange(self._exchange_name)
        else:
            await channel.declare_queue(self._key, passive=True)
            self._exchange = channel.default_exchange

    async def send(self, batch: Sequence[Publication]) -> list[SendResult]:
        """Send tasks side by side, and await every confirmation."""
        assert self._gone is not None
        results = await in_order(batch, self._send_one, self._gone)
        limit = _TOO_LARGE.search(self._trouble)
        why = f"RabbitMQ: {self._trouble}" if self._trouble else ""
        for position, result in enumerate(results):
            if result.ok or not why:
                continue
            # One message that is too large closes the channel, with all that are under way on it.
            refused = limit is not None and len(batch[position].body) > int(limit[1])
            results[position] = SendResult(False, why, down=not refused, refused=refused)
        return results

    async def _send_one(self, publication: Publication) -> SendResult:
        assert self._exchange is not None
        headers: Any = {name: value for name, value in publication.headers.items() if name != "content-type"}
        message = aio_pika.Message(
            publication.body,
            message_id=publication.id,
            content_type=publication.headers["content-type"],
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            headers=headers,
        )
        try:
            await self._exchange.publish(message, self._key, mandatory=True)
        except aio_pika.exceptions.PublishError:
            return SendResult(
                False, f"no queue gets messages with the routing key {self._key!r}; bind one to it", down=True
            )
        return SendResult(True, "confirmed")

    def _closed(self, _: Any, error: BaseException | None = None) -> None:
        if error is not None and not self._trouble:
            self._trouble = str(error)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()
