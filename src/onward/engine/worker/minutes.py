"""Counts the tasks that a worker ends, by the minute, and adds them to the store: for the charts of the whole.

The counts are in memory until they are added, at most `ADD_INTERVAL_S` later. A worker that is killed before loses them: the charts are
for people, and no decision depends on them. An idle worker adds nothing.
"""

from __future__ import annotations

from onward.core.clock import Clock
from onward.core.task import State
from onward.core.usage import Usage
from onward.store.port.core import Store
from onward.store.shared.minutes import MINUTE_S, Minute

ADD_INTERVAL_S = 10.0
"""Seconds between two additions of a worker."""


class MinuteCounts:
    """The counts of one worker."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._counts: dict[int, Minute] = {}
        self._next = clock.monotonic() + ADD_INTERVAL_S

    def ended(self, state: State, now: float, submitted_at: float, usage: Usage | None) -> None:
        """Count a task that has ended now."""
        number = int(now // MINUTE_S)
        minute = self._counts.get(number) or Minute(number)
        self._counts[number] = minute.with_end(state, max(0.0, now - submitted_at), usage)

    def is_due(self, *, busy: bool) -> bool:
        """Whether it is time to add the counts. A worker that is `busy` adds also when it ended nothing: then people see how many tasks
        wait."""
        if self._clock.monotonic() < self._next or not (busy or self._counts):
            return False
        self._next = self._clock.monotonic() + ADD_INTERVAL_S
        return True

    async def add(self, now: float | None) -> None:
        """Add the counts to the store; where there are none, a minute of `now` without any."""
        counts, self._counts = list(self._counts.values()), {}
        for minute in counts or ([] if now is None else [Minute(int(now // MINUTE_S))]):
            await self._store.minutes.add(minute)
