"""A journal as a story: records in, lines for people out. Pure, and the same for `show`, `follow` and `demo`.

What happens in a branch or a saga stands further in. A shift that ends in good order says so. A `shift.started` that follows a shift which never did means that the worker
was killed or lost its lease in between: the story says it, because the journal has no record of it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from onward.cli.output.text import clock, readable, safe, short, span
from onward.core import record as r
from onward.core.journal.open_waits import OpenWaits, child_name, indent, placed_key, plain_key, question
from onward.core.task import HEARS, Reason
from onward.service.serialize import of_agent, payload

DETAIL = 200
"""Characters of a result that a line shows."""

TOLD_BEFORE = HEARS | {Reason.ASLEEP, Reason.RETRYING, Reason.QUOTA}
"""Reasons for the end of a shift that the record before it has told."""


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
    TEXT = "text"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of the story: the moment, its kind, what happened, how long it took, and what came of it; and what a person
    would type while it is open (`key` names it then)."""

    at: float
    mark: Mark
    text: str
    took: float | None = None
    detail: str = ""
    command: str = ""
    key: str = ""


class Story:
    """Tell it one record after the other; it remembers what it needs to see a crash, and what runs now."""

    def __init__(self, task_id: str = "") -> None:
        self.standing = OpenWaits(task_id)
        self.began: float | None = None
        self.shifts = 0
        self.crashes = 0
        self.steps = 0
        self._running: dict[str, float] = {}
        self._sagas: dict[str, int] = {}
        self.progress: tuple[str, int, int] = ("", 0, 0)
        self.text = ""
        """What a model is saying, as far as it came."""
        self._open = False
        self._tellers: dict[str, Callable[[r.Record, dict[str, Any]], Line | None]] = {
            r.SUBMITTED: lambda record, _: Line(record.at, Mark.NOTE, "submitted"),
            r.FORKED: self._forked,
            r.SHIFT: self._shift,
            r.HANDED_BACK: self._handed_back,
            r.STEP_STARTED: self._step_started,
            r.STEP_RETRY: self._step_retry,
            r.STEP_WAITS: self._step_waits,
            r.STEP_DONE: self._step_done,
            r.STEP_FAILED: self._step_failed,
            r.SLEEP: self._asleep,
            r.SLEPT: lambda record, _: Line(record.at, Mark.ASLEEP, f"{indent(record.key)}awake again"),
            r.ANNOUNCED: self._step_started,
            r.DOUBTED: self._doubted,
            r.SIGNAL: self._awaited,
            r.QUESTION: self._awaited,
            r.APPROVAL: self._awaited,
            r.CHILD: self._awaited,
            r.WAITED: self._waited,
            r.MESSAGE: self._message,
            r.HEARD: lambda *_: None,
            r.SAGA: self._saga,
            r.SAGA_DONE: lambda record, _: Line(record.at, Mark.NOTE, f"{placed_key(record.key)} completed"),
            r.UNDOING: lambda record, said: Line(
                record.at, Mark.FAILED, f"{placed_key(record.key)} given up", detail=_error(said)
            ),
            r.UNDONE: self._undone,
            r.VERSION: lambda record, _: Line(record.at, Mark.NOTE, f"{placed_key(record.key)} marked"),
            r.PATCHED: lambda record, said: Line(record.at, Mark.NOTE, "state", detail=_patched(said)),
            r.CHECKPOINT: lambda record, said: Line(
                record.at, Mark.NOTE, f"checkpoint {said.get('number', '')}".strip()
            ),
            r.ARTIFACT: lambda record, said: Line(record.at, Mark.NOTE, "artifact", detail=_artifact(said)),
            r.PROGRESS: self._progress,
            r.RETRY: self._retry,
            r.PARKED: self._person,
            r.QUARANTINED: self._person,
            r.RESUMED: lambda record, _: Line(record.at, Mark.BEGIN, "resumed"),
            r.CANCEL: self._cancel,
            r.DEADLINE: self._deadline,
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
        self.standing.read(record)
        if line is not None and (number := record.dropped):
            line = dataclasses.replace(line, detail=f"(dropped, covered by checkpoint {number})")
        if line is not None and line.key:
            line = dataclasses.replace(line, command=self.standing.command(line.key))
        return lines if line is None else [*lines, line]

    def as_it_stands(self, line: Line) -> Line:
        """The line without its command when that has been seen to."""
        if not line.command or self.standing.command(line.key):
            return line
        return dataclasses.replace(line, command="")

    @property
    def step(self) -> str | None:
        """The step that is running, as far as it was announced; the last to start, where there are several."""
        return next(reversed(self._running), None)

    @property
    def step_since(self) -> float:
        """When it started."""
        return next(reversed(self._running.values()), 0.0)

    # ── shifts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _shift(self, record: r.Record, said: dict[str, Any]) -> Line:
        self.shifts, self.text = self.shifts + 1, ""
        self._open = True
        worker = short(str(said.get("worker", ""))[-8:])
        return Line(record.at, Mark.BEGIN, f"shift {self.shifts}", detail=f"worker {worker}" if worker else "")

    def _crash(self, record: r.Record) -> Line:
        self.crashes += 1
        steps = [plain_key(key) for key in self._running]
        where = f" in step{'s' if len(steps) > 1 else ''} {', '.join(steps)}" if steps else ""
        self._running.clear()
        return Line(
            record.at, Mark.CRASH, f"shift {self.shifts} broke off{where}", detail="(worker killed or lease lost)"
        )

    def _over(self) -> None:
        self._open = False
        self._running.clear()

    def _forked(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._over()
        whence = f"all above from {safe(said.get('from'))}, records 1 to {safe(said.get('at'))}"
        return Line(record.at, Mark.BEGIN, "forked", detail=whence)

    def _handed_back(self, record: r.Record, said: dict[str, Any]) -> Line | None:
        self._over()
        reason = said.get("reason")
        if reason in TOLD_BEFORE:
            return None
        return Line(record.at, Mark.NOTE, f"shift {self.shifts} ended", detail=short(reason or ""))

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step_started(self, record: r.Record, _: dict[str, Any]) -> None:
        self._running.setdefault(record.key, record.at)

    def _step_done(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._running.pop(record.key, None)
        self.steps, self.text = self.steps + 1, ""
        attempts = said.get("attempts", 1)
        text = placed_key(record.key) + (f" (attempt {attempts})" if attempts != 1 else "")
        took = said.get("ms")
        result = said.get("result")
        return Line(
            record.at,
            Mark.DONE,
            text,
            took=took / 1000 if isinstance(took, int | float) else None,
            detail="" if result is None else short(of_agent(result) or readable(result), DETAIL),
        )

    def _step_retry(self, record: r.Record, said: dict[str, Any]) -> Line:
        return Line(
            record.at,
            Mark.AGAIN,
            f"{placed_key(record.key)}, attempt {said.get('attempt', '?')} failed",
            detail=f"{_error(said)}; {_again(record, said)}",
        )

    def _step_waits(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._running.pop(record.key, None)
        mark = Mark.PERSON if said.get("reason") == Reason.BUDGET else Mark.ASLEEP
        text = f"{placed_key(record.key)} waits for {safe(said.get('reason', 'its turn'))}"
        again = f"; {_again(record, said)}" if "due_at" in said else ""
        return Line(record.at, mark, text, detail=f"{safe(said.get('why', ''))}{again}", key=record.key)

    def _step_failed(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._running.pop(record.key, None)
        error = said.get("error")
        attempts = error.get("attempts", 1) if isinstance(error, dict) else 1
        times = "" if attempts == 1 else f" after {attempts} attempts"
        return Line(record.at, Mark.FAILED, f"{placed_key(record.key)} failed{times}", detail=_error(said))

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _asleep(self, record: r.Record, said: dict[str, Any]) -> Line:
        until = said.get("until")
        length = f" for {span(said['for'])}" if isinstance(said.get("for"), int | float) else ""
        return Line(
            record.at,
            Mark.ASLEEP,
            f"{indent(record.key)}asleep{length}",
            detail=f"until {clock(until)}" if isinstance(until, int | float) else "",
        )

    def _awaited(self, record: r.Record, said: dict[str, Any]) -> Line:
        for_people = record.kind in {r.QUESTION, r.APPROVAL}
        match record.kind:
            case r.QUESTION:
                text = f"asks: {question(said.get('question', ''), said.get('choices'))}"
            case r.APPROVAL:
                text = f"asks for approval: {said.get('what', '')}"
            case r.SIGNAL:
                text = f"waits for signal {said.get('signal', '')}"
            case _:
                text = f"waits for child {child_name(record.key)}"
        until = said.get("until")
        parts = [
            said.get("risk"),
            said.get("child"),
            f"until {clock(until)}" if isinstance(until, int | float) else None,
        ]
        return Line(
            record.at,
            Mark.PERSON if for_people else Mark.ASLEEP,
            indent(record.key) + safe(text),
            detail=", ".join(safe(part) for part in parts if part),
            key=record.key,
        )

    def _waited(self, record: r.Record, said: dict[str, Any]) -> Line:
        wait = self.standing.waits.get(record.key)
        kind = wait.kind if wait else ""
        late = said.get("expired") is True
        if kind == r.SIGNAL and wait:
            text = f"no signal {wait.text} came in time" if late else f"signal {wait.text} came"
        elif kind == r.CHILD:
            name = child_name(record.key)
            text = f"child {name} had not ended in time" if late else f"child {name} has ended"
        elif kind in {r.QUESTION, r.APPROVAL}:
            verb = "answered" if kind == r.QUESTION else "decided"
            text = f"nobody {verb} in time" if late else verb
        else:
            text = "waited"
        return Line(record.at, Mark.AGAIN if late else Mark.DONE, indent(record.key) + safe(text))

    def _message(self, record: r.Record, said: dict[str, Any]) -> Line:
        value, name = said.get("value"), said.get("name", "")
        detail = "" if value is None else short(readable(value), DETAIL)
        about = value if isinstance(value, dict) else {}
        match said.get("kind"):
            case "signal":
                text = f"received signal {name}"
            case "answer":
                text = "received an answer"
            case "decision":
                text, detail = _decision(about)
            case "expired":
                text = "the time for an answer is up"
            case "child":
                text, detail = f"child {name} {about.get('state', 'ended')}", _error(about)
            case "resolve":
                step = plain_key(self.standing.announced(said.get("ref")) or "the effect")
                text = f"a person says of {step}: {name}"
            case _:
                text = f"received {said.get('kind', 'a message')}"
        return Line(record.at, Mark.NOTE, safe(text), detail=detail)

    def _doubted(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._over()
        step = str(said.get("step", ""))
        return Line(
            record.at,
            Mark.PERSON,
            f"in doubt: did {plain_key(step)} happen?",
            detail=safe(said.get("reason", "")),
            key=step,
        )

    # ── sagas ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _saga(self, record: r.Record, _: dict[str, Any]) -> Line:
        times = self._sagas[record.key] = self._sagas.get(record.key, 0) + 1
        again = f", round {times}" if times > 1 else ""
        return Line(record.at, Mark.NOTE, f"{placed_key(record.key)} begun{again}")

    def _undone(self, record: r.Record, said: dict[str, Any]) -> Line:
        text, mark = f"{placed_key(record.key)} undone", Mark.AGAIN
        if said.get("not_undone"):
            text, mark = f"{placed_key(record.key)} not wholly undone", Mark.FAILED
        return Line(record.at, mark, text, detail=undone_words(said) or "there was nothing to undo")

    def _cancel(self, record: r.Record, _: dict[str, Any]) -> Line:
        self._over()  # the worker that has it is stopped by this
        owed = "what it did is undone first" if self.standing.sagas else ""
        return Line(record.at, Mark.NOTE, "cancel requested", detail=owed)

    def _deadline(self, record: r.Record, _: dict[str, Any]) -> Line:
        self._over()
        return Line(record.at, Mark.FAILED, "the deadline has passed")

    def _progress(self, record: r.Record, said: dict[str, Any]) -> Line | None:
        if isinstance(text := said.get("text"), str):
            return self._live(record, text, withdrawn=said.get("withdrawn") is True)
        step, total = (n if isinstance(n := said.get(name), int) else 0 for name in ("step", "total"))
        self.progress = (safe(said.get("message", "")), step, total)
        where = f"{step}/{total}" if total else str(step or "")
        where = f"turn {step}:" if "turn" in said else where
        return Line(
            record.at, Mark.PROGRESS, " ".join(part for part in (where, self.progress[0]) if part) or "progress"
        )

    def _live(self, record: r.Record, text: str, *, withdrawn: bool) -> Line:
        """A piece of what a model says. When its attempt came to nothing, all of it is void."""
        self.text = "" if withdrawn else self.text + text
        return Line(record.at, Mark.TEXT, "(what it said is withdrawn)" if withdrawn else safe(" ".join(text.split())))

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

    def _cancelled(self, record: r.Record, said: dict[str, Any]) -> Line:
        self._over()
        return Line(record.at, Mark.FAILED, "cancelled", detail=undone_words(said))


def undone_words(said: dict[str, Any]) -> str:
    """What was undone and what was not, in a few words."""
    parts = []
    for name, word in (("undone", "undone"), ("not_undone", "NOT undone")):
        keys = said.get(name)
        if isinstance(keys, list) and keys:
            parts.append(f"{word}: {', '.join(plain_key(str(key)) for key in keys)}")
    return "; ".join(parts)


def _artifact(said: dict[str, Any]) -> str:
    """What was left behind, in a few words."""
    size = said.get("bytes")
    shown = f"{size:,} bytes" if isinstance(size, int) else ""
    return short(", ".join(str(part) for part in (said.get("summary") or said.get("type"), shown) if part))


def _patched(said: dict[str, Any]) -> str:
    """What changed in a state, in a few words."""
    if isinstance(state := said.get("state"), dict):
        return safe(f"goal: {state.get('goal', '')}")
    patch = said.get("patch")
    found = {
        name: value for name, value in (patch if isinstance(patch, dict) else {}).items() if isinstance(value, list)
    }
    return "; ".join(f"{_PARTS.get(name, name)}: {_short(value)}" for name, value in found.items())


_PARTS = {
    "append_facts": "facts",
    "replace_plan": "plan",
    "add_questions": "asked",
    "answer_questions": "answered",
    "add_artifacts": "artifacts",
    "flag_risks": "flagged",
    "unflag_risks": "no longer flagged",
}


def _short(values: list[Any]) -> str:
    """The telling part of each."""
    said = [
        next((str(one[name]) for name in ("key", "question", "summary") if name in one), "…")
        if isinstance(one, dict)
        else str(one)
        for one in values
    ]
    return safe(", ".join(said))


def _decision(about: dict[str, Any]) -> tuple[str, str]:
    verb = {"approve": "approved", "deny": "denied"}.get(str(about.get("decision")), "decided")
    by = f" by {about['by']}" if about.get("by") else ""
    changed = f"with {short(readable(about['arguments']), DETAIL)}" if "arguments" in about else ""
    always = "always for this tool" if about.get("always") else ""
    return f"{verb}{by}", ", ".join(part for part in (changed, always, safe(about.get("reason") or "")) if part)


def _error(said: dict[str, Any]) -> str:
    error = said.get("error")
    if not isinstance(error, dict):
        return ""
    return safe(f"{error.get('type', 'Error')}: {error.get('message', '')}")


def _again(record: r.Record, said: dict[str, Any]) -> str:
    due = said.get("due_at")
    return f"again in {span(due - record.at)}" if isinstance(due, int | float) else "again"
