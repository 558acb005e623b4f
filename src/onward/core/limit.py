"""Limits: how many tasks of a group may be held at once, how many may start in a time, and which tasks may start now.

A **gate** is a limit for one group: the handler's name and the group, or the name alone. A `Room` is the free capacity of a gate; `share`
admits tasks in order, as far as their rooms allow. A rate is a bucket that holds `burst` starts and gets a new one every `pace` seconds; it
is stored as one number, the time at which it will be full again.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onward.core.durations import seconds
from onward.errors import BadSetting

_RATE = re.compile(r"\s*(\d+)\s*/\s*(.+?)\s*")
SLACK_S = 1e-5
"""Seconds of tolerance: a start that is due now must not be refused because of rounding."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """At most `concurrency` tasks of a group at once, and at most `rate` starts in a time, such as "10/m" or "100/h".

    A group that was quiet may start `burst` tasks at once (by default as many as the rate names), and then one at regular intervals:
    "10/m" is ten, then one every 6 s. With `burst=1` all starts are that far apart. Only the first start of a task counts for the rate; a
    retry, or going on after a sleep or a crash, does not.
    """

    concurrency: int | None = None
    rate: str | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("concurrency", self.concurrency), ("burst", self.burst)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadSetting(f"Limit.{name}", value, "a whole number of 1 or more")
        if self.concurrency is None and self.rate is None:
            raise BadSetting("Limit", "nothing", "given a concurrency, a rate, or both")
        if self.burst is not None and self.rate is None:
            raise BadSetting("Limit.burst", self.burst, "given together with a rate")
        self.bucket  # noqa: B018 -- a rate that cannot be parsed is refused here, not when a worker starts

    @property
    def bucket(self) -> tuple[float, int] | None:
        """The seconds between two starts and how many may come at once, or None without a rate."""
        if self.rate is None:
            return None
        match = _RATE.fullmatch(self.rate) if isinstance(self.rate, str) else None
        count = int(match[1]) if match else 0
        if match is None or count < 1:
            raise BadSetting("Limit.rate", self.rate, 'a number in a time, such as "10/m", "5/s" or "100/1h30m"')
        period = seconds(match[2] if match[2][0].isdigit() else f"1{match[2]}", "Limit.rate")
        if period <= 0:
            raise BadSetting("Limit.rate", self.rate, "a number in a time of more than 0 s")
        return period / count, self.burst or count


class LimitRow(NamedTuple):
    """A limit as the store keeps it: of a `task`, for each of its groups, or of a whole `queue`. None removes the limit."""

    kind: str
    name: str
    limit: Limit | None


class Bound(NamedTuple):
    """The numbers of a limit: tasks at once; seconds between two starts; starts at once."""

    concurrency: int | None
    pace: float | None
    burst: int | None


class Candidate(NamedTuple):
    """A ready task: the gate that it has to pass, if any, and whether it was never started before."""

    id: str
    gate: str | None
    fresh: bool


def gate_of(task: str, group: str | None) -> str:
    """The name of the gate for tasks of this handler and group. A handler's name has no line break, so no two gates have the same name."""
    return f"{task}\n{group or ''}"


class Room:
    """The free capacity of one gate: slots, and starts in the bucket."""

    def __init__(self, bound: Bound, held: int, full_at: float | None, now: float) -> None:
        self.slots: float = math.inf if bound.concurrency is None else bound.concurrency - held
        self._now, self._pace, self._burst = now, bound.pace, bound.burst or 1
        self.spent = False
        # A later time than that of an empty bucket comes from a clock that was set back.
        self.full_at = now if bound.pace is None else min(max(full_at or now, now), now + self._burst * bound.pace)

    @property
    def starts(self) -> float:
        """How many tasks may start now, by the rate alone."""
        if self._pace is None:
            return math.inf
        empty = self.full_at - self._now
        return math.floor((self._burst * self._pace - empty + SLACK_S) / self._pace)

    @property
    def next_at(self) -> float:
        """When the next task may start, if the bucket is empty now."""
        assert self._pace is not None
        return self.full_at - (self._burst - 1) * self._pace

    def lets(self, *, fresh: bool) -> bool:
        """Whether one more task may pass."""
        return self.slots > 0 and (not fresh or self.starts > 0)

    def take(self, *, fresh: bool) -> None:
        """Count one more task that passed."""
        self.slots -= 1
        if fresh and self._pace is not None:
            self.full_at += self._pace
            self.spent = True


def share(line: Sequence[Candidate], rooms: Mapping[str, Room], most: int) -> tuple[list[Candidate], list[Candidate]]:
    """The tasks that may start, at most `most`, and the tasks that a limit refuses. The others stay ready."""
    taken: list[Candidate] = []
    refused: list[Candidate] = []
    for candidate in line:
        room = None if candidate.gate is None else rooms[candidate.gate]
        if room is not None and not room.lets(fresh=candidate.fresh):
            refused.append(candidate)
        elif len(taken) < most:
            taken.append(candidate)
            if room is not None:
                room.take(fresh=candidate.fresh)
    return taken, refused
