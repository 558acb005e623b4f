"""Reads a journal record by record, for everything that shows it: lines, trees, waterfalls, progress. Pure.

An event is a record with its payload decoded. The reader adds what a single record does not say: a `shift.started` or a
`task.resumed` while a shift is open means that the worker of that shift was killed or lost its lease. The journal has no record of
that.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from onward.core import record as r
from onward.core.journal.open_waits import split_key
from onward.core.record import Record
from onward.core.task import HEARS, Reason

SHIFT_ENDS: Final = frozenset(
    {
        *(r.FORKED, r.HANDED_BACK, r.DOUBTED, r.RETRY, r.PARKED, r.QUARANTINED, r.CANCEL, r.DEADLINE),
        *r.ENDS,
    }
)
"""Records after which no shift is open."""

SHOWN_BEFORE: Final = HEARS | {Reason.ASLEEP, Reason.RETRYING, Reason.QUOTA}
"""Reasons for the end of a shift that the record before it has shown already."""

MAX_COUNT: Final = 2**53
"""The largest whole number that every JSON reader keeps exact."""

_REPEAT = re.compile(r"#\d+$")


class Event(NamedTuple):
    """A record and its payload."""

    record: Record
    fields: dict[str, Any]
    """The payload; empty if it is no object or this version cannot read it."""
    interrupted: tuple[str, ...] | None = None
    """The steps that ran when the shift before this record broke off; None if it did not break off."""

    @property
    def kind(self) -> str:
        return self.record.kind

    @property
    def key(self) -> str:
        return self.record.key

    @property
    def seq(self) -> int:
        return self.record.seq

    @property
    def at(self) -> float:
        return self.record.at

    @property
    def error(self) -> str:
        """The type and message of the error that the record holds; empty if there is none."""
        return error_words(self.fields)

    @property
    def result(self) -> Any:
        return self.fields.get("result")

    @property
    def took_s(self) -> float | None:
        """How long the step took."""
        took = self.time("ms")
        return None if took is None else took / 1000

    def time(self, name: str) -> float | None:
        """A field that holds a time or a duration."""
        value = self.fields.get(name)
        return float(value) if isinstance(value, int | float) else None

    def count(self, name: str) -> int:
        """A field that holds a count; 0 if it holds anything else."""
        return as_count(self.fields.get(name))

    def attempt(self, name: str = "attempt") -> int:
        """A field that holds the number of an attempt; 1 if it is missing."""
        value = self.fields.get(name, 1)
        return value if isinstance(value, int) else 1

    def string(self, name: str) -> str:
        """A field as a string: JSON if it holds another value, empty if it is missing."""
        return as_string(self.fields.get(name))

    def object(self, name: str) -> dict[str, Any]:
        """A field that holds an object; empty if it holds anything else."""
        value = self.fields.get(name)
        return value if isinstance(value, dict) else {}


class JournalReader:
    """Reads the records of one task in order, and keeps track of its shifts and running steps."""

    def __init__(self) -> None:
        self.began: float | None = None
        """The time of the first record."""
        self.last_at: float = 0.0
        """The latest time of all records before the one that was read last."""
        self.seq: int = 0
        """The number of the last record."""
        self.shifts: int = 0
        self.steps: int = 0
        """Steps that were completed."""
        self.running: dict[str, float] = {}
        """Steps that run now, by their keys, with the times of their starts."""
        self._shift_open = False
        self._at = 0.0

    def read(self, record: Record) -> Event:
        """Read one more record."""
        self.began = record.at if self.began is None else self.began
        self.last_at, self._at = self._at, max(self._at, record.at)
        self.seq = record.seq
        interrupted = None
        if record.kind in {r.SHIFT, r.RESUMED}:
            if self._shift_open:
                interrupted = tuple(self.running)
                self.running.clear()
            self._shift_open = record.kind == r.SHIFT
            self.shifts += self._shift_open
        elif record.kind in SHIFT_ENDS:
            self._shift_open = False
            self.running.clear()
        elif record.kind in {r.STEP_STARTED, r.ANNOUNCED}:
            self.running.setdefault(record.key, record.at)
        elif record.kind in {r.STEP_DONE, r.STEP_FAILED, r.STEP_WAITS}:
            self.running.pop(record.key, None)
            self.steps += record.kind == r.STEP_DONE
        return Event(record, fields(record), interrupted)


def fields(record: Record) -> dict[str, Any]:
    """The payload of a record; empty if it is no object or this version cannot read it."""
    try:
        value = record.value
    except Exception:  # written by a later version, or damaged: the record still has its number and its kind
        return {}
    return value if isinstance(value, dict) else {}


# ── words that several readers share ─────────────────────────────────────────────────────────────────────────────────


def step_name(key: str) -> str:
    """The name of a step without its place in the handler and without its number among steps of that name."""
    return _REPEAT.sub("", split_key(key)[1])


def error_words(fields: dict[str, Any]) -> str:
    """The type and message of the error in a payload; empty if there is none."""
    error = fields.get("error")
    if not isinstance(error, dict):
        return ""
    return f"{as_string(error.get('type')) or 'Error'}: {as_string(error.get('message'))}"


def model_words(result: dict[str, Any]) -> str:
    """The number of a turn and the tokens of its model call."""
    usage = value if isinstance(value := result.get("usage"), dict) else {}
    counts = [(usage.get(name), words) for name, words in (("input", "tokens in"), ("output", "out"))]
    tokens = [f"{n:,} {words}" for n, words in counts if isinstance(n, int)]
    return ", ".join([f"turn {as_count(result.get('turn'))}", *tokens])


def decision_words(decision: dict[str, Any]) -> str:
    """Whether a person approved or denied, and who."""
    verb = {"approve": "approved", "deny": "denied"}.get(as_string(decision.get("decision")), "decided")
    return f"{verb} by {decision['by']}" if decision.get("by") else verb


def message_words(event: Event) -> str:
    """What a message to the task was."""
    value = event.object("value")
    match event.fields.get("kind"):
        case "signal":
            return f"received signal {event.string('name')}"
        case "answer":
            return "received an answer"
        case "decision":
            return decision_words(value)
        case "vote":
            return f"a vote: {decision_words(value)}"
        case "lock":
            return f"lock {event.string('name')} may be free"
        case "expired":
            return "the time for an answer is up"
        case "child":
            return f"child {event.string('name')} {as_string(value.get('state')) or 'ended'}"
        case kind:
            return f"received {as_string(kind) or 'a message'}"


def undone_keys(fields: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The steps that were undone, and those that were not, with the word for each list."""
    lists = [(words, fields.get(name)) for name, words in (("undone", "undone"), ("not_undone", "NOT undone"))]
    return [(words, [as_string(key) for key in keys]) for words, keys in lists if isinstance(keys, list) and keys]


def as_count(value: Any) -> int:
    """The value if it is a count that JSON keeps exact, else 0."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else 0


def as_string(value: Any) -> str:
    """A value for a sentence: a string as it is, None as an empty one, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(_beginning(value), ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "…"


def _beginning(value: Any) -> Any:
    """The first items of a large value: a sentence shows no more."""
    if isinstance(value, dict) and len(value) > 20:
        return {key: value[key] for key in list(value)[:20]}
    return value[:50] if isinstance(value, list) and len(value) > 50 else value
