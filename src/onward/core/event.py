"""Events: records that subscribers receive. An event is one record of one task, and its type is the kind of that record.

Some types are aliases for records of other kinds, for subscriptions that name them: `tool.executed` is a `step.completed` of a tool call
of an agent, `agent.error` is any record of a final failure, `approval.voted` is a `message.received` with a vote.
"""

from __future__ import annotations

import dataclasses
import datetime
import urllib.parse
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from onward.core import approval, wire
from onward.core import record as r
from onward.core.journal.turns import is_output
from onward.core.record import Record
from onward.errors import InvalidInput, UsageError

KINDS: Final = frozenset(
    value
    for name, value in vars(r).items()
    if name.isupper() and isinstance(value, str) and (("." in value) or name == "PROGRESS")
)
"""All kinds of records. Each is a type of event."""

ALIASES: Final[dict[str, frozenset[str]]] = {
    "task.started": frozenset({r.SHIFT}),
    "tool.executed": frozenset({r.STEP_DONE}),
    "agent.error": frozenset({r.FAILED, r.PARKED, r.QUARANTINED, r.STEP_FAILED}),
    "approval.voted": frozenset({r.MESSAGE}),
}
"""Types that stand for several kinds of records, or for a part of the records of a kind."""

ENDINGS: Final = (r.COMPLETED, r.FAILED, r.CANCELLED, r.RESUMED)
"""The events for a webhook that a submit names: the ends of its task, and that an ended task was resumed."""

PREFIX: Final = "dev.onward."
BODY_LIMIT: Final = 20_000
"""Bytes of an event on the wire: many receivers refuse larger ones."""

_STATES = {r.COMPLETED: "completed", r.FAILED: "failed", r.CANCELLED: "cancelled"}
_MAX_FIELD = 2_000
"""Bytes of a field that a cut event still has, and characters of a cut string."""


class Origin(NamedTuple):
    """Facts about the task of an event, beside the record."""

    task: str
    created_at: float
    key: str | None = None
    labels: dict[str, str] | None = None
    first: bool = True
    """Whether the task has no earlier record of this kind."""
    trace: dict[str, str] | None = None
    """The trace that was submitted with the task."""
    epoch: str = ""
    """The name of the epoch in which the record was written: `e` and the beginning of its id. Empty before the first restore."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A record of a task, for subscribers. `id` is the same however often the event is sent."""

    id: str
    type: str
    task_id: str
    task: str
    seq: int
    at: float
    data: dict[str, Any]


def known_types(types: Iterable[str]) -> tuple[str, ...]:
    """The types of a subscription: kinds of records, aliases, `task.*` and the like, or `*`. Raises UsageError for others."""
    given = (types,) if isinstance(types, str) else tuple(types)
    for type_ in given:
        if not isinstance(type_, str) or not _kinds_of(type_):
            known = ", ".join(sorted(KINDS | ALIASES.keys()))
            raise UsageError(
                f"there are no events of type {type_!r:.80}; there are *, task.* and the like, and {known}"
            )
    if not given:
        raise UsageError("name at least one type of event, such as task.completed, task.* or *")
    return given


def _kinds_of(type_: str) -> frozenset[str]:
    if type_ == "*":
        return KINDS
    if type_.endswith(".*"):
        return frozenset(kind for kind in KINDS if kind.startswith(type_[:-1]))
    return ALIASES.get(type_) or frozenset({type_} & KINDS)


def kinds(types: Iterable[str]) -> str:
    """The kinds of records of these types, in the form that the store searches: between bars, or a star."""
    given = tuple(types)
    if "*" in given:
        return "*"
    return "|" + "|".join(sorted(frozenset().union(*map(_kinds_of, given)))) + "|"


def busy(kinds_: str) -> bool:
    """Whether these kinds (see `kinds`) have frequent ones: others than changes of the state of a task."""
    return kinds_ == "*" or any(not _is_rare(kind) for kind in kinds_.strip("|").split("|"))


def _is_rare(kind: str) -> bool:
    return kind.startswith("task.") and kind != r.SUBMITTED


def type_of(types: Iterable[str], record: Record, *, first: bool) -> str | None:
    """The type of a record for a subscription to these types; None when the record is of none of them."""
    given = tuple(types)
    if any(type_ not in ALIASES and record.kind in _kinds_of(type_) for type_ in given):
        return record.kind
    for type_ in given:
        if record.kind in ALIASES.get(type_, ()) and _matches_alias(type_, record, first):
            return type_
    return None


def _matches_alias(alias: str, record: Record, first: bool) -> bool:
    if alias == "task.started":
        return first
    if alias == "approval.voted":
        return _payload(record).get("kind") == approval.VOTE
    return alias != "tool.executed" or is_output(_payload(record).get("result"))


def _payload(record: Record) -> dict[str, Any]:
    try:
        value = record.value
    except InvalidInput:
        return {}
    return value if isinstance(value, dict) else {"value": value}


def event(task_id: str, record: Record, kind: str, origin: Origin) -> Event:
    """The event of a record, of this type."""
    payload = _payload(record)
    if record.kind == r.STEP_DONE and is_output(payload.get("result")):
        payload["tool"] = record.key.rpartition("]")[2]
    if record.kind in _STATES:
        payload = {
            "state": _STATES[record.kind],
            "result": payload.get("result"),
            "error": payload.get("error"),
            "key": origin.key,
            "labels": origin.labels or {},
            "created_at": moment(origin.created_at),
            "finished_at": moment(record.at),
        }
    elif record.key:
        payload["step"] = record.key
    if record.kind == r.APPROVAL and "what" in payload:
        approval_id = f"{task_id}.{record.seq}"
        payload |= {"approval_id": approval_id, "digest": approval.digest(approval_id, origin.task, payload)}
    if kind == "approval.voted":
        payload = {**payload["value"], "approval_id": f"{task_id}.{payload['name']}"}
    data = payload | {"task_id": task_id, "task": origin.task}
    # After a restore the same number is another record: a receiver must not take the two for one.
    event_id = f"{task_id}.{record.seq}.{origin.epoch}" if origin.epoch else f"{task_id}.{record.seq}"
    return Event(event_id, kind, task_id, origin.task, record.seq, record.at, data)


def body(event: Event, limit: int = BODY_LIMIT) -> bytes:
    """The event as CloudEvents 1.0 in JSON. Fields that are too large are left out, and `truncated` says so: the task has them."""
    whole = wire.encode(_cloud(event, event.data), "an event")
    if len(whole) <= limit:
        return whole
    approval_id = event.data.get("approval_id") if event.type == r.APPROVAL else None
    kept = {
        "task_id": event.task_id,
        "task": _cut(event.task),
        "truncated": True,
        "path": f"/api/tasks/{event.task_id}" if approval_id is None else f"/api/approvals/{approval_id}",
    }
    small = {
        name: value for name, value in event.data.items() if len(wire.encode(value)) <= _MAX_FIELD and name not in kept
    }
    if isinstance(error := event.data.get("error"), dict) and "error" not in small:
        small["error"] = {name: _cut(value) for name, value in error.items() if name in {"type", "message"}}
    least = (
        {"state": event.data.get("state")}
        if approval_id is None
        else {"approval_id": approval_id, "digest": event.data["digest"]}
    )
    for data in (small, least):
        encoded = wire.encode(_cloud(event, data | kept), "an event")
        if len(encoded) <= limit:
            break
    return encoded


def _cut(value: Any) -> Any:
    return value[:_MAX_FIELD] if isinstance(value, str) else None


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
