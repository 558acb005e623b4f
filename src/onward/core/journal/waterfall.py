"""Turns a journal into a waterfall: bars with a start and an end, and marks between them. Pure: records in, bars out.

A bar is identified by its kind and the number of the record that began it (`seq`). `last` is the number of the last record about
it, so a reader that has seen the journal up to a number asks for the bars with a higher one. `parent` is the number of the shift or
the turn that contains it; a turn has the number of the model call with which it begins. Times are seconds since 1970.

The waterfall does not guess: a step that broke off with its worker ends at the last record before the crash.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

from onward.core import record as r
from onward.core.journal.cuts import SUBMIT
from onward.core.journal.open_waits import child_name, plain_key, question, split_key
from onward.core.journal.reader import Event, JournalReader, decision_words, error_words, message_words, step_name
from onward.core.journal.turns import asks_a_model, is_call, is_output
from onward.core.record import Record
from onward.core.task import SAID
from onward.core.text import safe, short

MAX_TEXT_CHARS = 200
"""Characters of the text of a bar or a mark."""

KILLED = "the worker was killed or lost its lease"

OPEN_STATES = frozenset({"running", "waiting", "in_doubt"})


@dataclasses.dataclass(slots=True)
class Bar:
    """Something that takes time: a shift, a step, a wait."""

    kind: str
    """queue, shift, turn, step, model, tool, wait, sleep, approval, question, child, undo or retry."""
    name: str
    seq: int
    last: int
    start: float
    end: float | None = None
    state: str = "ok"
    """ok, failed, killed (with its worker), running, waiting, retried, in_doubt, undone or denied."""
    attempt: int = 1
    parent: int | None = None
    depth: int = 0
    child_id: str | None = None
    until: float | None = None
    """When it will end, if the journal says so: the end of a sleep, of the pause before a retry, of the time for an answer."""
    text: str = ""
    """Its subject or its outcome, in a few words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """Something that takes no time: crash, resume, cancel, deadline, parked, quarantined, pressure, forked, checkpoint, version,
    artifact, message, undo, or the end of the task."""

    kind: str
    at: float
    seq: int
    text: str = ""


