"""The cache of tools that only read (`@tool(cache="10m")`): an output that another task got a moment ago need not be read again.

The journal has the output in any case, so a replay never asks the cache. A cache that fails is no reason for a tool to fail.
"""

from __future__ import annotations

import collections
import hashlib
import logging
from typing import Any, NamedTuple, Protocol

from onward.agent.tools import Tool
from onward.core import wire
from onward.core.clock import Clock
from onward.errors import InvalidInput

log = logging.getLogger("onward.cache")

MAX_ENTRY_BYTES = 262_144
"""Bytes of an output that is cached; a larger one is read again each time."""

MAX_MEMORY_BYTES = 64 << 20
"""Bytes of outputs that the cache of a process holds."""


class Cached(NamedTuple):
    """An output in the cache, and the time at which the tool gave it."""

    output: Any
    at: float


class Cache(Protocol):
    """Keeps bytes for a time. It may forget them at any moment."""

    name: str
    """Where it is, for the record: "memory", or the name of a broker."""

    async def get(self, key: str) -> bytes | None:
        """The bytes of a key; None when they are unknown, or when their time is over."""
        ...

    async def put(self, key: str, data: bytes, ttl: float) -> None:
        """Keep bytes for `ttl` seconds."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


class MemoryCache:
    """The cache of one process. It forgets first the outputs that were not used for the longest time."""

    name = "memory"

    def __init__(self, clock: Clock, most: int = MAX_MEMORY_BYTES) -> None:
        self._clock, self._most, self._size = clock, most, 0
        self._entries: collections.OrderedDict[str, tuple[bytes, float]] = collections.OrderedDict()

    async def get(self, key: str) -> bytes | None:
        data, until = self._entries.get(key, (b"", 0.0))
        if self._clock.monotonic() >= until:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return data

    async def put(self, key: str, data: bytes, ttl: float) -> None:
        self._drop(key)
        self._entries[key] = (data, self._clock.monotonic() + ttl)
        self._size += len(data)
        while self._size > self._most:
            self._drop(next(iter(self._entries)))

    async def close(self) -> None:
        self._entries.clear()
        self._size = 0

    def _drop(self, key: str) -> None:
        data, _ = self._entries.pop(key, (b"", 0.0))
        self._size -= len(data)


class ToolCache:
    """The outputs of tools, in a cache. Each tenant has outputs of its own."""

    def __init__(self, cache: Cache, clock: Clock) -> None:
        self._cache, self._clock = cache, clock

    @property
    def name(self) -> str:
        """Where the outputs are."""
        return self._cache.name

    async def get(self, tool: Tool, arguments: dict[str, Any], tenant: str | None) -> Cached | None:
        """The output of a tool for these arguments; None when it is not in the cache, or when the cache fails."""
        try:
            data = await self._cache.get(_key(tool, arguments, tenant))
            return None if data is None else Cached(*wire.decode(data))
        except Exception as error:
            log.warning("the cache gave no output for tool %s: %r", tool.name, error)
            return None

    async def put(self, tool: Tool, arguments: dict[str, Any], tenant: str | None, output: Any) -> None:
        """Keep an output, if it is JSON and not too large."""
        assert tool.cache is not None
        try:
            data = wire.encode([output, self._clock.now()], most=MAX_ENTRY_BYTES)
            await self._cache.put(_key(tool, arguments, tenant), data, tool.cache)
        except InvalidInput:
            return
        except Exception as error:
            log.warning("the cache did not keep the output of tool %s: %r", tool.name, error)

    async def close(self) -> None:
        """Disconnect. Never raises."""
        try:
            await self._cache.close()
        except Exception as error:
            log.info("the cache did not close: %r", error)


def _key(tool: Tool, arguments: dict[str, Any], tenant: str | None) -> str:
    function = tool.function
    place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', tool.name)}"
    return hashlib.sha256(wire.fingerprint([tenant, place, tool.name, arguments]).encode()).hexdigest()
