"""The picture that the watch keeps of a task: its queue row and its journal."""

from __future__ import annotations

import dataclasses

from tests.sim.loop import Process


@dataclasses.dataclass(slots=True)
class Row:
    """A queue row."""

    worker: str | None
    due_at: float | None
    reason: str
    attempt: int
    crashes: int
    priority: int
    position: int
    queue: str
    task: str


@dataclasses.dataclass(slots=True)
class Entry:
    """A record as it was written."""

    seq: int
    shift: int
    kind: str
    key: str
    data: bytes


@dataclasses.dataclass(slots=True)
class Picture:
    """The picture of one task."""

    id: str
    records: list[Entry] = dataclasses.field(default_factory=list)
    ended: str | None = None
    endings: list[tuple[float, str, bytes]] = dataclasses.field(default_factory=list)
    shift: int = 0
    holder: Process | None = None
    last_holder: Process | None = None
    holders: set[Process] = dataclasses.field(default_factory=set)
    done: set[str] = dataclasses.field(default_factory=set)
    failed: set[str] = dataclasses.field(default_factory=set)
    retried: dict[str, int] = dataclasses.field(default_factory=dict)
    attempt: int = 1
    idle_shifts: int = 0
    """Shifts in a row without progress, the present one included."""

    messages: int = 0
    """Messages that the journal has."""
    taken: set[int] = dataclasses.field(default_factory=set)
    """Messages that a wait has taken."""

    @property
    def head(self) -> int:
        return len(self.records)
