"""Bells: a broker carries the nudges between processes, where a transaction pooler keeps LISTEN and NOTIFY away.

A nudge is a hint, so a bell stores nothing: Redis publishes on a channel, NATS on a subject. While the broker is away, processes poll.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from onward.brokers.connect import EXTRAS, scheme_of
from onward.brokers.options import client_url
from onward.core.clock import Clock
from onward.core.shutdown import end_tasks
from onward.engine.background import Spawn, spawn
from onward.errors import BadSetting, UsageError
from onward.store.nudge import ENDED, READY, Gathered

log = logging.getLogger("onward.bell")

DEFAULT_CHANNEL = "onward.bell"
MAX_MESSAGE_BYTES = 1000
"""Bytes of one message; a longer one is not ours."""
CONNECT_TIMEOUT_S = 5.0
MIN_DELAY_S, MAX_DELAY_S = 0.1, 5.0
"""The shortest and the longest pause before the next connection."""
CLOSE_TIMEOUT_S = 5.0


class _Bell(abc.ABC):
    """A bell over one connection, which a background task keeps."""

    def __init__(self, broker: str, url: str, channel: str, clock: Clock, spawn: Spawn) -> None:
        self._broker, self._url, self._channel, self._clock, self._spawn = broker, url, channel, clock, spawn
        self._gathered: Gathered | None = None
        self._task: asyncio.Task[None] | None = None
        self._pending: dict[str, None] = {}
        self._stirred = asyncio.Event()
        self._connected = asyncio.Event()

    @property
    def listening(self) -> bool:
        return self._connected.is_set() and self._gathered is not None

    async def connected(self) -> None:
        self._begin()
        await self._connected.wait()

    def ring(self, topics: Sequence[str]) -> None:
        self._pending |= dict.fromkeys(topics)
        self._stirred.set()
        self._begin()

    def listen(self, heard: Callable[[str], None]) -> None:
        if self._gathered is None:
            self._gathered = Gathered(heard)
        self._begin()

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task], CLOSE_TIMEOUT_S, log, "closing the bell")
            self._task = None
        if self._gathered is not None:
            self._gathered.close()
            self._gathered = None

    def _begin(self) -> None:
        if self._task is None:
            self._task = self._spawn(self._run(), "onward-bell")

    async def _run(self) -> None:
        delay, away = MIN_DELAY_S, False
        while True:
            try:
                async with self._connection() as send:
                    self._connected.set()
                    delay, away = MIN_DELAY_S, False
                    for topic in (READY, ENDED):  # nudges that may have been missed
                        self._hear(topic)
                    await self._keep_sending(send)
            except Exception as error:
                if not away:
                    log.warning("broker %s carries no nudges now, so processes poll: %r", self._broker, error)
                away = True
            finally:
                self._connected.clear()
            await self._clock.sleep(delay)
            delay = min(delay * 2, MAX_DELAY_S)

    async def _keep_sending(self, send: Callable[[bytes], Any]) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            topics, self._pending = list(self._pending), {}
            if topics:
                await send("\n".join(topics).encode())

    def _hear(self, topic: str) -> None:
        if self._gathered is not None:
            self._gathered.add(topic)

    def _receive(self, data: bytes) -> None:
        if len(data) <= MAX_MESSAGE_BYTES:
            for topic in data.decode("utf-8", "ignore").split("\n"):
                self._hear(topic)

    @abc.abstractmethod
    def _connection(self) -> contextlib.AbstractAsyncContextManager[Callable[[bytes], Any]]:
        """A connection that calls `_receive`; it gives the function that sends. A broken connection raises in the block."""


class RedisBell(_Bell):
    """Publishes on a channel of Redis or Valkey."""

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Callable[[bytes], Any]]:
        import redis.asyncio  # noqa: PLC0415 -- an extra

        async with (
            redis.asyncio.Redis.from_url(self._url, socket_connect_timeout=CONNECT_TIMEOUT_S) as client,
            client.pubsub() as subscriber,
        ):
            await subscriber.subscribe(self._channel)
            async with _ending_with(self._read(subscriber)):
                yield lambda data: client.publish(self._channel, data)

    async def _read(self, subscriber: Any) -> None:
        async for message in subscriber.listen():
            if message["type"] == "message":
                self._receive(message["data"])


class NatsBell(_Bell):
    """Publishes on a subject of NATS, without JetStream."""

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Callable[[bytes], Any]]:
        import nats  # noqa: PLC0415 -- an extra

        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        async def on_error(error: Exception) -> None:
            log.debug("nats: %r", error)

        connection = await nats.connect(
            self._url,
            allow_reconnect=False,
            connect_timeout=int(CONNECT_TIMEOUT_S),
            closed_cb=on_closed,
            disconnected_cb=on_closed,
            error_cb=on_error,
        )
        try:

            async def take(message: Any) -> None:
                self._receive(message.data)

            await connection.subscribe(self._channel, cb=take)

            async def watch() -> None:
                await closed.wait()
                raise ConnectionError("the connection was closed")

            async def send(data: bytes) -> None:
                await connection.publish(self._channel, data)
                await connection.flush(int(CONNECT_TIMEOUT_S))

            async with _ending_with(watch()):
                yield send
        finally:
            with contextlib.suppress(Exception):
                await connection.close()


@contextlib.asynccontextmanager
async def _ending_with(*work: Any) -> AsyncIterator[None]:
    """Run coroutines beside the block. When one of them raises, the block is cancelled and the error raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def make_bell(where: str, brokers: Mapping[str, str], clock: Clock) -> _Bell:
    """The bell of the setting `bell`, `BROKER` or `BROKER/CHANNEL`. Raises BadSetting, and UsageError when its client is not installed."""
    broker, _, channel = where.partition("/")
    if broker not in brokers:
        raise BadSetting(
            "bell", where, f"BROKER or BROKER/CHANNEL, with one of the brokers {', '.join(brokers) or '(none)'}"
        )
    extra = EXTRAS[scheme_of(broker, brokers[broker])]
    kinds: dict[str, type[_Bell]] = {"redis": RedisBell, "nats": NatsBell}
    if extra not in kinds:
        raise BadSetting("bell", where, "a broker of redis:// or nats://: it must carry hints that it does not store")
    if importlib.util.find_spec(extra) is None:
        raise UsageError(f"{extra} is not installed; pip install 'onward[{extra}]'")
    return kinds[extra](broker, client_url(brokers[broker]), channel or DEFAULT_CHANNEL, clock, spawn)
