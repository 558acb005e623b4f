"""What tenants use of this process: requests, open streams, refused calls. In memory, so each server process counts for itself."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from onward.core.caller import Caller
from onward.core.clock import Clock
from onward.core.rate import Bucket
from onward.core.tenant_quota import BURST_S, TenantQuota
from onward.errors import QuotaExceeded

MAX_BUCKETS = 10_000
"""Buckets that are kept at once. When there are more, the one that was not used for the longest time is dropped: it begins full again."""

TURNS, BUSIEST_TURNS = 4, 1
"""Calls of one tenant that use the database, or the event loop, at once; the second is for the busiest tenant. Others wait for a turn, so
that a call of another tenant finds at most so many calls of this one before it, however many requests it sends at once."""

MAX_TURN_S = 0.1
"""Seconds after which a request that waits for something else hands its turn on."""

ALONE_AFTER_S = 10.0
"""Seconds after which a tenant that has used the process no more counts as gone."""

USE_DECAY_S = 2.0
"""The time for which turns were held counts half as much after so many seconds."""

REST_FACTOR, MAX_REST_S = 2, 1.0
"""A turn of the busiest tenant rests after each call for so many times as long as the call held it, and for this time at most. So a tenant
that always has calls in line leaves two thirds of the time to the others."""

STREAM_RETRY_S = 5.0
"""Seconds after which a client may try again when too many streams or sessions of its tenant are open."""

PROMPT_REFUSALS, HELD_REFUSAL_S = 20, 1.0
"""So many refusals a second of a tenant are sent at once. The others are held back for this time: a client that sends requests in a loop
and does not heed `Retry-After` would otherwise keep the process busy with refusals."""

BODY_BYTES = 16_384
"""Each further so many bytes of a body, of a request or of its response, count as one more request."""

MINUTE_S = 60.0

Line = tuple[str, str]
"""What calls wait in line for, and their tenant."""


class RateState(NamedTuple):
    """A rate after a request: how many requests it allows in how many seconds, how many are left, and when it is full again."""

    name: str
    requests: int
    window_s: float
    remaining: int
    full_in_s: float


class _Rate(NamedTuple):
    """A rate: its owner, and how an error names it."""

    kind: str
    owner: str
    per_s: int
    whose: str

    @property
    def burst(self) -> int:
        return max(1, round(self.per_s * BURST_S))


class Decaying:
    """A sum of which each part counts half as much after USE_DECAY_S."""

    __slots__ = ("_at", "_sum")

    def __init__(self) -> None:
        self._at = self._sum = 0.0

    def add(self, now: float, amount: float) -> None:
        """Add to the sum."""
        self._sum, self._at = self.value(now) + amount, now

    def value(self, now: float) -> float:
        """The sum now."""
        return self._sum * math.exp2((self._at - now) / USE_DECAY_S)


class ProcessUse:
    """Buckets of tenants, and of their keys and people; and open streams of tenants."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._streams: collections.Counter[str] = collections.Counter()
        self._turns: collections.Counter[Line] = collections.Counter()
        self._waiting: dict[Line, collections.deque[asyncio.Future[None]]] = {}
        self._last_tenant: str | None = None
        self._last_at = self._other_at = -math.inf
        """When a turn was last asked for, and when by another tenant than that one."""
        self._used: dict[str, Decaying] = {}
        """For how long each tenant held turns."""
        self._used_by_all = Decaying()
        self._dropped: dict[str, int] = {}
        """For each key, the refused calls that are not in the audit log."""
        self.sessions: Callable[[str], int] = lambda _tenant: 0
        """How many MCP sessions a tenant has; the MCP endpoint sets it."""

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take_request(self, caller: Caller, quota: TenantQuota) -> list[RateState]:
        """Count a request of a caller with a tenant. Raises QuotaExceeded, and counts nothing, when the tenant or the key has no request
        left."""
        assert caller.tenant is not None
        rates = [_Rate("tenant", caller.tenant, quota.requests, f"tenant {caller.tenant!r:.80}")]
        if caller.id is not None:
            rates.append(_Rate("key", caller.id, quota.key_requests, _whose(caller)))
        return self._take([rate for rate in rates if rate.per_s], caller.tenant)

    def take_body(self, caller: Caller, quota: TenantQuota, size: int) -> None:
        """Count the body of a request that was counted: each BODY_BYTES of it beyond the first as one more request."""
        if caller.tenant is None or (more := size // BODY_BYTES) == 0:
            return
        now = self._clock.monotonic()
        if quota.requests:
            self._bucket("tenant", caller.tenant).take(now, quota.requests, more)
        if quota.key_requests and caller.id is not None:
            self._bucket("key", caller.id).take(now, quota.key_requests, more)

    def pause_s(self, tenant: str) -> float:
        """How long the refusal of a request is held back: not at all, unless the tenant sends many requests that are refused."""
        now, bucket = self._clock.monotonic(), self._bucket("refusals", tenant)
        if bucket.wait(now, PROMPT_REFUSALS, PROMPT_REFUSALS):
            return HELD_REFUSAL_S
        bucket.take(now, PROMPT_REFUSALS)
        return 0.0

    def take_event(self, hook: str, per_s: int) -> None:
        """Count a verified request to a hook. Raises QuotaExceeded."""
        if per_s:
            self._take([_Rate("hook", hook, per_s, f"the hook {hook!r:.80}")], "")

    def _take(self, rates: Sequence[_Rate], tenant: str) -> list[RateState]:
        now = self._clock.monotonic()
        buckets = [(rate, self._bucket(rate.kind, rate.owner)) for rate in rates]
        for rate, bucket in buckets:
            if wait := bucket.wait(now, rate.per_s, rate.burst):
                quota = "key_requests" if rate.kind == "key" else "requests"
                states = [_state(rate, bucket, now) for rate, bucket in buckets]
                raise QuotaExceeded(tenant, quota, rate.per_s, wait, rate.whose, "requests a second", states)
        for rate, bucket in buckets:
            bucket.take(now, rate.per_s)
        return [_state(rate, bucket, now) for rate, bucket in buckets]

    def _bucket(self, kind: str, name: str) -> Bucket:
        key = kind, name
        bucket = self._buckets.pop(key, None) or Bucket()
        self._buckets[key] = bucket  # the last one now
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return bucket

    def requests(self, tenant: str) -> int:
        """Requests of a tenant in this second or the one before."""
        bucket = self._buckets.get(("tenant", tenant))
        return 0 if bucket is None else bucket.per_second(self._clock.monotonic())

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────

    def turn(self, caller: Caller) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold one of the few turns of the caller's tenant while the block uses the database. First come, first served within the
        tenant. Never hold two, and never while waiting for a task."""
        return self._turn(caller.tenant, "database")

    def request_turn(self, caller: Caller) -> contextlib.AbstractAsyncContextManager[None]:
        """The same while the block works on a request: the event loop has one thread, as a file has one writer. A block that waits
        for a task loses its turn after MAX_TURN_S, and goes on."""
        return self._turn(caller.tenant, "request", MAX_TURN_S)

    def stream_turn(self, caller: Caller) -> contextlib.AbstractAsyncContextManager[None]:
        """The same while the block makes messages of a stream."""
        return self._turn(caller.tenant, "stream", MAX_TURN_S)

    def loading_turn(self, caller: Caller) -> contextlib.AbstractAsyncContextManager[None]:
        """The same for a response that is being made, before it takes memory: so one tenant does not hold all the memory for responses
        while its calls wait for each other."""
        return self._turn(caller.tenant, "loading")

    @contextlib.asynccontextmanager
    async def _turn(self, tenant: str | None, kind: str, max_s: float | None = None) -> AsyncIterator[None]:
        self._note_use(tenant)
        if tenant is None:
            yield
            return
        line = kind, tenant
        await self._take_turn(line)
        loop = asyncio.get_running_loop()
        began, ended = loop.time(), False

        def end() -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            held_s = loop.time() - began
            self._add_use(tenant, held_s)
            if self._is_busiest(tenant):
                loop.call_later(min(REST_FACTOR * held_s, MAX_REST_S), self._end_turn, line)
            else:
                self._end_turn(line)

        timer = None if max_s is None else loop.call_later(max_s, end)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            end()

    def _add_use(self, tenant: str, seconds: float) -> None:
        now = self._clock.monotonic()
        self._used_by_all.add(now, seconds)
        used = self._used.pop(tenant, None) or Decaying()
        used.add(now, seconds)
        self._used[tenant] = used  # the last one now
        if len(self._used) > MAX_BUCKETS:
            del self._used[next(iter(self._used))]

    def _is_busiest(self, tenant: str) -> bool:
        """Whether others have used this process lately, and this tenant held turns for longer than all of them together."""
        if self._is_alone(tenant):
            return False
        now, used = self._clock.monotonic(), self._used.get(tenant)
        return used is not None and used.value(now) > self._used_by_all.value(now) / 2

    def _note_use(self, tenant: str | None) -> None:
        """Remember that this tenant, or the operator, uses the process now."""
        if tenant != self._last_tenant:
            self._last_tenant, self._other_at = tenant, self._last_at
        self._last_at = self._clock.monotonic()

    def _is_alone(self, tenant: str) -> bool:
        """Whether no other tenant has used this process lately."""
        other_at = self._other_at if tenant == self._last_tenant else self._last_at
        return self._clock.monotonic() - other_at > ALONE_AFTER_S

    def _max_turns(self, line: Line) -> int:
        return BUSIEST_TURNS if self._is_busiest(line[1]) else TURNS

    async def _take_turn(self, line: Line) -> None:
        if self._turns[line] < self._max_turns(line):
            self._turns[line] += 1
            return
        place = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(line, collections.deque())
        waiting.append(place)
        try:
            await place  # the caller that ends its turn hands it on
        except asyncio.CancelledError:
            if not place.cancelled():
                self._end_turn(line)  # its turn had come already
            elif place in waiting:
                waiting.remove(place)
            raise

    def _end_turn(self, line: Line) -> None:
        self._turns[line] -= 1
        waiting, most = self._waiting.get(line), self._max_turns(line)
        while waiting and self._turns[line] < most:
            if not (place := waiting.popleft()).done():  # a cancelled one is still there for a moment
                self._turns[line] += 1
                place.set_result(None)
        if not waiting:
            self._waiting.pop(line, None)
        if not self._turns[line]:
            del self._turns[line]

    # ── streams and sessions ─────────────────────────────────────────────────────────────────────────────────────

    def check_stream(self, caller: Caller, quota: TenantQuota) -> None:
        """Raises QuotaExceeded when the tenant has as many streams open as it may."""
        if caller.tenant is not None and 0 < quota.streams <= self._streams[caller.tenant]:
            whose = f"tenant {caller.tenant!r:.80}"
            raise QuotaExceeded(caller.tenant, "streams", quota.streams, STREAM_RETRY_S, whose, "open streams")

    def check_session(self, caller: Caller, quota: TenantQuota) -> None:
        """Raises QuotaExceeded when the tenant has as many MCP sessions as it may."""
        if caller.tenant is not None and 0 < quota.sessions <= self.sessions(caller.tenant):
            whose = f"tenant {caller.tenant!r:.80}"
            raise QuotaExceeded(caller.tenant, "sessions", quota.sessions, STREAM_RETRY_S, whose, "MCP sessions")

    @contextlib.contextmanager
    def stream(self, caller: Caller) -> Iterator[None]:
        """Count a stream of the caller's tenant as long as the block lasts."""
        if caller.tenant is None:
            yield
            return
        self._streams[caller.tenant] += 1
        try:
            yield
        finally:
            self._streams[caller.tenant] -= 1
            if not self._streams[caller.tenant]:
                del self._streams[caller.tenant]

    def streams(self, tenant: str) -> int:
        """Open streams of a tenant."""
        return self._streams.get(tenant, 0)

    # ── refused calls ────────────────────────────────────────────────────────────────────────────────────────────

    def check_refusals(self, caller: Caller, quota: TenantQuota) -> int:
        """How many calls of this key were left out of the audit log since its last entry. Raises QuotaExceeded when the key had as many
        refused calls as the log records: the call is then not made and not recorded, but counted."""
        if caller.tenant is None or caller.id is None or not quota.refused:
            return 0
        rate = quota.refused / MINUTE_S
        if wait := self._bucket("refused", caller.id).wait(self._clock.monotonic(), rate, quota.refused):
            self._dropped[caller.id] = self._dropped.pop(caller.id, 0) + 1
            if len(self._dropped) > MAX_BUCKETS:
                del self._dropped[next(iter(self._dropped))]
            whose, unit = _whose(caller), "refused calls a minute"
            raise QuotaExceeded(caller.tenant, "refused", quota.refused, wait, whose, unit)
        return self._dropped.pop(caller.id, 0)

    def take_refusal(self, caller: Caller, quota: TenantQuota) -> None:
        """Count a call that was recorded and then refused."""
        if caller.tenant is not None and caller.id is not None and quota.refused:
            self._bucket("refused", caller.id).take(self._clock.monotonic(), quota.refused / MINUTE_S)


def _whose(caller: Caller) -> str:
    return f"the {'key' if caller.person is None else 'person'} {caller.name!r:.200}"


def _state(rate: _Rate, bucket: Bucket, now: float) -> RateState:
    remaining = bucket.remaining(now, rate.per_s, rate.burst)
    return RateState(rate.kind, rate.burst, rate.burst / rate.per_s, remaining, bucket.full_in(now))
