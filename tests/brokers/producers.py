"""Foreign programs at a broker: they send messages to a place, and look at it, with the client of the broker alone."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import redis.asyncio

from rig.valkey import Valkey

_NUMBERS = itertools.count(1)


def fresh_place() -> str:
    return f"place-{os.getpid()}-{next(_NUMBERS)}"


class Producer(Protocol):
    """A place at a broker."""

    url: str
    place: str
    """As `BROKER/PLACE` of an intake has it, without the broker."""

    async def send(self, bodies: Sequence[bytes], headers: Mapping[str, str] = ...) -> None:
        """Send messages. They are safe when this returns."""
        ...

    async def unacknowledged(self) -> int:
        """Messages that were not acknowledged."""
        ...

    def kill9(self) -> None: ...

    def start(self) -> None: ...


class RedisProducer:
    def __init__(self, server: Valkey) -> None:
        self._server = server
        self.place = fresh_place()
        self.url = f"{server.url}?claim_after=1"

    async def send(self, bodies: Sequence[bytes], headers: Mapping[str, str] = {}) -> None:
        async with redis.asyncio.Redis.from_url(self._server.url) as client:
            for start in range(0, len(bodies), 500):
                pipeline = client.pipeline(transaction=False)
                for body in bodies[start : start + 500]:
                    pipeline.xadd(self.place, {**headers, "data": body})
                await pipeline.execute()

    async def unacknowledged(self) -> int:
        async with redis.asyncio.Redis.from_url(self._server.url) as client:
            groups: list[Any] = await client.xinfo_groups(self.place)
            if not groups:
                return int(await client.xlen(self.place))
            return sum(group["pending"] + (group["lag"] or 0) for group in groups)

    def kill9(self) -> None:
        self._server.kill9()

    def start(self) -> None:
        self._server.start()


def json_bodies(count: int) -> list[bytes]:
    return [json.dumps({"n": number}).encode() for number in range(count)]


def cloud_event(number: int, kind: str = "order.created") -> bytes:
    """A CloudEvent in structured form."""
    event = {"specversion": "1.0", "id": f"e{number}", "source": "/shop", "type": kind, "data": {"n": number}}
    return json.dumps(event).encode()
