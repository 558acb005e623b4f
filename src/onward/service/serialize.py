"""JSON of tasks, records and views, as HTTP, MCP and the command line write it.

Most views become JSON by their fields alone (`core/view_json.py`). Here are those whose JSON differs from that.
"""

from __future__ import annotations

from typing import Any

from onward.core import wire
from onward.core.audit import Entry
from onward.core.journal.explain import Explanation
from onward.core.journal.turns import OUTPUT
from onward.core.record import Record
from onward.core.record import payload as payload
from onward.core.sealed import ERASED
from onward.core.task import Task
from onward.core.text import iso as iso
from onward.core.usage import Usage
from onward.core.view_json import to_json
from onward.core.views import RecordView, Subscription, Timeline
from onward.errors import OnwardError

queue_json = worker_json = stats_json = ask_json = schedule_json = turn_json = delivery_json = key_json = to_json
"""Names that the command line has for `to_json`."""


ERASED_VALUE = {"erased": True}
"""Stands in a record for data that was erased."""


def task_json(task: Task) -> dict[str, Any]:
    """A task. `in_flight`, `left_out` and `erased` are there only where they are set."""
    document = to_json(task)
    del document["by"]
    if task.usage is not None:
        document["usage"] = usage_json(task.usage)
    if task.in_flight is None:
        del document["in_flight"]
    if not task.left_out:
        del document["left_out"]
    if not task.erased:
        del document["erased"]
    return document


def usage_json(usage: Usage) -> dict[str, Any]:
    """The usage of models, alone and with all tasks below; null is unknown."""
    below = usage.with_children
    return {**usage.to_json(), "with_children": None if below is None else below.to_json()}


def why_json(why: Explanation) -> dict[str, Any]:
    """Why a task is in its state."""
    return why._asdict() | {"since": iso(why.since), "until": iso(why.until)}


def subscription_json(subscription: Subscription) -> dict[str, Any]:
    """A subscription, without its secret."""
    document = to_json(subscription)
    del document["secret"], document["task_id"]
    return document


def record_json(record: Record) -> dict[str, Any]:
    """A record, with its payload as JSON."""
    return {
        "seq": record.seq,
        "kind": record.kind,
        "key": record.key,
        "shift": record.shift,
        "at": iso(record.at),
        "data": ERASED_VALUE if record.data == ERASED else payload(record),
    }


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """A waterfall. Its times are seconds since 1970, for programs that draw it."""
    return {
        "task_id": timeline.task_id,
        "from": timeline.began,
        "until": timeline.ended,
        "seq": timeline.seq,
        "bars": [to_json(bar) for bar in timeline.bars],
        "marks": [to_json(mark) for mark in timeline.marks],
        "more": timeline.more,
    }


MAX_RECORD_BYTES = 256 * 1024
"""Bytes of a record, with its input and output, that are shown whole."""


def whole_record_json(view: RecordView) -> dict[str, Any]:
    """A record with its input and output; cut where it is too long."""
    about: dict[str, Any] = {"input": view.input, "output": view.output, "error": view.error}
    document = {**record_json(view.record), **about}
    data = wire.encode([document["data"], about], "the record", most=1 << 40)
    document |= {"attempts": view.attempts, "effect_key": view.effect_key, "size": len(data)}
    if len(data) <= MAX_RECORD_BYTES:
        return {**document, "truncated": False, "text": None}
    start = data[1:MAX_RECORD_BYTES].decode("utf-8", "ignore")
    left_out = dict.fromkeys(("data", "input", "output", "error"))
    return {**document, **left_out, "truncated": True, "text": start}


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry of the audit log. `at` is a number here: the hash was made of it, and can be made again."""
    return {**entry._asdict(), "data": wire.decode(entry.data)}


def error_json(error: OnwardError) -> dict[str, Any]:
    """An error."""
    known = {name: getattr(error, name) for name in ("task_id", "retry_after", "candidates") if hasattr(error, name)}
    return {"error": {"code": error.code, "message": str(error), **known}}


def of_agent(result: Any) -> str:
    """The result of a step of an agent in a few words, because its record has only ids of messages. Empty for any other step.
    `onward show ID --turn N` has the messages."""
    if not isinstance(result, dict) or not isinstance(size := result.get("bytes"), int) or "id" not in result:
        return ""
    if "asked" not in result:
        return f"{size:,} bytes for the model" if result.keys() <= OUTPUT else ""
    usage = value if isinstance(value := result.get("usage"), dict) else {}
    counts = [(usage.get(name), unit) for name, unit in (("input", "tokens in"), ("output", "out"))]
    words = [f"turn {result.get('turn')}", *(f"{n:,} {unit}" for n, unit in counts if isinstance(n, int))]
    cost = result.get("cost")
    return ", ".join([*words, f"${cost:,.4f}"] if isinstance(cost, int | float) else words)
