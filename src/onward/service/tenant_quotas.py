"""Quotas of tenants: their values, and the use of each. A part of the service.

The settings (`ONWARD_QUOTA_…`) hold for every tenant; an admin may give one tenant other values, which the database keeps. A caller
without a tenant belongs to the operator, and has no quota.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.caller import ANYBODY, Caller
from onward.core.clock import Clock
from onward.core.task import NewTask
from onward.core.tenant_quota import NAMES, TenantQuota, check_names, turn_groups
from onward.core.views import QuotaUse, TenantUse
from onward.errors import PriorityTooHigh, QuotaExceeded, StoreUnavailable
from onward.service.process_use import ProcessUse, RateState
from onward.service.submission import named
from onward.store.port.core import Store

VALUES_TTL_S = 5.0
"""Seconds for which the quotas of tenants are cached: after so long a change holds in every process."""

MAX_PAGE = 1_000
"""Tenants that are listed at once."""

MAX_GAUGES = 10_000
"""Tenants whose tasks are counted at once."""

ROOM_RETRY_S = 5.0
"""Seconds after which a client may submit again when its tenant has as many tasks as it may."""

LASTING_RETRY_S = 60.0
"""The same for quotas that stay used up until the tenant removes something."""

TenantUses = list[TenantUse]


class TenantQuotas:
    """The quotas of all tenants, and how much of them each uses."""

    def __init__(self, store: Store, defaults: TenantQuota, clock: Clock, queue_limit: int) -> None:
        self._store, self._defaults, self._clock, self._queue_limit = store, defaults, clock, queue_limit
        self._own: dict[str, Mapping[str, Any]] = {}
        self._quotas: dict[str, TenantQuota] = {}
        self._read_at = -math.inf
        self._gauges: dict[str, _TaskGauge] = {}
        self.process: ProcessUse = ProcessUse(clock)

    # ── values ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def defaults(self) -> TenantQuota:
        """The quotas of a tenant that has none of its own."""
        return self._defaults

    async def of(self, tenant: str) -> TenantQuota:
        """The quotas of a tenant. While the database cannot be read, those that were read last."""
        if self._clock.monotonic() - self._read_at >= VALUES_TTL_S:
            self._read_at = self._clock.monotonic()  # before the query: other callers do not wait for it
            with contextlib.suppress(StoreUnavailable):
                await self._read()
        return self._quotas.get(tenant, self._defaults)

    async def _read(self) -> None:
        self._own = {tenant: wire.decode(data) for tenant, data in (await self._store.tenant_quotas.all()).items()}
        self._quotas = {tenant: self._defaults.with_values(values) for tenant, values in self._own.items()}

    async def set(self, tenant: str, values: Mapping[str, Any], *, by: Caller = ANYBODY) -> TenantUse:
        """Give a tenant these quotas; its others stay as they are. Raises BadSetting and UsageError."""
        check_names(values)
        await self._read()
        own = {**self._own.get(named("tenant", tenant), {}), **values}
        self._defaults.with_values(own)  # raises BadSetting
        event = AuditEvent("set_quota", tenant, tenant, by.id, by.name, dict(values))
        await self._store.tenant_quotas.set(tenant, wire.encode(own, "the quotas"), event)
        return await self._changed(tenant)

    async def reset(self, tenant: str, *, by: Caller = ANYBODY) -> TenantUse:
        """Give a tenant the quotas of the settings again."""
        event = AuditEvent("reset_quota", named("tenant", tenant), tenant, by.id, by.name)
        await self._store.tenant_quotas.set(tenant, None, event)
        return await self._changed(tenant)

    async def _changed(self, tenant: str) -> TenantUse:
        await self._read()
        self._gauges.pop(tenant, None)
        return await self.use(tenant)

    # ── use ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list(self, whose: str | None = None, *, after: str = "", limit: int = MAX_PAGE) -> TenantUses:
        """The use of each tenant, by name, after a name; with `whose`, of this tenant alone ("": of none)."""
        await self._read()
        if whose is None:
            return [await self.use(tenant) for tenant in await self._store.tenant_quotas.tenants(after, limit)]
        return [await self.use(whose)] if whose > after else []

    async def use(self, tenant: str) -> TenantUse:
        """The use of one tenant. Requests, streams and sessions are those of this process."""
        quota, own = await self.of(tenant), self._own.get(tenant, {})
        depth = await self._store.tenant_quotas.depth(turn_groups(tenant))
        fullest = max(depth.values(), default=0)
        used = {
            "requests": self.process.requests(tenant),
            "streams": self.process.streams(tenant),
            "sessions": self.process.sessions(tenant),
            "queue_share": math.ceil(100 * fullest / self._queue_limit) if self._queue_limit else None,
            "tasks": sum(depth.values()),
            "queues": len(depth),
        }
        uses = [QuotaUse(name, getattr(quota, name), used.get(name), name in own) for name in NAMES]
        return TenantUse(tenant, tuple(uses))

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def admit(self, caller: Caller) -> Sequence[RateState]:
        """Count a request of this caller; the rates that hold for it. Raises QuotaExceeded."""
        return () if caller.tenant is None else self.process.take_request(caller, await self.of(caller.tenant))

    async def running_limit(self, tenant: str | None, slots: int) -> int:
        """How many slots of a worker with so many a tenant may hold; with None, a tenant without quotas of its own."""
        return (self._defaults if tenant is None else await self.of(tenant)).running_tasks(slots)

    def known(self, caller: Caller) -> TenantQuota:
        """The quotas of the caller's tenant as they were read last: `admit` has read them for its request."""
        return self._quotas.get(caller.tenant or "", self._defaults)

    async def check_message(self, tenant: str | None, task_id: str) -> None:
        """Raises QuotaExceeded when a task has as many messages as a task of this tenant may get."""
        most = 0 if tenant is None else (await self.of(tenant)).messages
        if tenant is not None and most and await self._store.inbox(task_id, most - 1, 1):
            whose, unit = f"task {task_id} of tenant {tenant!r:.80}", "messages to one task"
            remedy = "send further messages to another task"
            raise QuotaExceeded(tenant, "messages", most, LASTING_RETRY_S, whose, unit, remedy=remedy)

    async def check_key(self, tenant: str | None) -> None:
        """Raises QuotaExceeded when the tenant has as many valid keys as it may."""
        most = 0 if tenant is None else (await self.of(tenant)).keys
        if tenant is not None and 0 < most <= await self._store.keys.count_valid(tenant, most):
            whose, remedy = f"tenant {tenant!r:.80}", "revoke a key that is not in use (`onward keys revoke`)"
            raise QuotaExceeded(tenant, "keys", most, LASTING_RETRY_S, whose, "valid keys", remedy=remedy)

    async def check_subscription(self, tenant: str | None) -> None:
        """Raises QuotaExceeded when the tenant has as many subscriptions as it may."""
        most = 0 if tenant is None else (await self.of(tenant)).subscriptions
        if tenant is not None and 0 < most <= len(await self._store.outbox.subscriptions(tenant=tenant, limit=most)):
            whose, remedy = f"tenant {tenant!r:.80}", "remove one with `DELETE /api/subscriptions/ID`"
            raise QuotaExceeded(tenant, "subscriptions", most, LASTING_RETRY_S, whose, "subscriptions", remedy=remedy)

    async def check_priority(self, tenant: str | None, priority: int | None) -> None:
        """Raises PriorityTooHigh for a priority that the tenant may not give."""
        if tenant is not None and priority is not None and priority > (limit := (await self.of(tenant)).priority):
            raise PriorityTooHigh(tenant, priority, limit)

    async def check_room(self, tasks: Sequence[NewTask]) -> None:
        """Count new tasks for their tenants. Raises QuotaExceeded when one of them has too many, in a queue or in all."""
        counts: dict[str, collections.Counter[str]] = {}
        for task in tasks:
            if task.tenant is not None:
                counts.setdefault(task.tenant, collections.Counter())[task.queue] += 1
        for tenant, queues in counts.items():
            await self.check_tasks(tenant, queues)

    async def check_tasks(self, tenant: str, queues: Mapping[str, int]) -> None:
        """Count new tasks of a tenant, by queue. Raises QuotaExceeded. The tasks are counted now and then, and other processes count for
        themselves: the quota protects others, and need not be exact."""
        quota = await self.of(tenant)
        if not quota.tasks and not quota.queue_share and not quota.queues:
            return
        gauge = self._gauges.pop(tenant, None) or _TaskGauge()
        self._gauges[tenant] = gauge
        if len(self._gauges) > MAX_GAUGES:
            del self._gauges[next(iter(self._gauges))]
        if gauge.stale(began := self._clock.monotonic()):
            depth = await self._store.tenant_quotas.depth(turn_groups(tenant))
            gauge.update(self._clock.monotonic(), depth, self._clock.monotonic() - began)
        whose = f"tenant {tenant!r:.80}"
        if 0 < quota.tasks < sum(gauge.tasks.values()) + sum(queues.values()):
            raise QuotaExceeded(tenant, "tasks", quota.tasks, ROOM_RETRY_S, whose, "unfinished tasks")
        named_queues = {queue for queue, tasks in gauge.tasks.items() if tasks > 0}
        if 0 < quota.queues < len(named_queues | queues.keys()) and not named_queues >= queues.keys():
            unit, remedy = "queues with unfinished tasks", "submit to a queue that has tasks of this tenant already"
            raise QuotaExceeded(tenant, "queues", quota.queues, ROOM_RETRY_S, whose, unit, remedy=remedy)
        share = quota.queue_tasks(self._queue_limit)
        for queue, count in queues.items():
            if 0 < share < gauge.tasks[queue] + count:
                unit = f"waiting tasks in queue {queue!r:.80}, {quota.queue_share} % of its length"
                raise QuotaExceeded(tenant, "queue_share", share, ROOM_RETRY_S, whose, unit)
        gauge.tasks.update(queues)


@dataclasses.dataclass(slots=True)
class _TaskGauge:
    """The tasks of a tenant by queue when they were last counted, and those that this process added since."""

    tasks: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    _next_at: float = -math.inf

    def stale(self, now: float) -> bool:
        return now >= self._next_at

    def update(self, now: float, depth: Mapping[str, int], took: float) -> None:
        self.tasks = collections.Counter(depth)
        self._next_at = now + min(
            50 * took, 10.0
        )  # a tenant at its quota must not make the database count all the time
