"""Kafka as a way out: an idempotent producer, acknowledged by all replicas in sync, with the task's id as key.

The producer numbers its messages, and a broker takes the next number of a partition only. So what a partition has after a failure is a
beginning of what was sent, and the events of a task keep their order. The client works in a thread.
"""

from __future__ import annotations

import asyncio
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from onward.brokers.kafka_url import connection_settings
from onward.brokers.options import client_url
from onward.brokers.publishing import SEND_TIMEOUT_S, Publication
from onward.engine.worker.sinks import SendResult
from onward.errors import UsageError

METADATA_TIMEOUT_S = 6.0
POLL_S, FLUSH_S = 0.05, 0.5

SETTINGS = {
    "enable.idempotence": True,
    "acks": "all",
    "message.timeout.ms": 0,  # none is given up alone: those behind it would overtake it
    "linger.ms": 2,
    "batch.size": 131_072,
    "compression.type": "none",
    "log_level": 0,  # errors reach us as results
    "client.id": "onward",
}
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE})


class KafkaPublisher:
    """One topic. `kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT][?SETTING=VALUE]`; the settings are those of librdkafka."""

    def __init__(self, url: str, place: str) -> None:
        self._settings, self._topic = _settings(url), place
        self._producer: Producer | None = None
        self._closing = threading.Event()

    async def open(self) -> None:
        """Connect, and see that the topic is there."""
        self._producer = Producer(self._settings | SETTINGS)
        await asyncio.to_thread(self._check)

    def _check(self) -> None:
        assert self._producer is not None
        topic = self._producer.list_topics(self._topic, timeout=METADATA_TIMEOUT_S).topics[self._topic]
        if topic.error is not None:
            raise UsageError(f"topic {self._topic!r}: {topic.error.str()}")

    async def send(self, batch: Sequence[Publication]) -> list[SendResult]:
        """Send all, and await the reports."""
        results = await asyncio.to_thread(self._send, batch)
        for position, result in enumerate(results):
            # The limit is for a batch of messages: one that is too large among others may not be so alone.
            if result.refused and len(batch) > 1:
                (results[position],) = await asyncio.to_thread(self._send, [batch[position]])
        return results

    def _send(self, batch: Sequence[Publication]) -> list[SendResult]:
        producer = self._producer
        assert producer is not None
        results: list[SendResult | None] = [None] * len(batch)
        reports: list[tuple[int, KafkaError | None]] = []
        waiting = 0

        def reporter(position: int) -> Callable[[KafkaError | None, Any], None]:
            return lambda error, _: reports.append((position, error))

        for position, publication in enumerate(batch):
            try:
                producer.produce(
                    self._topic,
                    publication.body,
                    key=publication.task_id.encode(),
                    headers=[("id", publication.id), *publication.headers.items()],
                    on_delivery=reporter(position),
                )
            except (KafkaException, BufferError) as raised:
                result = results[position] = _result(raised.args[0] if raised.args else None)
                if not result.refused:
                    break
                continue
            waiting += 1
        idle_polls = 0
        while len(reports) < waiting and idle_polls < SEND_TIMEOUT_S / POLL_S and not self._closing.is_set():
            idle_polls += producer.poll(POLL_S) == 0
        for position, error in reports:
            results[position] = SendResult(True, "acknowledged") if error is None else _result(error)
        late = SendResult(False, f"no answer within {SEND_TIMEOUT_S:g} s", down=True)
        return [late if result is None else result for result in results]

    async def close(self) -> None:
        """Disconnect; nothing that was not answered is sent afterwards."""
        self._closing.set()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:  # its memory is freed here too: the client waits for its own threads then
            producer.purge()
            producer.flush(FLUSH_S)


def _result(error: Any) -> SendResult:
    if not isinstance(error, KafkaError):
        return SendResult(False, f"Kafka: {error}", down=True)
    refused = error.code() in TOO_LARGE
    return SendResult(False, f"Kafka: {error.str()}", down=not refused, refused=refused)


def _settings(url: str) -> dict[str, Any]:
    """The settings of the client, with the options of the URL. Raises BadSetting."""
    url = client_url(url)
    return connection_settings(url) | dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
