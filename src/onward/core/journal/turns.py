"""Turns of an agent in its journal: the record of each question to the model. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.record import Record, payload

_MODEL = re.compile(r"(^|\])model(#\d+)?$")
"""The keys of steps in which a model is asked."""

OUTPUT = frozenset({"id", "bytes", "artifacts", "brief", "patch"})
"""What the record of a tool's output may hold."""


def model_call(record: Record) -> dict[str, Any] | None:
    """What a model call recorded; empty where that was dropped, None for any other record."""
    if record.kind != r.STEP_DONE:
        return None
    if record.dropped:
        return {} if asks_a_model(record.key) else None
    said = payload(record)
    result = said.get("result") if isinstance(said, dict) else None
    return result if is_call(result) else None


def asks_a_model(key: str) -> bool:
    """Whether a step of this key is one in which an agent asks its model."""
    return _MODEL.search(key) is not None


def is_call(result: Any) -> bool:
    """Whether the result of a step is that of a question to a model."""
    return isinstance(result, dict) and {"turn", "asked", "id"} <= result.keys()


def is_output(result: Any) -> bool:
    """Whether the result of a step of an agent is the output of a tool."""
    return isinstance(result, dict) and {"id", "bytes"} <= result.keys() and result.keys() <= OUTPUT


def asked_in(records: Iterable[Record]) -> dict[int, tuple[Record, dict[str, Any]]]:
    """The turns of a journal whose records are whole, by number: the record of each, and what it says."""
    found = [(record, said) for record in records if not record.dropped and (said := model_call(record)) is not None]
    return {said["turn"]: (record, said) for record, said in found}


def none_such(task_id: str, records: Iterable[Record], number: int) -> str:
    """Why there is no turn of this number, in a sentence."""
    records = list(records)
    asked = asked_in(records)
    dropped = max((record.dropped for record in records if model_call(record) is not None), default=0)
    if dropped and number < min(asked, default=number + 1):
        return f"turn {number} of task {task_id} was dropped: checkpoint {dropped} stands for it"
    count = f"{max(asked)} turns" if asked else "no turns: it is no agent, or its model was not asked yet"
    return f"task {task_id} has {count}; there is no turn {number}"


def named_in(said: dict[str, Any]) -> list[str]:
    """The contents that make up a turn: what the model saw, in order, and last what it said."""
    return [said["asked"]["system"], *said["asked"]["shown"], said["id"]]


def spoken(said: dict[str, Any], kept: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The same as messages."""
    return [wire.decode(kept[name]) if name in kept else {"role": "?", "content": "(gone)"} for name in named_in(said)]
