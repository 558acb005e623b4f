"""A journal as a waterfall: bars with a beginning and an end, and marks between them. Pure.

A bar is identified by its kind and the number of the record that began it (`seq`). `last` is the number of the last record about it, so that
a reader that has the journal up to a number asks for the bars with a higher one. `parent` is the number of the shift or the turn that
contains it; a turn has the number of the model call with which it begins. Times are seconds since 1970.

The waterfall shows no end that the journal does not have: a step that died with its worker ends at the last record before that.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

from onward.core import record as r
from onward.core.journal.cuts import SUBMIT
from onward.core.journal.open_waits import child_name, plain_key, question, split_key
from onward.core.journal.turns import asks_a_model, is_call, is_output
from onward.core.record import Record, payload
from onward.core.task import SAID
from onward.core.text import safe, short

MAX_TEXT_CHARS = 200
"""Characters of the text of a bar or a mark."""

KILLED = "the worker was killed or lost its lease"

OPEN = frozenset({"running", "waiting", "in_doubt"})
_NUMBER = re.compile(r"#\d+$")


@dataclasses.dataclass(slots=True)
class Bar:
    """Something that takes time."""

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
    """When it is to end, where that is known: the end of a sleep, of the pause before another attempt, of the time for an answer."""
    text: str = ""
    """What it is about, or its outcome, in a few words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """Something that takes no time: crash, resume, cancel, deadline, parked, quarantined, pressure, forked, checkpoint, version,
    artifact, message, undo, or the end of the task."""

    kind: str
    at: float
    seq: int
    text: str = ""


Payload = dict[str, Any]


