"""Checkpoints: when the results of reads are written, from which checkpoints a task goes on, and which of them are kept. Pure.

A checkpoint is a record that stands for all before it. The **strategy** says when records of steps that only read are
written: they can be run again, so losing one costs a repetition and nothing else. Everything else is always written before
the task goes on.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.core.durations import Duration, seconds
from onward.core.record import Record
from onward.errors import BadSetting, InvalidInput, UnfitCheckpoint

FORM = 1
"""The form of the record of a checkpoint; one without it is of the first."""

EVERY_STEP = "every_step"
EVERY_ITERATION = "every_iteration"
ON_STATE_CHANGE = "on_state_change"
STRATEGIES = (EVERY_STEP, EVERY_ITERATION, ON_STATE_CHANGE)

_PARTS = ("number", "value", "inbox", "messages", "started_at", "versions")


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoints:
    """What a handler says about its checkpoints.

    `strategy`: the record of a read is written at once ("every_step"), at the end of its iteration ("every_iteration": a
    turn of an agent, or the next `ctx.checkpoint`) or with the next change of the state ("on_state_change"); and always
    before the next step that does more than read.

    `keep`: of checkpoints, and the records before them, keep what the last so many need, and what is younger than
    `keep_for`; nothing said keeps everything. `max_age`: a task whose last checkpoint is older parks instead of going on.
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
        """The time from which on everything is kept."""
        return now - float(self.keep_for)  # type: ignore[arg-type]

    def check_age(self, number: int, age: float) -> None:
        """Raises UnfitCheckpoint for one that is too old."""
        most = None if self.max_age is None else float(self.max_age)  # type: ignore[arg-type]
        if most is not None and age > most:
            raise UnfitCheckpoint(
                number,
                f"it is {_span(age)} old, and its handler goes on from checkpoints of up to {_span(most)}",
                "look whether the world is still as it says; `onward resume` then goes on from it, `onward cancel` ends it",
            )


DEFAULT = Checkpoints()


def checkpoints(said: str | Checkpoints | None) -> Checkpoints:
    """What was said about them: a strategy alone, or more."""
    if said is None:
        return DEFAULT
    return said if isinstance(said, Checkpoints) else Checkpoints(said)


def read(record: Record) -> dict[str, Any]:
    """What a checkpoint says. Raises UnfitCheckpoint for one that this program does not understand."""
    try:
        told = record.value
    except (InvalidInput, ValueError) as error:
        raise _unreadable(None, f"its record {record.seq} is not JSON ({error})") from None
    if not isinstance(told, dict):
        raise _unreadable(None, f"its record {record.seq} is no object")
    form = told.get("form", FORM)
    if form != FORM:
        raise UnfitCheckpoint(
            told.get("number"),
            f"its form is {form!r}, and this program knows {FORM}",
            "it was written by another version of Onward: start workers of that version, then `onward resume`",
        )
    if missing := [part for part in _PARTS if part not in told]:
        raise _unreadable(told.get("number"), f"its record {record.seq} has no {', '.join(missing)}")
    return told


def _unreadable(number: Any, why: str) -> UnfitCheckpoint:
    return UnfitCheckpoint(
        number, why, "the database was changed by hand or damaged: restore it, or `onward fork` an earlier record"
    )


def _span(length: float) -> str:
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if length >= size:
            return f"{length / size:.3g} {name}"
    return f"{length:.3g} s"
