"""The locks of tasks.

Tasks always stand in the line of the store: waiting frees their slots, and the first that waits is the first that is served. Where another
coordinator is set, the first task of the line also takes the lock there, with its token, so that programs outside of Onward are kept
out as well. Workers renew what tasks hold there: a task may sleep inside a block while no worker has it.
"""

from __future__ import annotations

import contextlib
import logging
import math

from onward.coordinate.port import Coordinator
from onward.coordinate.store import call_next
from onward.core.lock import Busy, LockRequest, Taken
from onward.errors import CoordinatorUnavailable, StoreUnavailable
from onward.store.port.core import Store

log = logging.getLogger("onward.locks")

TASK_TTL_S = 60.0
"""Seconds for which a task holds a lock outside of the store after a worker renewed it for the last time."""

RENEW_INTERVAL_S = 15.0
"""Seconds between two renewals, by each worker, of what tasks hold outside of the store."""

POLL_S = 2.0
"""Seconds after which a task that waits for a holder outside of the store asks again."""

PAGE = 500
"""Locks that are renewed with one read of the store."""


class TaskLocks:
    """Takes locks for the blocks of tasks. `outside` is the coordinator beside the store, if there is one."""

    def __init__(self, store: Store, coordinator: Coordinator | None = None) -> None:
        self._store, self._coordinator = store, coordinator
        self.outside: str = "" if coordinator is None else coordinator.name

    async def take(self, request: LockRequest) -> Taken | Busy:
        """Take a lock for a block, with a new token, or stand in its line."""
        taken = await self._store.locks.take(request)
        if self._coordinator is None or isinstance(taken, Busy):
            return taken
        try:
            outer = await self._coordinator.take(request, TASK_TTL_S)
        except CoordinatorUnavailable as error:
            log.warning("lock %r: task %s waits: %s", request.name, request.task_id, error)
            return Busy(f"an unknown holder at {self.outside}, which does not answer,", outside=True)
        return outer._replace(outside=True) if isinstance(outer, Busy) else outer

    @staticmethod
    def poll_s(busy: Busy) -> float:
        """Seconds after which a waiting task asks again. In the line of the store it gets a message."""
        return POLL_S if busy.outside else math.inf

    async def left(self, request: LockRequest) -> None:
        """A task has left a block, and the store has freed the lock: free it outside as well, and wake the next task. When that fails,
        the end of the lease does the one, and a chore of the workers the other."""
        with contextlib.suppress(StoreUnavailable, CoordinatorUnavailable):
            if self._coordinator is not None:
                await self._coordinator.free(request)
            await call_next(self._store)

    async def call_next(self) -> None:
        """Wake the tasks and programs whose turn it may be."""
        with contextlib.suppress(StoreUnavailable):
            await call_next(self._store)

    async def renew(self) -> None:
        """Renew what tasks hold outside of the store."""
        coordinator, after = self._coordinator, ("", "")
        while coordinator is not None:
            page = await self._store.locks.outside(PAGE, after)
            for tenant, name, owner, label in page:
                request = LockRequest(tenant, name, owner, label)
                await coordinator.renew(request, 0, TASK_TTL_S)
                after = (tenant, name)
            if len(page) < PAGE:
                return