class Waterfall:
    """Reads a journal, record by record; `bars` and `marks` are those after the last record read."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []
        self.marks: list[Point] = []
        self.began: float | None = None
        self.ended: float | None = None
        self.seq = 0
        self._at = 0.0
        self._open: dict[str, Bar] = {}
        """Running steps and open waits, by their keys."""
        self._done: dict[str, Bar] = {}
        """Completed steps, which may be undone, by their keys."""
        self._children: dict[str, Bar] = {}
        self._queue: Bar | None = None
        self._shift: Bar | None = None
        self._turn: Bar | None = None
        self._turn_before: Bar | None = None
        self._decisions: dict[int, str] = {}
        self._readers: dict[str, Callable[[Record, Payload], None]] = {
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
            r.SLEPT: self._waited,
            r.WAITED: self._waited,
            r.MESSAGE: self._message,
            r.UNDOING: self._undoing,
            r.UNDONE: self._undone,
            r.VERSION: lambda record, _: self._mark(record, "version", plain_key(record.key)),
            r.CHECKPOINT: lambda record, payload: self._mark(record, "checkpoint", str(payload.get("number", ""))),
            r.ARTIFACT: lambda record, payload: self._mark(
                record, "artifact", payload.get("summary") or payload.get("type")
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

    def read(self, record: Record) -> None:
        """Read the next record."""
        self.began = record.at if self.began is None else self.began
        self.seq = record.seq
        reader = self._readers.get(record.kind)
        if reader is not None:
            value = payload(record)
            reader(record, value if isinstance(value, dict) else {})
        self._at = max(self._at, record.at)

    def children(self) -> Iterable[str]:
        """Children whose end is not in the journal."""
        return [child for child, bar in self._children.items() if bar.state in OPEN]

    def child_ended(self, child: str, state: str, at: float | None) -> None:
        """Set the end of a child that is not in the journal."""
        bar = self._children[child]
        bar.state, bar.end = ("ok" if state == "completed" else "failed"), at

    # ── bars and marks ───────────────────────────────────────────────────────────────────────────────────────────

    def _bar(self, record: Record, kind: str, name: str, state: str, **more: Any) -> Bar:
        start = more.pop("start", record.at)
        inside = self._turn or self._shift
        deep = 0 if inside is None else inside.depth + 1
        depth = deep + len(split_key(record.key)[0])
        parent = None if inside is None else inside.seq
        bar = Bar(
            kind, short(name, MAX_TEXT_CHARS), record.seq, record.seq, start, None, state, 1, parent, depth, **more
        )
        self.bars.append(bar)
        return bar

    def _close(self, bar: Bar, record: Record, state: str, at: float | None = None) -> None:
        bar.end = max(bar.start, record.at if at is None else at)
        bar.state, bar.last = state, record.seq

    def _mark(self, record: Record, kind: str, text: object = "") -> None:
        self.marks.append(Point(kind, record.at, record.seq, short(text or "", MAX_TEXT_CHARS)))

    # ── shifts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _queued(self, record: Record, _: Payload) -> None:
        if self._queue is None:
            self._queue = Bar("queue", "", record.seq, record.seq, record.at, None, "waiting")
            self.bars.append(self._queue)

    def _shift_started(self, record: Record, payload: Payload) -> None:
        if self._shift is not None:
            self._mark(record, "crash", KILLED)
            self._over(record, "killed", self._at)
        if self._queue is not None:
            self._close(self._queue, record, "ok")
            self._queue = None
        worker = str(payload.get("worker", ""))
        self._shift = Bar("shift", safe(worker[-8:]), record.seq, record.seq, record.at, None, "running")
        self.bars.append(self._shift)

    def _over(self, record: Record, state: str, at: float | None = None) -> None:
        """End the shift, and the steps that ran in it. Waits stay open, and a turn goes on in the next shift."""
        for key, bar in list(self._open.items()):
            if bar.state == "running":
                self._close(self._open.pop(key), record, "retried" if state == "ok" else state, at)
                bar.text = KILLED if state == "killed" else bar.text
        if self._shift is not None:
            self._close(self._shift, record, state, at)
            self._shift = None

    def _close_turn(self, record: Record, at: float | None = None) -> None:
        """Close the open turn; or correct the end of the last one, when it was earlier than assumed."""
        turn = self._turn or self._turn_before
        if turn is not None and (self._turn is not None or (at is not None and turn.end is not None and at < turn.end)):
            self._close(turn, record, "ok", at)
        self._turn, self._turn_before = None, turn

    def _handed_back(self, record: Record, payload: Payload) -> None:
        self._over(record, "ok")
        if payload.get("reason") == "handed back":
            self._queued(record, payload)

    def _forked(self, record: Record, payload: Payload) -> None:
        self._over(record, "ok")
        self._mark(record, "forked", f"from {payload.get('from')}, records 1 to {payload.get('at')}")
        self._queued(record, payload)

    def _resumed(self, record: Record, payload: Payload) -> None:
        self._over(record, "ok")
        self.ended = None
        self._mark(record, "resume")
        self._queued(record, payload)

    def _retry(self, record: Record, payload: Payload) -> None:
        self._over(record, "failed")
        bar = self._bar(record, "retry", "", "waiting", text=_error(payload), until=_moment(payload.get("due_at")))
        bar.attempt = _whole(payload.get("attempt"))
        self._queue = bar

    def _stopped(self, record: Record, payload: Payload) -> None:
        """Parked, quarantined, or late."""
        self._over(record, "failed")
        self._mark(record, record.kind.partition(".")[0 if record.kind == r.DEADLINE else 2], payload.get("reason"))

    def _cancelling(self, record: Record, _: Payload) -> None:
        self._over(record, "ok")
        self._mark(record, "cancel")

    def _end(self, record: Record, payload: Payload) -> None:
        state = "ok" if record.kind == r.COMPLETED else "failed"
        self._over(record, state)
        self._close_turn(record)
        for bar in (*self._open.values(), *([self._queue] if self._queue is not None else [])):
            self._close(bar, record, bar.state if bar.state == "in_doubt" else state)
        self._open.clear()
        self._queue, self.ended = None, record.at
        self._mark(record, record.kind.partition(".")[2], _error(payload))

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step_started(self, record: Record, _: Payload) -> None:
        open_bar = self._open.get(record.key)
        if open_bar is not None and open_bar.state == "running":
            open_bar.last = record.seq
            return
        attempt = 1 if open_bar is None else self._resumed_step(open_bar, record, record.at)
        if (kind := self._kind(record.key, None)) == "model":
            self._close_turn(record)  # or this turn would contain the next one
        bar = self._bar(record, kind, _name(record.key), "running")
        bar.attempt = attempt
        self._open[record.key] = bar

    def _resumed_step(self, bar: Bar, record: Record, at: float) -> int:
        """End the pause, the wait or the doubt of a step; the number of the attempt that begins."""
        doubted = bar.state == "in_doubt"
        over = at if bar.until is None or bar.kind != "retry" else min(bar.until, record.at)
        self._close(bar, record, "retried" if doubted else "ok", over)
        return bar.attempt + (bar.kind == "retry" or doubted)

    def _kind(self, key: str, result: Any) -> str:
        parts, _ = split_key(key)
        if parts and parts[-1] == "undo":
            return "undo"
        if is_call(result) or asks_a_model(key):
            return "model"
        return "tool" if is_output(result) and self._turn is not None else "step"

    def _finished(self, record: Record, payload: Payload, state: str) -> Bar:
        """The bar of a step that has ended: the open one, or a new one with the duration in the record."""
        result, took = payload.get("result"), payload.get("ms")
        bar, attempt, earliest = self._open.pop(record.key, None), 1, 0.0
        if bar is not None and bar.state == "waiting":
            attempt = self._resumed_step(bar, record, record.at - _seconds(took))
            earliest, bar = bar.end or 0.0, None
        kind = self._kind(record.key, result)
        if kind == "model":
            self._close_turn(record, record.at - _seconds(took))
        if bar is None:
            start = max(record.at - _seconds(took), earliest)
            bar = self._bar(record, kind, _name(record.key), state, start=start)
            bar.attempt = attempt
        else:
            # The record of the start of a step comes a moment late; the record of its end has the exact duration.
            began = max(record.at - _seconds(took), self._shift.start if self._shift is not None else bar.start)
            bar.kind, bar.start = kind, min(bar.start, began)
        self._close(bar, record, state)
        return bar

    def _step_done(self, record: Record, payload: Payload) -> None:
        result, (_, name) = payload.get("result"), split_key(record.key)
        if name.startswith(SUBMIT) and isinstance(result, str):
            self._child(record, result, _NUMBER.sub("", name.removeprefix(SUBMIT)), payload)
            return
        bar = self._finished(record, payload, "ok")
        bar.attempt = max(bar.attempt, _whole(payload.get("attempts", 1)))
        self._done[record.key] = bar
        if bar.kind == "model":
            self._turn_begins(record, bar, result if isinstance(result, dict) else {})

    def _turn_begins(self, record: Record, bar: Bar, result: Payload) -> None:
        number = result.get("turn")
        depth, parent = bar.depth, bar.parent
        self._turn = Bar("turn", "" if number is None else str(number), bar.seq, record.seq, bar.start, None, "running")
        self._turn.depth, self._turn.parent = depth, parent
        bar.depth, bar.parent = depth + 1, bar.seq
        asked = result.get("asked")
        bar.text = safe(asked.get("model", "")) if isinstance(asked, dict) else ""
        self.bars.append(self._turn)
        if result.get("pressed"):
            self._mark(record, "pressure", "the budget is nearly gone")

    def _step_failed(self, record: Record, payload: Payload) -> None:
        bar = self._finished(record, payload, "failed")
        error = payload.get("error")
        bar.attempt = max(bar.attempt, _whole(error.get("attempts", 1)) if isinstance(error, dict) else 1)
        bar.text = _error(payload)

    def _step_retry(self, record: Record, payload: Payload) -> None:
        failed = self._finished(record, payload, "retried")
        failed.attempt, failed.text = _whole(payload.get("attempt", 1)), _error(payload)
        pause = self._bar(record, "retry", _name(record.key), "waiting")
        pause.attempt, pause.until = failed.attempt, _moment(payload.get("due_at"))
        self._open[record.key] = pause

    def _doubted(self, record: Record, payload: Payload) -> None:
        step = str(payload.get("step", ""))
        bar = self._open.get(step)
        if bar is not None:
            bar.state, bar.last, bar.text = "in_doubt", record.seq, short(payload.get("reason", ""), MAX_TEXT_CHARS)
        self._over(record, "ok")

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _waits(self, record: Record, payload: Payload) -> None:
        kind, name, text = {
            r.SLEEP: ("sleep", "", ""),
            r.SIGNAL: ("wait", payload.get("signal", ""), ""),
            r.QUESTION: ("question", "", question(payload.get("question", ""), payload.get("choices"))),
            r.APPROVAL: ("approval", _tool(payload), payload.get("what", "")),
        }.get(record.kind, ("wait", payload.get("reason", ""), payload.get("why", "")))
        open_bar = self._open.pop(record.key, None)
        if open_bar is not None and open_bar.state in OPEN:
            self._close(open_bar, record, "ok" if open_bar.state == "waiting" else "retried")
        until = _moment(payload.get("until", payload.get("due_at")))
        self._open[record.key] = self._bar(
            record, kind, str(name), "waiting", text=short(text, MAX_TEXT_CHARS), until=until
        )

    def _waited(self, record: Record, payload: Payload) -> None:
        bar = self._open.pop(record.key, None)
        if bar is None:
            return
        late = payload.get("expired") is True
        state = self._decisions.get(bar.seq, "denied" if bar.kind == "approval" else "failed") if late else "ok"
        self._close(bar, record, self._decisions.get(bar.seq, state))

    def _message(self, record: Record, payload: Payload) -> None:
        value, name, ref = payload.get("value"), str(payload.get("name", "")), payload.get("ref")
        about = value if isinstance(value, dict) else {}
        match payload.get("kind"):
            case "child" if name in self._children:
                bar = self._children[name]
                self._close(bar, record, "ok" if about.get("state") == "completed" else "failed")
                bar.text = _error(about)
            case "decision" if isinstance(ref, int):
                self._decisions[ref] = "denied" if about.get("decision") == "deny" else "ok"
                who = f" by {about['by']}" if about.get("by") else ""
                self._mark(record, "message", f"{'denied' if self._decisions[ref] == 'denied' else 'approved'}{who}")
            case "resolve":
                self._mark(record, "message", f"resolved: {name}")
            case "signal":
                self._mark(record, "message", f"signal {name}")
            case "answer":
                self._mark(record, "message", "answered")
            case word if word == SAID:
                self._mark(record, "message", value if isinstance(value, str) else "")

    def _child(self, record: Record, child: str, name: str, payload: Payload) -> None:
        bar = self._bar(record, "child", name, "running", start=record.at - _seconds(payload.get("ms")))
        bar.child_id = safe(child)
        self._children[child] = bar

    def _child_awaited(self, record: Record, payload: Payload) -> None:
        child = str(payload.get("child", ""))
        bar = self._children.get(child)
        if bar is None:
            bar = self._bar(record, "child", child_name(record.key), "waiting")
            bar.child_id = safe(child)
            self._children[child] = bar
        elif bar.state == "running":
            bar.state, bar.last = "waiting", record.seq

    # ── sagas ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _undoing(self, record: Record, payload: Payload) -> None:
        parts, name = split_key(record.key)
        path = "/".join([*parts, name])
        for key in list(self._open):  # waits inside of the saga are over
            if re.match(re.escape(path) + r"(@\d+)?(/|$)", "/".join(split_key(key)[0])):
                self._close(self._open.pop(key), record, "retried")
        self._mark(record, "undo", _error(payload))

    def _undone(self, record: Record, payload: Payload) -> None:
        keys = payload.get("undone")
        for key in keys if isinstance(keys, list) else ():
            if (bar := self._done.get(str(key))) is not None:
                bar.state, bar.last = "undone", record.seq


def _name(key: str) -> str:
    return safe(_NUMBER.sub("", split_key(key)[1]))


def _tool(payload: Payload) -> str:
    data = payload.get("data")
    return str(data.get("tool", "")) if isinstance(data, dict) else ""


def _error(payload: Payload) -> str:
    error = payload.get("error")
    return (
        short(f"{error.get('type', 'Error')}: {error.get('message', '')}", MAX_TEXT_CHARS)
        if isinstance(error, dict)
        else ""
    )


def _seconds(ms: object) -> float:
    return ms / 1000 if isinstance(ms, int | float) else 0.0


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 1


def _moment(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
