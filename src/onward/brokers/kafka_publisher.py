"""Kafka as a way out: an idempotent producer, acknowledged by all replicas in sync, with the task's id as key.

The producer numbers its messages, and a broker takes the next number of a partition only. So what a partition has after a failure is a
beginning of what was sent, and the events of a task keep their order. The client works in a thread.

The producer puts events into record batches. A topic has a largest record batch (`max.message.bytes`), which a producer cannot ask for, and
refuses a larger one as a whole. The producer then ends, so that no later event overtakes those, and another one sends them in smaller
batches. An event that is refused alone is too large for the topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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

log = logging.getLogger("onward.brokers.kafka")

METADATA_TIMEOUT_S = 6.0
POLL_S, FLUSH_S, ENDED_S = 0.05, 0.5, 0.3
"""Seconds of one call for reports, for the last reports at a close, and for those of a producer that ended."""

SETTINGS = {
    "enable.idempotence": True,
    "acks": "all",
    "message.timeout.ms": 0,  # none is given up alone: those behind it would overtake it
    "enable.gapless.guarantee": True,  # nor is a record batch that the topic refuses: the producer ends there
    "linger.ms": 2,
    "compression.type": "none",
    "log_level": 0,  # errors reach us as results
    "client.id": "onward",
}
BATCH_BYTES = (131_072, 16_384, 2_048, 1)
"""Bytes of a record batch with more than one event, at first, and where a topic takes less."""

MAX_PRODUCERS = 20
"""Producers that one call of `send` makes, one after the other. What is left then is sent later."""

BEHIND = SendResult(False, "it stands behind events that are too large for the topic", down=True)
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE})


class KafkaPublisher:
    """One topic. `kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT][?SETTING=VALUE]`; the settings are those of librdkafka."""

    def __init__(self, url: str, place: str) -> None:
        self._settings, self._topic = _settings(url), place
        self._producer: Producer | None = None
        self._size = 0
        """The place in `BATCH_BYTES` of the size that this topic takes."""
        self._closing = threading.Event()

    async def open(self) -> None:
        """Connect, and see that the topic is there."""
        self._make_producer()
        await asyncio.to_thread(self._check)

    def _make_producer(self) -> None:
        settings = self._settings | SETTINGS | {"batch.size": BATCH_BYTES[self._size]}
        self._producer = Producer(settings, logger=log)  # else it writes to stderr that it ended

    def _check(self) -> None:
        assert self._producer is not None
        topic = self._producer.list_topics(self._topic, timeout=METADATA_TIMEOUT_S).topics[self._topic]
        if topic.error is not None:
            raise UsageError(f"topic {self._topic!r}: {topic.error.str()}")

    async def send(self, batch: Sequence[Publication]) -> list[SendResult]:
        """Send all, and await the reports."""
        results: list[SendResult] = [BEHIND] * len(batch)
        left = list(range(len(batch)))
        for _ in range(MAX_PRODUCERS):
            sent = await asyncio.to_thread(self._send, [batch[position] for position in left])
            for position, result in zip(left, sent, strict=True):
                results[position] = result
            if self._closing.is_set() or not any(result.refused for result in sent):
                break
            left = [
                position for position in left if not results[position].ok and not self._alone(batch, results, position)
            ]
            if any(results[position].refused for position in left):
                self._size += 1
            await asyncio.to_thread(self._end)
            self._make_producer()
            if not left:
                break
        else:
            for position in left:
                results[position] = BEHIND
        return results

    def _alone(self, batch: Sequence[Publication], results: Sequence[SendResult], position: int) -> bool:
        """Whether the topic refused an event that was in no batch with others."""
        return results[position].refused and len(batch[position].body) >= BATCH_BYTES[self._size]

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
        idle_polls, most = 0, SEND_TIMEOUT_S / POLL_S
        while len(reports) < waiting and idle_polls < most and not self._closing.is_set():
            try:
                idle_polls += producer.poll(POLL_S) == 0
            except KafkaException:  # the producer ended; the reports say why, and some events get none
                most = idle_polls + ENDED_S / POLL_S
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
            with contextlib.suppress(KafkaException):
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
