"""Locks and leaders for programs that are not handlers: scripts, web processes, pollers. Part of `Onward`."""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager

from onward.coordinate.leases import Lease, LeaseBlock, program_name
from onward.coordinate.port import Coordinator
from onward.coordinate.store import NUDGE, StoreCoordinator
from onward.core.clock import Clock
from onward.core.durations import Duration, seconds
from onward.core.ids import Ids
from onward.core.lock import LockRequest, check_lock_name, check_ttl
from onward.service.locks import Locks
from onward.service.service import Service
from onward.store.port.core import Store


class Coordination:
    """The methods of `Onward` for locks and leaders."""

    service: Service
    store: Store
    _clock: Clock
    _rng: random.Random
    _ids: Ids
    _coordinator: Coordinator | None

    def lock(
        self, name: str, *, ttl: Duration = "30s", timeout: Duration | None = None, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Lease, None]:
        """`async with app.lock("nightly") as lock:` One program, or task with `ctx.lock`, at a time is in the block.

        The lock is held by a lease of `ttl`, which is renewed while the block lasts: when the program dies, the lock is free `ttl` later
        at most. `lock.lost` is set when the lease could not be renewed. Give `lock.token` to each write, and let the resource refuse a
        smaller one: a program that was frozen does not know that it lost its lock. Raises LockTimeout when the lock is not free
        within `timeout`. In a handler use `ctx.lock`, which needs no lease."""
        timeout_s = None if timeout is None else seconds(timeout, "timeout")
        return self._lease_block(check_lock_name(name), tenant, check_ttl(seconds(ttl, "ttl")), timeout_s)

    def leader(
        self, name: str, *, ttl: Duration = "15s", tenant: str | None = None
    ) -> AbstractAsyncContextManager[Lease, None]:
        """`async with app.leader("poller") as term:` Waits until this program leads, and leads while the block lasts. Of all
        programs that use the same name, one leads. `await term.lost` waits for the end of the term, and `term.token` is larger in each
        term: let the resource refuse a smaller one. Another program leads `ttl` after the leader died, at most. Onward itself needs no
        leader: workers, schedules and events need none."""
        whole = check_lock_name(f"leader:{check_lock_name(name)}")
        return self._lease_block(whole, tenant, check_ttl(seconds(ttl, "ttl")), None)

    @property
    def locks(self) -> Locks:
        """The locks that are held or waited for: `list`, and `release` for a holder that is stuck."""
        return self.service.locks

    def _lease_block(self, name: str, tenant: str | None, ttl_s: float, timeout_s: float | None) -> LeaseBlock:
        label = program_name()
        return LeaseBlock(
            self._coordinator or StoreCoordinator(self.store),
            LockRequest(tenant or "", name, f"{label} {self._ids()}", label),
            ttl_s=ttl_s,
            timeout_s=timeout_s,
            clock=self._clock,
            rng=self._rng,
            listen=lambda callback: self.store.listen(NUDGE, callback),
        )
