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

SLOW_CLAIM_S = 0.02
"""Seconds that a claim may take before the store looks for the cause."""

MIN_DEAD_ROWS = 20_000
"""Dead rows in the queue from which on they count as the cause."""

MIN_LIFE_S = 1.0
"""Seconds for which marks are valid, at least."""

LIFE_PER_SURVEY = 20
"""Marks are valid for so many times the duration of their survey."""

SLACK = 1_000
"""Places by which a mark stays behind the newest: a task that has a place may not be committed yet."""

MAX_MARKS = 500
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
        """The parameters of a claim that begins at the marks; None where there are no marks."""
        survey = self._surveys.get(queue)
        if survey is None or now >= survey.until or survey.names != frozenset(names):
            return None
        return survey.values

    def wants_survey(self, queue: str, took: float, now: float) -> bool:
        """Whether a claim from the beginning took so long that the store should look for the cause."""
        return took > SLOW_CLAIM_S and now >= self._next.get(queue, 0.0)

    def set(self, queue: str, names: Sequence[str], rows: Iterable[Sequence[Any]], took: float, now: float) -> None:
        """Store the result of a survey: name, priority and place of the first ready tasks. Its last row has the number of dead rows and the
        newest place."""
        until = self._next[queue] = now + max(MIN_LIFE_S, LIFE_PER_SURVEY * took)
        *fronts, (_, dead, newest) = rows
        self._surveys.pop(queue, None)
        if dead < MIN_DEAD_ROWS:
            return
        places = {(name, priority): place for name, priority, place in fronts}
        priorities = sorted({0, *(priority for _, priority in places)}, reverse=True)
        marks = [(name, p, min(places.get((name, p), newest), newest - SLACK)) for name in names for p in priorities]
        if len(marks) <= MAX_MARKS:
            columns = zip(*marks, strict=True)
            values = dict(zip(("marked", "priorities", "places"), map(list, columns), strict=True))
            self._surveys[queue] = _Survey(frozenset(names), values, until)

    def drop(self, queue: str | None = None) -> None:
        """Drop the marks of this queue, or of all: a task may be ready behind one."""
        if queue is None:
            self._surveys.clear()
        else:
            self._surveys.pop(queue, None)
