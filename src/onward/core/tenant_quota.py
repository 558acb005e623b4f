"""Quotas of tenants: how much of the shared servers, queues and tables one tenant may use. Pure; `service/tenant_quotas.py` keeps them.

(`core/quota.py` is about the quotas of model providers.)
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

from onward.errors import BadSetting, UsageError

BURST_S = 2.0
"""A tenant or a key that was quiet may send the requests of this many seconds at once."""

TURN_LANES = 4
"""The groups of one tenant get their turns as this many groups of the queue. With one turn for each of its groups, a tenant could give
every task a group of its own, and all of them would stand before the tasks of other tenants."""

MAX_VALUE = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class TenantQuota:
    """The quotas of one tenant. 0 is no quota, except for `priority`."""

    requests: int = 200
    """Requests a second with all its keys together, in one server process; twice as many at once."""
    key_requests: int = 100
    """The same for each of its keys."""
    streams: int = 100
    """Streams, sockets, held responses and MCP requests that are open at once, in one server process."""
    sessions: int = 100
    """MCP sessions, in one server process."""
    queue_share: int = 50
    """Percent of the length of a queue (`ONWARD_QUEUE_LIMIT`) that its waiting tasks may fill."""
    tasks: int = 100_000
    """Unfinished tasks in all queues, without those that a worker holds."""
    queues: int = 20
    """Queues in which its unfinished tasks are, without those that a worker holds."""
    running: int = 75
    """Percent of the slots of each worker that its tasks may hold."""
    messages: int = 10_000
    """Messages that one of its tasks may get."""
    keys: int = 100
    """Valid keys."""
    subscriptions: int = 100
    """Subscriptions."""
    priority: int = 0
    """The highest priority that it may give a task."""
    refused: int = 60
    """Refused calls of one key that the audit log records in a minute."""

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_VALUE:
                raise BadSetting(f"quota_{name}", value, f"a whole number up to {MAX_VALUE}")
            if value < 0 and name != "priority":
                raise BadSetting(f"quota_{name}", value, "0 (no quota) or more")
        for name in PERCENTAGES:
            if getattr(self, name) > 100:
                raise BadSetting(f"quota_{name}", getattr(self, name), "a percentage, 0 to 100")

    def with_values(self, values: Mapping[str, Any]) -> TenantQuota:
        """The same with these values instead. Names that this version does not know are left out."""
        return dataclasses.replace(self, **{name: value for name, value in values.items() if name in NAMES})

    def queue_tasks(self, queue_limit: int) -> int:
        """How many of its tasks may wait in a queue of this limit; 0 for no quota."""
        return max(1, queue_limit * self.queue_share // 100) if self.queue_share else 0

    def running_tasks(self, slots: int) -> int:
        """How many slots of a worker with so many its tasks may hold."""
        return max(1, slots * self.running // 100) if self.running else slots


PERCENTAGES = ("queue_share", "running")
NAMES = tuple(field.name for field in dataclasses.fields(TenantQuota))


def check_names(values: Mapping[str, Any]) -> None:
    """Raises UsageError for a name that is no quota, or where there is none."""
    for name in values:
        if name not in NAMES:
            raise UsageError(f"there is no quota {name!r:.80}; the quotas are {', '.join(NAMES)}")
    if not values:
        raise UsageError(f"name at least one quota: {', '.join(NAMES)}")


def turn_group(tenant: str | None, group: str | None) -> str | None:
    """The group by which a task of a tenant gets its turns; None for a task without a tenant, whose turns go by its own group. A tenant
    has few of them, however many groups it names."""
    if tenant is None or group is None:
        return tenant
    return f"{tenant}\n{zlib.crc32(group.encode()) % TURN_LANES}"


def turn_groups(tenant: str) -> list[str]:
    """All groups by which tasks of this tenant get their turns."""
    return [tenant, *[f"{tenant}\n{lane}" for lane in range(TURN_LANES)]]
