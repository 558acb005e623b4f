"""The parts of a worker that its chores use."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from onward.coordinate.tasks import TaskLocks
from onward.core.clock import Clock
from onward.engine.worker.lease import Lease
from onward.engine.worker.shares import TenantShares
from onward.store.port.core import Claimed, Store


class ChoreServices(Protocol):
    """What a worker gives to maintenance."""

    store: Store
    clock: Clock
    rng: random.Random
    lease: Lease
    locks: TaskLocks
    id: str
    """The id with which the worker joined the store; another one after it was declared dead."""

    def now(self) -> float:
        """The database's time, as far as this process knows it."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str, /) -> asyncio.Task[Any]:
        """Start a background task, which ends with the worker."""
        ...


class ClaimServices(ChoreServices, Protocol):
    """What a worker gives to claiming."""

    slots: int
    version: str
    """The version of the code of the worker."""
    held: AbstractSet[str]
    """The tasks that the worker does now."""
    shares: TenantShares
    """The slots that each tenant holds."""
    stopping: bool
    """Whether nothing new may begin."""

    def sync(self, store_now: float, sent: float, /) -> None:
        """Take over the time of the store, in its answer to a statement that was sent at this moment."""
        ...

    def begin(self, claimed: list[Claimed], /) -> None:
        """Begin a shift of each of these tasks."""
        ...
