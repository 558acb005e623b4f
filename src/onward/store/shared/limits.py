"""Limits, as both stores keep them: a claim under limits goes in rounds, each a short transaction.

A round looks at the first ready tasks, lets through what the limits allow (`core.limit.share`), and sends away what they do
not: those rows leave the ready ones, so that the next round sees what lies behind them, and so does everybody else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from onward.core.limit import Bound, Candidate, LimitRow, Room, gate_of
from onward.errors import StoreUnavailable
from onward.store.port.core import Claimed

WIDE = 500
"""How many ready tasks a round looks at, once some were sent away."""

ROUNDS = 200
GATES = 50
"""At how many gates a look around looks, each time from where the last one stopped."""

Admission = tuple[str, int, float | None]
"""A gate, how many of those that wait there may go on, and when: now, or at a time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """The limits that a claim from one queue has to keep."""

    tasks: Mapping[str, Bound]
    queue: int | None

    def __bool__(self) -> bool:
        return bool(self.tasks) or self.queue is not None

    def candidate(self, task_id: str, task: str, group: str | None, *, fresh: bool) -> Candidate:
        return Candidate(task_id, gate_of(task, group) if task in self.tasks else None, fresh)

    def bound(self, gate: str) -> Bound:
        return self.tasks[gate.partition("\n")[0]]

    def mark(self, gate: str | None) -> str | None:
        """What a task is held under."""
        return "" if gate is None and self.queue is not None else gate


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """What one round came to. `again`: there may be more behind what was sent away. `news`: somebody should look, because
    a task got a time, or was passed over while it was locked."""

    claimed: list[Claimed]
    again: bool = False
    news: bool = False


def rules(found: Iterable[Sequence[Any]], queue: str, names: Sequence[str]) -> Rules:
    """Of all limits, those that concern these handlers and this queue."""
    tasks: dict[str, Bound] = {}
    whole: int | None = None
    for kind, name, *numbers in found:
        if kind == "task" and name in names:
            tasks[name] = Bound(*numbers)
        elif kind != "task" and name == queue:  # a queue that is paused has a limit of nothing
            whole = numbers[0] if whole is None else min(whole, numbers[0])
    return Rules(tasks, whole)


def numbers(row: LimitRow) -> Bound:
    """A limit as its row has it."""
    assert row.limit is not None
    pace, burst = row.limit.bucket or (None, None)
    return Bound(row.limit.concurrency, pace, burst)


def followers(rooms: Mapping[str, Room]) -> list[Admission]:
    """Who may come after a round: at a gate with room left, those that wait there; at one whose bucket is empty, the first
    of them when the next start is due. Where all places are taken, whoever lets go of one sees to it."""
    found: list[Admission] = []
    for gate, room in sorted(rooms.items()):
        spare = min(room.slots, room.starts, WIDE)
        if spare > 0:
            found.append((gate, int(spare), None))
        elif room.slots > 0:
            found.append((gate, 1, room.next_at))
    return found


def freed(gates: Iterable[str]) -> list[Admission]:
    """One may go on for each that lets go. Whether it really may, its claim decides."""
    counts: dict[str, int] = {}
    for gate in gates:
        if gate:
            counts[gate] = counts.get(gate, 0) + 1
    return [(gate, count, None) for gate, count in sorted(counts.items())]


def forgotten(gates: Iterable[Sequence[Any]]) -> list[Admission]:
    """Gates at which somebody waits although nothing keeps him: no limit any more, or a free place and no time to wait for."""
    found: list[Admission] = []
    for gate, limited, concurrency, held, timed in gates:
        if not limited:
            found.append((gate, WIDE, None))
        elif not timed and (concurrency is None or held < concurrency):
            found.append((gate, 1, None))
    return found


async def in_rounds(
    one: Callable[[int, int], Awaitable[Round]], room: int, nudge: Callable[[str], None]
) -> list[Claimed]:
    """Claim until the room is filled or nothing is left. `one` is a round: how many it may take, and at how many it looks
    at least. The first locks no more than it takes or sends away; others would find nothing meanwhile."""
    claimed: list[Claimed] = []
    wide, news = 0, False
    for _ in range(ROUNDS):
        try:
            got = await one(room - len(claimed), wide)
        except StoreUnavailable:
            if not claimed:
                raise
            break  # what we have is ours
        claimed += got.claimed
        news = news or got.news
        if not got.again or len(claimed) >= room:
            break
        wide = WIDE
    if news:
        nudge("ready")
    return claimed
