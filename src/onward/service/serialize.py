"""Tasks, asks and records as JSON: the same names as at every other door."""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.core import wire
from onward.core.audit import Entry
from onward.core.journal.explain import Explanation
from onward.core.journal.turns import OUTPUT
from onward.core.record import Record
from onward.core.record import payload as payload
from onward.core.task import Task
from onward.core.text import iso as iso
from onward.core.usage import Usage
from onward.errors import OnwardError
from onward.service.cluster import Queue, Stats, WorkerView
from onward.service.keys import Key
from onward.service.messages import Ask
from onward.service.schedules import Schedule
from onward.service.subscriptions import Delivery, Subscription
from onward.service.timeline import RecordView, Timeline, TurnView


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
        "partial": task.partial,
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
        "tenant": task.tenant,
        "worker": task.worker,
        "parent": task.parent,
        "usage": None if task.usage is None else usage_json(task.usage),
        **({} if task.in_flight is None else {"in_flight": task.in_flight}),
        **({"left_out": list(task.left_out)} if task.left_out else {}),
    }


def why_json(why: Explanation) -> dict[str, Any]:
    """Why a task is where it is, for programs."""
    return why._asdict() | {"since": iso(why.since), "until": iso(why.until)}


def usage_json(usage: Usage) -> dict[str, Any]:
    """What models took, for programs; null is unknown."""
    below = usage.with_children
    return {**usage.told(), "with_children": None if below is None else below.told()}


def queue_json(queue: Queue) -> dict[str, Any]:
    """A queue for programs."""
    return dataclasses.asdict(queue)


def worker_json(worker: WorkerView) -> dict[str, Any]:
    """A worker for programs."""
    told = dataclasses.asdict(worker) | {"queues": list(worker.queues), "handlers": list(worker.handlers)}
    return told | {"started_at": iso(worker.started_at), "alive": worker.alive}


def stats_json(stats: Stats) -> dict[str, Any]:
    """The numbers of the place for programs."""
    return dataclasses.asdict(stats)


def ask_json(ask: Ask) -> dict[str, Any]:
    """A question or an approval for programs."""
    return {
        "id": ask.id,
        "kind": ask.kind,
        "task_id": ask.task_id,
        "task": ask.task,
        "text": ask.text,
        "risk": ask.risk,
        "data": ask.data,
        "choices": list(ask.choices),
        "asked_at": iso(ask.asked_at),
        "expires_at": iso(ask.expires_at),
        "default": ask.default,
        "tool": ask.tool,
        "arguments": ask.arguments,
        "hash": ask.hash,
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


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """A waterfall for programs."""
    return {
        "task_id": timeline.task_id,
        "from": timeline.began,
        "until": timeline.ended,
        "seq": timeline.seq,
        "bars": [_fields(bar) for bar in timeline.bars],
        "marks": [_fields(mark) for mark in timeline.marks],
    }


def _fields(value: Any) -> dict[str, Any]:
    """What `dataclasses.asdict` gives for a flat one, in a tenth of the time."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


MOST = 256 * 1024
"""Bytes of a record, and of what goes with it, that are shown whole."""


def whole_record_json(view: RecordView) -> dict[str, Any]:
    """A record for programs, with what went in and what came out; cut where it is too long."""
    about: dict[str, Any] = {"input": view.input, "output": view.output, "error": view.error}
    told = {**record_json(view.record), **about}
    data = wire.encode([told["data"], about], "the record", most=1 << 40)
    kept = {"attempts": view.attempts, "effect_key": view.effect_key, "size": len(data)}
    if len(data) <= MOST:
        return {**told, **kept, "truncated": False, "text": None}
    begins = data[1:MOST].decode("utf-8", "ignore")
    gone = dict.fromkeys(("data", "input", "output", "error"))
    return {**told, **gone, **kept, "truncated": True, "text": begins}


def turn_json(turn: TurnView) -> dict[str, Any]:
    """A turn for programs."""
    return dataclasses.asdict(turn) | {"at": iso(turn.at), "tools": list(turn.tools)}


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule for programs."""
    return {
        "name": schedule.name,
        "task": schedule.task,
        "input": schedule.input,
        "cron": schedule.cron,
        "every": schedule.every,
        "timezone": schedule.timezone,
        "missed": schedule.missed,
        "queue": schedule.queue,
        "priority": schedule.priority,
        "deadline": schedule.deadline,
        "labels": schedule.labels,
        "next_at": iso(schedule.next_at),
        "upcoming": [iso(tick) for tick in schedule.upcoming],
        "last_at": iso(schedule.last_at),
        "paused": schedule.paused,
    }


def subscription_json(subscription: Subscription) -> dict[str, Any]:
    """A subscription for programs, without its secret."""
    return {
        "id": subscription.id,
        "types": list(subscription.types),
        "tenant": subscription.tenant,
        "sink": subscription.sink,
        "created_at": iso(subscription.created_at),
        "offered_at": iso(subscription.offered_at),
        "disabled": subscription.disabled,
        "dropped": subscription.dropped,
    }


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """A delivery for programs."""
    return {
        "id": delivery.id,
        "subscription": delivery.subscription,
        "task_id": delivery.task_id,
        "seq": delivery.seq,
        "type": delivery.type,
        "state": delivery.state,
        "sink": delivery.sink,
        "attempts": delivery.attempts,
        "said": delivery.said,
        "at": iso(delivery.at),
        "due_at": iso(delivery.due_at),
        "done_at": iso(delivery.done_at),
        "sending": delivery.sending,
    }


def key_json(key: Key) -> dict[str, Any]:
    """A key for programs: all but the key itself."""
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": list(key.scopes),
        "agent": key.agent,
        "created_at": iso(key.created_at),
        "expires_at": iso(key.expires_at),
        "revoked_at": iso(key.revoked_at),
        "last_used_at": iso(key.last_used_at),
        "valid": key.valid,
    }


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry of the audit for programs. `at` is a number here, as it was sealed: with it the hash can be made anew."""
    return {**entry._asdict(), "data": wire.decode(entry.data)}


def error_json(error: OnwardError) -> dict[str, Any]:
    """An error for programs."""
    known = {name: getattr(error, name) for name in ("task_id", "retry_after", "candidates") if hasattr(error, name)}
    return {"error": {"code": error.code, "message": str(error), **known}}


def of_agent(result: Any) -> str:
    """What a step of an agent came to, in a few words: its record holds names of messages, which tell a person nothing. Empty
    for any other step; `onward show ID --turn N` has the messages."""
    if not isinstance(result, dict) or not isinstance(size := result.get("bytes"), int) or "id" not in result:
        return ""
    if "asked" not in result:
        return f"{size:,} bytes for the model" if result.keys() <= OUTPUT else ""
    usage = found if isinstance(found := result.get("usage"), dict) else {}
    counts = [(usage.get(name), word) for name, word in (("input", "tokens in"), ("output", "out"))]
    told = [f"turn {result.get('turn')}", *(f"{n:,} {word}" for n, word in counts if isinstance(n, int))]
    cost = result.get("cost")
    return ", ".join([*told, f"${cost:,.4f}"] if isinstance(cost, int | float) else told)
