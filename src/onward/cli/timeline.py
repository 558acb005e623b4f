"""A journal as a story: records in, lines for people out. Pure, and the same for `show`, `follow` and `demo`.

A shift that ends in good order says so. A `shift.started` that follows a shift which never did means that the worker
was killed or lost its lease in between: the story says it, because the journal has no record of it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from onward.cli.text import clock, readable, safe, short, span
from onward.cli.views import payload
from onward.core import record as r

DETAIL = 200
"""Characters of a result that a line shows."""


class Mark(enum.StrEnum):
    """What kind of line it is; the screen knows how each looks."""

    BEGIN = "begin"
    DONE = "done"
    FAILED = "failed"
    CRASH = "crash"
    AGAIN = "again"
    ASLEEP = "asleep"
    PERSON = "person"
    NOTE = "note"
    PROGRESS = "progress"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of the story: the moment, its kind, what happened, how long it took, and what came of it."""

    at: float
    mark: Mark
    text: str
    took: float | None = None
    detail: str = ""


class Story:
    """Tell it one record after the other; it remembers what it needs to see a crash, and what runs now."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.shifts = 0
        self.crashes = 0
        self.steps = 0
        self.step: str | None = None
        """The step that is running, as far as it was announced."""
        self.step_since = 0.0
        self.progress: tuple[str, int, int] = ("", 0, 0)
        self._open = False
        self._tellers: dict[str, Callable[[r.Record, dict[str, Any]], Line | None]] = {
            r.SUBMITTED: lambda record, _: Line(record.at, Mark.NOTE, "submitted"),
            r.FORKED: self._forked,
            r.SHIFT: self._shift,
            r.HANDED_BACK: self._handed_back,
            r.STEP_STARTED: self._step_started,
            r.STEP_RETRY: self._step_retry,
            r.STEP_DONE: self._step_done,
            r.STEP_FAILED: self._step_failed,
            r.SLEEP: self._asleep,
            r.SLEPT: lambda record, _: Line(record.at, Mark.ASLEEP, "awake again"),
            r.PROGRESS: self._progress,
            r.RETRY: self._retry,
            r.PARKED: self._person,
            r.QUARANTINED: self._person,
            r.RESUMED: lambda record, _: Line(record.at, Mark.BEGIN, "resumed"),
            r.CANCEL: lambda record, _: Line(record.at, Mark.NOTE, "cancel requested"),
            r.DEADLINE: lambda record, _: Line(record.at, Mark.FAILED, "the deadline has passed"),
            r.COMPLETED: self._completed,
            r.FAILED: self._failed,
            r.CANCELLED: self._cancelled,
        }

    def tell(self, record: r.Record) -> list[Line]:
        """The lines of this record: none, one, or one more for a crash that came before it."""
        self.began = record.at if self.began is None else self.began
        value = payload(record)
        said = value if isinstance(value, dict) else {}
        lines = []
        if record.kind == r.SHIFT and self._open:
            lines.append(self._crash(record))
        teller = self._tellers.get(record.kind)
        line = (
            teller(record, said) if teller else Line(record.at, Mark.NOTE, safe(f"{record.kind} {record.key}".strip()))
        )
        return lines if line is None else [*lines, line]

    # ── shifts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _shift(self, record: r.Record, said: dict[str, Any]) -> Line:
        self.shifts += 1
        self._open = True
        worker = short(str(said.get("worker", ""))[-8:])
        return Line(record.at, Mark.BEGIN, f"shift {self.shifts}", detail=f"worker {worker}" if worker else "")

    def _crash(self, record: r.Record) -> Line:
        self.crashes += 1
        where = f" in step {safe(self.step)}" if self.step else ""
        self.step = None
        return Line(
            record.at, Mark.CRASH, f"shift {self.shifts} broke off{where}", detail="(worker killed or lease lost)"
        )

    def _over(self) -> None:
        self._open = False
        self.step = None

    def _forked(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._over()
        whence = f"all above from {safe(said.get('from'))}, records 1 to {safe(said.get('at'))}"
        return Line(record.at, Mark.BEGIN, "forked", detail=whence)

    def _handed_back(self, record: r.Record, said: dict[str, Any]) -> Line | None:
        self._over()
        reason = said.get("reason")
        if reason in {"asleep", "retrying"}:  # told by the record before
            return None
        return Line(record.at, Mark.NOTE, f"shift {self.shifts} ended", detail=short(reason or ""))

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step_started(self, record: r.Record, _: dict[str, Any]) -> None:
        self.step, self.step_since = record.key, record.at

    def _step_done(self, record: r.Record, said: dict[str, Any]) -> Line:
        self.step = None
        self.steps += 1
        attempts = said.get("attempts", 1)
        text = safe(record.key) + (f" (attempt {attempts})" if attempts != 1 else "")
        took = said.get("ms")
        result = said.get("result")
        return Line(
            record.at,
            Mark.DONE,
            text,
            took=took / 1000 if isinstance(took, int | float) else None,
            detail="" if result is None else short(readable(result), DETAIL),
        )

    def _step_retry(self, record: r.Record, said: dict[str, Any]) -> Line:
        return Line(
            record.at,
            Mark.AGAIN,
            f"{safe(record.key)}, attempt {said.get('attempt', '?')} failed",
            detail=f"{_error(said)}; {_again(record, said)}",
        )

    def _step_failed(self, record: r.Record, said: dict[str, Any]) -> Line:
        self.step = None
        error = said.get("error")
        attempts = error.get("attempts", 1) if isinstance(error, dict) else 1
        times = "" if attempts == 1 else f" after {attempts} attempts"
        return Line(record.at, Mark.FAILED, f"{safe(record.key)} failed{times}", detail=_error(said))

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _asleep(self, record: r.Record, said: dict[str, Any]) -> Line:
        until = said.get("until")
        length = f" for {span(said['for'])}" if isinstance(said.get("for"), int | float) else ""
        return Line(
            record.at,
            Mark.ASLEEP,
            f"asleep{length}",
            detail=f"until {clock(until)}" if isinstance(until, int | float) else "",
        )

    def _progress(self, record: r.Record, said: dict[str, Any]) -> Line:
        step, total = (n if isinstance(n := said.get(name), int) else 0 for name in ("step", "total"))
        self.progress = (safe(said.get("message", "")), step, total)
        where = f"{step}/{total}" if total else str(step or "")
        return Line(
            record.at, Mark.PROGRESS, " ".join(part for part in (where, self.progress[0]) if part) or "progress"
        )

    def _retry(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._over()
        return Line(
            record.at,
            Mark.AGAIN,
            f"attempt {said.get('attempt', '?')} of the task failed",
            detail=f"{_error(said)}; {_again(record, said)}",
        )

    def _person(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._over()
        return Line(record.at, Mark.PERSON, record.kind.removeprefix("task."), detail=safe(said.get("reason", "")))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _completed(self, record: r.Record, _: dict[str, Any]) -> Line:
        self._over()
        return Line(record.at, Mark.DONE, "completed", detail=f"after {span(record.at - (self.began or record.at))}")

    def _failed(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._over()
        return Line(record.at, Mark.FAILED, "failed", detail=_error(said))

    def _cancelled(self, record: r.Record, _: dict[str, Any]) -> Line:
        self._over()
        return Line(record.at, Mark.FAILED, "cancelled")


def _error(said: dict[str, Any]) -> str:
    error = said.get("error")
    if not isinstance(error, dict):
        return ""
    return safe(f"{error.get('type', 'Error')}: {error.get('message', '')}")


def _again(record: r.Record, said: dict[str, Any]) -> str:
    due = said.get("due_at")
    return f"again in {span(due - record.at)}" if isinstance(due, int | float) else "again"
