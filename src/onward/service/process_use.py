"""What tenants use of this process: requests, open streams, refused calls. In memory, so each server process counts for itself."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from onward.core.caller import Caller
from onward.core.clock import Clock
from onward.core.rate import Bucket
from onward.core.tenant_quota import BURST_S, TenantQuota
from onward.errors import QuotaExceeded

MAX_BUCKETS = 10_000
"""Buckets that are kept at once. When there are more, the one that was not used for the longest time is dropped: it begins full again."""

TURNS, FILE_TURNS = 4, 1
"""Calls of one tenant that use the database at once; the second is for a file, which has one writer. Others wait for a turn, so that a call
of another tenant finds at most so many calls of this one before it at the database, however many requests it sends at once."""

STREAM_RETRY_S = 5.0
"""Seconds after which a client may try again when too many streams or sessions of its tenant are open."""

PROMPT_REFUSALS, HELD_REFUSAL_S = 20, 1.0
"""So many refusals a second of a tenant are sent at once. The others are held back for this time: a client that sends requests in a loop
and does not heed `Retry-After` would otherwise keep the process busy with refusals."""

BODY_BYTES = 65_536
"""Each further so many bytes of a body count as one more request."""

MINUTE_S = 60.0


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


class ProcessUse:
    """Buckets of tenants, and of their keys and people; and open streams of tenants."""

    def __init__(self, clock: Clock, turns: int = TURNS) -> None:
        self._clock, self._max_turns = clock, turns
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._streams: collections.Counter[str] = collections.Counter()
        self._turns: collections.Counter[str] = collections.Counter()
        self._waiting: dict[str, collections.deque[asyncio.Future[None]]] = {}
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

    # ── turns at the database ────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Hold one of the few turns of the caller's tenant while the block uses the database. First come, first served within the
        tenant. Never hold two, and never while waiting for a task."""
        async with self._turn(caller.tenant, self._max_turns):
            yield

    @contextlib.asynccontextmanager
    async def loading_turn(self, caller: Caller) -> AsyncIterator[None]:
        """The same for a response that is being made, before it takes memory: so one tenant does not hold all the memory for responses
        while its calls wait for each other."""
        async with self._turn(None if caller.tenant is None else f"\n{caller.tenant}", TURNS):
            yield

    @contextlib.asynccontextmanager
    async def _turn(self, line: str | None, most: int) -> AsyncIterator[None]:
        if line is None:
            yield
            return
        await self._take_turn(line, most)
        try:
            yield
        finally:
            self._end_turn(line)

    async def _take_turn(self, tenant: str, most: int) -> None:
        if self._turns[tenant] < most:
            self._turns[tenant] += 1
            return
        place = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(tenant, collections.deque())
        waiting.append(place)
        try:
            await place  # the caller that ends its turn hands it on
        except asyncio.CancelledError:
            if not place.cancelled():
                self._end_turn(tenant)  # its turn had come already
            elif place in waiting:
                waiting.remove(place)
            raise

    def _end_turn(self, tenant: str) -> None:
        waiting = self._waiting.get(tenant)
        while waiting:
            if not (place := waiting.popleft()).done():  # a cancelled one is still there for a moment
                place.set_result(None)
                return
        self._waiting.pop(tenant, None)
        self._turns[tenant] -= 1
        if not self._turns[tenant]:
            del self._turns[tenant]

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
