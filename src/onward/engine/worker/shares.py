"""The slots of a worker that each tenant holds, and the most that it may: so long tasks of one tenant leave slots for the others."""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable

RunningLimit = Callable[[str | None, int], Awaitable[int]]
"""How many of so many slots a tenant may hold; with None, a tenant without quotas of its own."""


async def no_limit(_tenant: str | None, slots: int) -> int:
    """For a worker without quotas."""
    return slots


class TenantShares:
    """Counts the slots of one worker by tenant. Tasks without a tenant may hold all slots."""

    def __init__(self, slots: int, limit: RunningLimit = no_limit) -> None:
        self._slots, self._limit = slots, limit
        self._held: collections.Counter[str] = collections.Counter()
        self._full: list[str] = []
        """The tenants that the last claim passed over."""

    def take(self, tenant: str | None) -> None:
        """A task of this tenant takes a slot."""
        if tenant is not None:
            self._held[tenant] += 1

    def free(self, tenant: str | None) -> bool:
        """A task of this tenant frees its slot; whether claims passed over the tenant because it had no slot left."""
        if tenant is None:
            return False
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        return tenant in self._full

    async def bound(self, room: int) -> tuple[int, list[str]]:
        """How many tasks the next claim may take of `room`, and the tenants that it passes over. It may take as many as each of the
        other tenants has left: all of them could be tasks of one tenant."""
        room, full = min(room, await self._limit(None, self._slots)), []
        for tenant, held in list(self._held.items()):
            left = await self._limit(tenant, self._slots) - held
            if left <= 0:
                full.append(tenant)
            else:
                room = min(room, left)
        self._full = full
        return room, full
