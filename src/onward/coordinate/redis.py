"""Redis (or Valkey) as a coordinator of locks.

A lock is a hash that expires. Its token is counted in the same script that takes the lock, by one counter for all locks, so it never goes
back while the server keeps its data. After a failover to a replica that lagged behind, both the lock and the counter may be older:
use Redis for locks that save work, and the store or etcd where two holders at once would do harm.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from typing import Any

from onward.coordinate.port import UNREACHABLE_AFTER_S, key_of
from onward.core.lock import Busy, LockRequest, Taken
from onward.errors import CoordinatorUnavailable, UsageError

PREFIX = "onward:{locks}:"
"""The beginning of all keys. The braces keep them in one slot of a cluster, which a script needs."""

COUNTER = f"{PREFIX}token"

TAKE = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return {0, redis.call('HGET', KEYS[1], 'label')} end
local token = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'label', ARGV[2], 'token', token)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {token, ''}
"""
RENEW = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[2] ~= '0' and redis.call('HGET', KEYS[1], 'token') ~= ARGV[2] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
FREE = """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class RedisCoordinator:
    """See `port.Coordinator`."""

    name = "redis"

    def __init__(self, url: str) -> None:
        try:
            from redis.asyncio import Redis  # noqa: PLC0415 -- an extra
            from redis.exceptions import RedisError  # noqa: PLC0415 -- an extra
        except ImportError:
            raise UsageError(
                "the coordinator is a Redis, and its client is not installed; pip install 'onward[redis]'"
            ) from None
        parts = urllib.parse.urlsplit(url)
        self.where = f"{parts.scheme}://{parts.hostname or 'localhost'}:{parts.port or 6379}"
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError, asyncio.TimeoutError)
        self._redis: Any = Redis.from_url(
            url, socket_timeout=UNREACHABLE_AFTER_S, socket_connect_timeout=UNREACHABLE_AFTER_S, decode_responses=True
        )

    async def take(self, request: LockRequest, ttl_s: float) -> Taken | Busy:
        keys = (PREFIX + key_of(request), COUNTER)
        token, holder = await self._eval(TAKE, keys, request.owner, request.label, int(ttl_s * 1000))
        return Taken(int(token)) if token else Busy(str(holder))

    async def renew(self, request: LockRequest, token: int, ttl_s: float) -> bool:
        keys = (PREFIX + key_of(request),)
        return bool(await self._eval(RENEW, keys, request.owner, str(token), int(ttl_s * 1000)))

    async def free(self, request: LockRequest) -> None:
        await self._eval(FREE, (PREFIX + key_of(request),), request.owner)

    async def check(self) -> str:
        try:
            info = await self._redis.info("server")
        except self._errors as error:
            raise self._unavailable(error) from None
        version = info.get("valkey_version") or info.get("redis_version") or "?"
        return f"{self.where}, {info.get('server_name', 'redis')} {version}"

    async def close(self) -> None:
        await self._redis.aclose()

    async def _eval(self, script: str, keys: tuple[str, ...], *values: Any) -> Any:
        try:
            return await self._redis.eval(script, len(keys), *keys, *values)
        except self._errors as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> CoordinatorUnavailable:
        return CoordinatorUnavailable(f"the coordinator {self.where} does not answer: {type(error).__name__}: {error}")
