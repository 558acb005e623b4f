"""Tasks and records as JSON: the same names as at every other door."""

from __future__ import annotations

from typing import Any

from onward.cli.text import iso
from onward.core.record import Record
from onward.core.task import Task
from onward.errors import OnwardError


def task_json(task: Task) -> dict[str, Any]:
    """A task for programs."""
    return {
        "task_id": task.task_id,
        "task": task.task,
        "state": task.state.value,
        "reason": task.reason,
        "input": task.input,
        "result": task.result,
        "error": task.error,
        "priority": task.priority,
        "queue": task.queue,
        "attempt": task.attempt,
        "created_at": iso(task.created_at),
        "updated_at": iso(task.updated_at),
        "finished_at": iso(task.finished_at),
        "deadline_at": iso(task.deadline_at),
        "due_at": iso(task.due_at),
        "key": task.key,
        "labels": task.labels,
        "group": task.group,
        "worker": task.worker,
    }


def record_json(record: Record) -> dict[str, Any]:
    """A record for programs."""
    return {
        "seq": record.seq,
        "kind": record.kind,
        "key": record.key,
        "shift": record.shift,
        "at": iso(record.at),
        "data": payload(record),
    }


def payload(record: Record) -> Any:
    """What a record says; nothing when this version cannot read it."""
    try:
        return record.value
    except (OnwardError, ValueError):
        return None


def error_json(error: OnwardError) -> dict[str, Any]:
    """An error for programs."""
    known = {name: getattr(error, name) for name in ("task_id", "retry_after") if hasattr(error, name)}
    return {"error": {"code": error.code, "message": str(error), **known}}
