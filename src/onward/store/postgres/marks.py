"""Marks: where a claim begins to read while the server cannot clean up.

A claimed task leaves a dead entry behind in the index of ready tasks, and the server removes it soon. A snapshot that is held elsewhere
keeps it from that: after a million tasks every claim walks over a million dead entries. Then the store surveys the queue: for each handler
and priority it remembers the place of the first ready task, and claims begin there.

A task may become ready behind its mark (it slept, or was rescued) or get a priority that the survey did not see. So marks last for a
second, or for twenty times as long as the survey took; and they are dropped at once when this process makes such a task ready, or a nudge
tells of one. Where the server cleans up there are no marks, and nothing of this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

DEAR_S = 0.02
"""Seconds that a claim may take before the store looks for the cause."""

DEAD = 20_000
"""Dead rows in the queue from which on they are taken for the cause."""

LAST_S = 1.0
SHARE = 20
"""A survey may take one of so many parts of the time."""

SLACK = 1_000
"""Places behind the newest at which a mark may stand: what has a place may not be committed yet."""

MOST = 500
"""Marks of one queue. With more of them, a claim without marks is as good."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Survey:
    names: frozenset[str]
    values: dict[str, list[Any]]
    until: float


class Marks:
    """The marks of all queues that this process claims from."""

    def __init__(self) -> None:
        self._surveys: dict[str, _Survey] = {}
        self._next: dict[str, float] = {}

    def of(self, queue: str, names: Sequence[str], now: float) -> dict[str, list[Any]] | None:
        """The parameters of a claim that begins at the marks; None where there are none."""
        survey = self._surveys.get(queue)
        if survey is None or now >= survey.until or survey.names != frozenset(names):
            return None
        return survey.values

    def wants_survey(self, queue: str, took: float, now: float) -> bool:
        """Whether a claim from the beginning took so long that the store should look for the cause."""
        return took > DEAR_S and now >= self._next.get(queue, 0.0)

    def set(self, queue: str, names: Sequence[str], rows: Iterable[Sequence[Any]], took: float, now: float) -> None:
        """Keep what a survey found: name, priority and place of the first ready tasks; the last row tells the newest place and how
        many rows are dead."""
        until = self._next[queue] = now + max(LAST_S, SHARE * took)
        *fronts, (_, dead, newest) = rows
        self._surveys.pop(queue, None)
        if dead < DEAD:
            return
        found = {(name, priority): place for name, priority, place in fronts}
        priorities = sorted({0, *(priority for _, priority in found)}, reverse=True)
        marks = [(name, p, min(found.get((name, p), newest), newest - SLACK)) for name in names for p in priorities]
        if len(marks) <= MOST:
            columns = zip(*marks, strict=True)
            values = dict(zip(("marked", "priorities", "places"), map(list, columns), strict=True))
            self._surveys[queue] = _Survey(frozenset(names), values, until)

    def drop(self, queue: str | None = None) -> None:
        """A task may be ready behind a mark of this queue, or of any."""
        if queue is None:
            self._surveys.clear()
        else:
            self._surveys.pop(queue, None)
