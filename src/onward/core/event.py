"""Events: records that others want to hear of. An event is one record of one task, and its type is the kind of that record.

Two words stand for records of other kinds, and are the type where they were asked for: `tool.executed` is a `step.completed` that
was a call of a tool by an agent, `agent.error` is whatever tells that something went wrong for good.
"""

from __future__ import annotations

import dataclasses
import datetime
import urllib.parse
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from onward.core import record as r
from onward.core import wire
from onward.core.record import Record
from onward.errors import InvalidInput, UsageError

KINDS: Final = frozenset(
    value
    for name, value in vars(r).items()
    if name.isupper() and isinstance(value, str) and (("." in value) or name == "PROGRESS")
)
"""Every kind of record there is: each is a type of event."""

ALIASES: Final[dict[str, frozenset[str]]] = {
    "task.started": frozenset({r.SHIFT}),
    "tool.executed": frozenset({r.STEP_DONE}),
    "agent.error": frozenset({r.FAILED, r.PARKED, r.QUARANTINED, r.STEP_FAILED}),
}
"""Types that are a part of some kinds, or several of them."""

ENDINGS: Final = (r.COMPLETED, r.FAILED, r.CANCELLED, r.RESUMED)
"""What a webhook that is given at submit hears of: the ends of its task, and that an end was none."""

PREFIX: Final = "dev.onward."
BODY_LIMIT: Final = 20_000
"""Bytes of an event on its way out: larger ones are refused by many receivers."""

_STATES = {r.COMPLETED: "completed", r.FAILED: "failed", r.CANCELLED: "cancelled"}
_OUTPUT = {"id", "bytes", "artifacts", "brief", "patch"}
_WORDS = 2_000


class Origin(NamedTuple):
    """What an event tells of its task beside the record."""

    task: str
    created_at: float
    key: str | None = None
    labels: dict[str, str] | None = None
    first: bool = True
    """Whether no record of this kind came before."""
    trace: dict[str, str] | None = None
    """The trace that came with the task."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a task. `id` is the same however often it is told."""

    id: str
    type: str
    task_id: str
    task: str
    seq: int
    at: float
    data: dict[str, Any]


def known_types(types: Iterable[str]) -> tuple[str, ...]:
    """Types as a subscription may name them: kinds of records, `task.*` and the like, or `*`. Raises UsageError."""
    given = (types,) if isinstance(types, str) else tuple(types)
    for one in given:
        if not isinstance(one, str) or not _kinds_of(one):
            near = ", ".join(sorted(KINDS | ALIASES.keys()))
            raise UsageError(f"there are no events of type {one!r:.80}; there are *, task.* and the like, and {near}")
    if not given:
        raise UsageError("name at least one type of event, such as task.completed, task.* or *")
    return given


def _kinds_of(one: str) -> frozenset[str]:
    if one == "*":
        return KINDS
    if one.endswith(".*"):
        return frozenset(kind for kind in KINDS if kind.startswith(one[:-1]))
    return ALIASES.get(one) or frozenset({one} & KINDS)


def kinds(types: Iterable[str]) -> str:
    """The kinds of records of these types, as the store looks for them: between bars, or a star."""
    given = tuple(types)
    if "*" in given:
        return "*"
    return "|" + "|".join(sorted(frozenset().union(*map(_kinds_of, given)))) + "|"


def busy(found: str) -> bool:
    """Whether these kinds come often: more than what becomes of tasks."""
    return found == "*" or any(not _calm(kind) for kind in found.strip("|").split("|"))


def _calm(kind: str) -> bool:
    return kind.startswith("task.") and kind != r.SUBMITTED


def type_of(types: Iterable[str], record: Record, *, first: bool) -> str | None:
    """Under which type somebody who asked for these hears of a record; None when it is not one of them after all."""
    given = tuple(types)
    if any(one not in ALIASES and record.kind in _kinds_of(one) for one in given):
        return record.kind
    for one in given:
        if record.kind in ALIASES.get(one, ()) and _really(one, record, first):
            return one
    return None


def _really(alias: str, record: Record, first: bool) -> bool:
    if alias == "task.started":
        return first
    return alias != "tool.executed" or of_tool(_said(record).get("result"))


def of_tool(result: Any) -> bool:
    """Whether this is what the record of a tool's call holds."""
    return isinstance(result, dict) and {"id", "bytes"} <= result.keys() <= _OUTPUT


def _said(record: Record) -> dict[str, Any]:
    try:
        value = record.value
    except InvalidInput:
        return {}
    return value if isinstance(value, dict) else {"value": value}


def event(task_id: str, record: Record, kind: str, origin: Origin) -> Event:
    """A record as an event of this type."""
    said = _said(record)
    if record.kind == r.STEP_DONE and of_tool(said.get("result")):
        said["tool"] = record.key.rpartition("]")[2]
    if record.kind in _STATES:
        said = {
            "state": _STATES[record.kind],
            "result": said.get("result"),
            "error": said.get("error"),
            "key": origin.key,
            "labels": origin.labels or {},
            "created_at": moment(origin.created_at),
            "finished_at": moment(record.at),
        }
    elif record.key:
        said["step"] = record.key
    data = said | {"task_id": task_id, "task": origin.task}
    return Event(f"{task_id}.{record.seq}", kind, task_id, origin.task, record.seq, record.at, data)


def body(event: Event, limit: int = BODY_LIMIT) -> bytes:
    """CloudEvents 1.0 in JSON. What would be too large is left out, and said to be: the task has it."""
    whole = wire.encode(_cloud(event, event.data), "an event")
    if len(whole) <= limit:
        return whole
    kept = {
        "task_id": event.task_id,
        "task": _cut(event.task),
        "truncated": True,
        "path": f"/api/tasks/{event.task_id}",
    }
    small = {
        name: value for name, value in event.data.items() if len(wire.encode(value)) <= _WORDS and name not in kept
    }
    if isinstance(error := event.data.get("error"), dict) and "error" not in small:
        small["error"] = {name: _cut(value) for name, value in error.items() if name in {"type", "message"}}
    for said in (small, {"state": event.data.get("state")}):
        told = wire.encode(_cloud(event, said | kept), "an event")
        if len(told) <= limit:
            break
    return told


def _cut(value: Any) -> Any:
    return value[:_WORDS] if isinstance(value, str) else None


def _cloud(event: Event, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": f"/onward/{urllib.parse.quote(event.task, safe='')}",
        "type": PREFIX + event.type,
        "subject": event.task_id,
        "time": moment(event.at),
        "datacontenttype": "application/json",
        "sequence": str(event.seq),
        "sequencetype": "Integer",
        "data": data,
    }


def moment(at: float) -> str:
    """A time in ISO 8601, UTC."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
