"""How it stands, in numbers, for whoever watches. A part of the Store's contract."""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

from onward.store.port.overview import Unfinished


@dataclasses.dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What a look at the store tells: the unfinished tasks, what is asked of people (by kind), the workers with their slots and
    how many of them have let their lease end, and what waits to be delivered."""

    unfinished: list[Unfinished]
    asks: dict[str, int]
    workers: int
    slots: int
    late: int
    outbox: tuple[int, float] | None
    """How many events have to leave, and how many seconds ago the oldest happened; None where there is no outbox."""


@runtime_checkable
class Gauges(Protocol):
    """A store that tells how it stands. The promises of all verbs of the Store hold here too."""

    async def standing(self) -> QueueSnapshot:
        """How it stands now: a few statements over what is unfinished; the journal is not gone through."""
        ...
