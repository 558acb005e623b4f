"""Ways out: the sink that gives events of tasks to brokers, and what it needs from each broker.

Events leave at least once, those of a task in their order. A repeat has the id of the first delivery, and there is one only after a failure:
an answer of the broker was lost, or this process died before it could record the answer. Each event is a CloudEvent 1.0 in structured JSON.

There is one publisher for each place of a broker, with a connection of its own. A publisher that reports that its broker is down is closed;
the relay has it opened again before it takes the next rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from onward.brokers.connect import EXTRAS, scheme_of
from onward.core import mask
from onward.engine.worker.sinks import Outgoing, Rules, SendResult
from onward.errors import UsageError
from onward.store.port.outbox import BROKER_LANE

log = logging.getLogger("onward.brokers")

MAX_BATCH = 500
"""Events that are sent to a place at a time."""

OPEN_TIMEOUT_S = 10.0
"""Seconds in which a publisher must have connected."""

SEND_TIMEOUT_S = 15.0
"""Seconds in which a broker must have answered for all events of a batch."""

CLOSE_TIMEOUT_S = 2.0

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


class Publication(NamedTuple):
    """An event as it goes to a broker. `id` is the same at every repeat; `task_id` is the key by which brokers keep an order."""

    id: str
    task_id: str
    body: bytes
    headers: Mapping[str, str]
    """The content type, and the trace of the task."""


class Publisher(Protocol):
    """Sends to one place of one broker."""

    async def open(self) -> None:
        """Connect, and see that the place is there. Raises any exception; its message says what is wrong."""
        ...

    async def send(self, batch: Sequence[Publication]) -> list[SendResult]:
        """Send all, each answered by the broker before it counts; the results in the order of the batch. Events of one task arrive in their
        order: where one is not taken, those behind it are not sent, or the broker has them in their order."""
        ...

    async def close(self) -> None:
        """Disconnect. Never raises."""
        ...


def make_publisher(url: str, place: str) -> Publisher:
    """The publisher for the scheme of a URL. Raises BadSetting, and UsageError when the client is not installed."""
    extra, _ = _client(url)
    try:
        if extra == "redis":
            from onward.brokers.redis_publisher import RedisPublisher  # noqa: PLC0415 -- an extra

            return RedisPublisher(url, place)
        if extra == "nats":
            from onward.brokers.nats_publisher import NatsPublisher  # noqa: PLC0415 -- an extra

            return NatsPublisher(url, place)
        if extra == "kafka":
            from onward.brokers.kafka_publisher import KafkaPublisher  # noqa: PLC0415 -- an extra

            return KafkaPublisher(url, place)
        from onward.brokers.rabbitmq_publisher import RabbitPublisher  # noqa: PLC0415 -- an extra

        return RabbitPublisher(url, place)
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[{extra}]'") from None


MODULES = {"redis": "redis", "nats": "nats", "rabbitmq": "aio_pika", "kafka": "confluent_kafka"}
"""The module of the client of each extra."""


def _client(url: str) -> tuple[str, str]:
    """The extra for a URL, and the module of its client. Raises BadSetting."""
    extra = EXTRAS[scheme_of("of events", url)]
    return extra, MODULES[extra]


class Brokers:
    """The sink that gives events to brokers, which it knows by name."""

    rules = Rules(MAX_BATCH, lasting=True)

    def __init__(self, brokers: Mapping[str, str], declared: Iterable[str] = ()) -> None:
        """`declared` are the places, as `BROKER/PLACE`, that the app publishes to. Raises UsageError when the client of one is not installed;
        a place whose broker has no URL here is left to other processes."""
        self._brokers = brokers
        self._publishers: dict[str, Publisher] = {}
        for to in declared:
            broker = to.partition("/")[0]
            if broker not in brokers:
                log.warning(
                    "events for %s wait: this process has no URL of the broker; set ONWARD_BROKER_%s",
                    to,
                    broker.upper(),
                )
            elif not _installed(brokers[broker]):
                extra, module = _client(brokers[broker])
                raise UsageError(f"{module} is not installed, and events go to {to}; pip install 'onward[{extra}]'")

    def owns(self, lane: str) -> bool:
        """See `Sink`."""
        return lane.startswith(BROKER_LANE)

    def serves(self, lane: str) -> bool:
        """Whether this process has the URL of the broker, and its client."""
        url = self._brokers.get(_place_of(lane)[0])
        return url is not None and _installed(url)

    def lacks(self, lane: str) -> str | None:  # noqa: ARG002 -- see `Sink`
        """Nothing: a program may leave a broker to others, and the doctor counts the events that wait for one."""
        return None

    async def connect(self, lane: str) -> str | None:
        """Open the publisher of a lane, unless it is open."""
        if lane in self._publishers:
            return None
        broker, place = _place_of(lane)
        url = self._brokers[broker]
        try:
            publisher = make_publisher(url, place)
        except (UsageError, ValueError) as error:
            return _plain(error, url)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await publisher.open()
        except TimeoutError:
            await _close(publisher)
            return f"no connection within {OPEN_TIMEOUT_S:g} s"
        except Exception as error:
            await _close(publisher)
            return _plain(error, url)
        except asyncio.CancelledError:
            await _close(publisher)
            raise
        self._publishers[lane] = publisher
        return None

    async def send(self, lane: str, batch: Sequence[Outgoing]) -> list[SendResult]:
        """Send a batch, and close the publisher when its broker is down."""
        publications = [
            Publication(
                outgoing.row.id,
                outgoing.row.key.task_id,
                outgoing.body,
                {"content-type": CONTENT_TYPE, **outgoing.trace},
            )
            for outgoing in batch
        ]
        publisher, url = self._publishers[lane], self._brokers[_place_of(lane)[0]]
        try:
            results = await publisher.send(publications)
        except Exception as error:
            results = [SendResult(False, _plain(error, url), down=True) for _ in batch]
        except asyncio.CancelledError:
            await self._discard(lane)
            raise
        if any(result.down for result in results):
            await self._discard(lane)
        return [
            result if result.ok else result._replace(detail=_without_password(result.detail, url)) for result in results
        ]

    async def _discard(self, lane: str) -> None:
        if (publisher := self._publishers.pop(lane, None)) is not None:
            await _close(publisher)

    async def close(self) -> None:
        """See `Sink`."""
        for lane in list(self._publishers):
            await self._discard(lane)


async def in_order(
    batch: Sequence[Publication], send_one: Callable[[Publication], Awaitable[SendResult]], gone: asyncio.Future[None]
) -> list[SendResult]:
    """Send events of different tasks side by side, and those of one task one after the other. When one is not taken, those behind it are
    not sent. Ends when all are answered, when the connection is `gone`, or after `SEND_TIMEOUT_S`."""
    results = [SendResult(False, "the connection to the broker was lost", down=True)] * len(batch)
    lines: dict[str, list[int]] = {}
    for position, publication in enumerate(batch):
        lines.setdefault(publication.task_id, []).append(position)

    async def send_line(positions: list[int]) -> None:
        for number, position in enumerate(positions):
            try:
                result = results[position] = await send_one(batch[position])
            except Exception as error:
                result = results[position] = SendResult(False, f"{type(error).__name__}: {error}", down=True)
            if not result.ok and not result.refused:
                for later in positions[number + 1 :]:
                    results[later] = result
                return

    sending = asyncio.gather(*[send_line(positions) for positions in lines.values()])
    gone.add_done_callback(stop := lambda _: sending.cancel())
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await sending
    except TimeoutError:
        late = SendResult(False, f"no answer within {SEND_TIMEOUT_S:g} s", down=True)
        results = [result if result.ok or result.refused else late for result in results]
    except asyncio.CancelledError:
        if not gone.done():  # it is the caller who is cancelled
            raise
    finally:
        gone.remove_done_callback(stop)
    return results


def _place_of(lane: str) -> tuple[str, str]:
    broker, _, place = lane.removeprefix(BROKER_LANE).partition("/")
    return broker, place


def _installed(url: str) -> bool:
    return importlib.util.find_spec(_client(url)[1]) is not None


async def _close(publisher: Publisher) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await publisher.close()


def _plain(error: BaseException, url: str) -> str:
    return _without_password(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, url)


def _without_password(text: str, url: str) -> str:
    """The text without the password of the URL, whichever way a client wrote it, and without values of secrets."""
    user = url.partition("://")[2].rpartition("@")[0]
    for part in {user, *user.split(":", 1)} if user else ():
        for written in {part, urllib.parse.unquote(part)} - {""}:
            text = text.replace(written, "***") if len(written) > 3 else text  # shorter ones are in any text
    return mask.text(text)[:300]
