"""Checkpoints: when the results of reads are written, from which checkpoints a task goes on, and which of them are kept. Pure.

A checkpoint is a record that replaces all records before it. The **strategy** says when the records of steps that only read are written:
such a step can be run again, so a lost record costs only a repetition. All other records are written before the task goes on.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from onward.core.durations import Duration, seconds
from onward.core.record import Record
from onward.errors import BadSetting, InvalidInput, UnfitCheckpoint

FORM = 1
"""The version of the format of a checkpoint's record; a record without it has version 1."""

EVERY_STEP = "every_step"
EVERY_ITERATION = "every_iteration"
ON_STATE_CHANGE = "on_state_change"
STRATEGIES = (EVERY_STEP, EVERY_ITERATION, ON_STATE_CHANGE)

_PARTS = ("number", "value", "inbox", "messages", "started_at", "versions")


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoints:
    """The settings of a handler for its checkpoints.

    `strategy`: the record of a read is written at once ("every_step"), at the end of its iteration ("every_iteration": a
    turn of an agent, or the next `ctx.checkpoint`) or with the next change of the state ("on_state_change"); and always
    before the next step that does more than read.

    `keep`: how many of the last checkpoints to keep, with the records that they need, and all that are younger than `keep_for`. None keeps
    everything. `max_age`: a task whose last checkpoint is older parks instead of going on.
    """

    strategy: str = EVERY_STEP
    keep: int | None = None
    keep_for: Duration = 0
    max_age: Duration | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise BadSetting("checkpoint", self.strategy, f"one of {', '.join(STRATEGIES)}")
        if self.keep is not None and (isinstance(self.keep, bool) or not isinstance(self.keep, int) or self.keep < 1):
            raise BadSetting("Checkpoints.keep", self.keep, "a whole number of 1 or more")
        if self.keep is None and self.keep_for:
            raise BadSetting("Checkpoints.keep_for", self.keep_for, "given together with keep")
        object.__setattr__(self, "keep_for", seconds(self.keep_for, "Checkpoints.keep_for"))
        if self.max_age is not None:
            object.__setattr__(self, "max_age", seconds(self.max_age, "Checkpoints.max_age"))

    def dropped_before(self, now: float) -> float:
        """The time from which on all records are kept; without `keep_for` there is none. The clock of a worker may jump back a little, so
        that records of the last moment are younger than now."""
        return now - float(self.keep_for) if self.keep_for else math.inf  # type: ignore[arg-type]

    def check_age(self, number: int, age: float) -> None:
        """Raises UnfitCheckpoint for a checkpoint that is too old."""
        most = None if self.max_age is None else float(self.max_age)  # type: ignore[arg-type]
        if most is not None and age > most:
            raise UnfitCheckpoint(
                number,
                f"it is {_span(age)} old, and its handler goes on from checkpoints of up to {_span(most)}",
                "look whether the world is still as it says; `onward resume` then goes on from it, `onward cancel` ends it",
            )


DEFAULT = Checkpoints()


def checkpoints(setting: str | Checkpoints | None) -> Checkpoints:
    """The settings of a handler, which may be given as a strategy alone."""
    if setting is None:
        return DEFAULT
    return setting if isinstance(setting, Checkpoints) else Checkpoints(setting)


def read(record: Record) -> dict[str, Any]:
    """The payload of a checkpoint. Raises UnfitCheckpoint for one that this program cannot read."""
    try:
        payload = record.value
    except (InvalidInput, ValueError) as error:
        raise _unreadable(None, f"its record {record.seq} is not JSON ({error})") from None
    if not isinstance(payload, dict):
        raise _unreadable(None, f"its record {record.seq} is no object")
    form = payload.get("form", FORM)
    if form != FORM:
        raise UnfitCheckpoint(
            payload.get("number"),
            f"its form is {form!r}, and this program knows {FORM}",
            "it was written by another version of Onward: start workers of that version, then `onward resume`",
        )
    if missing := [part for part in _PARTS if part not in payload]:
        raise _unreadable(payload.get("number"), f"its record {record.seq} has no {', '.join(missing)}")
    return payload


def _unreadable(number: Any, why: str) -> UnfitCheckpoint:
    return UnfitCheckpoint(
        number, why, "the database was changed by hand or damaged: restore it, or `onward fork` an earlier record"
    )


def _span(length: float) -> str:
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if length >= size:
            return f"{length / size:.3g} {name}"
    return f"{length:.3g} s"
