"""Kafka as a way in.

Each process is a member of the consumer group. One thread calls the consumer: it fetches and commits when the intake asks for it, and polls
in between, so that the group does not take the process for dead while its messages wait for the store. It commits offsets itself, up to the
last message of a partition before which all are done. Partitions that the group takes away are forgotten: their messages come to another
process, and nothing is committed for them here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from onward.brokers.kafka_url import connection_settings
from onward.brokers.message import Received
from onward.brokers.options import Options
from onward.brokers.port import Finding
from onward.brokers.progress import Progress
from onward.core.clock import Clock
from onward.errors import BrokerUnavailable

log = logging.getLogger("onward.intake.kafka")

ANSWER_TIMEOUT_S = 10.0
"""Seconds for an answer of the cluster."""

CLOSE_TIMEOUT_S = 10.0
"""Seconds for leaving the group."""

CHECK_TIMEOUT_S = 2.5
"""Seconds for the answer to a check of `onward doctor`."""

KEEP_POLLING_S = 1.0
"""Seconds without a request of the intake after which the thread polls by itself, with its partitions paused."""

POLL_S = 0.05
"""Seconds of one call of the client for messages: a commit waits for its end."""

AWAY_S = 10.0
"""Seconds without any broker after which the source asks whether the cluster answers. Until then the client connects again by itself."""

MAX_QUEUED_KIB, MAX_FETCH_BYTES = 16_384, 8 << 20
"""Bounds of the messages that the client keeps in memory before the intake fetches them, and of one answer."""

MIN_QUEUED, FETCH_PAUSE_MS = 2000, 20
"""Messages of a partition that the client likes to have in memory, and milliseconds after which it looks again whether it has less. (Its
own default is a second, in which an intake takes more messages than that.)"""

SESSION_TIMEOUT_S = 30.0
"""Seconds after which the group gives the partitions of a silent process to others."""

MAX_HEARTBEAT_S = 3.0
"""The longest pause between two heartbeats of a member."""

CLIENT_OPTIONS = ("security.", "sasl.", "ssl.", "client.", "socket.")
"""Beginnings of the options of the client that a URL may have."""

REBALANCE_ERRORS = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._ASSIGNMENT_LOST,
    }
)
"""Errors of a commit while the group shares out its partitions anew. What is not committed is committed later, or comes again."""

Answer = TypeVar("Answer")


@dataclasses.dataclass(slots=True)
class _Partition:
    """A partition that the group gave to this process."""

    number: int
    progress: Progress = dataclasses.field(default_factory=Progress)
    committed: int = -1
    """The last message for which an offset was committed."""


class KafkaSource:
    """One topic, read by one member of a group. `url` is `kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]`, with options of the client such
    as `?security.protocol=SASL_SSL`, and `session_timeout=SECONDS`."""

    def __init__(self, broker: str, url: str, topic: str, group: str, consumer: str, clock: Clock) -> None:
        self._broker, self._topic, self._group, self._clock = broker, topic, group, clock
        options = Options(broker, url)
        self._session_s = options.seconds("session_timeout", SESSION_TIMEOUT_S, 1.0, 1800.0)
        self._client_settings = _client_settings(options, consumer)
        self._consumer: Consumer | None = None
        self._commands: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="onward-kafka", daemon=True)
        # The following are touched by the thread alone.
        self._partitions: dict[int, _Partition] = {}
        self._spare: list[Message] = []
        self._paused = False
        self._away_since: float | None = None
        self._fatal = ""

    async def open(self) -> None:
        """Look at the topic, and join the group."""
        self._thread.start()
        await self._call(self._open)

    async def fetch(self, most: int, wait: float) -> Sequence[Received]:
        """Messages that the client has, or the first that comes."""
        return await self._call(functools.partial(self._fetch, most, wait))

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Commit offsets, and wait for the answer."""
        await self._call(functools.partial(self._acknowledge, [item.token for item in received]))

    async def hold(self, received: Sequence[Received]) -> None:
        """The thread polls by itself: there is nothing to do."""

    async def lag(self) -> int | None:
        """Messages behind the committed offsets, in all partitions of the topic."""
        return await self._call(self._lag)

    async def check(self) -> Sequence[Finding]:
        """Whether the topic exists, and whether it has copies."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> list[Finding]:
        client = Consumer(
            {**self._client_settings, "group.id": self._group}
        )  # it joins no group without a subscription
        try:
            topics = client.list_topics(timeout=CHECK_TIMEOUT_S).topics
        except KafkaException as error:
            raise self._unavailable(error) from None
        finally:
            client.close()
        if not self._topic:
            return []
        if self._topic not in topics:
            raise self._unavailable(KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC)))
        copies = min([len(partition.replicas) for partition in topics[self._topic].partitions.values()], default=0)
        text = f"the topic {self._topic} has one copy; a broker that is lost takes its messages along: use 3, and min.insync.replicas=2"
        return [Finding(None, text)] if copies < 2 else []

    async def close(self) -> None:
        """Leave the group."""
        self._commands.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    async def _call(self, work: Callable[[], Answer]) -> Answer:
        """Let the thread do it."""
        future: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        self._commands.put((future, work))
        try:
            return await asyncio.wrap_future(future)
        except KafkaException as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: KafkaException) -> BrokerUnavailable:
        reason: KafkaError = error.args[0]
        if reason.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:
            return BrokerUnavailable(
                self._broker,
                f"there is no topic {self._topic}; make it with "
                f"`kafka-topics.sh --bootstrap-server HOST:PORT --create --topic {self._topic} --partitions 6`",
            )
        return BrokerUnavailable(self._broker, f"{reason.name()}: {reason.str()}")

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while True:
            try:
                command = self._commands.get(timeout=KEEP_POLLING_S)
            except queue.Empty:
                self._keep_polling()
                continue
            if command is None:
                break
            future, work = command
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:
                    future.set_exception(error)
        if self._consumer is not None:
            try:
                self._consumer.close()
            except (KafkaException, RuntimeError) as error:
                log.info("broker %s: the consumer did not leave its group: %s", self._broker, error)

    def _open(self) -> None:
        self._consumer = Consumer(
            {
                **self._client_settings,
                "group.id": self._group,
                "session.timeout.ms": int(self._session_s * 1000),
                "heartbeat.interval.ms": int(min(self._session_s / 4, MAX_HEARTBEAT_S) * 1000),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "partition.assignment.strategy": "cooperative-sticky",
                "queued.max.messages.kbytes": MAX_QUEUED_KIB,
                "queued.min.messages": MIN_QUEUED,
                "fetch.queue.backoff.ms": FETCH_PAUSE_MS,
                "fetch.max.bytes": MAX_FETCH_BYTES,
                "error_cb": self._note_error,
            },
            logger=log,
        )
        self._partition_numbers()
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def _fetch(self, most: int, wait: float) -> list[Received]:
        assert self._consumer is not None
        self._check_cluster()
        self._commit()
        if self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False
        messages, self._spare = self._spare[:most], self._spare[most:]
        if not messages and (first := self._poll(wait)) is not None:
            messages.append(first)
        if messages and len(messages) < most:
            messages += self._consumer.consume(most - len(messages), timeout=0)
        return [received for message in messages if (received := self._received(message)) is not None]

    def _poll(self, wait: float) -> Message | None:
        """The first message that comes. None after so many seconds, and when the intake wants something else meanwhile."""
        assert self._consumer is not None
        for _ in range(max(1, math.ceil(wait / POLL_S))):
            if (message := self._consumer.poll(min(wait, POLL_S))) is not None or not self._commands.empty():
                return message
        return None

    def _received(self, message: Message) -> Received | None:
        """None for a message of a partition that is no longer ours."""
        if (error := message.error()) is not None:
            raise KafkaException(error)
        number, offset = message.partition(), message.offset()
        assert number is not None
        assert offset is not None
        partition = self._partitions.get(number)
        if partition is None:
            return None
        self._away_since = None
        partition.progress.deliver(offset)
        headers = {header[0].lower(): _text(header[1]) for header in message.headers() or []}
        # With the time of the message: in a topic that was deleted and made again, offsets begin anew.
        position = f"{self._topic}/{number}/{offset}@{message.timestamp()[1]}"
        return Received(headers, message.value() or b"", position, token=(partition, offset))

    def _acknowledge(self, tokens: Sequence[tuple[_Partition, int]]) -> None:
        for partition, offset in tokens:
            partition.progress.finish(offset)
        self._commit()

    def _commit(self) -> None:
        """Commit the offsets that are due. In a rebalance they stay due."""
        due = [
            TopicPartition(self._topic, partition.number, partition.progress.last + 1)
            for partition in self._partitions.values()
            if partition.progress.last > partition.committed
        ]
        if not due:
            return
        assert self._consumer is not None
        try:
            answers = self._consumer.commit(offsets=due, asynchronous=False) or []
        except KafkaException as error:
            if error.args[0].code() in REBALANCE_ERRORS:
                return
            raise
        for answer in answers:
            if answer.error is None:
                self._partitions[answer.partition].committed = answer.offset - 1
            elif answer.error.code() not in REBALANCE_ERRORS:
                raise KafkaException(answer.error)

    def _keep_polling(self) -> None:
        """Stay in the group without taking messages. A message of a partition that came meanwhile is kept for the next fetch."""
        if self._consumer is None:
            return
        try:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
            if (message := self._consumer.poll(0)) is not None:
                self._spare.append(message)
        except (KafkaException, RuntimeError) as error:
            log.info("broker %s: %s", self._broker, error)

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            self._partitions[place.partition] = _Partition(place.partition)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {place.partition for place in partitions}
        for number in gone:
            self._partitions.pop(number, None)
        self._spare = [message for message in self._spare if message.partition() not in gone]

    def _note_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = f"{error.name()}: {error.str()}"
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self._away_since is None:
            self._away_since = self._clock.monotonic()

    def _check_cluster(self) -> None:
        """Raises BrokerUnavailable when the client cannot go on, or no broker has answered for a while."""
        assert self._consumer is not None
        if self._fatal:
            raise BrokerUnavailable(self._broker, self._fatal)
        if self._away_since is not None and self._clock.monotonic() - self._away_since > AWAY_S:
            self._partition_numbers()
            self._away_since = None

    def _lag(self) -> int | None:
        if self._consumer is None or self._away_since is not None:
            return None
        numbers = self._partition_numbers()
        committed = self._consumer.committed(self._places(numbers), timeout=ANSWER_TIMEOUT_S)
        ends, starts = self._offsets(numbers, OFFSET_END), self._offsets(numbers, OFFSET_BEGINNING)
        done = {place.partition: place.offset for place in committed}
        return sum(max(0, ends[number] - max(starts[number], done[number])) for number in numbers)

    def _offsets(self, numbers: Sequence[int], which: int) -> dict[int, int]:
        assert self._consumer is not None
        places = self._consumer.offsets_for_times(self._places(numbers, which), timeout=ANSWER_TIMEOUT_S)
        return {place.partition: place.offset for place in places}

    def _partition_numbers(self) -> list[int]:
        """The partitions of the topic. Raises KafkaException when it is missing, or no broker answers."""
        assert self._consumer is not None
        topic = self._consumer.list_topics(self._topic, timeout=ANSWER_TIMEOUT_S).topics[self._topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        return list(topic.partitions)

    def _places(self, numbers: Sequence[int], offset: int = 0) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number, offset) for number in numbers]


def _client_settings(options: Options, consumer: str) -> dict[str, Any]:
    """The settings of the client. Raises BadSetting."""
    chosen = options.starting_with(*CLIENT_OPTIONS)
    options.finish()
    settings = connection_settings(options.url) | {
        "client.id": f"onward-{consumer}",
        "socket.timeout.ms": int(ANSWER_TIMEOUT_S * 1000),
        "log.connection.close": False,
    }
    return settings | chosen


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
