"""Schedules: the rhythm in which a task is submitted, and which of its ticks are due.

A tick is a moment at which a schedule submits its task. A rhythm is a cron line in a time zone, or an interval. The ticks of an interval
are its whole multiples since 1970, so that every machine computes the same ones. Pure: callers pass the time.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from onward.core import wire
from onward.core.epoch import Lost
from onward.core.page import Page
from onward.core.task import NewTask
from onward.errors import BadSetting, UsageError

MISSED = ("skip", "once", "all")
"""What happens to ticks at which no worker ran."""

LATE_S = 60.0
"""Seconds by which a worker that has just started may be late for a tick without having missed it."""

MIN_INTERVAL_S = 1.0

MAX_TICKS = 1000
"""Ticks of one schedule that are fired in one transaction."""

CRON_FIELDS = 5
CRON = 'five fields such as "0 3 * * *" (minute, hour, day, month, weekday)'


class Rhythm(NamedTuple):
    """When a schedule ticks: `cron` in `timezone`, or `every` so many seconds."""

    cron: str | None
    every: float | None
    timezone: str

    def check(self) -> None:
        """Raises for a rhythm with neither or both of cron and interval, or without any tick."""
        if (self.cron is None) == (self.every is None):
            raise UsageError('a schedule has a cron line or an interval: give cron="0 3 * * *" or every="15m"')
        if self.every is not None and self.every < MIN_INTERVAL_S:
            raise BadSetting("every", self.every, f"{MIN_INTERVAL_S:g} s or more")
        if self.cron is not None and len(self.cron.split()) != CRON_FIELDS:
            # With six fields, cronsim would take the first for seconds.
            raise BadSetting("cron", self.cron, f"{CRON}; it has {len(self.cron.split())} fields")
        if self.after(0.0) is None:
            raise BadSetting("cron", self.cron, f"a moment that comes, in {CRON}")

    def after(self, moment: float) -> float | None:
        """The first tick after a moment; None when there is none in the next 50 years."""
        return next(self.ticks(moment), None)

    def ticks(self, after: float) -> Iterator[float]:
        """All ticks after a moment, in order."""
        if self.every is None:
            return self._cron_ticks(after)
        beats = (count * self.every for count in itertools.count(math.floor(after / self.every)))
        return (tick for tick in beats if tick > after)

    def _cron_ticks(self, after: float) -> Iterator[float]:
        # Imported here: `import onward` has to be quick, and most programs have no schedule.
        from cronsim import CronSim, CronSimError  # noqa: PLC0415

        try:
            moments = CronSim(self.cron or "", datetime.datetime.fromtimestamp(after, zone(self.timezone)))
        except (CronSimError, AssertionError) as error:
            raise BadSetting("cron", self.cron, f"{CRON}; {str(error) or 'not this'}") from None
        # When clocks are set back, an hour comes twice. Asked from its second occurrence, cronsim gives ticks of the first.
        return (tick for moment in moments if (tick := moment.timestamp()) > after)

    def last(self, first: float, now: float) -> float:
        """The last tick up to now, where `first` is a tick. To avoid counting a year of minutes, it looks back a minute, and twice as far
        while there is no tick."""
        back = 60.0
        while (since := now - back) > first:
            if ticks := list(itertools.takewhile(lambda tick: tick <= now, self.ticks(since))):
                return ticks[-1]
            back *= 2
        return max(itertools.takewhile(lambda tick: tick <= now, self.ticks(first)), default=first)


def zone(name: str) -> datetime.tzinfo:
    """A time zone by its name, as in Europe/Berlin."""
    if name == "UTC":
        return datetime.UTC
    import zoneinfo  # noqa: PLC0415 -- as cronsim

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        wanted = "a name such as Europe/Berlin (where the system knows none: pip install tzdata)"
        raise BadSetting("timezone", name, wanted) from None


class ScheduleRow(NamedTuple):
    """A schedule as the store keeps it. `mark` is new at each change; a change names the mark that it has read."""

    name: str
    task: str
    input: bytes
    options: bytes
    queue: str
    priority: int
    cron: str | None
    every: float | None
    timezone: str
    missed: str
    next_at: float | None
    last_at: float | None
    paused: bool
    mark: str

    @property
    def rhythm(self) -> Rhythm:
        return Rhythm(self.cron, self.every, self.timezone)

    def task_at(self, tick: float | None, task_id: str, lost: Lost | None = None) -> NewTask:
        """The task of a tick, with a key that only this tick has; without a tick, the task of a trigger. `lost` is the time that a
        restore took, in which this tick may have fired before."""
        labels = {"schedule": self.name} | ({} if tick is None else {"tick": stamp(tick)})
        options = wire.decode(self.options) | ({} if lost is None else {"lost": lost.to_json()})
        with_labels = wire.encode(options | {"labels": options.get("labels", {}) | labels})
        key = None if tick is None else f"schedule:{self.name}:{stamp(tick)}"
        return NewTask(task_id, self.task, self.input, with_labels, self.queue, self.priority, 0.0, key, "")


class Timetable(NamedTuple):
    """Schedules, and the time of the database when they were read."""

    now: float
    rows: Page[ScheduleRow]


class Due(NamedTuple):
    """The ticks to fire, and the next one after them."""

    ticks: list[float]
    next_at: float | None


def due(rhythm: Rhythm, missed: str, first: float, now: float, alive_since: float) -> Due:
    """The due ticks at `now` of a schedule whose next tick was `first`, when workers have run since `alive_since`."""
    if missed == "all":
        ticks = list(itertools.islice(_upto(rhythm, first, now), MAX_TICKS))
        return Due(ticks, rhythm.after(ticks[-1]))
    last = rhythm.last(first, now)
    on_time = last > min(alive_since, now - LATE_S)
    return Due([last] if on_time or missed == "once" else [], rhythm.after(now))


def _upto(rhythm: Rhythm, first: float, now: float) -> Iterator[float]:
    yield first
    yield from itertools.takewhile(lambda tick: tick <= now, rhythm.ticks(first))


def tick_of(labels: Mapping[str, str]) -> float | None:
    """The tick in the labels of a task that a schedule submitted."""
    if "schedule" not in labels or "tick" not in labels:
        return None
    try:
        tick = datetime.datetime.fromisoformat(labels["tick"])
    except ValueError:  # labels that a caller made up
        return None
    return None if tick.tzinfo is None else tick.timestamp()


def stamp(tick: float) -> str:
    """A tick as a string: ISO 8601, UTC."""
    return datetime.datetime.fromtimestamp(tick, datetime.UTC).isoformat().replace("+00:00", "Z")