class Waterfall:
    """Reads a journal record by record; `bars` and `marks` hold the waterfall of all records so far."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []
        self.marks: list[Point] = []
        self.ended: float | None = None
        self._reader = JournalReader()
        self._open: dict[str, Bar] = {}
        """Open steps and waits, by their keys."""
        self._done: dict[str, Bar] = {}
        """Completed steps inside of a scope, which may be a saga that undoes them, by their keys."""
        self._children: dict[str, Bar] = {}
        self._queue: Bar | None = None
        self._shift: Bar | None = None
        self._turn: Bar | None = None
        self._turn_before: Bar | None = None
        self._decisions: dict[int, str] = {}
        self._forgotten = 0
        self._handlers: dict[str, Callable[[Event], None]] = {
            r.SUBMITTED: self._queued,
            r.FORKED: self._forked,
            r.SHIFT: self._shift_started,
            r.HANDED_BACK: self._handed_back,
            r.STEP_STARTED: self._step_started,
            r.ANNOUNCED: self._step_started,
            r.STEP_RETRY: self._step_retry,
            r.STEP_WAITS: self._waits,
            r.STEP_DONE: self._step_done,
            r.STEP_FAILED: self._step_failed,
            r.DOUBTED: self._doubted,
            r.SLEEP: self._waits,
            r.SIGNAL: self._waits,
            r.QUESTION: self._waits,
            r.APPROVAL: self._waits,
            r.CHILD: self._child_awaited,
            r.LOCK_AWAITED: self._waits,
            r.LOCK_TAKEN: self._waited,
            r.LOCK_LEFT: self._waited,
            r.SLEPT: self._waited,
            r.WAITED: self._waited,
            r.MESSAGE: self._message,
            r.UNDOING: self._undoing,
            r.UNDONE: self._undone,
            r.VERSION: lambda event: self._mark(event, "version", plain_key(event.key)),
            r.CHECKPOINT: lambda event: self._mark(event, "checkpoint", str(event.fields.get("number", ""))),
            r.ARTIFACT: lambda event: self._mark(
                event, "artifact", event.fields.get("summary") or event.fields.get("type")
            ),
            r.RETRY: self._retry,
            r.PARKED: self._stopped,
            r.QUARANTINED: self._stopped,
            r.RESUMED: self._resumed,
            r.CANCEL: self._cancelling,
            r.DEADLINE: self._stopped,
            r.COMPLETED: self._end,
            r.FAILED: self._end,
            r.CANCELLED: self._end,
        }

    @property
    def began(self) -> float | None:
        """The time of the first record."""
        return self._reader.began

    @property
    def seq(self) -> int:
        """The number of the last record."""
        return self._reader.seq

    def read(self, record: Record) -> None:
        """Read one more record."""
        event = self._reader.read(record)
        if event.interrupted is not None:
            self._mark(event, "crash", KILLED)
            self._end_shift(event, "killed", self._reader.last_at)
        handler = self._handlers.get(record.kind)
        if handler is not None:
            handler(event)

    def forget(self, seq: int) -> None:
        """Drop the bars and marks that have not changed after record `seq`. A bar that changes later comes back."""
        self.bars = [bar for bar in self.bars if bar.last > seq or bar.end is None]
        self.marks = [mark for mark in self.marks if mark.seq > seq]
        self._forgotten = max(self._forgotten, seq)

    def children(self) -> Iterable[str]:
        """The children whose end is not in this journal."""
        return [child for child, bar in self._children.items() if bar.state in OPEN_STATES]

    def child_ended(self, child: str, state: str, at: float | None) -> None:
        """Close the bar of a child with its outcome from elsewhere."""
        bar = self._children[child]
        bar.state, bar.end = ("ok" if state == "completed" else "failed"), at

    # ── bars and marks ───────────────────────────────────────────────────────────────────────────────────────────

    def _bar(self, event: Event, kind: str, name: str, state: str, **more: Any) -> Bar:
        start = more.pop("start", event.at)
        inside = self._turn or self._shift
        deep = 0 if inside is None else inside.depth + 1
        depth = deep + len(split_key(event.key)[0])
        parent = None if inside is None else inside.seq
        bar = Bar(kind, short(name, MAX_TEXT_CHARS), event.seq, event.seq, start, None, state, 1, parent, depth, **more)
        self.bars.append(bar)
        return bar

    def _recall(self, bar: Bar) -> None:
        """Take a bar that was dropped back: it changes now."""
        if bar.end is not None and bar.last <= self._forgotten:
            self.bars.append(bar)

    def _close(self, bar: Bar, event: Event, state: str, at: float | None = None) -> None:
        self._recall(bar)
        bar.end = max(bar.start, event.at if at is None else at)
        bar.state, bar.last = state, event.seq

    def _mark(self, event: Event, kind: str, text: object = "") -> None:
        self.marks.append(Point(kind, event.at, event.seq, short(text or "", MAX_TEXT_CHARS)))

    # ── shifts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _queued(self, event: Event) -> None:
        if self._queue is None:
            self._queue = Bar("queue", "", event.seq, event.seq, event.at, None, "waiting")
            self.bars.append(self._queue)

    def _shift_started(self, event: Event) -> None:
        if self._queue is not None:
            self._close(self._queue, event, "ok")
            self._queue = None
        worker = str(event.fields.get("worker", ""))
        self._shift = Bar("shift", safe(worker[-8:]), event.seq, event.seq, event.at, None, "running")
        self.bars.append(self._shift)

    def _end_shift(self, event: Event, state: str, at: float | None = None) -> None:
        """Close the shift and the steps that run in it. Waits stay open, and a turn continues in the next shift."""
        for key, bar in list(self._open.items()):
            if bar.state == "running":
                self._close(self._open.pop(key), event, "retried" if state == "ok" else state, at)
                bar.text = KILLED if state == "killed" else bar.text
        if self._shift is not None:
            self._close(self._shift, event, state, at)
            self._shift = None

    def _close_turn(self, event: Event, at: float | None = None) -> None:
        """Close the open turn; or correct the end of the last turn, if it ended earlier than its bar says."""
        turn = self._turn or self._turn_before
        if turn is not None and (self._turn is not None or (at is not None and turn.end is not None and at < turn.end)):
            self._close(turn, event, "ok", at)
        self._turn, self._turn_before = None, turn

    def _handed_back(self, event: Event) -> None:
        self._end_shift(event, "ok")
        if event.fields.get("reason") == "handed back":
            self._queued(event)

    def _forked(self, event: Event) -> None:
        self._end_shift(event, "ok")
        self._mark(event, "forked", f"from {event.fields.get('from')}, records 1 to {event.fields.get('at')}")
        self._queued(event)

    def _resumed(self, event: Event) -> None:
        self.ended = None
        self._mark(event, "resume")
        self._queued(event)

    def _retry(self, event: Event) -> None:
        self._end_shift(event, "failed")
        bar = self._bar(event, "retry", "", "waiting", text=_error(event), until=event.time("due_at"))
        bar.attempt = event.attempt()
        self._queue = bar

    def _stopped(self, event: Event) -> None:
        """The task was parked or quarantined, or its deadline has passed."""
        self._end_shift(event, "failed")
        self._mark(event, event.kind.partition(".")[0 if event.kind == r.DEADLINE else 2], event.fields.get("reason"))

    def _cancelling(self, event: Event) -> None:
        self._end_shift(event, "ok")
        self._mark(event, "cancel")

    def _end(self, event: Event) -> None:
        state = "ok" if event.kind == r.COMPLETED else "failed"
        self._end_shift(event, state)
        self._close_turn(event)
        for bar in (*self._open.values(), *([self._queue] if self._queue is not None else [])):
            self._close(bar, event, bar.state if bar.state == "in_doubt" else state)
        self._open.clear()
        self._queue, self.ended = None, event.at
        self._mark(event, event.kind.partition(".")[2], _error(event))

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step_started(self, event: Event) -> None:
        known = self._open.get(event.key)
        if known is not None and known.state == "running":
            known.last = event.seq
            return
        attempt = 1 if known is None else self._close_pause(known, event, event.at)
        if (kind := self._kind(event.key, None)) == "model":
            self._close_turn(event)  # otherwise the next turn would be inside this one
        bar = self._bar(event, kind, _name(event.key), "running")
        bar.attempt = attempt
        self._open[event.key] = bar

    def _close_pause(self, bar: Bar, event: Event, at: float) -> int:
        """Close the bar of a pause, a wait or a doubt before a step. Returns the number of the attempt that begins."""
        doubted = bar.state == "in_doubt"
        end = at if bar.until is None or bar.kind != "retry" else min(bar.until, event.at)
        self._close(bar, event, "retried" if doubted else "ok", end)
        return bar.attempt + (bar.kind == "retry" or doubted)

    def _kind(self, key: str, result: Any) -> str:
        parts, _ = split_key(key)
        if parts and parts[-1] == "undo":
            return "undo"
        if is_call(result) or asks_a_model(key):
            return "model"
        return "tool" if is_output(result) and self._turn is not None else "step"

    def _finished(self, event: Event, state: str) -> Bar:
        """The bar of a step that has ended: the open one, or a new one with the duration that the record holds."""
        began = event.at - (event.took_s or 0.0)
        bar, attempt, earliest = self._open.pop(event.key, None), 1, 0.0
        if bar is not None and bar.state == "waiting":
            attempt = self._close_pause(bar, event, began)
            earliest, bar = bar.end or 0.0, None
        kind = self._kind(event.key, event.result)
        if kind == "model":
            self._close_turn(event, began)
        if bar is None:
            bar = self._bar(event, kind, _name(event.key), state, start=max(began, earliest))
            bar.attempt = attempt
        else:
            # The record of a start comes a moment late. The duration in the record of the end is exact.
            began = max(began, self._shift.start if self._shift is not None else bar.start)
            bar.kind, bar.start = kind, min(bar.start, began)
        self._close(bar, event, state)
        return bar

    def _step_done(self, event: Event) -> None:
        name = step_name(event.key)
        if name.startswith(SUBMIT) and isinstance(event.result, str):
            self._child(event, event.result, name.removeprefix(SUBMIT))
            return
        bar = self._finished(event, "ok")
        bar.attempt = max(bar.attempt, event.attempt("attempts"))
        if split_key(event.key)[0]:
            self._done[event.key] = bar
        if bar.kind == "model":
            self._begin_turn(event, bar, event.object("result"))

    def _begin_turn(self, event: Event, bar: Bar, result: dict[str, Any]) -> None:
        number = result.get("turn")
        depth, parent = bar.depth, bar.parent
        self._turn = Bar("turn", "" if number is None else str(number), bar.seq, event.seq, bar.start, None, "running")
        self._turn.depth, self._turn.parent = depth, parent
        bar.depth, bar.parent = depth + 1, bar.seq
        request = result.get("asked")
        bar.text = safe(request.get("model", "")) if isinstance(request, dict) else ""
        self.bars.append(self._turn)
        if result.get("pressed"):
            self._mark(event, "pressure", "the budget is nearly gone")

    def _step_failed(self, event: Event) -> None:
        bar = self._finished(event, "failed")
        attempts = event.object("error").get("attempts", 1)
        bar.attempt = max(bar.attempt, attempts if isinstance(attempts, int) else 1)
        bar.text = _error(event)

    def _step_retry(self, event: Event) -> None:
        failed = self._finished(event, "retried")
        failed.attempt, failed.text = event.attempt(), _error(event)
        pause = self._bar(event, "retry", _name(event.key), "waiting")
        pause.attempt, pause.until = failed.attempt, event.time("due_at")
        self._open[event.key] = pause

    def _doubted(self, event: Event) -> None:
        bar = self._open.get(str(event.fields.get("step", "")))
        if bar is not None:
            bar.state, bar.last, bar.text = "in_doubt", event.seq, short(event.fields.get("reason", ""), MAX_TEXT_CHARS)
        self._end_shift(event, "ok")

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _waits(self, event: Event) -> None:
        fields = event.fields
        kind, name, text = {
            r.SLEEP: ("sleep", "", ""),
            r.SIGNAL: ("wait", fields.get("signal", ""), ""),
            r.LOCK_AWAITED: ("wait", fields.get("lock", ""), ""),
            r.QUESTION: ("question", "", question(fields.get("question", ""), fields.get("choices"))),
            r.APPROVAL: ("approval", event.object("data").get("tool", ""), fields.get("what", "")),
        }.get(event.kind, ("wait", fields.get("reason", ""), fields.get("why", "")))
        known = self._open.pop(event.key, None)
        if known is not None and known.state in OPEN_STATES:
            self._close(known, event, "ok" if known.state == "waiting" else "retried")
        until = event.time("until" if "until" in fields else "due_at")
        self._open[event.key] = self._bar(
            event, kind, str(name), "waiting", text=short(text, MAX_TEXT_CHARS), until=until
        )

    def _waited(self, event: Event) -> None:
        bar = self._open.pop(event.key, None)
        if bar is None:
            return
        expired = bool(event.fields.get("expired"))
        state = self._decisions.get(bar.seq, "denied" if bar.kind == "approval" else "failed") if expired else "ok"
        self._close(bar, event, self._decisions.get(bar.seq, state))

    def _message(self, event: Event) -> None:
        value, name, ref = event.object("value"), str(event.fields.get("name", "")), event.fields.get("ref")
        match event.fields.get("kind"):
            case "child" if name in self._children:
                bar = self._children[name]
                self._close(bar, event, "ok" if value.get("state") == "completed" else "failed")
                bar.text = short(error_words(value), MAX_TEXT_CHARS)
            case "decision" if isinstance(ref, int):
                self._decisions[ref] = "denied" if value.get("decision") == "deny" else "ok"
                self._mark(event, "message", decision_words(value))
            case "vote":
                self._mark(event, "message", message_words(event))
            case "resolve":
                self._mark(event, "message", f"resolved: {name}")
            case "signal":
                self._mark(event, "message", f"signal {name}")
            case "answer":
                self._mark(event, "message", "answered")
            case word if word == SAID:
                message = event.fields.get("value")
                self._mark(event, "message", message if isinstance(message, str) else "")

    def _child(self, event: Event, child: str, name: str) -> None:
        bar = self._bar(event, "child", name, "running", start=event.at - (event.took_s or 0.0))
        bar.child_id = safe(child)
        self._children[child] = bar

    def _child_awaited(self, event: Event) -> None:
        child = str(event.fields.get("child", ""))
        bar = self._children.get(child)
        if bar is None:
            bar = self._bar(event, "child", child_name(event.key), "waiting")
            bar.child_id = safe(child)
            self._children[child] = bar
        elif bar.state == "running":
            bar.state, bar.last = "waiting", event.seq

    # ── sagas ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _undoing(self, event: Event) -> None:
        parts, name = split_key(event.key)
        path = "/".join([*parts, name])
        for key in list(self._open):  # waits inside the saga end with it
            if re.match(re.escape(path) + r"(@\d+)?(/|$)", "/".join(split_key(key)[0])):
                self._close(self._open.pop(key), event, "retried")
        self._mark(event, "undo", _error(event))

    def _undone(self, event: Event) -> None:
        keys = event.fields.get("undone")
        for key in keys if isinstance(keys, list) else ():
            if (bar := self._done.get(str(key))) is not None:
                self._recall(bar)
                bar.state, bar.last = "undone", event.seq


def position(bar: Bar) -> tuple[float, int, int]:
    """Where a bar stands among the others."""
    return bar.start, bar.depth, bar.seq


def _name(key: str) -> str:
    return safe(step_name(key))


def _error(event: Event) -> str:
    return short(event.error, MAX_TEXT_CHARS)
