"""Limits, as both stores keep them: a claim under limits goes in rounds, each a short transaction.

A round looks at the first ready tasks and claims those that the limits allow (`core.limit.share`). It makes the others wait: their rows
leave the ready rows, so that the next round, and every other worker, sees the tasks behind them.

A *gate* is the key of the limit of one handler and group. It is a column of the queue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from onward.core.limit import Bound, Candidate, LimitRow, Room, gate_of
from onward.errors import StoreUnavailable
from onward.store.port.values import Claimed

WIDE_ROUND = 500
"""Ready tasks that a round looks at, once a task has been refused."""

MAX_PASSED_OVER = 100
"""Ready tasks of each handler that a claim without some tenants looks at, beside those that it may take."""

MAX_ROUNDS = 200
"""Rounds of one claim."""

GATES_PER_LOOK = 50
"""Gates that `wake` looks at, each time from where the last call stopped."""

Admission = tuple[str, int, float | None]
"""A gate, how many of the tasks that wait there may go on, and when: now (None), or at a time."""


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
        """The column `gate` of a task that is held."""
        return "" if gate is None and self.queue is not None else gate


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """The result of one round. `again`: there may be more ready tasks behind those that were refused. `news`: workers should look, because
    a task got a time, or was passed over while it was locked."""

    claimed: list[Claimed]
    again: bool = False
    news: bool = False


def scan_of(room: int) -> int:
    """How many ready tasks of each handler a claim without some tenants looks at."""
    return room + MAX_PASSED_OVER


def rules(rows: Iterable[Sequence[Any]], queue: str, names: Sequence[str]) -> Rules:
    """Of all limits, those that concern these handlers and this queue."""
    tasks: dict[str, Bound] = {}
    queue_limit: int | None = None
    for kind, name, *numbers in rows:
        if kind == "task" and name in names:
            tasks[name] = Bound(*numbers)
        elif kind != "task" and name == queue:  # a paused queue has a limit of 0
            queue_limit = numbers[0] if queue_limit is None else min(queue_limit, numbers[0])
    return Rules(tasks, queue_limit)


def numbers(row: LimitRow) -> Bound:
    """The columns of a limit."""
    assert row.limit is not None
    pace, burst = row.limit.bucket or (None, None)
    return Bound(row.limit.concurrency, pace, burst)


def followers(rooms: Mapping[str, Room]) -> list[Admission]:
    """The tasks that may go on after a round: at a gate with room left, those that wait there; at one whose bucket is empty, the first
    of them when the next start is due. Where all places are taken, the worker that frees one admits the next."""
    admissions: list[Admission] = []
    for gate, room in sorted(rooms.items()):
        spare = min(room.slots, room.starts, WIDE_ROUND)
        if spare > 0:
            admissions.append((gate, int(spare), None))
        elif room.slots > 0:
            admissions.append((gate, 1, room.next_at))
    return admissions


def freed(gates: Iterable[str]) -> list[Admission]:
    """For each task that is held no longer, one other may go on. The claim of that one checks the limit again."""
    counts: dict[str, int] = {}
    for gate in gates:
        if gate:
            counts[gate] = counts.get(gate, 0) + 1
    return [(gate, count, None) for gate, count in sorted(counts.items())]


def overlooked(gates: Iterable[Sequence[Any]]) -> list[Admission]:
    """Gates at which a task waits without a reason: there is no limit any more, or there is a free place and no time to wait for."""
    admissions: list[Admission] = []
    for gate, limited, concurrency, held, timed in gates:
        if not limited:
            admissions.append((gate, WIDE_ROUND, None))
        elif not timed and (concurrency is None or held < concurrency):
            admissions.append((gate, 1, None))
    return admissions


async def in_rounds(
    claim_round: Callable[[int, int], Awaitable[Round]], room: int, nudge: Callable[[str], None]
) -> list[Claimed]:
    """Claim until the room is filled or nothing is left. `claim_round` gets how many tasks it may take, and how many it looks at, at
    least. The first round locks no more tasks than it takes or refuses: other workers would find nothing meanwhile."""
    claimed: list[Claimed] = []
    wide, news = 0, False
    for _ in range(MAX_ROUNDS):
        try:
            result = await claim_round(room - len(claimed), wide)
        except StoreUnavailable:
            if not claimed:
                raise
            break  # the worker has what was claimed so far
        claimed += result.claimed
        news = news or result.news
        if not result.again or len(claimed) >= room:
            break
        wide = WIDE_ROUND
    if news:
        nudge("ready")
    return claimed
