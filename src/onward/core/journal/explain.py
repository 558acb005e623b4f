"""Explains why a task is in its state: one sentence, and since when and until when. Pure.

The sentence has no times and no commands: the code that shows it knows the clock of its reader, and what a reader can do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from onward.core import record as r
from onward.core.journal.open_waits import Open, OpenWaits, child_name, plain_key
from onward.core.record import Record
from onward.core.record import payload as payload_of
from onward.core.sealed import NO_KEY
from onward.core.task import Reason, State, Task
from onward.core.text import count, short
from onward.errors import BUDGET_OPTIONS

MAX_CHARS = 200
"""Characters of a sentence, and of each of its parts."""


class Explanation(NamedTuple):
    """Why a task is in its state."""

    text: str
    since: float | None = None
    until: float | None = None
    behind: int | None = None
    """How many tasks are before it in its queue, where it could be started now."""
    subject: str | None = None
    """The step, tool, signal, child or kind of budget that the sentence is about."""
    detail: str | None = None
    """What the sentence says beside the state, the reason and the subject."""
    more: int = 0
    """How many other waits are open."""


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
        return _ended(task)
    until = task.due_at if task.due_at is not None and math.isfinite(task.due_at) else None
    match task.reason:
        case Reason.RUNNING:
            return _running(task, records)
        case Reason.QUEUED:
            return _queued(task, facts)
        case Reason.RETRYING:
            return _retrying(task, records, facts, until)
        case Reason.PARKED | Reason.QUARANTINED:
            last = _last(records, {r.PARKED, r.QUARANTINED})
            detail = _payload(last).get("reason", "") if last else ""
            text = f"{task.reason}: {detail}" if detail else str(task.reason)
            return _explanation(text, last.at if last else None, detail=detail)
        case Reason.DELAYED:
            return _delayed(task, records, until)
        case Reason.CANCELLING:
            return Explanation("being cancelled: what it did is undone first", task.updated_at)
        case Reason.PAUSED:
            return Explanation("paused", task.updated_at)
    return _waiting(task, records, until)


def _explanation(
    text: str, since: float | None, until: float | None = None, *, subject: str = "", detail: str = "", more: int = 0
) -> Explanation:
    """An explanation whose strings are safe and short. An empty subject or detail counts as none."""
    others = f" (and {count(more, 'more wait')})" if more else ""
    return Explanation(
        short(text, MAX_CHARS) + others,
        since,
        until,
        subject=short(subject, MAX_CHARS) or None,
        detail=short(detail, MAX_CHARS) or None,
        more=more,
    )


def _ended(task: Task) -> Explanation:
    if not task.error:
        return _explanation(task.state.value, task.finished_at)
    subject, detail = _error_parts(task.error)
    return _explanation(_error(task.error), task.finished_at, subject=subject, detail=detail)


def _error_parts(error: Mapping[str, Any]) -> tuple[str, str]:
    """The step whose failure this error reports, and why that step failed; of another error, no step and the error itself."""
    step, cause = error.get("step"), error.get("cause")
    if isinstance(step, str) and isinstance(cause, dict):
        return plain_key(step), _error(cause)
    return "", _error(error)


def _error(error: Mapping[str, Any]) -> str:
    return f"{error.get('type')}: {error.get('message')}"


def _delayed(task: Task, records: Sequence[Record], until: float | None) -> Explanation:
    last = _last(records, {r.HANDED_BACK})
    if last is None or _payload(last).get("reason") != NO_KEY:
        return Explanation("not due yet", task.created_at, until)
    key = str(_payload(last).get("key", ""))
    return _explanation(f"no worker with the encryption key {key} took it", last.at, until, subject=key)


def _queued(task: Task, facts: QueueFacts) -> Explanation:
    detail = ""
    if facts.paused:
        detail = f"queue {task.queue} is paused"
    elif not facts.served:
        detail = f"no worker does {task.task} in queue {task.queue}"
    elif facts.behind == 0:
        detail = "next in its queue"
    return _explanation(detail or _place(facts), task.updated_at, detail=detail)._replace(behind=facts.behind)


def _place(facts: QueueFacts) -> str:
    if facts.behind is None:
        return "queued"
    if facts.behind >= facts.most:
        return f"behind {facts.most:,} others or more"
    return f"behind {count(facts.behind, 'other')}"


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
    detail = f"attempt {task.attempt}" if task.attempt > 1 else ""
    attempt = f", {detail}" if detail else ""
    if running:
        key, began = next(reversed(running.items()))
        step = plain_key(key)
        return _explanation(f"in step {step}{attempt}", began, subject=step, detail=detail)
    return _explanation(f"running{attempt}", since, detail=detail)


def _retrying(task: Task, records: Sequence[Record], facts: QueueFacts, until: float | None) -> Explanation:
    last = _last(records, {r.RETRY, r.STEP_RETRY})
    payload = _payload(last) if last else {}
    error = payload.get("error")
    step, cause = _error_parts(error) if isinstance(error, dict) else ("", "")
    if last is not None and last.kind == r.STEP_RETRY:
        step, attempt = plain_key(last.key), payload.get("attempt")
        retry = f"retry {attempt}" if isinstance(attempt, int) else "retry"
        text = f"step {step}, {retry}"
    else:
        # Retry 1 is the second attempt.
        of = f" of {facts.attempts - 1}" if facts.attempts else ""
        text = retry = f"retry {task.attempt - 1}{of}"
    if isinstance(error, dict):
        text, retry = f"{text}: {_error(error)}", f"{retry}: {cause}"
    return _explanation(text, last.at if last else None, until, subject=step, detail=retry)


def _waiting(task: Task, records: Sequence[Record], until: float | None) -> Explanation:
    waits = OpenWaits(task.task_id)
    for record in records:
        waits.read(record)
    open_ = waits.open
    matching = [wait for wait in open_ if wait.reason == task.reason] or open_
    if not matching:
        return _explanation(_WITHOUT_RECORDS.get(str(task.reason), str(task.reason).replace("_", " ")), None, until)
    first = min(matching, key=lambda wait: wait.seq) if len(matching) > 1 else matching[0]
    expires = first.payload.get("until")
    ends = float(expires) if isinstance(expires, int | float) else until
    text, subject, detail = _wait_parts(first)
    return _explanation(text, first.at or None, ends, subject=subject, detail=detail, more=len(open_) - 1)


def _wait_parts(wait: Open) -> tuple[str, str, str]:
    """The sentence about a wait, its subject and its detail."""
    match wait.kind:
        case r.APPROVAL:
            data = wait.payload.get("data")
            tool = data.get("tool") if isinstance(data, dict) else None
            if tool:
                return f"waits for approval of {tool}", str(tool), ""
            return f"waits for approval: {wait.text}", "", wait.text
        case r.QUESTION:
            return f"asks: {wait.text}", "", wait.text
        case r.SIGNAL:
            return f"waits for signal {wait.text}", wait.text, ""
        case r.LOCK_AWAITED:
            return f"waits for lock {wait.text}", str(wait.payload.get("lock", "")), ""
        case r.CHILD:
            name = child_name(wait.key)
            return f"waits for child {name}", name, ""
        case r.DOUBTED:
            step = plain_key(wait.key)
            return f"in doubt: {step}", step, ""
        case r.STEP_WAITS:
            text = f"waits for {wait.reason}: {wait.text}" if wait.text else f"waits for {wait.reason}"
            return text, *_lacking(wait)
        case _:
            return "asleep", "", ""


def _lacking(wait: Open) -> tuple[str, str]:
    """The kind of budget that a step waits for, and why it needs more; of a step that waits for another reason, only its detail."""
    lacking, detail, holder = (wait.payload.get(name) for name in ("lacking", "detail", "holder"))
    if not isinstance(lacking, str) or not isinstance(detail, str):
        return "", wait.text
    where = f", in the budget of task {holder}" if holder != wait.task_id else ""
    return BUDGET_OPTIONS.get(lacking, lacking), f"{detail}{where}"


_WITHOUT_RECORDS: dict[str, str] = {
    Reason.QUOTA: "waits for its limit",
    Reason.BUDGET: "waits for a budget",
    Reason.APPROVAL: "waits for an approval",
    Reason.QUESTION: "waits for an answer",
    Reason.SIGNAL: "waits for a signal",
    Reason.CHILD: "waits for a child",
    Reason.LOCK: "waits for a lock",
}


def _last(records: Sequence[Record], kinds: set[str]) -> Record | None:
    return next((record for record in reversed(records) if record.kind in kinds), None)


def _payload(record: Record) -> dict[str, Any]:
    value = payload_of(record)
    return value if isinstance(value, dict) else {}
