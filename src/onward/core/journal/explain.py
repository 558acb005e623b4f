"""Explains why a task is in its state: one sentence, and since when and until when. Pure.

The sentence has no times and no commands: the code that shows it knows the clock of its reader, and what a reader can do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from onward.core import record as r
from onward.core.journal.open_waits import Open, OpenWaits, child_name, plain_key
from onward.core.record import Record
from onward.core.record import payload as payload_of
from onward.core.task import Reason, State, Task
from onward.core.text import count, short

MAX_CHARS = 200
"""Characters of a sentence."""


class Explanation(NamedTuple):
    """Why a task is in its state."""

    text: str
    since: float | None = None
    until: float | None = None
    behind: int | None = None
    """How many tasks are before it in its queue, where it could be started now."""


class QueueFacts(NamedTuple):
    """Facts about the queue and the handler of a task."""

    behind: int | None = None
    most: int = 1000
    """The highest number that `behind` was counted to."""
    paused: bool = False
    served: bool = True
    attempts: int | None = None
    """How often the handler tries a task."""


def why(task: Task, records: Sequence[Record], facts: QueueFacts) -> Explanation:
    """Explain a task. `records` are the last of its journal; those of its waits have their payload."""
    if task.state is State.COMPLETED:
        return Explanation("", task.finished_at)
    if task.ended:
        error = task.error or {}
        text = f"{error.get('type')}: {error.get('message')}" if error else task.state.value
        return Explanation(short(text, MAX_CHARS), task.finished_at)
    until = task.due_at if task.due_at is not None and math.isfinite(task.due_at) else None
    match task.reason:
        case Reason.RUNNING:
            return _running(task, records)
        case Reason.QUEUED:
            return Explanation(_queued(task, facts), task.updated_at, None, facts.behind)
        case Reason.RETRYING:
            return _retrying(task, records, facts, until)
        case Reason.PARKED | Reason.QUARANTINED:
            last = _last(records, {r.PARKED, r.QUARANTINED})
            detail = _payload(last).get("reason", "") if last else ""
            return Explanation(
                short(f"{task.reason}: {detail}" if detail else task.reason, MAX_CHARS), last.at if last else None
            )
        case Reason.DELAYED:
            return Explanation("not due yet", task.created_at, until)
        case Reason.CANCELLING:
            return Explanation("being cancelled: what it did is undone first", task.updated_at)
        case Reason.PAUSED:
            return Explanation("paused", task.updated_at)
    return _waiting(task, records, until)


def _queued(task: Task, facts: QueueFacts) -> str:
    if facts.paused:
        return f"queue {task.queue} is paused"
    if not facts.served:
        return f"no worker does {task.task} in queue {task.queue}"
    if facts.behind is None:
        return "queued"
    if facts.behind >= facts.most:
        return f"behind {facts.most:,} others or more"
    return "next in its queue" if facts.behind == 0 else f"behind {count(facts.behind, 'other')}"


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
        return Explanation(short(f"in step {plain_key(key)}{attempt}", MAX_CHARS), began)
    return Explanation(f"running{attempt}", since)


def _retrying(task: Task, records: Sequence[Record], facts: QueueFacts, until: float | None) -> Explanation:
    last = _last(records, {r.RETRY, r.STEP_RETRY})
    payload = _payload(last) if last else {}
    error = payload.get("error")
    detail = f": {error.get('type')}: {error.get('message')}" if isinstance(error, dict) else ""
    if last is not None and last.kind == r.STEP_RETRY:
        attempt = payload.get("attempt")
        text = f"step {plain_key(last.key)}, retry {attempt if isinstance(attempt, int) else ''}".rstrip()
    else:
        # Retry 1 is the second attempt.
        of = f" of {facts.attempts - 1}" if facts.attempts else ""
        text = f"retry {task.attempt - 1}{of}"
    return Explanation(short(text + detail, MAX_CHARS), last.at if last else None, until)


def _waiting(task: Task, records: Sequence[Record], until: float | None) -> Explanation:
    waits = OpenWaits(task.task_id)
    for record in records:
        waits.read(record)
    open_ = waits.open
    matching = [wait for wait in open_ if wait.reason == task.reason] or open_
    if not matching:
        return Explanation(_WITHOUT_RECORDS.get(str(task.reason), str(task.reason).replace("_", " ")), None, until)
    first = min(matching, key=lambda wait: wait.seq) if len(matching) > 1 else matching[0]
    more = f" (and {count(len(open_) - 1, 'more wait')})" if len(open_) > 1 else ""
    expires = first.payload.get("until")
    ends = float(expires) if isinstance(expires, int | float) else until
    return Explanation(short(_sentence(first), MAX_CHARS) + more, first.at or None, ends)


def _sentence(wait: Open) -> str:
    match wait.kind:
        case r.APPROVAL:
            data = wait.payload.get("data")
            tool = data.get("tool") if isinstance(data, dict) else None
            return f"waits for approval of {tool}" if tool else f"waits for approval: {wait.text}"
        case r.QUESTION:
            return f"asks: {wait.text}"
        case r.SIGNAL:
            return f"waits for signal {wait.text}"
        case r.CHILD:
            return f"waits for child {child_name(wait.key)}"
        case r.DOUBTED:
            return f"in doubt: {plain_key(wait.key)}"
        case r.STEP_WAITS:
            return f"waits for {wait.reason}: {wait.text}" if wait.text else f"waits for {wait.reason}"
        case _:
            return "asleep"


_WITHOUT_RECORDS: dict[str, str] = {
    Reason.QUOTA: "waits for its limit",
    Reason.BUDGET: "waits for a budget",
    Reason.APPROVAL: "waits for an approval",
    Reason.QUESTION: "waits for an answer",
    Reason.SIGNAL: "waits for a signal",
    Reason.CHILD: "waits for a child",
}


def _last(records: Sequence[Record], kinds: set[str]) -> Record | None:
    return next((record for record in reversed(records) if record.kind in kinds), None)


def _payload(record: Record) -> dict[str, Any]:
    value = payload_of(record)
    return value if isinstance(value, dict) else {}
