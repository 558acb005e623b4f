"""Locks of programs: `async with app.lock(name)` and `async with app.leader(name)`.

A program holds a lock by a lease, and renews it as long as the block lasts. When the lease could not be renewed in time, `lost` is set,
a little before the coordinator lets another program in, as far as clocks go. A program that was frozen learns of it only when it wakes. So
the token has to protect what the program writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Literal

from onward.coordinate.port import Coordinator
from onward.core.clock import Clock
from onward.core.lock import Busy, Fence, LockRequest
from onward.errors import CoordinatorUnavailable, LockTimeout, StoreUnavailable

log = logging.getLogger("onward.locks")

POLL_S = 0.5
"""Seconds between two attempts to take a lock, at most; about half of it on average."""

SAFE_SHARE = 0.9
"""The share of a lease after which a program that could not renew it counts it as lost, although the coordinator may still keep it."""

Listen = Callable[[Callable[..., None]], Callable[[], None]]
"""Calls a function when a lock may be free, until the function that it returns is called."""


class Lost(asyncio.Event):
    """Is set when a lock is lost. `await lost` waits for it."""

    def __await__(self) -> Generator[Any, None, Literal[True]]:
        return self.wait().__await__()


class Lease:
    """A lock, or a term as leader, that a program holds."""

    def __init__(self, name: str, token: int) -> None:
        self.name: str = name
        self.token: int = Fence(token)
        """A number that grows each time the lock is taken. Send it with each write, and let the resource refuse a smaller one."""
        self.lost: Lost = Lost()
        """Set when the lock is lost: stop then. `await lease.lost` waits for it."""


class LeaseBlock:
    """`async with app.lock(name):`"""

    _lease: Lease
    _renewing: asyncio.Task[None]

    def __init__(
        self,
        coordinator: Coordinator,
        request: LockRequest,
        *,
        ttl_s: float,
        timeout_s: float | None,
        clock: Clock,
        rng: random.Random,
        listen: Listen,
    ) -> None:
        self._coordinator, self._request, self._ttl_s, self._timeout_s = coordinator, request, ttl_s, timeout_s
        self._clock, self._rng, self._listen = clock, rng, listen

    async def __aenter__(self) -> Lease:
        try:
            sent, token = await self._take()
        except BaseException:
            await self._free()
            raise
        self._lease = Lease(self._request.name, token)
        renewing = self._renew(self._lease, sent + self._ttl_s * SAFE_SHARE)
        self._renewing = asyncio.get_running_loop().create_task(renewing, name=f"onward-lease-{self._request.name}")
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._renewing
        await self._free()

    async def _take(self) -> tuple[float, int]:
        """Wait for the lock; when the call that took it was sent, and the token. Raises LockTimeout."""
        clock, freed = self._clock, asyncio.Event()
        until = None if self._timeout_s is None else clock.monotonic() + self._timeout_s
        unlisten = self._listen(lambda *_: freed.set())
        try:
            while True:
                freed.clear()
                sent = clock.monotonic()
                try:
                    taken = await self._coordinator.take(self._request, self._ttl_s)
                except (StoreUnavailable, CoordinatorUnavailable) as error:
                    if until is not None and clock.monotonic() >= until:
                        raise
                    log.warning("lock %r: trying again: %s", self._request.name, error)
                    taken = Busy("")
                if not isinstance(taken, Busy):
                    return sent, taken.token
                left = POLL_S if until is None else until - clock.monotonic()
                if left <= 0:
                    raise LockTimeout(self._request.name, self._timeout_s or 0.0, taken.holder)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, POLL_S * self._rng.uniform(0.2, 1))):
                        await freed.wait()
        finally:
            unlisten()

    async def _renew(self, lease: Lease, safe_until: float) -> None:
        """Renew the lease until it is lost."""
        clock, pause = self._clock, self._ttl_s / 3
        while True:
            await clock.sleep(max(0.0, min(pause, safe_until - clock.monotonic())))
            sent, renewed = clock.monotonic(), None
            if sent < safe_until:
                with contextlib.suppress(StoreUnavailable, CoordinatorUnavailable, TimeoutError):
                    async with asyncio.timeout(safe_until - sent):
                        renewed = await self._coordinator.renew(self._request, lease.token, self._ttl_s)
            if renewed:
                safe_until, pause = sent + self._ttl_s * SAFE_SHARE, self._ttl_s / 3
            elif renewed is False or clock.monotonic() >= safe_until:
                log.warning("lock %r was lost: its lease of %g s was not renewed in time", lease.name, self._ttl_s)
                lease.lost.set()
                return
            else:
                pause = self._ttl_s / 10

    async def _free(self) -> None:
        """Free the lock. When that fails, the end of the lease does it."""
        with contextlib.suppress(StoreUnavailable, CoordinatorUnavailable):
            await self._coordinator.free(self._request)


def program_name() -> str:
    """The name of this process for people."""
    return f"{socket.gethostname()}:{os.getpid()}"
