"""Redis and Valkey streams as a way in.

Each process is a consumer of the group. A consumer that dies leaves entries that it did not acknowledge; the other consumers claim them
when they have been idle for `CLAIM_IDLE_S`.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from onward.brokers.message import Received
from onward.brokers.options import Options, client_url
from onward.brokers.port import Finding
from onward.core import wire
from onward.core.clock import Clock
from onward.errors import BrokerUnavailable

CLAIM_IDLE_S = 30.0
"""Seconds after which another consumer takes entries that one did not acknowledge. A consumer that holds entries resets that time."""

CLAIM_INTERVAL_S = 5.0
"""Seconds between two looks for such entries."""

CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 20.0
"""Seconds for a connection, and for an answer. A fetch waits at most a few seconds."""

DEAD_CONSUMER_S = 3600.0
"""Seconds after which a consumer without entries is removed from the group."""

BODY_FIELD = "data"
"""The field of an entry that is the body of the message; the other fields are its headers."""

_BODY_NAME = BODY_FIELD.encode()
_NO_HEADERS: Mapping[str, str] = types.MappingProxyType({})

_SAFE = "appendonly yes, appendfsync always and maxmemory-policy noeviction"


class RedisSource:
    """One stream, read by one consumer of a group. `url` may have `?claim_after=SECONDS`."""

    def __init__(self, broker: str, url: str, stream: str, group: str, consumer: str, clock: Clock) -> None:
        self._broker, self._stream, self._group, self._consumer, self._clock = broker, stream, group, consumer, clock
        self._url = client_url(url)
        self._claim_after_s = Options(broker, url).seconds("claim_after", CLAIM_IDLE_S, 0.05, 3600.0)
        self._next_claim = -math.inf
        self._client: redis.asyncio.Redis | None = None

    async def open(self) -> None:
        """Connect, and make the group where it is missing."""
        self._connect()
        async with self._answers() as client:
            try:
                await client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    async def fetch(self, most: int, wait: float) -> Sequence[Received]:
        """Entries of dead consumers first, then new ones."""
        async with self._answers() as client:
            if self._clock.monotonic() >= self._next_claim:
                self._next_claim = self._clock.monotonic() + min(CLAIM_INTERVAL_S, self._claim_after_s)
                await self._remove_dead_consumers(client)
                claimed = await client.xautoclaim(
                    self._stream, self._group, self._consumer, int(self._claim_after_s * 1000), count=most
                )
                if entries := [_received(self._stream, id_, fields) for id_, fields in claimed[1] if fields]:
                    self._next_claim = -math.inf  # there may be more
                    return entries
            answer = await client.xreadgroup(
                self._group, self._consumer, {self._stream: ">"}, count=most, block=max(1, int(wait * 1000))
            )
        return [_received(self._stream, id_, fields) for id_, fields in _entries(answer)]

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """XACK."""
        async with self._answers() as client:
            await client.xack(self._stream, self._group, *[item.token for item in received])

    async def hold(self, received: Sequence[Received]) -> None:
        """Claim the entries anew, which resets their idle time."""
        if received:
            async with self._answers() as client:
                ids = [item.token for item in received]
                await client.xclaim(self._stream, self._group, self._consumer, 0, ids, justid=True)

    async def lag(self) -> int | None:
        """Entries that the group has not read, and those that it has not acknowledged."""
        async with self._answers() as client:
            for group in await client.xinfo_groups(self._stream):
                if group["name"] == self._group.encode():
                    return None if group.get("lag") is None else int(group["lag"]) + int(group["pending"])
        return None

    async def check(self) -> Sequence[Finding]:
        """Whether the stream exists, and whether the server keeps entries over a crash and when its memory is full."""
        self._connect()
        async with self._answers() as client:
            await client.ping()
            findings = await self._check_settings(client)
            if self._stream and (kind := _string(await client.type(self._stream))) != "stream":
                findings.append(
                    Finding(None, f"there is no stream {self._stream} yet; the intake makes it")
                    if kind == "none"
                    else Finding(False, f"{self._stream} is a {kind} and no stream; name another place, or rename it")
                )
        return findings

    async def _check_settings(self, client: redis.asyncio.Redis) -> list[Finding]:
        try:
            settings = await client.config_get("appendonly", "appendfsync", "maxmemory-policy")
        except ResponseError:  # many hosted servers refuse it
            return [Finding(None, f"it does not show its settings; see that it has {_SAFE}")]
        findings = []
        if settings.get("appendonly") != "yes":
            findings.append(Finding(None, "it loses new entries in a crash (appendonly no); set appendonly yes"))
        elif settings.get("appendfsync") != "always":
            sync = settings.get("appendfsync")
            text = f"it may lose the last entries in a crash (appendfsync {sync}); set appendfsync always"
            findings.append(Finding(None, text))
        if settings.get("maxmemory-policy") != "noeviction":
            policy = settings.get("maxmemory-policy")
            text = f"it may delete streams when its memory is full (maxmemory-policy {policy}); set noeviction"
            findings.append(Finding(None, text))
        return findings

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._client.aclose()

    def _connect(self) -> None:
        self._client = redis.asyncio.Redis.from_url(
            self._url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            max_connections=4,
        )

    async def _remove_dead_consumers(self, client: Any) -> None:
        for consumer in await client.xinfo_consumers(self._stream, self._group):
            name = consumer["name"].decode("utf-8", "replace")
            if name != self._consumer and not consumer["pending"] and consumer["idle"] > DEAD_CONSUMER_S * 1000:
                await client.xgroup_delconsumer(self._stream, self._group, name)

    @contextlib.asynccontextmanager
    async def _answers(self) -> AsyncIterator[redis.asyncio.Redis]:
        """The client; its errors as BrokerUnavailable."""
        assert self._client is not None
        try:
            yield self._client
        except (RedisError, OSError, TimeoutError) as error:
            raise BrokerUnavailable(self._broker, f"{type(error).__name__}: {error}") from None


def _string(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _entries(answer: Any) -> list[Any]:
    """The entries of an answer to XREADGROUP, in the form of RESP2 (a list) or RESP3 (an object)."""
    if not answer:
        return []
    if isinstance(answer, Mapping):
        pages = next(iter(answer.values()))
        return list(pages[0]) if pages and isinstance(pages[0], list) else list(pages)
    return list(answer[0][1])


def _received(stream: str, entry_id: bytes, fields: Mapping[bytes, bytes]) -> Received:
    if len(fields) == 1 and (body := fields.get(_BODY_NAME)) is not None:  # as most entries are
        return Received(_NO_HEADERS, body, f"{stream}/{entry_id.decode('ascii', 'replace')}", "", entry_id)
    texts = {name.decode("utf-8", "replace").lower(): value for name, value in fields.items()}
    position = f"{stream}/{entry_id.decode('ascii', 'replace')}"
    if BODY_FIELD in texts:
        body = texts.pop(BODY_FIELD)
        headers = {name: value.decode("utf-8", "replace") for name, value in texts.items()}
        return Received(headers, body, position, headers.get("message_id", ""), entry_id)
    return Received({"content-type": "application/json"}, _object(fields), position, "", entry_id)


def _object(fields: Mapping[bytes, bytes]) -> bytes:
    """An entry without the field `data`: all of its fields as one JSON object."""
    names = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields.items()}
    return wire.encode(names)
