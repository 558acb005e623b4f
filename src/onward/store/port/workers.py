"""The port of the workers: their rows, leases and presence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

MAX_WORKERS = 100_000
"""More workers than a database has."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as the store knows it. `machine` names the boot and the process namespace in which `pid` is valid."""

    id: str
    machine: str
    host: str
    pid: int
    slots: int
    names: tuple[str, ...]
    queues: tuple[str, ...]
    address: str
    version: str
    lease_until: float = 0.0
    started_at: float = 0.0
    rate: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat. `alive` is False when the worker was declared dead. `held` are the tasks that it holds by the store, and
    `paused` those of them that it must stop."""

    alive: bool
    now: float
    held: frozenset[str]
    paused: frozenset[str] = frozenset()


class Workers(Protocol):
    """Workers that were not declared dead."""

    async def join(self, row: WorkerRow, lease: float) -> float:
        """Add a worker; the time of the database."""
        ...

    async def heartbeat(self, worker: str, lease: float, rate: float, resting: Sequence[str] = ()) -> Beat:
        """Prolong the lease of a worker that was not declared dead. `resting` are paused tasks that it holds and begins no further
        step of: it confirms their pause."""
        ...

    async def leave(self, worker: str) -> None:
        """Remove a worker. Tasks that it still holds become ready, and no crash is counted."""
        ...

    async def rescue(self, dead: Sequence[str], lease: float | None = None, now: float | None = None) -> int:
        """Declare these workers dead and, with `lease`, those whose lease has ended. Free their tasks, and count a crash for each that
        had no new record in its shift. Returns how many tasks were freed.

        A lease that ended while the database was down, or less than `lease` seconds after it came back, does not count. `now` is the
        time of the database as the caller knows it: a lease must have ended by both clocks, so that a clock that jumps, or a call that
        takes long, declares no living worker dead."""
        ...

    async def list(self, *, after: str = "", limit: int = MAX_WORKERS) -> Sequence[WorkerRow]:
        """All workers, by their ids; or so many of those after an id."""
        ...

    async def absent(self, lease: float) -> set[str]:
        """Workers whose presence lock is free although they should hold it. This is a hint: the worker may be about to lock again."""
        ...

    async def attend(self, worker: str) -> str:
        """Receive nudges of other processes for this worker, and hold its presence lock, as far as the database can. Returns the address
        that other processes need, or an empty string."""
        ...
