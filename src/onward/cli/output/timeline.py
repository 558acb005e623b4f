"""Turns a journal into lines of text: records in, lines out. Pure, and the same for `show`, `follow` and `demo`.

Records inside a branch or a saga are indented. A shift that ended normally has a record of its end; a shift without one broke off,
and a line says so.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from onward.cli.output.text import clock, readable, safe, short, span
from onward.core import record as r
from onward.core.journal.open_waits import OpenWaits, child_name, indent, placed_key, plain_key, question
from onward.core.journal.reader import (
    SHOWN_BEFORE,
    Event,
    JournalReader,
    error_words,
    message_words,
    undone_keys,
)
from onward.core.task import Reason
from onward.service.serialize import of_agent

MAX_DETAIL = 200
"""Characters of a result that a line shows."""


class Mark(enum.StrEnum):
    """The kind of a line. The screen has a sign and a colour for each."""

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
    """One line: its time, its kind, what happened, how long it took, and the outcome. While a wait is open, `command` is what a
    person would type, and `key` names the wait."""

    at: float
    mark: Mark
    text: str
    took: float | None = None
    detail: str = ""
    command: str = ""
    key: str = ""


class LineRenderer:
    """Renders the records of one task in order."""

    def __init__(self, task_id: str = "") -> None:
        self.reader = JournalReader()
        self.open_waits = OpenWaits(task_id)
        self.progress: tuple[str, int, int] = ("", 0, 0)
        """Message, step and total of the last progress record."""
        self.live_text = ""
        """The text of a model call that is not finished yet."""
        self._sagas: dict[str, int] = {}
        self._renderers: dict[str, Callable[[Event], Line | None]] = {
            r.SUBMITTED: lambda event: Line(event.at, Mark.NOTE, "submitted"),
            r.FORKED: _forked,
            r.SHIFT: self._shift,
            r.HANDED_BACK: self._handed_back,
            r.STEP_STARTED: lambda _: None,
            r.STEP_RETRY: _step_retry,
            r.STEP_WAITS: _step_waits,
            r.STEP_DONE: self._step_done,
            r.STEP_FAILED: _step_failed,
            r.SLEEP: _asleep,
            r.SLEPT: lambda event: Line(event.at, Mark.ASLEEP, f"{indent(event.key)}awake again"),
            r.ANNOUNCED: lambda _: None,
            r.DOUBTED: _doubted,
            r.SIGNAL: _awaited,
            r.QUESTION: _awaited,
            r.APPROVAL: _awaited,
            r.CHILD: _awaited,
            r.LOCK_AWAITED: _awaited,
            r.LOCK_TAKEN: lambda event: Line(
                event.at, Mark.NOTE, f"{placed_key(event.key)} taken", detail=f"token {event.fields.get('token', '?')}"
            ),
            r.LOCK_LEFT: _lock_left,
            r.WAITED: self._waited,
            r.MESSAGE: self._message,
            r.HEARD: lambda _: None,
            r.SAGA: self._saga,
            r.SAGA_DONE: lambda event: Line(event.at, Mark.NOTE, f"{placed_key(event.key)} completed"),
            r.UNDOING: lambda event: Line(
                event.at, Mark.FAILED, f"{placed_key(event.key)} given up", detail=safe(event.error)
            ),
            r.UNDONE: _undone,
            r.VERSION: lambda event: Line(
                event.at,
                Mark.NOTE,
                f"{placed_key(event.key)} {'passed by other code' if 'void' in event.fields else 'marked'}",
            ),
            r.PATCHED: lambda event: Line(event.at, Mark.NOTE, "state", detail=_patch_words(event.fields)),
            r.CHECKPOINT: lambda event: Line(
                event.at, Mark.NOTE, f"checkpoint {event.fields.get('number', '')}".strip()
            ),
            r.ARTIFACT: lambda event: Line(event.at, Mark.NOTE, "artifact", detail=_artifact_words(event.fields)),
            r.PROGRESS: self._progress,
            r.RETRY: _retry,
            r.PARKED: _stopped,
            r.QUARANTINED: _stopped,
            r.RESTORED: lambda event: Line(event.at, Mark.AGAIN, "restored from a backup; what it did since is lost"),
            r.RESUMED: lambda event: Line(event.at, Mark.BEGIN, "resumed"),
            r.CANCEL: self._cancel,
            r.DEADLINE: lambda event: Line(event.at, Mark.FAILED, "the deadline has passed"),
            r.COMPLETED: self._completed,
            r.FAILED: lambda event: Line(event.at, Mark.FAILED, "failed", detail=safe(event.error)),
            r.CANCELLED: lambda event: Line(event.at, Mark.FAILED, "cancelled", detail=_undone_words(event.fields)),
        }

    @property
    def began(self) -> float | None:
        """The time of the first record."""
        return self.reader.began

    def render(self, record: r.Record) -> list[Line]:
        """The lines of this record: none, one, or one more for a crash before it."""
        return self.render_event(self.reader.read(record))

    def render_event(self, event: Event) -> list[Line]:
        """The same for a record that `reader` has read."""
        lines = [] if event.interrupted is None else [self._crash(event, event.interrupted)]
        render = self._renderers.get(event.kind, _unknown)
        line = render(event)
        self.open_waits.read(event.record)
        if line is None:
            return lines
        if number := event.record.dropped:
            line = dataclasses.replace(line, detail=f"(dropped, covered by checkpoint {number})")
        if line.key:
            line = dataclasses.replace(line, command=self.open_waits.command(line.key))
        return [*lines, line]

    def current(self, line: Line) -> Line:
        """The line, without its command if its wait is no longer open."""
        if not line.command or self.open_waits.command(line.key):
            return line
        return dataclasses.replace(line, command="")

    # ── shifts and steps ─────────────────────────────────────────────────────────────────────────────────────────

    def _crash(self, event: Event, interrupted: tuple[str, ...]) -> Line:
        steps = [plain_key(key) for key in interrupted]
        where = f" in step{'s' if len(steps) > 1 else ''} {', '.join(steps)}" if steps else ""
        number = self.reader.shifts - (event.kind == r.SHIFT)
        text = f"shift {number} broke off{where}"
        return Line(event.at, Mark.CRASH, text, detail="(worker killed or lease lost)")

    def _shift(self, event: Event) -> Line:
        self.live_text = ""
        worker = short(str(event.fields.get("worker", ""))[-8:])
        return Line(event.at, Mark.BEGIN, f"shift {self.reader.shifts}", detail=f"worker {worker}" if worker else "")

    def _handed_back(self, event: Event) -> Line | None:
        reason = event.fields.get("reason")
        if isinstance(reason, str) and reason in SHOWN_BEFORE:
            return None
        return Line(event.at, Mark.NOTE, f"shift {self.reader.shifts} ended", detail=short(reason or ""))

    def _step_done(self, event: Event) -> Line:
        self.live_text = ""
        attempts, result = event.fields.get("attempts", 1), event.result
        text = placed_key(event.key) + (f" (attempt {attempts})" if attempts != 1 else "")
        detail = "" if result is None else short(of_agent(result) or readable(result), MAX_DETAIL)
        return Line(event.at, Mark.DONE, text, took=event.took_s, detail=detail)

    def _progress(self, event: Event) -> Line | None:
        fields = event.fields
        if isinstance(text := fields.get("text"), str):
            return self._live(event, text, withdrawn=fields.get("withdrawn") is True)
        step, total = (n if isinstance(n := fields.get(name), int) else 0 for name in ("step", "total"))
        message = safe(fields.get("message", ""))
        self.progress = (message, step, total)
        where = f"turn {step}:" if "turn" in fields else f"{step}/{total}" if total else str(step or "")
        return Line(event.at, Mark.PROGRESS, " ".join(part for part in (where, message) if part) or "progress")

    def _live(self, event: Event, text: str, *, withdrawn: bool) -> Line:
        """A piece of the text of a model. If its attempt failed, all of the text is void."""
        self.live_text = "" if withdrawn else self.live_text + text
        return Line(event.at, Mark.TEXT, "(the text is withdrawn)" if withdrawn else safe(" ".join(text.split())))

    # ── waits, messages, sagas, ends ─────────────────────────────────────────────────────────────────────────────

    def _waited(self, event: Event) -> Line:
        wait = self.open_waits.waits.get(event.key)
        kind = wait.kind if wait else ""
        expired = event.fields.get("expired") is True
        if kind == r.SIGNAL and wait:
            text = f"no signal {wait.text} came in time" if expired else f"signal {wait.text} came"
        elif kind == r.CHILD:
            name = child_name(event.key)
            text = f"child {name} had not ended in time" if expired else f"child {name} has ended"
        elif kind in {r.QUESTION, r.APPROVAL}:
            verb = "answered" if kind == r.QUESTION else "decided"
            text = f"not {verb} in time" if expired else verb
        else:
            text = "waited"
        return Line(event.at, Mark.AGAIN if expired else Mark.DONE, indent(event.key) + safe(text))

    def _message(self, event: Event) -> Line:
        value, about = event.fields.get("value"), event.object("value")
        text, detail = message_words(event), "" if value is None else short(readable(value), MAX_DETAIL)
        match event.fields.get("kind"):
            case "decision" | "vote":
                detail = _decision_detail(about)
            case "child":
                detail = safe(error_words(about))
            case "resolve":
                step = plain_key(self.open_waits.announced(event.fields.get("ref")) or "the effect")
                text = f"a person says of {step}: {event.fields.get('name', '')}"
        return Line(event.at, Mark.NOTE, safe(text), detail=detail)

    def _saga(self, event: Event) -> Line:
        rounds = self._sagas[event.key] = self._sagas.get(event.key, 0) + 1
        again = f", round {rounds}" if rounds > 1 else ""
        return Line(event.at, Mark.NOTE, f"{placed_key(event.key)} begun{again}")

    def _cancel(self, event: Event) -> Line:
        owed = "what it did is undone first" if self.open_waits.sagas else ""
        return Line(event.at, Mark.NOTE, "cancel requested", detail=owed)

    def _completed(self, event: Event) -> Line:
        return Line(event.at, Mark.DONE, "completed", detail=f"after {span(event.at - (self.began or event.at))}")


# ── records that need no state ───────────────────────────────────────────────────────────────────────────────────────


def _unknown(event: Event) -> Line:
    return Line(event.at, Mark.NOTE, safe(f"{event.kind} {event.key}".strip()))


def _forked(event: Event) -> Line:
    origin = f"all above from {safe(event.fields.get('from'))}, records 1 to {safe(event.fields.get('at'))}"
    return Line(event.at, Mark.BEGIN, "forked", detail=origin)


def _step_retry(event: Event) -> Line:
    text = f"{placed_key(event.key)}, attempt {event.fields.get('attempt', '?')} failed"
    return Line(event.at, Mark.AGAIN, text, detail=f"{safe(event.error)}; {_again(event)}")


def _step_waits(event: Event) -> Line:
    reason = event.fields.get("reason", "its turn")
    again = f"; {_again(event)}" if "due_at" in event.fields else ""
    return Line(
        event.at,
        Mark.PERSON if reason == Reason.BUDGET else Mark.ASLEEP,
        f"{placed_key(event.key)} waits for {safe(reason)}",
        detail=f"{safe(event.fields.get('why', ''))}{again}",
        key=event.key,
    )


def _step_failed(event: Event) -> Line:
    attempts = event.object("error").get("attempts", 1)
    times = "" if attempts == 1 else f" after {attempts} attempts"
    return Line(event.at, Mark.FAILED, f"{placed_key(event.key)} failed{times}", detail=safe(event.error))


def _asleep(event: Event) -> Line:
    duration, until = event.time("for"), event.time("until")
    text = f"{indent(event.key)}asleep" + ("" if duration is None else f" for {span(duration)}")
    return Line(event.at, Mark.ASLEEP, text, detail="" if until is None else f"until {clock(until)}")


def _awaited(event: Event) -> Line:
    fields, until = event.fields, event.time("until")
    match event.kind:
        case r.QUESTION:
            text = f"asks: {question(fields.get('question', ''), fields.get('choices'))}"
        case r.APPROVAL:
            text = f"asks for approval: {fields.get('what', '')}"
        case r.SIGNAL:
            text = f"waits for signal {fields.get('signal', '')}"
        case r.LOCK_AWAITED:
            text = f"waits for lock {fields.get('lock', '')}"
        case _:
            text = f"waits for child {child_name(event.key)}"
    parts = [
        fields.get("risk"),
        fields.get("child"),
        fields.get("holder") and f"held by {fields['holder']}",
        None if until is None else f"until {clock(until)}",
    ]
    return Line(
        event.at,
        Mark.PERSON if event.kind in {r.QUESTION, r.APPROVAL} else Mark.ASLEEP,
        indent(event.key) + safe(text),
        detail=", ".join(safe(part) for part in parts if part),
        key=event.key,
    )


def _lock_left(event: Event) -> Line:
    if "expired" in event.fields:
        return Line(event.at, Mark.AGAIN, f"{placed_key(event.key)} was not free in time")
    return Line(event.at, Mark.NOTE, f"{placed_key(event.key)} released")


def _doubted(event: Event) -> Line:
    step, reason = str(event.fields.get("step", "")), safe(event.fields.get("reason", ""))
    return Line(event.at, Mark.PERSON, f"in doubt: did {plain_key(step)} happen?", detail=reason, key=step)


def _undone(event: Event) -> Line:
    text, mark = f"{placed_key(event.key)} undone", Mark.AGAIN
    if event.fields.get("not_undone"):
        text, mark = f"{placed_key(event.key)} not wholly undone", Mark.FAILED
    return Line(event.at, mark, text, detail=_undone_words(event.fields) or "there was nothing to undo")


def _retry(event: Event) -> Line:
    text = f"attempt {event.fields.get('attempt', '?')} of the task failed"
    return Line(event.at, Mark.AGAIN, text, detail=f"{safe(event.error)}; {_again(event)}")


def _stopped(event: Event) -> Line:
    detail = safe(event.fields.get("reason", ""))
    return Line(event.at, Mark.PERSON, event.kind.removeprefix("task."), detail=detail)


def _again(event: Event) -> str:
    due = event.time("due_at")
    return "again" if due is None else f"again in {span(due - event.at)}"


def _undone_words(fields: dict[str, Any]) -> str:
    return "; ".join(f"{words}: {', '.join(map(plain_key, keys))}" for words, keys in undone_keys(fields))


def _artifact_words(fields: dict[str, Any]) -> str:
    size = fields.get("bytes")
    shown = f"{size:,} bytes" if isinstance(size, int) else ""
    return short(", ".join(str(part) for part in (fields.get("summary") or fields.get("type"), shown) if part))


def _patch_words(fields: dict[str, Any]) -> str:
    """The changes of a state, in a few words."""
    if isinstance(state := fields.get("state"), dict):
        return safe(f"goal: {state.get('goal', '')}")
    patch = fields.get("patch")
    changes = [] if not isinstance(patch, dict) else [pair for pair in patch.items() if isinstance(pair[1], list)]
    return "; ".join(f"{_PATCH_FIELDS.get(name, name)}: {_item_words(items)}" for name, items in changes)


_PATCH_FIELDS = {
    "append_facts": "facts",
    "replace_plan": "plan",
    "add_questions": "asked",
    "answer_questions": "answered",
    "add_artifacts": "artifacts",
    "flag_risks": "flagged",
    "unflag_risks": "no longer flagged",
}


def _item_words(items: list[Any]) -> str:
    """The field of each item that identifies it."""
    names = [
        next((str(item[name]) for name in ("key", "question", "summary") if name in item), "…")
        if isinstance(item, dict)
        else str(item)
        for item in items
    ]
    return safe(", ".join(names))


def _decision_detail(decision: dict[str, Any]) -> str:
    changed = f"with {short(readable(decision['arguments']), MAX_DETAIL)}" if "arguments" in decision else ""
    always = "always for this tool" if decision.get("always") else ""
    return ", ".join(part for part in (changed, always, safe(decision.get("reason") or "")) if part)
