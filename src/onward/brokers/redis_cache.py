"""Redis or Valkey as the cache of tools, shared by all workers."""

from __future__ import annotations

import redis.asyncio

from onward.brokers.options import client_url

PREFIX = "onward:cache:"
TIMEOUT_S = 1.0
"""Seconds for a connection, and for an answer: a slow cache must not be slower than the tool."""


class RedisCache:
    """Keeps bytes in Redis, which forgets them after their time."""

    def __init__(self, broker: str, url: str) -> None:
        self.name = broker
        self._client = redis.asyncio.Redis.from_url(
            client_url(url), socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S
        )

    async def get(self, key: str) -> bytes | None:
        """The bytes of a key, or None."""
        data = await self._client.get(PREFIX + key)
        return data.encode() if isinstance(data, str) else data

    async def put(self, key: str, data: bytes, ttl: float) -> None:
        """Keep bytes for `ttl` seconds."""
        await self._client.set(PREFIX + key, data, px=max(1, int(ttl * 1000)))

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()
