"""Redis and Valkey streams as a way out.

One script adds a batch of events to the stream, and leaves out those whose ids it has seen within the window. A script runs alone and as a
whole, so events keep their order, and an event is in the stream when its id is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from onward.brokers.options import Options, client_url
from onward.brokers.publishing import SEND_TIMEOUT_S, Publication
from onward.engine.worker.sinks import SendResult
from onward.errors import BadSetting

CONNECT_TIMEOUT_S = 5.0

DEDUPE_S = 3600
"""Seconds for which the ids of events are known, unless the URL says otherwise."""

MAX_SCRIPT_EVENTS, MAX_SCRIPT_BYTES = 100, 1_000_000
"""Events, and bytes of them, that one call of the script adds: other clients wait meanwhile."""

MAX_OPTION = 1_000_000_000
"""The largest value of an option: entries, or seconds."""

SCRIPT = """\
local per = 4
for i = 2, #KEYS do
  local at = 3 + (i - 2) * per
  if redis.call('EXISTS', KEYS[i]) == 0 then
    local words = {'XADD', KEYS[1]}
    if ARGV[2] ~= '0' then
      words[#words + 1] = 'MAXLEN'
      words[#words + 1] = '~'
      words[#words + 1] = ARGV[2]
    end
    words[#words + 1] = '*'
    for number, name in ipairs({'id', 'data', 'traceparent', 'tracestate'}) do
      local value = ARGV[at + number - 1]
      if value ~= '' then
        words[#words + 1] = name
        words[#words + 1] = value
      end
    end
    words[#words + 1] = 'content-type'
    words[#words + 1] = 'application/cloudevents+json'
    local entry = redis.call(unpack(words))
    redis.call('SET', KEYS[i], entry, 'EX', ARGV[1])
  end
end
return 1
"""
"""KEYS: the stream, and a key for each id. ARGV: the window in seconds, the length to which the stream is trimmed (0: never), and four words
for each event. The id is written after the event: should the event not be added, its id must not be known."""


class RedisPublisher:
    """One stream. The URL may have `?dedupe_s=SECONDS` and `?maxlen=ENTRIES`."""

    def __init__(self, url: str, place: str) -> None:
        options = Options("of this place", url)
        self._url = client_url(url)
        self._dedupe_s = options.number("dedupe_s", DEDUPE_S, 1, MAX_OPTION)
        self._maxlen = options.number("maxlen", 0, 0, MAX_OPTION)
        self._stream = place
        # Keys with the same tag are on the same node of a cluster.
        self._key = f"{place}:onward:" if "{" in place else f"{{{place}}}:onward:"
        self._client: redis.asyncio.Redis | None = None
        self._script: Any = None

    async def open(self) -> None:
        """Connect, and see that the place is a stream or free."""
        client = self._client = redis.asyncio.Redis.from_url(
            self._url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=SEND_TIMEOUT_S,
            max_connections=1,
            retry=Retry(NoBackoff(), 0),
        )
        self._script = client.register_script(SCRIPT)
        kind = await client.type(self._stream)
        if kind not in {b"stream", b"none"}:
            raise BadSetting("the place of events", self._stream, f"a stream; this key is something else: {kind!r}")

    async def send(self, batch: Sequence[Publication]) -> list[SendResult]:
        """One call of the script after the other."""
        results: list[SendResult] = []
        for part in _parts(batch):
            words: list[str | bytes] = [str(self._dedupe_s), str(self._maxlen)]
            for publication in part:
                trace = publication.headers
                words += [publication.id, publication.body, trace.get("traceparent", ""), trace.get("tracestate", "")]
            try:
                await self._script(keys=[self._stream, *[self._key + one.id for one in part]], args=words)
            except (RedisError, OSError) as error:
                why = SendResult(False, f"{type(error).__name__}: {error}", down=True)
                return results + [why] * (len(batch) - len(results))
            results += [SendResult(True, "added")] * len(part)
        return results

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.aclose()


def _parts(batch: Sequence[Publication]) -> Iterator[list[Publication]]:
    part: list[Publication] = []
    size = 0
    for publication in batch:
        if part and (len(part) >= MAX_SCRIPT_EVENTS or size + len(publication.body) > MAX_SCRIPT_BYTES):
            yield part
            part, size = [], 0
        part.append(publication)
        size += len(publication.body)
    if part:
        yield part
