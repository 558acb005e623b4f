"""The open waits of a journal, and its effects in doubt. Pure.

Each of them has the command that a person would type about it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from onward.core import record as r
from onward.core.record import payload
from onward.core.task import Reason
from onward.core.text import clock, iso, safe
from onward.errors import BUDGET_OPTIONS

WAITS = frozenset({r.SLEEP, r.SIGNAL, r.QUESTION, r.APPROVAL, r.CHILD, r.LOCK_AWAITED, r.STEP_WAITS})
_ORDER = {
    r.DOUBTED: 0,
    r.APPROVAL: 1,
    r.QUESTION: 2,
    r.STEP_WAITS: 3,
    r.SIGNAL: 4,
    r.LOCK_AWAITED: 5,
    r.CHILD: 6,
    r.SLEEP: 7,
}
_REASONS = {
    r.DOUBTED: Reason.IN_DOUBT,
    r.APPROVAL: Reason.APPROVAL,
    r.QUESTION: Reason.QUESTION,
    r.SIGNAL: Reason.SIGNAL,
    r.CHILD: Reason.CHILD,
    r.LOCK_AWAITED: Reason.LOCK,
    r.SLEEP: Reason.ASLEEP,
}
_NUMBER = re.compile(r"#\d+$")


@dataclasses.dataclass(frozen=True, slots=True)
class Open:
    """An open wait, or an effect in doubt."""

    task_id: str
    seq: int
    kind: str
    key: str
    payload: dict[str, Any]
    at: float = 0.0
    """The time since which it is open."""

    @property
    def reason(self) -> str:
        """The reason that a task with this wait has."""
        return str(self.payload.get("reason", "")) if self.kind == r.STEP_WAITS else _REASONS[self.kind].value

    @property
    def id(self) -> str:
        """The id of a question or an approval."""
        return f"{self.task_id}.{self.seq}"

    @property
    def text(self) -> str:
        """What it waits for, in words."""
        match self.kind:
            case r.APPROVAL:
                return str(self.payload.get("what", ""))
            case r.QUESTION:
                return question(self.payload.get("question", ""), self.payload.get("choices"))
            case r.SIGNAL:
                return str(self.payload.get("signal", ""))
            case r.LOCK_AWAITED:
                holder = self.payload.get("holder")
                return str(self.payload.get("lock", "")) + (f", held by {holder}" if holder else "")
            case r.CHILD:
                return f"{child_name(self.key)} {self.payload.get('child', '')}".strip()
            case r.STEP_WAITS:
                return str(self.payload.get("why", ""))
            case r.DOUBTED:
                return f"whether {plain_key(self.key)} happened ({self.payload.get('reason', '')})"
            case _:
                until = self.payload.get("until")
                return f"until {clock(until)}" if isinstance(until, int | float) else ""

    @property
    def words(self) -> str:
        """One line for people."""
        name = "in doubt" if self.kind == r.DOUBTED else self.reason
        joint = " " if self.kind in {r.DOUBTED, r.SLEEP, r.CHILD, r.SIGNAL, r.LOCK_AWAITED} else ": "
        return safe(f"{name}{joint}{self.text}")

    @property
    def command(self) -> str:
        """The command that a person would type about it; empty where a person can only wait."""
        task = self.task_id[-8:]
        match self.kind:
            case r.APPROVAL:
                return f"onward approve {task}.{self.seq}"
            case r.QUESTION:
                return f"onward answer {task}.{self.seq} TEXT"
            case r.SIGNAL:
                return f"onward signal {task} {_quoted(self.text)}"
            case r.CHILD:
                return f"onward show {safe(self.payload.get('child', ''))[-8:]}"
            case r.LOCK_AWAITED:
                return "onward locks"
            case r.DOUBTED:
                return f"onward resolve {task}"
            case r.STEP_WAITS if self.reason == Reason.BUDGET:
                holder, lacking = (
                    str(self.payload.get("holder", self.task_id)),
                    str(self.payload.get("lacking", "steps")),
                )
                enough = self.payload.get("enough")
                limit = f"{enough:.10g}" if isinstance(enough, int | float) else "N"
                return f"onward budget {safe(holder)[-8:]} --{safe(BUDGET_OPTIONS.get(lacking, lacking))} {limit}"
            case _:
                return ""

    def json(self) -> dict[str, Any]:
        """The wait as JSON."""
        until = self.payload.get("until")
        document: dict[str, Any] = {"reason": self.reason, "text": self.text, "key": self.key, "command": self.command}
        if self.kind in {r.APPROVAL, r.QUESTION}:
            document["id"] = self.id
        if self.kind == r.CHILD:
            document["child"] = self.payload.get("child")
        if isinstance(until, int | float):
            document["until"] = iso(until)
        return document


class OpenWaits:
    """Reads a journal, record by record; `open` has what is open after the last record read."""

    def __init__(self, task_id: str = "") -> None:
        self._task_id = task_id
        self.waits: dict[str, Open] = {}
        """Open waits, by their keys."""
        self._doubts: dict[str, Open] = {}
        self._announced: dict[str, int] = {}
        self._unsettled: dict[str, None] = {}
        self.sagas: set[str] = set()
        """Open sagas, by their keys."""

    @property
    def open(self) -> list[Open]:
        """All open waits and doubts, those that need a person first."""
        all_open = [*self._doubts.values(), *self.waits.values()]
        return sorted(all_open, key=lambda wait: (_ORDER[wait.kind], wait.seq))

    @property
    def unsettled(self) -> list[str]:
        """Effects that were announced and whose end is not in the journal."""
        return list(self._unsettled)

    def announced(self, seq: object) -> str:
        """The step that was announced in the record of this number."""
        return next((key for key, number in self._announced.items() if number == seq), "")

    def command(self, key: str) -> str:
        """The command that a person would type about the open wait of this key."""
        wait = self.waits.get(key) or self._doubts.get(key)
        return wait.command if wait and wait.task_id else ""

    def read(self, record: r.Record) -> None:
        """Read the next record."""
        key, value = record.key, payload(record)
        fields = value if isinstance(value, dict) else {}
        if record.kind in WAITS:
            self.waits[key] = Open(self._task_id, record.seq, record.kind, key, fields, record.at)
            if record.kind == r.STEP_WAITS:  # the step could not begin, so its effect did not happen
                self._unsettled.pop(key, None)
        elif record.kind in {r.SLEPT, r.WAITED, r.LOCK_TAKEN, r.LOCK_LEFT}:
            self.waits.pop(key, None)
        elif record.kind == r.ANNOUNCED:
            self._announced[key], self._unsettled[key] = record.seq, None
            self._doubts.pop(key, None)
        elif record.kind == r.DOUBTED and isinstance(fields.get("step"), str):
            step = fields["step"]
            self._doubts[step] = Open(self._task_id, self._announced.get(step, 0), r.DOUBTED, step, fields, record.at)
        elif record.kind in {r.STEP_DONE, r.STEP_FAILED, r.STEP_RETRY}:
            self.waits.pop(key, None)
            self._doubts.pop(key, None)
            self._unsettled.pop(key, None)
        elif record.kind == r.MESSAGE and fields.get("kind") == "resolve":
            self._doubts.pop(self.announced(fields.get("ref")), None)
        elif record.kind in r.ENDS or record.kind == r.CANCEL:
            self.waits.clear()  # an effect in doubt stays in doubt, and a person can still resolve it
        elif record.kind == r.FORKED:
            self.waits.clear()
            self._doubts.clear()
            self._unsettled.clear()
        else:
            self._saga(record)

    def _saga(self, record: r.Record) -> None:
        if record.kind == r.SAGA:
            self.sagas.add(record.key)
        elif record.kind in {r.SAGA_DONE, r.UNDONE}:
            self.sagas.discard(record.key)
        elif record.kind == r.UNDOING:
            parts, name = split_key(record.key)
            self._drop("/".join([*parts, name]))

    def _drop(self, path: str) -> None:
        """Drop the waits inside of a saga that is being undone, of all its rounds."""
        inside = re.compile(re.escape(path) + r"(@\d+)?(/|$)")
        self.waits = {key: wait for key, wait in self.waits.items() if not inside.match("/".join(split_key(key)[0]))}


def question(text: object, choices: object) -> str:
    """A question, with its choices."""
    some = [str(choice) for choice in choices] if isinstance(choices, list | tuple) else []
    return f"{text} ({', '.join(some)})" if some else str(text)


def child_name(key: str) -> str:
    """The handler of a child, from the key of a wait for it."""
    return _NUMBER.sub("", split_key(key)[1]).removeprefix("child ")


def split_key(key: str) -> tuple[list[str], str]:
    """The parts of a key's path, and its name."""
    if not key.startswith("[") or "]" not in key:
        return [], key
    path, _, name = key[1:].partition("]")
    return path.split("/"), name


def plain_key(key: str) -> str:
    """A key for a sentence: `charge`, `undo charge`, `[1] charge` in the second branch of a gather."""
    parts, name = split_key(key)
    branches = [part.rpartition(".")[2] for part in parts if "." in part]
    label = f"[{'.'.join(branches)}] " if branches else ""
    undo = "undo " if parts and parts[-1] == "undo" else ""
    return safe(f"{label}{undo}{name}")


def placed_key(key: str) -> str:
    """A key for a line of a timeline, indented."""
    return indent(key) + plain_key(key)


def indent(key: str) -> str:
    """The indentation for the depth of a key's path."""
    return "  " * len(split_key(key)[0])


def _quoted(name: str) -> str:
    """A name, quoted for a shell."""
    text = safe(name)
    return text if re.fullmatch(r"[\w.:@%+=-]+", text, re.ASCII) else "'" + text.replace("'", "'\\''") + "'"
