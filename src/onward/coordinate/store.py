"""The store as a coordinator: the locks are rows of the database, and the first that waits is the first that is served."""

from __future__ import annotations

from onward.core.lock import Busy, LockRequest, Taken
from onward.store.port.core import Store

NUDGE = "locks"
"""The topic of nudges that a lock may be free."""


class StoreCoordinator:
    """See `port.Coordinator`."""

    name = "store"

    def __init__(self, store: Store) -> None:
        self._store = store

    async def take(self, request: LockRequest, ttl_s: float) -> Taken | Busy:
        return await self._store.locks.take(request._replace(ttl_s=ttl_s))

    async def renew(self, request: LockRequest, token: int, ttl_s: float) -> bool:
        return await self._store.locks.renew(request._replace(ttl_s=ttl_s), token)

    async def free(self, request: LockRequest) -> None:
        if await self._store.locks.leave(request):
            await call_next(self._store)

    async def check(self) -> str:
        return "the store"

    async def close(self) -> None:
        """The app closes the store."""


async def call_next(store: Store) -> None:
    """Wake the tasks and the programs whose turn it may be."""
    if called := await store.locks.call_next():
        store.nudge("ready", called)
    store.nudge(NUDGE)
