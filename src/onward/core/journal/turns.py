"""Turns of an agent in its journal: the records of its model calls. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.record import Record, payload

_MODEL = re.compile(r"(^|\])model(#\d+)?$")
"""The keys of steps that call a model."""

OUTPUT = frozenset({"id", "bytes", "artifacts", "brief", "output", "patch"})
"""The fields of the result of a tool call."""


def model_call(record: Record) -> dict[str, Any] | None:
    """The result of a model call; empty where it was dropped, None for any other record."""
    if record.kind != r.STEP_DONE:
        return None
    if record.dropped:
        return {} if asks_a_model(record.key) else None
    value = payload(record)
    result = value.get("result") if isinstance(value, dict) else None
    return result if is_call(result) else None


def asks_a_model(key: str) -> bool:
    """Whether the step of this key is a model call of an agent."""
    return _MODEL.search(key) is not None


def is_call(result: Any) -> bool:
    """Whether the result of a step is that of a model call."""
    return isinstance(result, dict) and {"turn", "asked", "id"} <= result.keys()


def is_output(result: Any) -> bool:
    """Whether the result of a step of an agent is that of a tool call."""
    return isinstance(result, dict) and {"id", "bytes"} <= result.keys() and result.keys() <= OUTPUT


def calls_in(records: Iterable[Record]) -> dict[int, tuple[Record, dict[str, Any]]]:
    """The model calls of a journal that were not dropped, by the number of the turn: the record of each, and its result."""
    calls = [(record, call) for record in records if not record.dropped and (call := model_call(record)) is not None]
    return {call["turn"]: (record, call) for record, call in calls}


def missing_turn(task_id: str, records: Iterable[Record], number: int) -> str:
    """The sentence that says why there is no turn of this number."""
    records = list(records)
    calls = calls_in(records)
    dropped = max((record.dropped for record in records if model_call(record) is not None), default=0)
    if dropped and number < min(calls, default=number + 1):
        return f"turn {number} of task {task_id} was dropped: checkpoint {dropped} stands for it"
    count = f"{max(calls)} turns" if calls else "no turns: it is no agent, or its model was not asked yet"
    return f"task {task_id} has {count}; there is no turn {number}"


def content_ids(call: dict[str, Any]) -> list[str]:
    """The ids of the messages of a model call: those that the model got, in order, and last its reply."""
    return [call["asked"]["system"], *call["asked"]["shown"], call["id"]]


def messages_of(call: dict[str, Any], contents: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The messages of a model call: those that the model got, in order, and last its reply."""
    return [
        wire.decode(contents[name]) if name in contents else {"role": "?", "content": "(gone)"}
        for name in content_ids(call)
    ]
