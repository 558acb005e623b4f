"""WorkerServices: the parts of a worker that its shifts use."""

from __future__ import annotations

import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from onward.artifacts.keeper import Artifacts
from onward.coordinate.tasks import TaskLocks
from onward.core.approval import ApprovalRule
from onward.core.clock import Clock
from onward.engine.context.secrets import Secrets
from onward.engine.shift.ports import JournalWriter, ShiftStore
from onward.engine.shift.threads import Threads
from onward.engine.worker.lease import Lease


class WorkerServices(Protocol):
    """What a worker gives to its shifts."""

    @property
    def store(self) -> ShiftStore: ...

    @property
    def writer(self) -> JournalWriter: ...

    artifacts: Artifacts
    clock: Clock
    rng: random.Random
    threads: Threads
    lease: Lease
    locks: TaskLocks
    secrets: Secrets
    approval_rules: Sequence[ApprovalRule]

    async def submit(
        self, name: str, value: object, options: dict[str, object], key: str, parent: str, until: float | None
    ) -> str:
        """Submit a child task; the same key gives the same child."""
        ...

    version: str
    """The version of the worker: of Onward, and of the code of the app."""

    async def others_may_fit(self, task_id: str, tried: AbstractSet[str]) -> bool:
        """Whether a living worker with a version that is not among the tried ones can claim this task."""
        ...

    def now(self) -> float:
        """The database's time, as far as this process knows it."""
        ...

    def due(self, at: float) -> None:
        """Be awake at this time: a task was put to sleep until then."""
        ...
