"""Why a task is where it is: one sentence, and since when and until when. Pure.

The sentence has no times in it, and no commands: who shows it knows the clock of its reader, and what a reader can do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from onward.core import record as r
from onward.core.journal.open_waits import Open, OpenWaits, child_name, plain_key
from onward.core.record import Record, payload
from onward.core.task import Reason, State, Task
from onward.core.text import count, short

TEXT = 200


class Explanation(NamedTuple):
    """Why a task is where it is."""

    text: str
    since: float | None = None
    until: float | None = None
    behind: int | None = None
    """How many stand before it, where it could be started now."""


class QueueFacts(NamedTuple):
    """What is known beside the task and its journal."""

    behind: int | None = None
    most: int = 1000
    """What `behind` was counted up to."""
    paused: bool = False
    served: bool = True
    attempts: int | None = None
    """How often the handler tries a task."""


def why(task: Task, records: Sequence[Record], around: QueueFacts) -> Explanation:
    """The sentence. `records` are the last of its journal; those of what it waits for have their data."""
    if task.state is State.COMPLETED:
        return Explanation("", task.finished_at)
    if task.ended:
        error = task.error or {}
        told = f"{error.get('type')}: {error.get('message')}" if error else task.state.value
        return Explanation(short(told, TEXT), task.finished_at)
    until = task.due_at if task.due_at is not None and math.isfinite(task.due_at) else None
    match task.reason:
        case Reason.RUNNING:
            return _running(task, records)
        case Reason.QUEUED:
            return Explanation(_queued(task, around), task.updated_at, None, around.behind)
        case Reason.RETRYING:
            return _retrying(task, records, around, until)
        case Reason.PARKED | Reason.QUARANTINED:
            last = _last(records, {r.PARKED, r.QUARANTINED})
            detail = _said(last).get("reason", "") if last else ""
            return Explanation(
                short(f"{task.reason}: {detail}" if detail else task.reason, TEXT), last.at if last else None
            )
        case Reason.DELAYED:
            return Explanation("not due yet", task.created_at, until)
        case Reason.CANCELLING:
            return Explanation("being cancelled: what it did is undone first", task.updated_at)
        case Reason.PAUSED:
            return Explanation("paused", task.updated_at)
    return _waiting(task, records, until)


def _queued(task: Task, around: QueueFacts) -> str:
    if around.paused:
        return f"queue {task.queue} is paused"
    if not around.served:
        return f"no worker does {task.task} in queue {task.queue}"
    if around.behind is None:
        return "queued"
    if around.behind >= around.most:
        return f"behind {around.most:,} others or more"
    return "next in its queue" if around.behind == 0 else f"behind {count(around.behind, 'other')}"


def _running(task: Task, records: Iterable[Record]) -> Explanation:
    running: dict[str, float] = {}
    since = None
    for record in records:
        if record.kind == r.SHIFT:
            running.clear()
            since = record.at
        elif record.kind in {r.STEP_STARTED, r.ANNOUNCED}:
            running[record.key] = record.at
        elif record.kind in {r.STEP_DONE, r.STEP_FAILED, r.STEP_RETRY, r.STEP_WAITS}:
            running.pop(record.key, None)
    attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
    if running:
        key, began = next(reversed(running.items()))
        return Explanation(short(f"in step {plain_key(key)}{attempt}", TEXT), began)
    return Explanation(f"running{attempt}", since)


def _retrying(task: Task, records: Sequence[Record], around: QueueFacts, until: float | None) -> Explanation:
    last = _last(records, {r.RETRY, r.STEP_RETRY})
    said = _said(last) if last else {}
    error = said.get("error")
    detail = f": {error.get('type')}: {error.get('message')}" if isinstance(error, dict) else ""
    if last is not None and last.kind == r.STEP_RETRY:
        attempt = said.get("attempt")
        text = f"step {plain_key(last.key)}, retry {attempt if isinstance(attempt, int) else ''}".rstrip()
    else:
        # Retry 1 is the second attempt.
        of = f" of {around.attempts - 1}" if around.attempts else ""
        text = f"retry {task.attempt - 1}{of}"
    return Explanation(short(text + detail, TEXT), last.at if last else None, until)


def _waiting(task: Task, records: Sequence[Record], until: float | None) -> Explanation:
    standing = OpenWaits(task.task_id)
    for record in records:
        standing.read(record)
    found = standing.open
    fitting = [one for one in found if one.reason == task.reason] or found
    if not fitting:
        return Explanation(_PLAIN.get(str(task.reason), str(task.reason).replace("_", " ")), None, until)
    first = min(fitting, key=lambda one: one.seq) if len(fitting) > 1 else fitting[0]
    more = f" (and {count(len(found) - 1, 'more wait')})" if len(found) > 1 else ""
    expires = first.said.get("until")
    ends = float(expires) if isinstance(expires, int | float) else until
    return Explanation(short(_sentence(first), TEXT) + more, first.at or None, ends)


def _sentence(one: Open) -> str:
    match one.kind:
        case r.APPROVAL:
            data = one.said.get("data")
            tool = data.get("tool") if isinstance(data, dict) else None
            return f"waits for approval of {tool}" if tool else f"waits for approval: {one.text}"
        case r.QUESTION:
            return f"asks: {one.text}"
        case r.SIGNAL:
            return f"waits for signal {one.text}"
        case r.CHILD:
            return f"waits for child {child_name(one.key)}"
        case r.DOUBTED:
            return f"in doubt: {plain_key(one.key)}"
        case r.STEP_WAITS:
            return f"waits for {one.reason}: {one.text}" if one.text else f"waits for {one.reason}"
        case _:
            return "asleep"


_PLAIN: dict[str, str] = {
    Reason.QUOTA: "waits for its limit",
    Reason.BUDGET: "waits for a budget",
    Reason.APPROVAL: "waits for an approval",
    Reason.QUESTION: "waits for an answer",
    Reason.SIGNAL: "waits for a signal",
    Reason.CHILD: "waits for a child",
}


def _last(records: Sequence[Record], kinds: set[str]) -> Record | None:
    return next((record for record in reversed(records) if record.kind in kinds), None)


def _said(record: Record) -> dict[str, Any]:
    value = payload(record)
    return value if isinstance(value, dict) else {}
